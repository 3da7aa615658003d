//! The events of the cloud, in an order that depends only on the seed.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use serde::Serialize;

/// The maximum number of stored events.
const REMEMBERED: usize = 20_000;

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum EventKind {
    /// A call failed, by a failure rule or by a check of the cloud.
    CallFailed {
        /// The operation.
        operation: &'static str,
        /// The number of the call for this machine and operation, from 1.
        attempt: u32,
        /// The code of the failure.
        code: &'static str,
    },
    /// A call takes longer because of a failure rule.
    CallHangs {
        /// The operation.
        operation: &'static str,
        /// The number of the call for this machine and operation, from 1.
        attempt: u32,
    },
    /// A call reached the cloud twice because of a failure rule.
    CallRepeated {
        /// The operation.
        operation: &'static str,
        /// The number of the call for this machine and operation, from 1.
        attempt: u32,
    },
    /// A VM was requested.
    Ordered {
        /// The id of the VM.
        id: Box<str>,
    },
    /// A VM exists from now on.
    Running {
        /// The id of the VM.
        id: Box<str>,
    },
    /// An outcome rule matched.
    Outcome {
        /// The effect of the rule.
        effect: &'static str,
    },
    /// `InitializeMachine` succeeded.
    Initialized,
    /// The kubelet registers its Node.
    NodeRegisters,
    /// The Node is ready.
    NodeReady,
    /// The Node is no longer ready.
    NodeNotReady,
    /// The kubelet hangs.
    HeartbeatFrozen,
    /// A Node with the same name exists and is not simulated. It is not changed.
    NodeRefused,
    /// The cloud announced the end of a spot VM.
    SpotNotice,
    /// A VM is being stopped.
    Stopping {
        /// The id of the VM.
        id: Box<str>,
    },
    /// A VM no longer exists.
    Gone {
        /// The id of the VM.
        id: Box<str>,
    },
}

/// An event of a machine's VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The time by the clock of the simulation.
    pub at: Timestamp,
    /// `namespace/name` of the machine.
    pub machine: Arc<str>,
    /// The kind.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The latest events.
#[derive(Debug, Default)]
pub struct EventLog(VecDeque<Event>);

impl EventLog {
    /// Adds an event. Drops the oldest event if there are too many.
    pub fn push(&mut self, at: Timestamp, machine: Arc<str>, kind: EventKind) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Event { at, machine, kind });
    }

    /// The events sorted by time, then by machine. Events of one machine keep their order. The order in which the scheduler served two machines at
    /// the same time is not visible.
    pub fn sorted(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.0.iter().cloned().collect();
        events.sort_by(|a, b| (a.at, &a.machine).cmp(&(b.at, &b.machine)));
        events
    }
}
