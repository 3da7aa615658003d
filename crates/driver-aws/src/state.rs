//! The state that a creation leaves in `status.lastKnownState` of its machine, for later calls and other processes.
//!
//! The last operation of a machine is overwritten when its deletion begins, so that the time of a launch has to be kept here.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What the driver keeps of the creation of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchState {
    /// When the instance was launched, by the clock of this process.
    pub launched: Timestamp,
    /// The id of the account in which the instance was launched. Older versions kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

impl LaunchState {
    /// Reads the last known state of a machine. `None` for any other text, such as one of the Go driver.
    pub fn of(last_known_state: &str) -> Option<Self> {
        serde_json::from_str(last_known_state).ok()
    }

    /// The last known state.
    pub fn state(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let kept = LaunchState { launched: "2026-01-01T00:00:00Z".parse().unwrap(), account: Some("1".to_owned()) };
        assert_eq!(kept.state(), r#"{"account":"1","launched":"2026-01-01T00:00:00Z"}"#);
        assert_eq!(LaunchState::of(&kept.state()), Some(kept.clone()));
        let (of_older_version, of_newer_version) =
            (r#"{"launched":"2026-01-01T00:00:00Z"}"#, r#"{"account":"1","launched":"2026-01-01T00:00:00Z","new":[]}"#);
        assert_eq!(LaunchState::of(of_older_version), Some(LaunchState { account: None, ..kept.clone() }));
        assert_eq!(LaunchState::of(of_newer_version), Some(kept));
    }

    #[rstest]
    #[case::none("")]
    #[case::of_the_go_driver("Created i-0abc")]
    #[case::another_form(r#"{"launched": 5}"#)]
    fn another_state_is_ignored(#[case] state: &str) {
        assert_eq!(LaunchState::of(state), None);
    }
}
