//! Whose a VM is.

use std::fmt;

/// Whose VMs are: the proof that what a provider lists, or has under a machine's name, was made for this manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The cluster that the VMs are nodes of.
    pub cluster: String,
    /// What they are in that cluster, such as a role or a pool.
    pub role: String,
}

impl Owner {
    /// This role in this cluster.
    pub fn new(cluster: impl Into<String>, role: impl Into<String>) -> Self {
        Self { cluster: cluster.into(), role: role.into() }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.role)
    }
}
