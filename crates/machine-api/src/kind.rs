//! The four kinds and their versions as values, for code that works with untyped objects.

use std::fmt;

use super::names;

/// One of the four stored kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One VM.
    Machine,
    /// A number of equal machines.
    MachineSet,
    /// Declarative rollouts of machines.
    MachineDeployment,
    /// How VMs of a kind are made.
    MachineClass,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Machine, Self::MachineSet, Self::MachineDeployment, Self::MachineClass];

    /// The text in the `kind` field of an object.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "Machine",
            Self::MachineSet => "MachineSet",
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineClass => "MachineClass",
        }
    }

    /// The resource name in URLs and webhook rules.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Machine => "machines",
            Self::MachineSet => "machinesets",
            Self::MachineDeployment => "machinedeployments",
            Self::MachineClass => "machineclasses",
        }
    }

    /// The kind with this name. `None` if it is none of the four.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A version of the kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiVersion {
    /// The version in which objects are stored.
    #[default]
    V1alpha1,
    /// The next version, served if that is configured.
    V1beta1,
}

impl ApiVersion {
    /// All versions.
    pub const ALL: [Self; 2] = [Self::V1alpha1, Self::V1beta1];

    /// The version's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1alpha1 => names::V1ALPHA1,
            Self::V1beta1 => names::V1BETA1,
        }
    }

    /// The version with this name. `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == name)
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
