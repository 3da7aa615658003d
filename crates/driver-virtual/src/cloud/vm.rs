//! One virtual machine and where it stands.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Names a VM for as long as the process lives; never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// A VM. Kept small: what VMs of one class share is in their template.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Tells it from other VMs of the slot.
    pub serial: u32,
    /// The how manieth VM of its machine it is, from 1.
    pub generation: u32,
    /// `namespace/name` of the machine; the namespace is empty when it is not known.
    pub key: Arc<str>,
    /// Its identity at the provider.
    pub provider_id: Box<str>,
    /// The name of its Node when that is not the machine's.
    pub node_name: Option<Box<str>>,
    /// Its template.
    pub template: u32,
    /// Host part of its address in 10.240.0.0/12.
    pub address: u32,
    /// Another VM of the same machine.
    pub twin: Option<u32>,
    /// Since when it exists, or when it was ordered.
    pub created: Timestamp,
    /// Where it stands.
    pub life: Life,
    /// What its kubelet shows.
    pub node: NodeStage,
    /// Whether its kubelet reports.
    pub heartbeat: Heartbeat,
    /// Whether it is initialised.
    pub initialisation: Initialisation,
    /// Whether it ever joins.
    pub joining: Joining,
}

impl Vm {
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
