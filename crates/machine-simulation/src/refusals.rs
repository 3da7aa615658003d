//! Writes that the API server refuses, once or for hours, and the cost of objects in that time.
//!
//! Refusals contain the name of the object, like the refusals of quotas, policies and webhooks. Names of new objects
//! are drawn again for each attempt, so a status that copies the text would change each time.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::checks::Checks;
use controller_runtime::error::ApiError;

/// Maximum number of writes per object and hour while something is refused, tried or done, events included.
const MOST_WRITES: usize = 30;

/// Writes per set when a machine moves between sets: the size, the status, and the status again when the machine
/// counts.
const WRITES_PER_UPDATE: usize = 3;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read an object.
    Get,
    /// Create an object.
    Create,
    /// Change an object.
    Patch,
    /// Delete an object.
    Delete,
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The verb of the request.
    pub verb: Verb,
    /// The kind of the object.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// The requests that are refused for hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// New machines, by a quota.
    Machines,
    /// New sets, by a quota.
    Sets,
    /// Changes of machines, by a webhook.
    MachinePatches,
    /// Changes of Nodes, by a webhook of the target cluster.
    NodePatches,
}

impl Refused {
    /// Whether the request is refused.
    pub fn covers(self, request: Request<'_>) -> bool {
        let (verb, kind) = match self {
            Self::Machines => (Verb::Create, "Machine"),
            Self::Sets => (Verb::Create, "MachineSet"),
            Self::MachinePatches => (Verb::Patch, "Machine"),
            Self::NodePatches => (Verb::Patch, "Node"),
        };
        (request.verb, request.kind) == (verb, kind)
    }
}

/// The error of a refused request.
pub fn refusal(Request { verb, kind, name }: Request<'_>) -> ApiError {
    ApiError::Forbidden(match verb {
        Verb::Create => format!("{kind} \"{name}\" is forbidden: exceeded quota: fleet"),
        Verb::Get | Verb::Patch | Verb::Delete => {
            format!("admission webhook \"fleet\" denied the request: {kind} {name} may not be changed")
        }
    })
}

/// The cost of objects while something is refused.
#[derive(Debug, Default)]
pub struct Costs {
    /// The present time while something is refused, otherwise `None`.
    now: Option<Timestamp>,
    /// The times of writes in the last hour, by object.
    writes: BTreeMap<String, VecDeque<Timestamp>>,
    /// The times of updates in place in the last hour; a created machine counts three times.
    updated: VecDeque<Timestamp>,
}

impl Costs {
    /// Sets the present time, or ends the count.
    pub fn count(&mut self, now: Option<Timestamp>) {
        if now.is_none() {
            self.writes.clear();
        }
        self.now = now;
    }
}

impl Checks {
    /// A machine was created, because a rollout continues while other writes are refused. It is created, joins and
    /// counts, and another one is deleted.
    pub fn is_made(&mut self) {
        self.costs.updated.extend(self.costs.now.into_iter().flat_map(|now| [now; 3]));
    }

    /// A machine was updated in place and moves between sets while other writes are refused.
    pub fn updated(&mut self) {
        self.costs.updated.extend(self.costs.now);
    }

    /// Counts a write about this object, or an event about it.
    pub fn costs(&mut self, kind: &str, name: &str) {
        let Some(now) = self.costs.now else { return };
        let writes = self.costs.writes.entry(format!("{kind} {name}")).or_default();
        writes.push_back(now);
        let hour_ago = now.checked_sub(SignedDuration::from_hours(1)).unwrap_or(Timestamp::MIN);
        for times in [&mut *writes, &mut self.costs.updated] {
            while times.front().is_some_and(|at| *at <= hour_ago) {
                times.pop_front();
            }
        }
        if writes.len() > MOST_WRITES + self.costs.updated.len() * WRITES_PER_UPDATE {
            self.violated("an object costs too many writes while something is refused", || format!("{kind} {name}"));
        }
    }
}
