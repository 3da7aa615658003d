//! Writes that the API server refuses, for a moment or for hours, and what they cost meanwhile.
//!
//! Refusals quote the name of the object, as those of quotas, policies and webhooks do. Names of new objects are drawn anew at
//! each try, so that whoever copies the text writes something else each time.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::checks::Checks;
use crate::cluster::error::ApiError;

/// Writes that an object may cost in an hour while something is refused, tried or done, events included.
fn most_writes(kind: &str) -> u32 {
    match kind {
        // Its set writes on it, too, and with each try to let it go it tries to say what was refused.
        "Machine" => 60,
        _ => 30,
    }
}

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
}

impl Refused {
    /// Whether the request is refused.
    pub fn covers(self, request: Request<'_>) -> bool {
        let (verb, kind) = match self {
            Self::Machines => (Verb::Create, "Machine"),
            Self::Sets => (Verb::Create, "MachineSet"),
            Self::MachinePatches => (Verb::Patch, "Machine"),
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

/// What objects have cost since the beginning of an hour in which something is refused.
#[derive(Debug, Default)]
pub struct Costs {
    hour: Option<Timestamp>,
    writes: BTreeMap<String, u32>,
}

impl Costs {
    /// An hour begins.
    pub fn begin(&mut self, now: Timestamp) {
        *self = Self { hour: Some(now), writes: BTreeMap::new() };
    }

    /// Nothing is counted any more.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

impl Checks {
    /// A write about this object was tried, or an event tells of it.
    pub fn costs(&mut self, kind: &str, name: &str) {
        if self.costs.hour.is_none() {
            return;
        }
        let writes = self.costs.writes.entry(format!("{kind} {name}")).or_default();
        *writes += 1;
        if *writes > most_writes(kind) {
            self.violated("an object costs too many writes while something is refused", || format!("{kind} {name}"));
        }
    }
}
