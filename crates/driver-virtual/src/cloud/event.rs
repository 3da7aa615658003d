//! What happened in the cloud, in an order that depends on nothing but the seed.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use serde::Serialize;

/// How many events are remembered.
const REMEMBERED: usize = 20_000;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum Happening {
    /// A call failed on purpose or by a rule of the cloud.
    CallFailed {
        /// The operation.
        operation: &'static str,
        /// The how manieth call it was for the machine.
        attempt: u32,
        /// The code it answered.
        code: &'static str,
    },
    /// A call takes longer on purpose.
    CallHangs {
        /// The operation.
        operation: &'static str,
        /// The how manieth call it was for the machine.
        attempt: u32,
    },
    /// A call reaches the cloud twice on purpose.
    CallRepeated {
        /// The operation.
        operation: &'static str,
        /// The how manieth call it was for the machine.
        attempt: u32,
    },
    /// A VM was ordered.
    Ordered {
        /// Its identity.
        id: Box<str>,
    },
    /// A VM exists from now on.
    Running {
        /// Its identity.
        id: Box<str>,
    },
    /// An outcome rule hit.
    Outcome {
        /// The rule's word.
        effect: &'static str,
    },
    /// `InitializeMachine` was done.
    Initialized,
    /// The kubelet registers its Node.
    NodeRegisters,
    /// The Node is ready.
    NodeReady,
    /// The Node is not ready any more.
    NodeNotReady,
    /// The kubelet hangs.
    HeartbeatFrozen,
    /// A Node of that name exists and is not simulated; it is left alone.
    NodeRefused,
    /// The cloud announced the end of a spot VM.
    SpotNotice,
    /// A VM is being stopped.
    Stopping {
        /// Its identity.
        id: Box<str>,
    },
    /// A VM exists no more.
    Gone {
        /// Its identity.
        id: Box<str>,
    },
}

/// Something that happened to a machine's VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When, by the simulation's clock.
    pub at: Timestamp,
    /// `namespace/name` of the machine.
    pub machine: Arc<str>,
    /// What.
    #[serde(flatten)]
    pub happening: Happening,
}

/// The newest events.
#[derive(Debug, Default)]
pub struct EventLog(VecDeque<Event>);

impl EventLog {
    /// Remembers an event; the oldest is forgotten when there are too many.
    pub fn push(&mut self, at: Timestamp, machine: Arc<str>, happening: Happening) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Event { at, machine, happening });
    }

    /// The events by time, then machine; those of one machine in their order. Which of two machines was served first
    /// within one instant is the scheduler's accident and does not show.
    pub fn sorted(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.0.iter().cloned().collect();
        events.sort_by(|a, b| (a.at, &a.machine).cmp(&(b.at, &b.machine)));
        events
    }
}
