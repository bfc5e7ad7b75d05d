//! Mainland China mobile numbers. Pure: no I/O.

/// A mobile number of eleven digits with an assigned prefix. It has no `Debug` form, so that it does not reach the logs by
/// accident.
#[derive(Clone)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_those_of_the_contract() {
        let accepted: Vec<u32> = (100..1000)
            .filter(|prefix| Phone::parse(&format!("{prefix}00000000")).is_some())
            .collect();
        let assigned = (130..=139)
            .chain([145, 147, 149])
            .chain(150..=153)
            .chain(155..=159);
        let assigned = assigned
            .chain([166, 170, 171, 173])
            .chain(175..=178)
            .chain(180..=189);
        let assigned: Vec<u32> = assigned.chain([198, 199]).collect();
        assert_eq!(accepted, assigned);
    }
}
