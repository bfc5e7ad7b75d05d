//! [`Panic`]: what a request's work panicked with.

use std::any::Any;
use std::fmt;

use crate::error::Error;

/// The message of a panic.
#[derive(Debug)]
pub struct Panic(String);

impl From<Box<dyn Any + Send>> for Panic {
    fn from(panic: Box<dyn Any + Send>) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Panic(text.unwrap_or_else(|| "without a message".to_owned()))
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panic: {}", self.0)
    }
}

impl From<Panic> for Error {
    fn from(panic: Panic) -> Self {
        Error::Internal(panic.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_ours_with_its_message() {
        let panics = [
            std::panic::catch_unwind(|| panic!("on purpose")),
            std::panic::catch_unwind(|| panic!("for {}", "a reason")),
        ];
        let texts = panics.map(|outcome| {
            let outcome: Result<(), _> = outcome;
            match outcome.map_err(|panic| Error::from(Panic::from(panic))) {
                Err(Error::Internal(text)) => text,
                other => format!("{other:?}"),
            }
        });
        assert_eq!(texts, ["panic: on purpose", "panic: for a reason"]);
    }
}
