//! Room for many sockets: the soft limit on open files is raised to the hard one where needed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Error;

/// Open files the tool needs besides its load connections.
const RESERVE: u64 = 64;

/// Makes sure that `connections` sockets can be open at once.
///
/// # Errors
/// [`Error::Usage`] when even the hard limit is too low; the message names two ways out.
pub fn reserve(connections: usize) -> Result<(), Error> {
    let needed = connections as u64 + RESERVE;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No current limit means unlimited.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum,
        },
    )
    .map_err(|_| {
        let allowed = maximum.or(current).unwrap_or(0);
        Error::Usage(format!(
            "{connections} connections need {needed} open files, and this shell allows {allowed}: \
             use --connections {} or raise the limit with `ulimit -n {needed}`",
            allowed.saturating_sub(RESERVE).max(1)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_the_hard_limit_is_refused_with_a_way_out() {
        reserve(8).unwrap();
        let Some(maximum) = getrlimit(Resource::Nofile).maximum else {
            return;
        };
        let message = reserve(maximum as usize).unwrap_err().to_string();
        assert!(message.contains("ulimit -n"), "{message}");
        assert!(message.contains("--connections"), "{message}");
    }
}
