//! The state that a creation leaves in `status.lastKnownState` of its machine, for later calls and other processes.
//!
//! It says where the instance is, although the class or its Secret may be edited. The Go driver keeps a sentence there, which says nothing.

use jiff::Timestamp;
use machine_driver::OwnerTags;
use serde::{Deserialize, Serialize};

use crate::{
    names::is_name,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

/// What the driver keeps of the creation of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// When the last instance was asked for, by the clock of this process. `None` if ECS has refused all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Timestamp>,
    /// The region in which the instance was asked for.
    pub region: String,
    /// The id of the account in which the instance was asked for. `None` if STS has not told it, or ECS has refused all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The number of the attempt, from 0. Each attempt has its own client token.
    #[serde(default)]
    pub attempt: u32,
    /// The keys of the tags that prove whose the instance is.
    #[serde(default)]
    pub tags: Vec<String>,
}

impl Kept {
    /// Reads the last known state of a machine. `None` for any other text, such as one of the Go driver.
    pub fn of(last_known_state: &str) -> Option<Self> {
        // The region becomes a part of a host name.
        serde_json::from_str(last_known_state).ok().filter(|kept: &Self| is_name(&kept.region))
    }

    /// The last known state.
    pub fn state(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Whether an instance may have been asked for in another region.
    pub fn asked_outside(&self, region: &str) -> bool {
        self.asked.is_some() && self.region != region
    }

    /// The keys of the tags of the owner.
    pub fn owner_tags(&self) -> Option<OwnerTags> {
        OwnerTags::of(self.tags.iter(), CLUSTER_TAG, ROLE_TAG)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let kept = Kept {
            asked: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            region: "cn-x".to_owned(),
            account: Some("1".to_owned()),
            attempt: 1,
            tags: vec!["kubernetes.io/cluster/c".to_owned(), "kubernetes.io/role/r".to_owned()],
        };
        let written = r#"{"account":"1","asked":"2026-01-01T00:00:00Z","attempt":1,"region":"cn-x","tags":["kubernetes.io/cluster/c","kubernetes.io/role/r"]}"#;
        assert_eq!(kept.state(), written);
        assert_eq!(Kept::of(written), Some(kept.clone()));
        assert_eq!(kept.owner_tags().unwrap().to_string(), "kubernetes.io/cluster/c kubernetes.io/role/r");
        let least = Kept::of(r#"{"region":"cn-x","later":[]}"#).unwrap();
        assert_eq!(least, Kept { asked: None, account: None, attempt: 0, tags: Vec::new(), ..kept });
        assert_eq!(least.owner_tags(), None);
    }

    #[rstest]
    #[case::none("")]
    #[case::of_the_go_driver("ECS instance i-1 created for machine m")]
    #[case::another_form(r#"{"asked": 5, "region": "cn-x"}"#)]
    #[case::a_host(r#"{"asked":"2026-01-01T00:00:00Z","region":"evil.example/"}"#)]
    fn another_state_is_ignored(#[case] state: &str) {
        assert_eq!(Kept::of(state), None);
    }
}
