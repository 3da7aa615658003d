//! One virtual machine and where it stands.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::draw::Fingerprint;

/// Names a VM for as long as the process lives; never given to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmRef {
    /// Where it is kept.
    pub slot: u32,
    /// Tells it from earlier VMs of the same slot.
    pub serial: u32,
}

/// Where a VM stands (spec/providers §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Life {
    /// Ordered; it exists from then on.
    Creating {
        /// When it will exist.
        until: Timestamp,
    },
    /// It exists.
    Running,
    /// Ordered to end; it is gone from then on.
    Stopping {
        /// When it will be gone.
        until: Timestamp,
    },
    /// It exists no more; kept only while a lagging list still shows it.
    Gone {
        /// When it ended.
        since: Timestamp,
    },
}

impl Life {
    /// The word of metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Creating { .. } => "creating",
            Self::Running => "running",
            Self::Stopping { .. } => "stopping",
            Self::Gone { .. } => "gone",
        }
    }
}

/// What the VM's kubelet shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeStage {
    /// The operating system boots, or never will.
    #[default]
    Absent,
    /// The Node is there and not ready yet.
    Registered,
    /// The Node is ready.
    Ready,
    /// The Node was ready and is so no more.
    Broken,
}

/// Whether the kubelet reports at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Heartbeat {
    /// It does.
    #[default]
    Beating,
    /// It hangs.
    Frozen,
}

/// Whether the VM still waits for `InitializeMachine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Initialisation {
    /// It does not.
    #[default]
    Done,
    /// It does.
    Missing,
}

/// Whether the VM has a kubelet that will register a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Joining {
    /// It has.
    #[default]
    Joins,
    /// It has not.
    Never,
}

/// A VM, and its record in the journal. Kept small: what VMs of one class share is in their template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// Its identity at the provider.
    #[serde(rename = "providerID")]
    pub provider_id: Box<str>,
    /// `namespace/name` of the machine; the namespace is empty when it is not known.
    pub key: Arc<str>,
    /// The name of its Node when that is not the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
    /// Its template.
    pub template: u64,
    /// The how manieth VM of its machine it is, from 1.
    pub generation: u32,
    /// Host part of its address in 10.240.0.0/12.
    pub address: u32,
    /// Since when it exists, or when it was ordered.
    pub created: Timestamp,
    /// Where it stands.
    pub life: Life,
    /// What its kubelet shows.
    #[serde(default)]
    pub node: NodeStage,
    /// Whether its kubelet reports.
    #[serde(default)]
    pub heartbeat: Heartbeat,
    /// Whether it is initialised.
    #[serde(default)]
    pub initialisation: Initialisation,
    /// Whether it ever joins.
    #[serde(default)]
    pub joining: Joining,
    /// Distinguishes the VM from other VMs of the slot.
    #[serde(skip)]
    pub serial: u32,
}

impl Vm {
    /// A VM that runs. The search for its address begins at the same place whenever the VM is made again from its identity.
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

    /// Name of the machine.
    pub fn machine(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// Namespace of the machine; empty when it is not known.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Name of the Node.
    pub fn node_name(&self) -> &str {
        self.node_name.as_deref().unwrap_or_else(|| self.machine())
    }

    /// Whether it exists or will.
    pub const fn is_alive(&self) -> bool {
        !matches!(self.life, Life::Gone { .. })
    }
}

/// `namespace/name`.
pub fn machine_key(namespace: &str, name: &str) -> Arc<str> {
    Arc::from(format!("{namespace}/{name}"))
}
