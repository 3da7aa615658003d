//! What becomes of a call that a simulated process makes: it is answered, gets lost, is refused, or ends the process.

use jiff::Timestamp;

use super::{
    api::Kind,
    checks::lives::Weather,
    guards::Guard,
    history::Unheard,
    played::{Caller, Lent},
    refusals::{Refused, Request, Verb, refusal},
};
use controller_runtime::{
    error::ApiError,
    objects::{Part, Patch},
};
use machine_controllers::loops::Controller;

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not done, and no answer comes.
    LoseRequest,
    /// It is done, but the answer is lost.
    LoseAnswer,
    /// It is refused because somebody was faster.
    Conflict,
    /// It is refused by a rule of somebody's.
    Refused,
    /// The process dies before it.
    DieBefore,
    /// The process dies after it, before the answer.
    DieAfter,
    /// Another process takes the lease before it.
    LoseLease,
}

/// How a pass ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process lives and leads, if it did before.
    Lives,
    /// It has died.
    Dies,
    /// It has lost the lease.
    LosesLease,
}

/// The call of a pass that goes wrong, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfortune {
    /// Which call.
    pub call: u8,
    /// How.
    pub fault: Fault,
}

/// The call that goes wrong of all that the processes of a world make, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doom {
    /// One to an API server goes wrong like this.
    Call(u32, Fault),
    /// During one to the driver the process dies, and this becomes of what was asked for.
    DriverCall(u32, Unheard),
}

impl Doom {
    /// What it means for a pass before which so many calls were made.
    pub fn after(self, calls: u32) -> Option<Misfortune> {
        let Self::Call(doomed, fault) = self else { return None };
        let call = u8::try_from(doomed.checked_sub(calls)?).ok()?;
        Some(Misfortune { call, fault })
    }
}

/// How many calls were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// To API servers.
    pub api: u32,
    /// To the driver, which have ended in calm weather.
    pub driver: u32,
}

/// What a pass happens in.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The time.
    pub now: Timestamp,
    /// Until when budgets refuse evictions.
    pub evictions_from: Timestamp,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
    /// Which call goes wrong.
    pub misfortune: Option<Misfortune>,
    /// What is refused for hours.
    pub refused: Option<Refused>,
    /// After so many calls the pass is held up.
    pub held_after: Option<u8>,
    /// Whether the target cluster answers.
    pub target: TargetAnswers,
}

/// Whether the API server of the target cluster answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetAnswers {
    /// It does.
    #[default]
    Yes,
    /// It is silent.
    No,
}

/// Kinds of the target cluster.
const OF_TARGET: [&str; 4] = ["Node", "Pod", "Secret", "VolumeAttachment"];

impl Around {
    /// Whether something may go wrong in the pass.
    pub fn weather(&self) -> Weather {
        let is_fair = self.misfortune.is_none() && self.refused.is_none() && self.target == TargetAnswers::Yes;
        if is_fair { Weather::Fair } else { Weather::Foul }
    }

    /// Nothing goes wrong.
    pub fn calm(now: Timestamp) -> Self {
        Self {
            now,
            evictions_from: now,
            without: None,
            misfortune: None,
            refused: None,
            held_after: None,
            target: TargetAnswers::Yes,
        }
    }
}

impl Lent {
    /// Whether this guard was taken away.
    pub fn lacks(&self, guard: Guard) -> bool {
        self.around.without == Some(guard)
    }

    /// What becomes of the next call.
    fn fault(&mut self) -> Option<Fault> {
        let number = self.made;
        self.made = self.made.saturating_add(1);
        self.around.misfortune.filter(|misfortune| misfortune.call == number).map(|misfortune| misfortune.fault)
    }

    /// Makes a call, unless its fault or a refusal keeps it from being done.
    ///
    /// # Errors
    /// What the process hears: the error of the call, or of its fault.
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
        if self.around.target == TargetAnswers::No
            && OF_TARGET.contains(&request.kind)
            && caller.of != Controller::Secret
        {
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

/// A patch as a process without this guard writes it, if that is another one.
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
