//! The outcome of a call of a simulated process: it is answered, gets lost, is refused, or ends the process.

use jiff::Timestamp;

use super::{
    api::Kind,
    checks::lives::Weather,
    guards::Guard,
    history::DroppedCalls,
    played::{Caller, Lent},
    refusals::{Refused, Request, Verb, refusal},
};
use controller_runtime::{
    error::ApiError,
    objects::{Part, Patch},
};
use machine_controllers::loops::Controller;

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not carried out and gets no answer.
    LoseRequest,
    /// The call is carried out, but its answer is lost.
    LoseAnswer,
    /// The call is refused with a conflict.
    Conflict,
    /// The call is refused by a policy.
    Refused,
    /// The process dies before the call.
    DieBefore,
    /// The process dies after the call, before the answer.
    DieAfter,
    /// Another process takes the lease before the call.
    LoseLease,
}

/// The state of the process after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It lives, and leads if it did before.
    Lives,
    /// It has died.
    Dies,
    /// It has lost the lease.
    LosesLease,
}

/// The fault of one call in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFault {
    /// The call, counted from 0.
    pub call: u8,
    /// The fault.
    pub fault: Fault,
}

/// The planned fault of one call among all calls of a world, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedFault {
    /// A call to an API server, and its fault.
    Call(u32, Fault),
    /// The process dies during this driver call; [`DroppedCalls`] says what happens to the call.
    DriverCall(u32, DroppedCalls),
}

impl PlannedFault {
    /// The fault within a pass before which `calls` calls were made.
    pub fn after(self, calls: u32) -> Option<CallFault> {
        let Self::Call(number, fault) = self else { return None };
        let call = u8::try_from(number.checked_sub(calls)?).ok()?;
        Some(CallFault { call, fault })
    }
}

/// Numbers of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// To API servers.
    pub api: u32,
    /// To the driver, as far as they ended in the calm phase.
    pub driver: u32,
}

/// The circumstances of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The time.
    pub now: Timestamp,
    /// The time until which budgets refuse evictions.
    pub evictions_from: Timestamp,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
    /// The fault of a call.
    pub call_fault: Option<CallFault>,
    /// The requests that are refused for hours.
    pub refused: Option<Refused>,
    /// The pass is held up after this number of calls.
    pub held_after: Option<u8>,
    /// Whether the target cluster answers.
    pub target_answers: bool,
}

/// Kinds of the target cluster.
const OF_TARGET: [&str; 4] = ["Node", "Pod", "Secret", "VolumeAttachment"];

impl Around {
    /// Whether a fault may occur in the pass.
    pub fn weather(&self) -> Weather {
        let is_fair = self.call_fault.is_none() && self.refused.is_none() && self.target_answers;
        if is_fair { Weather::Fair } else { Weather::Foul }
    }

    /// A pass without faults.
    pub fn calm(now: Timestamp) -> Self {
        Self {
            now,
            evictions_from: now,
            without: None,
            call_fault: None,
            refused: None,
            held_after: None,
            target_answers: true,
        }
    }
}

impl Lent {
    /// Whether this guard is removed.
    pub fn lacks(&self, guard: Guard) -> bool {
        self.around.without == Some(guard)
    }

    /// The fault of the next call.
    fn fault(&mut self) -> Option<Fault> {
        let number = self.made;
        self.made = self.made.saturating_add(1);
        self.around.call_fault.filter(|call_fault| call_fault.call == number).map(|call_fault| call_fault.fault)
    }

    /// Makes a call, unless a fault or a refusal prevents it.
    ///
    /// # Errors
    /// The error that the process receives, of the call or of its fault.
    pub fn call<T>(
        &mut self,
        caller: &Caller,
        what: impl Fn() -> String,
        request: Request<'_>,
        perform: impl FnOnce(&mut Self) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        if self.end == End::Dies {
            return Err(ApiError::Unavailable("the process is dead".to_owned()));
        }
        let is_write = request.verb != Verb::Get;
        let fault = self.fault();
        if fault == Some(Fault::LoseLease) {
            self.trace.say(|| format!("    the lease goes to another process before: {}", what()));
            caller.lost.cancel();
            self.end = End::LosesLease;
            self.checks.leads = false;
        }
        if is_write && !self.lacks(Guard::Leadership) {
            caller.gate.may_act()?;
        }
        let lost = || Err(ApiError::Unavailable("lost".to_owned()));
        match fault {
            Some(Fault::LoseRequest) => {
                self.trace.say(|| format!("    {} - the request is lost", what()));
                return lost();
            }
            Some(Fault::DieBefore) => {
                self.trace.say(|| format!("    the process dies before: {}", what()));
                self.end = End::Dies;
                return lost();
            }
            Some(Fault::Conflict) if is_write => {
                self.trace.say(|| format!("    {} - refused with a conflict", what()));
                return Err(ApiError::Conflict("somebody was faster".to_owned()));
            }
            _ => {}
        }
        if !self.around.target_answers && OF_TARGET.contains(&request.kind) && caller.of != Controller::Secret {
            self.trace.say(|| format!("    {} - no answer from the target cluster", what()));
            return Err(ApiError::Unavailable("the target cluster does not answer".to_owned()));
        }
        let is_refused = fault == Some(Fault::Refused) || self.around.refused.is_some_and(|one| one.covers(request));
        if is_write && is_refused {
            let error = refusal(request);
            self.trace.say(|| format!("    {} - {error}", what()));
            return Err(error);
        }
        if is_write {
            self.checks.acts();
        }
        let result = perform(self);
        self.trace.say(|| match &result {
            Ok(_) => format!("    {}", what()),
            Err(error) => format!("    {} - {error}", what()),
        });
        match fault {
            Some(Fault::LoseAnswer) => {
                self.trace.say(|| "      the answer is lost".to_owned());
                lost()
            }
            Some(Fault::DieAfter) => {
                self.trace.say(|| "      the process dies before the answer comes".to_owned());
                self.end = End::Dies;
                lost()
            }
            _ => result,
        }
    }
}

pub(super) fn request<K: Kind>(verb: Verb, name: &str) -> Request<'_> {
    Request { verb, kind: K::NAME, name }
}

/// The patch that a process without this guard writes, if it is another one.
pub(super) fn patch_without(guard: Option<Guard>, patch: &Patch) -> Option<Patch> {
    let (object, field) = match guard? {
        Guard::Versions => ("metadata", "resourceVersion"),
        Guard::Reasons => ("status", "machineConditions"),
        _ => return None,
    };
    let mut patch = patch.clone();
    if let Patch::Merge(merge) = &mut patch
        && let Some(fields) = merge.get_mut(object).and_then(serde_json::Value::as_object_mut)
    {
        fields.remove(field);
    }
    Some(patch)
}

pub(super) fn suffix(part: Part) -> &'static str {
    match part {
        Part::Main => "",
        Part::Status => "/status",
    }
}

pub(super) fn short(patch: &Patch) -> String {
    let text = match patch {
        Patch::Merge(merge) => merge.to_string(),
        Patch::Json(operations) => serde_json::Value::Array(operations.clone()).to_string(),
    };
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
