//! Mainland China mobile numbers. Pure: no I/O.

use std::fmt;

/// A mobile number of eleven digits with an assigned prefix. Its `Debug` form hides the middle, so
/// that a number does not reach the logs by accident.
#[derive(Clone, PartialEq)]
pub struct Phone(String);

impl Phone {
    /// Reads a number; `None` where the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 11 && text.bytes().all(|byte| byte.is_ascii_digit());
        (digits && Self::is_assigned(&text[..3])).then(|| Phone(text.to_owned()))
    }

    /// All eleven digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefixes of the contract.
    fn is_assigned(prefix: &str) -> bool {
        match &prefix[..2] {
            "13" | "18" => true,
            "15" => prefix != "154",
            "14" => matches!(prefix, "145" | "147" | "149"),
            "16" => prefix == "166",
            "17" => !matches!(prefix, "172" | "174" | "179"),
            "19" => matches!(prefix, "198" | "199"),
            _ => false,
        }
    }
}

impl fmt::Debug for Phone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}****{}", &self.0[..3], &self.0[7..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_those_of_the_contract() {
        for good in [
            "130", "139", "145", "147", "149", "150", "153", "155", "159", "166", "170", "171",
            "173", "175", "178", "180", "189", "198", "199",
        ] {
            assert!(Phone::parse(&format!("{good}00000000")).is_some(), "{good}");
        }
        for bad in [
            "120", "140", "144", "146", "148", "154", "160", "165", "167", "172", "174", "179",
            "190", "197", "200", "023",
        ] {
            assert!(Phone::parse(&format!("{bad}00000000")).is_none(), "{bad}");
        }
    }

    #[test]
    fn only_eleven_ascii_digits_are_a_number() {
        for bad in [
            "",
            "1380000000",
            "138000000000",
            "1380000000x",
            "１３８００００００００",
            "+13800000000",
        ] {
            assert!(Phone::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_debug_form_hides_the_middle() {
        assert_eq!(format!("{:?}", Phone::parse("13812345678").unwrap()), "138****5678");
    }
}
