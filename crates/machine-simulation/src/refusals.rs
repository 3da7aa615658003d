//! Writes that the API server refuses, for a moment or for hours, and what they cost meanwhile.
//!
//! Refusals quote the name of the object, as those of quotas, policies and webhooks do. Names of new objects are drawn anew at
//! each try, so that whoever copies the text writes something else each time.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::checks::Checks;
use controller_runtime::error::ApiError;

/// Writes that an object may cost in any hour while something is refused, tried or done, events included.
const MOST_WRITES: usize = 30;

/// What the move of a machine from set to set costs each of them: its size, its status, and that once more when the machine counts.
const WRITES_PER_UPDATE: usize = 3;

/// What a process asks the API server to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read an object.
    Get,
    /// Make one.
    Create,
    /// Change one.
    Patch,
    /// Delete one.
    Delete,
}

/// A request as the API server sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is to be done.
    pub verb: Verb,
    /// The kind of the object.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// What is refused for hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// New machines, by a quota.
    Machines,
    /// New sets, by a quota.
    Sets,
    /// Changes of machines, by a webhook.
    MachinePatches,
    /// Changes of Nodes, by a webhook of the other cluster.
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

/// How a request is refused.
pub fn refusal(Request { verb, kind, name }: Request<'_>) -> ApiError {
    ApiError::Forbidden(match verb {
        Verb::Create => format!("{kind} \"{name}\" is forbidden: exceeded quota: fleet"),
        Verb::Get | Verb::Patch | Verb::Delete => {
            format!("admission webhook \"fleet\" denied the request: {kind} {name} may not be changed")
        }
    })
}

/// What objects have cost while something is refused.
#[derive(Debug, Default)]
pub struct Costs {
    /// When something is refused: the time.
    now: Option<Timestamp>,
    /// When they were written in the last hour.
    writes: BTreeMap<String, VecDeque<Timestamp>>,
    /// When machines have been updated in place in the last hour; a machine that was made counts three times.
    updated: VecDeque<Timestamp>,
}

impl Costs {
    /// The time goes on, and something is refused or not.
    pub fn count(&mut self, now: Option<Timestamp>) {
        if now.is_none() {
            self.writes.clear();
        }
        self.now = now;
    }
}

impl Checks {
    /// A machine was made: a rollout goes on, whatever else is refused. It comes, joins and counts, and another one goes.
    pub fn is_made(&mut self) {
        self.costs.updated.extend(self.costs.now.into_iter().flat_map(|now| [now; 3]));
    }

    /// A machine was updated in place: it moves from set to set, whatever is refused.
    pub fn updated(&mut self) {
        self.costs.updated.extend(self.costs.now);
    }

    /// A write about this object was tried, or an event tells of it.
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
