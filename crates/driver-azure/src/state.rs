//! The state that a creation leaves in `status.lastKnownState` of its machine, for later calls and other processes.
//!
//! It says where the VM and its parts are, although the class and its Secrets may be edited. Users can write it, so that it is no proof of a
//! resource's owner while the class itself names an owner.

use machine_driver::OwnerTags;
use serde::{Deserialize, Serialize};

use crate::{
    api::{Cloud, Group},
    names::{is_account, is_location, is_name},
    plan::is_data_disk_of,
    rules::owner_tags,
    subject::Home,
};

/// What the driver keeps of the creation of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    pub subscription: String,
    pub resource_group: String,
    #[serde(default)]
    pub location: String,
    /// Empty for the public cloud.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cloud: String,
    /// The keys of the tags that name the owner.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The names of the data disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
}

impl Kept {
    /// The state of a creation.
    pub fn new(home: &Home, owner: &OwnerTags, disks: Vec<String>) -> Self {
        let cloud = if home.cloud == Cloud::Public { "" } else { home.cloud.name() };
        Self {
            subscription: home.group.subscription.clone(),
            resource_group: home.group.name.clone(),
            location: home.location.clone(),
            cloud: cloud.to_owned(),
            tags: owner.keys().map(str::to_owned).collect(),
            disks,
        }
    }

    /// Reads the last known state of the machine with this name. `None` for any other text, such as one of the Go driver, and for parts that can't be
    /// in a URL.
    pub fn of(last_known_state: &str, machine: &str) -> Option<Self> {
        let mut kept: Self = serde_json::from_str(last_known_state).ok()?;
        let is_valid = is_account(&kept.subscription)
            && is_name(&kept.resource_group)
            && is_location(&kept.location)
            && Cloud::named(&kept.cloud).is_some();
        kept.disks.retain(|disk| is_data_disk_of(machine, disk));
        is_valid.then_some(kept)
    }

    /// The last known state.
    pub fn state(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Where the creation was.
    pub fn home(&self) -> Home {
        let group = Group { subscription: self.subscription.clone(), name: self.resource_group.clone() };
        Home { group, cloud: Cloud::named(&self.cloud).unwrap_or_default(), location: self.location.clone() }
    }

    /// The owner of what was created.
    pub fn owner(&self) -> Option<OwnerTags> {
        owner_tags(self.tags.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let owner = owner_tags(["kubernetes.io-role-node", "kubernetes.io-cluster-a"].into_iter()).unwrap();
        let home = Home {
            group: Group { subscription: "s".to_owned(), name: "g".to_owned() },
            cloud: Cloud::China,
            location: "chinaeast2".to_owned(),
        };
        let kept = Kept::new(&home, &owner, vec!["m-1-data-disk".to_owned()]);
        let expected = r#"{"cloud":"AzureChina","disks":["m-1-data-disk"],"location":"chinaeast2","resourceGroup":"g","subscription":"s","tags":["kubernetes.io-cluster-a","kubernetes.io-role-node"]}"#;
        assert_eq!(kept.state(), expected);
        let read = Kept::of(expected, "m").unwrap();
        assert_eq!((read.home(), read.owner()), (home, Some(owner)));
        assert_eq!(read.disks, ["m-1-data-disk"]);
        assert_eq!(Kept::of(expected, "other").unwrap().disks, [] as [&str; 0], "disks of another machine");
        let newer = r#"{"subscription":"s","resourceGroup":"g","later":[]}"#;
        assert_eq!(Kept::of(newer, "m").unwrap().home().cloud, Cloud::Public);
    }

    #[rstest]
    #[case::none("")]
    #[case::of_the_go_driver("Created azure:///westeurope/m")]
    #[case::another_form(r#"{"subscription": 5, "resourceGroup": "g"}"#)]
    #[case::a_path(r#"{"subscription": "s", "resourceGroup": "../g"}"#)]
    #[case::another_cloud(r#"{"subscription": "s", "resourceGroup": "g", "cloud": "AzureMoon"}"#)]
    fn another_state_is_ignored(#[case] state: &str) {
        assert_eq!(Kept::of(state, "m"), None);
    }
}
