//! The memory of a machine: the project, the possible owners and regions of its resources, and whether volumes may be among them. Pure functions.
//!
//! Resources are the server, the port and the volume that the driver makes for a machine. A user may edit a class that has machines. Older resources
//! have the keys and the region that the class had when they were made. The last known state of the machine keeps both for later calls, because the
//! server, which shows the keys, may be deleted before the port and the volume.

use std::{iter, ops::Not};

use machine_driver::{Code, OwnerTags, Status};
use serde::{Deserialize, Serialize};

use crate::{
    nova::Server,
    spec::{self, RootDisk, Spec},
};

/// Whether a machine may have volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volumes {
    /// There is no sign of a volume.
    Unlikely,
    /// A volume is or was attached. It may belong to a pod, or Nova may have made it.
    Possible,
    /// An earlier version of the class requested a volume.
    Made,
    /// The class requests a volume.
    Wanted,
}

/// The possible owners of a machine's resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    of_class: OwnerTags,
    earlier: Vec<OwnerTags>,
}

impl Owners {
    /// Only the owner in the class.
    pub const fn of_class(owner: OwnerTags) -> Self {
        Self { of_class: owner, earlier: Vec::new() }
    }

    fn all(&self) -> impl Iterator<Item = &OwnerTags> {
        iter::once(&self.of_class).chain(&self.earlier)
    }

    /// Whether a resource with these keys belongs to one of the owners.
    ///
    /// The resource must have all keys of the class. Or it must have the keys of an earlier owner, and no other key of a cluster or a role: a user
    /// may have added a key to the class because the earlier keys do not distinguish two clusters.
    pub fn own<'k>(&self, keys: impl Iterator<Item = &'k String> + Clone) -> bool {
        let is_of_class = self.of_class.own(|wanted| keys.clone().any(|key| key == wanted));
        is_of_class || spec::owner_tags(keys).is_some_and(|owner| self.earlier.contains(&owner))
    }

    /// Whether this text is the description of one of the owners. `describe` returns the description of an owner.
    pub fn are_described_by(&self, text: &str, describe: impl Fn(&OwnerTags) -> String) -> bool {
        self.all().any(|owner| describe(owner) == text)
    }

    fn add(&mut self, owner: OwnerTags) {
        if self.all().all(|known| *known != owner) {
            self.earlier.push(owner);
        }
    }
}

/// The memory of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The possible owners of the machine's resources.
    pub owners: Owners,
    /// Whether the machine may have volumes.
    pub volumes: Volumes,
    /// The region of the class.
    region: String,
    /// The regions of earlier versions of the class that may contain resources of the machine.
    pub earlier_regions: Vec<String>,
    /// The id of the project in which something may have been made for the machine. `None` if it is not known.
    project: Option<String>,
}

/// The form of a memory in the last known state of a machine.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct StoredMemory {
    /// The keys of each owner.
    owners: Vec<Vec<String>>,
    /// Whether the machine may have volumes.
    volumes: bool,
    /// Whether the driver may have made one of them.
    #[serde(rename = "ownVolumes", skip_serializing_if = "Not::not")]
    own_volumes: bool,
    /// The regions that may contain resources of the machine.
    regions: Vec<String>,
    /// The id of the project that may contain resources of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
}

impl Memory {
    /// Reads the memory from a class and the last known state of a machine. A state of another form is ignored.
    ///
    /// An owner in the state counts if it has a key of a cluster in common with the class. The same rule applies to a server that is found by its id.
    pub fn of(spec: &Spec, owner: &OwnerTags, last_known_state: &str) -> Self {
        let kept: StoredMemory = serde_json::from_str(last_known_state).unwrap_or_default();
        let volumes = match spec.root_disk() {
            RootDisk::Own { .. } => Volumes::Wanted,
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) if kept.own_volumes => Volumes::Made,
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) if kept.volumes => Volumes::Possible,
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) => Volumes::Unlikely,
        };
        let is_of_cluster =
            |keys: &Vec<String>| owner.share_a_cluster_with(|key| keys.iter().any(|known| known == key));
        let earlier = kept.owners.iter().filter(|keys| is_of_cluster(keys));
        let region = spec.region.clone();
        let is_earlier = |known: &String| !known.is_empty() && *known != region;
        let earlier_regions = kept.regions.into_iter().filter(is_earlier).collect();
        let project = kept.project;
        let memory = Self { owners: Owners::of_class(owner.clone()), volumes, region, earlier_regions, project };
        memory.with_owners(earlier.filter_map(|keys| spec::owner_tags(keys.iter())))
    }

    /// The memory with the owners and volumes of these servers of the machine added.
    #[must_use]
    pub fn with(self, servers: &[Server]) -> Self {
        let seen =
            if servers.iter().any(|server| !server.volumes.is_empty()) { Volumes::Possible } else { Volumes::Unlikely };
        let memory = Self { volumes: self.volumes.max(seen), ..self };
        memory.with_owners(servers.iter().filter_map(|server| spec::owner_tags(server.metadata.keys())))
    }

    /// Checks that later calls know what the servers of the machine show. `shown` is the memory with the servers. After their deletion, ports and
    /// volumes are found only by what is kept. A process that ends returns no state. The volume of a server whose `disk` Nova has made is no news.
    ///
    /// # Errors
    /// `Aborted` with the state to keep.
    pub fn check_kept(&self, shown: &Self, disk: RootDisk<'_>) -> Result<(), Status> {
        let are_volumes_known = self.volumes == shown.volumes || matches!(disk, RootDisk::MadeByNova(_));
        if self.owners == shown.owners && are_volumes_known {
            return Ok(());
        }
        let message =
            "the state of the machine gets the keys and volumes of its server first; then the server is deleted";
        Err(Status { last_known_state: Some(shown.state()), ..Status::new(Code::Aborted, message) })
    }

    /// Checks that the login sees the resources of the machine. `login` is the id of its project.
    ///
    /// # Errors
    /// `FailedPrecondition` for a login of another project: everything of the machine would count as deleted.
    pub fn check_project(&self, login: Option<&str>) -> Result<(), Status> {
        match (self.project.as_deref(), login) {
            (Some(kept), Some(login)) if kept != login => {
                let message = format!(
                    "the machine was made in project {kept}, the login is of project {login}. Write a login of project {kept} to the Secret, or \
                     remove the finalizer of the machine if nothing of it is left there"
                );
                Err(Status::new(Code::FailedPrecondition, message))
            }
            (None | Some(_), None | Some(_)) => Ok(()),
        }
    }

    /// The memory with the project of the login, in which something of the machine exists or is made next.
    #[must_use]
    pub fn in_project(self, login: Option<&str>) -> Self {
        let project = self.project.or_else(|| login.map(str::to_owned));
        Self { project, ..self }
    }

    /// The memory after a failed creation of which nothing is left: a user may change the project of the class.
    #[must_use]
    pub fn in_no_project(self) -> Self {
        Self { project: None, ..self }
    }

    fn with_owners(mut self, owners: impl Iterator<Item = OwnerTags>) -> Self {
        owners.for_each(|owner| self.owners.add(owner));
        self
    }

    /// The last known state that contains the memory.
    pub fn state(&self) -> String {
        let keys = |owner: &OwnerTags| owner.keys().map(str::to_owned).collect();
        let regions = self.earlier_regions.iter().chain([&self.region]).cloned().collect();
        let volumes = self.volumes > Volumes::Unlikely;
        let project = self.project.clone();
        let own_volumes = self.volumes >= Volumes::Made;
        let kept =
            StoredMemory { owners: self.owners.all().map(keys).collect(), volumes, own_volumes, regions, project };
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

    fn known(earlier: &[OwnerTags], volumes: Volumes, regions: &[&str]) -> Memory {
        let earlier_regions = regions.iter().map(|region| (*region).to_owned()).collect();
        Memory { owners: owners(earlier), volumes, region: String::new(), earlier_regions, project: None }
    }

    const OF_ANOTHER_ROLE: &str = r#"{"owners":[["kubernetes.io-cluster-c","kubernetes.io-role-old"]],"volumes":true}"#;

    fn owners(earlier: &[OwnerTags]) -> Owners {
        Owners { of_class: owner("c", "node"), earlier: earlier.to_vec() }
    }

    #[rstest]
    #[case::nothing("", known(&[], Volumes::Unlikely, &[]))]
    #[case::text_of_another_driver("made on Monday", known(&[], Volumes::Unlikely, &[]))]
    #[case::of_a_later_version(r#"{"owners":[],"more":1}"#, known(&[], Volumes::Unlikely, &[]))]
    #[case::another_role(OF_ANOTHER_ROLE, known(&[owner("c", "old")], Volumes::Possible, &[]))]
    #[case::another_cluster(r#"{"owners":[["kubernetes.io-cluster-d","kubernetes.io-role-node"]]}"#, known(&[], Volumes::Unlikely, &[]))]
    #[case::no_owner(r#"{"owners":[["kubernetes.io-cluster-c"]]}"#, known(&[], Volumes::Unlikely, &[]))]
    #[case::other_regions(r#"{"regions":["eu-1","","eu-2"]}"#, known(&[], Volumes::Unlikely, &["eu-1", "eu-2"]))]
    fn a_state_says(#[case] state: &str, #[case] expected: Memory) {
        let read = memory(&json!({}), state);
        assert_eq!(read, expected);
        let again = memory(&json!({}), &read.state());
        assert_eq!(again, read, "a state is read as it was written");
    }

    #[rstest]
    #[case::nothing_new("", RootDisk::OfFlavor, json!({}), true)]
    #[case::keys_of_the_class("", RootDisk::OfFlavor, json!({"metadata": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-node": "1"}}), true)]
    #[case::other_keys("", RootDisk::OfFlavor, json!({"metadata": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-old": "1"}}), false)]
    #[case::a_volume("", RootDisk::OfFlavor, json!({"os-extended-volumes:volumes_attached": [{"id": "v"}]}), false)]
    #[case::a_volume_of_nova("", RootDisk::MadeByNova(2), json!({"os-extended-volumes:volumes_attached": [{"id": "v"}]}), true)]
    #[case::a_known_volume(r#"{"volumes":true}"#, RootDisk::OfFlavor, json!({"os-extended-volumes:volumes_attached": [{"id": "v"}]}), true)]
    fn what_a_server_shows_is_kept_first(
        #[case] state: &str,
        #[case] disk: RootDisk<'_>,
        #[case] server: Value,
        #[case] expected: bool,
    ) {
        let known = memory(&json!({}), state);
        let shown = known.clone().with(&[serde_json::from_value(server).unwrap()]);
        let checked = known.check_kept(&shown, disk);
        assert_eq!(checked.is_ok(), expected);
        if let Err(status) = checked {
            assert_eq!((status.code, status.last_known_state), (Code::Aborted, Some(shown.state())));
            assert_eq!(memory(&json!({}), &shown.state()).check_kept(&shown, disk), Ok(()), "once for a machine");
        }
    }

    #[rstest]
    #[case::of_no_known_project("", Some("q"), true)]
    #[case::of_the_same_project(r#"{"project":"p"}"#, Some("p"), true)]
    #[case::of_another_project(r#"{"project":"p"}"#, Some("q"), false)]
    #[case::by_a_login_without_a_project(r#"{"project":"p"}"#, None, true)]
    fn a_login_sees_a_machine(#[case] state: &str, #[case] login: Option<&str>, #[case] expected: bool) {
        let memory = memory(&json!({}), state);
        assert_eq!(memory.check_project(login).is_ok(), expected);
        if let Err(status) = memory.check_project(login) {
            assert_eq!(status.code, Code::FailedPrecondition);
            assert!(status.message.contains("made in project p, the login is of project q"), "{}", status.message);
        }
    }

    #[test]
    fn a_project_is_kept_until_nothing_is_left_in_it() {
        let known = memory(&json!({}), "").in_project(Some("p"));
        assert_eq!(known.clone().in_project(Some("q")), known);
        let again = memory(&json!({}), &known.state());
        assert_eq!(again, known);
        assert_eq!(again.in_no_project().state(), memory(&json!({}), "").state());
    }

    #[test]
    fn the_region_of_the_class_is_no_earlier_one() {
        let of = |region: &str, state: &str| memory(&json!({ "region": region }), state);
        let first = of("eu-1", "");
        assert_eq!(first.earlier_regions, [""; 0]);
        assert_eq!(of("eu-1", &first.state()).earlier_regions, [""; 0]);
        let edited = of("eu-2", &first.state());
        assert_eq!(edited.earlier_regions, ["eu-1"]);
        assert_eq!(of("eu-1", &edited.state()).earlier_regions, ["eu-2"]);
    }

    #[test]
    fn servers_and_the_class_say_more() {
        let wanted = memory(&json!({"rootDiskSize": 2, "rootDiskType": "ssd"}), "");
        assert_eq!(wanted.volumes, Volumes::Wanted);
        let edited = memory(&json!({}), &wanted.state());
        assert_eq!(edited.volumes, Volumes::Made, "a user has edited the class");
        assert_eq!(memory(&json!({}), &edited.state()), edited, "a state is read as it was written");
        let server = json!({
            "metadata": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-old": "1", "x": "1"},
            "os-extended-volumes:volumes_attached": [{"id": "v"}],
        });
        let server: Server = serde_json::from_value(server).unwrap();
        let seen = memory(&json!({}), "").with(&[server.clone(), server, Server::default()]);
        assert_eq!(seen, known(&[owner("c", "old")], Volumes::Possible, &[]));
    }

    #[rstest]
    #[case::of_the_class(&["cluster-c", "role-node"], true)]
    #[case::of_the_class_with_one_cluster_more(&["cluster-c", "cluster-d", "role-node"], true)]
    #[case::of_an_earlier_class(&["cluster-c", "role-old"], true)]
    #[case::of_an_earlier_class_of_another_cluster(&["cluster-c", "cluster-d", "role-old"], false)]
    #[case::of_an_earlier_class_with_one_role_more(&["cluster-c", "role-old", "role-x"], false)]
    #[case::of_half_an_owner(&["cluster-c"], false)]
    fn owners_own_what_has_their_keys(#[case] keys: &[&str], #[case] expected: bool) {
        let keys: Vec<String> = keys.iter().map(|key| format!("kubernetes.io-{key}")).chain(["x".to_owned()]).collect();
        assert_eq!(owners(&[owner("c", "old")]).own(keys.iter()), expected);
    }
}
