//! What the driver knows of a machine from before: the owners of what was made for it, and whether a volume may be among that. Pure functions.
//!
//! A user may edit a class that has machines. What was made for a machine earlier has the keys that the class had then. The last known state of the
//! machine keeps them for the calls that follow, because the server that shows them may be deleted first.

use machine_driver::OwnerTags;
use serde::{Deserialize, Serialize};

use crate::{
    nova::Server,
    spec::{self, RootDisk, Spec},
};

/// Whether volumes were made for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volumes {
    /// Nothing points to a volume.
    Unlikely,
    /// The class has asked for one, or one is attached, which may also be a volume of a pod.
    Possible,
    /// The class asks for one.
    Wanted,
}

/// What is known of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The possible owners of what was made for the machine. The owner in the class is the first.
    pub owners: Vec<OwnerTags>,
    /// Whether volumes were made for the machine.
    pub volumes: Volumes,
}

/// The form of a memory in the last known state of a machine.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Kept {
    /// The keys of each owner.
    owners: Vec<Vec<String>>,
    /// Whether volumes may have been made.
    volumes: bool,
}

impl Memory {
    /// What a class and the last known state of a machine say. A state of another form says nothing.
    ///
    /// An owner in the state counts if it has a cluster in common with the class, as for a server that is found by its id.
    pub fn of(spec: &Spec, owner: &OwnerTags, last_known_state: &str) -> Self {
        let kept: Kept = serde_json::from_str(last_known_state).unwrap_or_default();
        let volumes = match spec.root_disk() {
            RootDisk::Own { .. } => Volumes::Wanted,
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) if kept.volumes => Volumes::Possible,
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) => Volumes::Unlikely,
        };
        let is_of_cluster =
            |keys: &Vec<String>| owner.share_a_cluster_with(|key| keys.iter().any(|known| known == key));
        let earlier = kept.owners.iter().filter(|keys| is_of_cluster(keys));
        let memory = Self { owners: vec![owner.clone()], volumes };
        memory.with_owners(earlier.filter_map(|keys| spec::owner_tags(keys.iter())))
    }

    /// What these servers of the machine say besides.
    #[must_use]
    pub fn with(self, servers: &[Server]) -> Self {
        let seen =
            if servers.iter().any(|server| !server.volumes.is_empty()) { Volumes::Possible } else { Volumes::Unlikely };
        let memory = Self { volumes: self.volumes.max(seen), ..self };
        memory.with_owners(servers.iter().filter_map(|server| spec::owner_tags(server.metadata.keys())))
    }

    fn with_owners(mut self, owners: impl Iterator<Item = OwnerTags>) -> Self {
        for owner in owners {
            if !self.owners.contains(&owner) {
                self.owners.push(owner);
            }
        }
        self
    }

    /// The last known state that keeps it.
    pub fn state(&self) -> String {
        let keys = |owner: &OwnerTags| owner.keys().map(str::to_owned).collect();
        let kept = Kept { owners: self.owners.iter().map(keys).collect(), volumes: self.volumes > Volumes::Unlikely };
        serde_json::to_string(&kept).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn owner(cluster: &str, role: &str) -> OwnerTags {
        let keys = [format!("kubernetes.io-cluster-{cluster}"), format!("kubernetes.io-role-{role}")];
        spec::owner_tags(keys.iter()).unwrap()
    }

    fn memory(class: &Value, state: &str) -> Memory {
        Memory::of(&serde_json::from_value(class.clone()).unwrap(), &owner("c", "node"), state)
    }

    const OF_ANOTHER_ROLE: &str = r#"{"owners":[["kubernetes.io-cluster-c","kubernetes.io-role-old"]],"volumes":true}"#;

    #[rstest]
    #[case::nothing("", &[owner("c", "node")], Volumes::Unlikely)]
    #[case::text_of_another_driver("made on Monday", &[owner("c", "node")], Volumes::Unlikely)]
    #[case::of_a_later_version(r#"{"owners":[],"more":1}"#, &[owner("c", "node")], Volumes::Unlikely)]
    #[case::another_role(OF_ANOTHER_ROLE, &[owner("c", "node"), owner("c", "old")], Volumes::Possible)]
    #[case::another_cluster(r#"{"owners":[["kubernetes.io-cluster-d","kubernetes.io-role-node"]]}"#, &[owner("c", "node")], Volumes::Unlikely)]
    #[case::no_owner(r#"{"owners":[["kubernetes.io-cluster-c"]]}"#, &[owner("c", "node")], Volumes::Unlikely)]
    fn a_state_says(#[case] state: &str, #[case] owners: &[OwnerTags], #[case] volumes: Volumes) {
        let known = memory(&json!({}), state);
        assert_eq!(known, Memory { owners: owners.to_vec(), volumes });
        let again = memory(&json!({}), &known.state());
        assert_eq!(again, known, "a state is read as it was written");
    }

    #[test]
    fn servers_and_the_class_say_more() {
        let wanted = memory(&json!({"rootDiskSize": 2, "rootDiskType": "ssd"}), "");
        assert_eq!(wanted.volumes, Volumes::Wanted);
        assert_eq!(memory(&json!({}), &wanted.state()).volumes, Volumes::Possible, "a user has edited the class");
        let server = json!({
            "metadata": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-old": "1", "x": "1"},
            "os-extended-volumes:volumes_attached": [{"id": "v"}],
        });
        let server: Server = serde_json::from_value(server).unwrap();
        let seen = memory(&json!({}), "").with(&[server.clone(), server, Server::default()]);
        let owners = vec![owner("c", "node"), owner("c", "old")];
        assert_eq!(seen, Memory { owners, volumes: Volumes::Possible });
    }
}
