//! The state that a creation leaves in `status.lastKnownState` of its machine, for later calls and other processes.
//!
//! It says where the instance may be, although the class may be edited, and which operation of GCE creates it. A creation that has ended leaves the
//! text of the Go driver.

use serde::{Deserialize, Serialize};

use crate::zone::Zone;

/// A creation that has not ended with an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The project in which the instance is created.
    pub project: String,
    /// The zone in which the instance is created.
    pub zone: String,
    /// The number of the attempt, from 0. Each attempt has its own request id.
    #[serde(default)]
    pub attempt: u32,
    /// The operation that creates the instance. `None` if GCE has not named one, or the operation has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Whether the attempts before this one have ended without an instance, so that none is left in the zone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

impl Pending {
    /// Reads the last known state of a machine. `None` for any other text, such as one of the Go driver.
    pub fn of(last_known_state: &str) -> Option<Self> {
        serde_json::from_str(last_known_state).ok()
    }

    /// The state before the request of an attempt.
    pub fn before(zone: &Zone, attempt: u32) -> Self {
        let (project, zone) = (zone.project().to_owned(), zone.name().to_owned());
        Self { project, zone, attempt, operation: None, ended: false }
    }

    /// The zone in which the instance is created. `None` if its parts can't be names.
    pub fn zone(&self) -> Option<Zone> {
        Zone::of(&self.project, &self.zone)
    }

    /// The last known state.
    pub fn state(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// The last known state after a creation.
pub fn created(provider_id: &str) -> String {
    format!("Created {provider_id}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let pending = Pending {
            project: "p".to_owned(),
            zone: "z".to_owned(),
            attempt: 1,
            operation: Some("op".to_owned()),
            ended: false,
        };
        assert_eq!(pending.state(), r#"{"attempt":1,"operation":"op","project":"p","zone":"z"}"#);
        assert_eq!(Pending::of(&pending.state()), Some(pending));
        let of_newer_version = r#"{"project":"p","zone":"z","later":[]}"#;
        let read = Pending { project: "p".to_owned(), zone: "z".to_owned(), attempt: 0, operation: None, ended: false };
        assert_eq!(Pending::of(of_newer_version), Some(read));
    }

    #[rstest]
    #[case::none("")]
    #[case::a_creation_that_has_ended("Created gce:///p/z/m")]
    #[case::another_form(r#"{"project": 5}"#)]
    fn another_state_is_ignored(#[case] state: &str) {
        assert_eq!(Pending::of(state), None);
    }
}
