//! The tags of a class that prove whose VMs are.

use std::fmt::{self, Display, Formatter};

use crate::Owner;

/// The keys of a class's tags that name a cluster, and those that name a role. A VM of the class has all of them: where two
/// clusters share one key, the others tell their VMs apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerTags {
    clusters: Vec<String>,
    roles: Vec<String>,
    owner: Owner,
}

impl OwnerTags {
    /// The keys among these tags that contain `cluster` or `role`, the parts before a name; `None` when one of the two is missing.
    pub fn of<'t>(tags: impl Iterator<Item = &'t String>, cluster: &str, role: &str) -> Option<Self> {
        let (clusters, rest): (Vec<_>, Vec<_>) = tags.cloned().partition(|key| Self::names(key, cluster));
        let roles: Vec<_> = rest.into_iter().filter(|key| Self::names(key, role)).collect();
        let owner = Owner::new(name(clusters.first()?, cluster)?, name(roles.first()?, role)?);
        Some(Self { clusters, roles, owner })
    }

    /// Whether a key has this part, and a name behind it. A template whose variable was empty has no name there, and two clusters with
    /// such a key would be one.
    pub fn names(key: &str, part: &str) -> bool {
        name(key, part).is_some()
    }

    /// Whose the VMs are. Of several clusters or roles it is the first by name.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.clusters.iter().chain(&self.roles).map(String::as_str)
    }

    /// Whether something is theirs; `has` says whether it has a tag of this key.
    pub fn own(&self, has: impl Fn(&str) -> bool) -> bool {
        self.keys().all(has)
    }

    /// Whether something is of one of these clusters, whatever its role.
    pub fn share_a_cluster_with(&self, has: impl Fn(&str) -> bool) -> bool {
        self.clusters.iter().any(|key| has(key))
    }
}

fn name<'k>(key: &'k str, part: &str) -> Option<&'k str> {
    key.rsplit_once(part).map(|(_, name)| name).filter(|name| !name.is_empty())
}

/// The keys, with spaces in between.
impl Display for OwnerTags {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, key) in self.keys().enumerate() {
            write!(f, "{}{key}", if number == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn tags(keys: &[&str]) -> Option<OwnerTags> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        OwnerTags::of(keys.iter(), "io/cluster/", "io/role/")
    }

    #[rstest]
    #[case::both(&["io/cluster/a", "io/role/node", "x"], Some("io/cluster/a io/role/node"))]
    #[case::no_role(&["io/cluster/a"], None)]
    #[case::an_empty_name(&["io/cluster/", "io/role/node"], None)]
    #[case::one_key_for_both(&["io/cluster/io/role/node"], None)]
    #[case::no_cluster(&["io/role/node"], None)]
    #[case::a_shared_cluster(&["io/cluster/a", "io/cluster/b", "io/role/node"], Some("io/cluster/a io/cluster/b io/role/node"))]
    #[case::the_part_in_the_middle(&["billing.io/cluster/t", "io/cluster/a", "io/role/node"], Some("billing.io/cluster/t io/cluster/a io/role/node"))]
    fn keys_that_name_a_cluster_or_a_role_prove_whose_a_vm_is(#[case] keys: &[&str], #[case] expected: Option<&str>) {
        assert_eq!(tags(keys).map(|tags| tags.to_string()).as_deref(), expected);
    }

    #[test]
    fn a_vm_with_a_shared_key_alone_is_anothers() {
        let ours = tags(&["io/cluster/shared", "io/cluster/ours", "io/role/node"]).unwrap();
        let theirs = ["io/cluster/shared", "io/cluster/theirs", "io/role/node"];
        assert!(!ours.own(|key| theirs.contains(&key)));
        assert!(ours.own(|key| ours.keys().any(|known| known == key)));
        assert_eq!(*ours.owner(), Owner::new("shared", "node"));
    }
}
