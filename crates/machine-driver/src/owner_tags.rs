//! The tags of a class that identify the owner of its VMs.

use std::fmt::{self, Display, Formatter};

use crate::Owner;

/// The tag keys of a class that name a cluster or a role. A VM of the class has all of them: when two clusters share one key, the
/// other keys distinguish their VMs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerTags {
    clusters: Vec<String>,
    roles: Vec<String>,
    owner: Owner,
}

impl OwnerTags {
    /// The keys that contain the text `cluster` or the text `role`, followed by a name. `None` unless there is a key for the
    /// cluster and a key for the role.
    pub fn of<'t>(tags: impl Iterator<Item = &'t String>, cluster: &str, role: &str) -> Option<Self> {
        let (clusters, rest): (Vec<_>, Vec<_>) = tags.cloned().partition(|key| Self::names(key, cluster));
        let roles: Vec<_> = rest.into_iter().filter(|key| Self::names(key, role)).collect();
        let owner = Owner::new(name(clusters.first()?, cluster)?, name(roles.first()?, role)?);
        Some(Self { clusters, roles, owner })
    }

    /// Whether a key contains this part and a name after it. A template with an empty variable makes a key without a name, and
    /// such a key can't distinguish two clusters.
    pub fn names(key: &str, part: &str) -> bool {
        name(key, part).is_some()
    }

    /// The owner of the VMs: the first cluster and the first role by name.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.clusters.iter().chain(&self.roles).map(String::as_str)
    }

    /// Whether a resource belongs to this owner. `has` returns whether it has a tag with this key.
    pub fn own(&self, has: impl Fn(&str) -> bool) -> bool {
        self.keys().all(has)
    }

    /// Whether a resource belongs to one of these clusters, with any role.
    pub fn share_a_cluster_with(&self, has: impl Fn(&str) -> bool) -> bool {
        self.clusters.iter().any(|key| has(key))
    }
}

fn name<'k>(key: &'k str, part: &str) -> Option<&'k str> {
    key.rsplit_once(part).map(|(_, name)| name).filter(|name| !name.is_empty())
}

/// The keys, separated by spaces.
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
    fn keys_that_name_a_cluster_or_a_role_identify_the_owner_of_a_vm(
        #[case] keys: &[&str],
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(tags(keys).map(|tags| tags.to_string()).as_deref(), expected);
    }

    #[test]
    fn a_vm_with_only_a_shared_key_has_another_owner() {
        let ours = tags(&["io/cluster/shared", "io/cluster/ours", "io/role/node"]).unwrap();
        let theirs = ["io/cluster/shared", "io/cluster/theirs", "io/role/node"];
        assert!(!ours.own(|key| theirs.contains(&key)));
        assert!(ours.own(|key| ours.keys().any(|known| known == key)));
        assert_eq!(*ours.owner(), Owner::new("shared", "node"));
    }
}
