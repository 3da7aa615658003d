//! The owner of VMs.

use std::fmt;

/// The owner of VMs. It proves that a VM in a provider's list, or with the name of a machine, was created for this manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The cluster that the VMs are nodes of.
    pub cluster: String,
    /// The role of the VMs in that cluster, such as a pool.
    pub role: String,
}

impl Owner {
    /// The owner with this role in this cluster.
    pub fn new(cluster: impl Into<String>, role: impl Into<String>) -> Self {
        Self { cluster: cluster.into(), role: role.into() }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.role)
    }
}
