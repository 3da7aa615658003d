//! The state that a creation leaves in `status.lastKnownState` of its machine, for later calls and other processes.
//!
//! The last operation of a machine is overwritten when its deletion begins, so that the time of a launch has to be kept here.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What the driver keeps of the creation of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// When the instance was launched, by the clock of this process.
    pub launched: Timestamp,
}

impl Kept {
    /// Reads the last known state of a machine. `None` for any other text, such as one of the Go driver.
    pub fn of(last_known_state: &str) -> Option<Self> {
        serde_json::from_str(last_known_state).ok()
    }

    /// The last known state.
    pub fn state(self) -> String {
        serde_json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let kept = Kept { launched: "2026-01-01T00:00:00Z".parse().unwrap() };
        assert_eq!(kept.state(), r#"{"launched":"2026-01-01T00:00:00Z"}"#);
        assert_eq!(Kept::of(&kept.state()), Some(kept));
    }

    #[rstest]
    #[case::none("")]
    #[case::of_the_go_driver("Created i-0abc")]
    #[case::another_form(r#"{"launched": 5}"#)]
    fn another_state_is_ignored(#[case] state: &str) {
        assert_eq!(Kept::of(state), None);
    }
}
