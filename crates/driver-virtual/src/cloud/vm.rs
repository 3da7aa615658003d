//! A virtual machine and its state.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::draw::Fingerprint;

/// The reference to a VM, valid as long as the process runs. It is never used for another VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmRef {
    /// The slot of the VM.
    pub slot: u32,
    /// Distinguishes the VM from other VMs of the slot.
    pub serial: u32,
}

/// The state of a VM (spec/providers §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Life {
    /// The VM was requested and does not exist yet.
    Creating {
        /// The time when it will exist.
        until: Timestamp,
    },
    /// The VM exists.
    Running,
    /// The VM is being deleted.
    Stopping {
        /// The time when it will be gone.
        until: Timestamp,
    },
    /// The VM no longer exists. It is stored only while a delayed list still shows it.
    Gone {
        /// The time when it ended.
        since: Timestamp,
    },
}

impl Life {
    /// The label value in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Creating { .. } => "creating",
            Self::Running => "running",
            Self::Stopping { .. } => "stopping",
            Self::Gone { .. } => "gone",
        }
    }
}

/// The stage of the Node of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeStage {
    /// There is no Node. The operating system boots, or will never boot.
    #[default]
    Absent,
    /// The Node exists and is not ready yet.
    Registered,
    /// The Node is ready.
    Ready,
    /// The Node was ready and is no longer ready.
    Broken,
}

/// Whether the kubelet sends heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Heartbeat {
    /// The kubelet sends heartbeats.
    #[default]
    Beating,
    /// The kubelet hangs.
    Frozen,
}

/// Whether the VM needs `InitializeMachine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Initialisation {
    /// The VM is initialised.
    #[default]
    Done,
    /// The VM is not initialised.
    Missing,
}

/// Whether the VM has a kubelet that registers a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Joining {
    /// The VM has a kubelet.
    #[default]
    Joins,
    /// The VM has no kubelet.
    Never,
}

/// A VM, and its record in the journal. It is small, because the data that the VMs of a class share is in their
/// template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// The provider id.
    #[serde(rename = "providerID")]
    pub provider_id: Box<str>,
    /// `namespace/name` of the machine. The namespace is empty if unknown.
    pub key: Arc<str>,
    /// The name of the Node, if it is not the name of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
    /// The number of the template.
    pub template: u64,
    /// The number of the VM among the VMs of its machine, from 1.
    pub generation: u32,
    /// The host part of the address in 10.240.0.0/12.
    pub address: u32,
    /// The creation time. Before the VM exists, the time of the request.
    pub created: Timestamp,
    /// The state.
    pub life: Life,
    /// The stage of the Node.
    #[serde(default)]
    pub node: NodeStage,
    /// Whether the kubelet sends heartbeats.
    #[serde(default)]
    pub heartbeat: Heartbeat,
    /// Whether the VM is initialised.
    #[serde(default)]
    pub initialisation: Initialisation,
    /// Whether the VM has a kubelet.
    #[serde(default)]
    pub joining: Joining,
    /// Distinguishes the VM from other VMs of the slot.
    #[serde(skip)]
    pub serial: u32,
}

impl Vm {
    /// Creates a running VM. The search for a free address begins at an address that depends only on the provider id.
    pub fn new(key: &Arc<str>, generation: u32, provider_id: impl Into<Box<str>>) -> Self {
        let provider_id = provider_id.into();
        Self {
            address: u32::try_from(Fingerprint::of(&provider_id) & 0xf_ffff).unwrap_or(1),
            provider_id,
            key: Arc::clone(key),
            node_name: None,
            template: 0,
            generation,
            created: Timestamp::UNIX_EPOCH,
            life: Life::Running,
            node: NodeStage::default(),
            heartbeat: Heartbeat::default(),
            initialisation: Initialisation::default(),
            joining: Joining::default(),
            serial: 0,
        }
    }

    /// The name of the machine.
    pub fn machine(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// The namespace of the machine. Empty if unknown.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name of the Node.
    pub fn node_name(&self) -> &str {
        self.node_name.as_deref().unwrap_or_else(|| self.machine())
    }

    /// Whether the VM exists or will exist.
    pub const fn is_alive(&self) -> bool {
        !matches!(self.life, Life::Gone { .. })
    }
}

/// `namespace/name`.
pub fn machine_key(namespace: &str, name: &str) -> Arc<str> {
    Arc::from(format!("{namespace}/{name}"))
}
