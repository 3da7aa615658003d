//! How a simulated process calls the API server: every call may get lost, and its answer goes into the process's stores as
//! the real client puts it there ([`controller_runtime::objects`]).

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    api::{Api, Kind},
    checks::Checks,
    guards::Guard,
    refusals::{Refused, Request, Verb, refusal},
    trace::Trace,
};
use controller_runtime::{
    error::ApiError,
    gate::Gate,
    key::{ObjectKey, Target},
    objects::{Part, Patch},
    refusals::{About, Refusals, Said},
    store::Store,
};

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
}

impl Around {
    /// Nothing goes wrong.
    pub fn calm(now: Timestamp) -> Self {
        Self { now, evictions_from: now, without: None, misfortune: None, refused: None, held_after: None }
    }
}

/// The calls of one pass.
pub struct Calls<'a> {
    /// The API server.
    pub api: &'a mut Api,
    /// What is watched over.
    pub checks: &'a mut Checks,
    /// What is told.
    pub trace: &'a mut Trace,
    /// The gate of the process.
    pub gate: &'a Gate,
    /// Closes it.
    pub lost: &'a CancellationToken,
    /// What the process was refused.
    pub refusals: &'a Refusals,
    /// The time.
    pub now: Timestamp,
    /// What the pass happens in.
    pub around: Around,
    /// Calls so far.
    pub made: u8,
    /// How the pass ends, as far as it is known.
    pub end: End,
}

impl Calls<'_> {
    /// Whether this guard was taken away.
    pub fn lacks(&self, guard: Guard) -> bool {
        self.around.without == Some(guard)
    }

    /// The answer of a write, as it goes into the store.
    fn take<K: Kind>(&self, store: &Store<K>, object: Arc<K>) -> Arc<K> {
        if self.lacks(Guard::OwnWrites) { object } else { store.observe_shared(object) }
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
            self.lost.cancel();
            self.end = End::LosesLease;
            self.checks.leads = false;
        }
        if is_write && !self.lacks(Guard::Leadership) {
            self.gate.may_act()?;
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

    /// Sends a write, unless it was refused a short while ago ([`controller_runtime::refusals`]).
    fn write<T>(
        &mut self,
        about: About<'_>,
        written: &impl Written,
        send: impl FnOnce(&mut Self) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let known = self.refusals.knows(about).then(|| written.body());
        let minded = known.as_ref().filter(|_| !self.lacks(Guard::Refusals));
        if let Some(body) = minded
            && let Err(error) = self.refusals.may_try(about, written.said(body))
        {
            self.trace.say(|| format!("    not sent about {} {}: {error}", about.kind, about.key));
            return Err(error);
        }
        self.checks.costs(about.kind, &about.key.name);
        let answer = send(self);
        let refused = || answer.as_ref().is_err_and(ApiError::is_refusal).then(|| written.body());
        if let Some(body) = known.or_else(refused) {
            self.refusals.learn(about, written.said(&body), &answer);
        }
        answer
    }

    /// Reads an object; the store is told.
    pub fn get<K: Kind>(&mut self, store: &Store<K>, key: &ObjectKey) -> Result<Option<Arc<K>>, ApiError> {
        let asked = store.moment();
        let found = self.call(
            || format!("get {key}"),
            request::<K>(Verb::Get, &key.name),
            |calls| Ok(calls.api.get::<K>(&key.name)),
        )?;
        match &found {
            Some(object) => {
                store.observe_read(Arc::clone(object), asked);
            }
            None => {
                if let Some(known) = store.get(key) {
                    store.forget(key, known.meta().uid.as_deref().unwrap_or_default());
                }
            }
        }
        Ok(found)
    }

    /// Patches an object.
    pub fn patch<K: Kind>(
        &mut self,
        store: &Store<K>,
        target: &Target,
        part: Part,
        patch: &Patch,
    ) -> Result<Arc<K>, ApiError> {
        let what = || format!("patch {}{} {target}: {}", K::kind(&()), suffix(part), short(patch));
        let unguarded = self.lacks(Guard::Versions).then(|| without_version(patch));
        let patch = unguarded.as_ref().unwrap_or(patch).clone().bound_to(&target.uid);
        let request = request::<K>(Verb::Patch, &target.key.name);
        let about = About { kind: K::NAME, key: &target.key };
        let result = self.write(about, &(part, &patch), |calls| {
            calls.call(what, request, |calls| calls.api.patch::<K>(&target.key, part, &patch))
        });
        match result {
            Ok(object) => Ok(self.take(store, object)),
            Err(error) => {
                if error.is_not_found() {
                    store.forget(&target.key, &target.uid);
                }
                Err(error)
            }
        }
    }

    /// Deletes an object; one that is gone counts as deleted. Returns the marked object while it waits for finalizers.
    pub fn delete<K: Kind>(
        &mut self,
        store: &Store<K>,
        target: &Target,
        version: Option<&str>,
    ) -> Result<Option<Arc<K>>, ApiError> {
        let version = version.filter(|_| !self.lacks(Guard::Versions));
        let about = About { kind: K::NAME, key: &target.key };
        let result = self.write(about, &Ending, |calls| {
            calls.call(
                || format!("delete {} {target}", K::kind(&())),
                request::<K>(Verb::Delete, &target.key.name),
                |calls| calls.api.delete::<K>(&target.key.name, Some(&target.uid), version, calls.now),
            )
        });
        match result {
            Ok(Some(marked)) => Ok(Some(self.take(store, marked))),
            Ok(None) => {
                store.forget(&target.key, &target.uid);
                Ok(None)
            }
            Err(error) if error.is_not_found() => {
                store.forget(&target.key, &target.uid);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// What is written. It is put together only for those about whom something was refused.
trait Written {
    /// As the API server gets it.
    fn body(&self) -> Value;
    /// What it is.
    fn said<'a>(&self, body: &'a Value) -> Said<'a>;
}

impl Written for (Part, &Patch) {
    fn body(&self) -> Value {
        match self.1 {
            Patch::Merge(merge) => merge.clone(),
            Patch::Json(operations) => Value::Array(operations.clone()),
        }
    }

    fn said<'a>(&self, body: &'a Value) -> Said<'a> {
        match self.0 {
            Part::Main => Said::Change(body),
            Part::Status => Said::Status(body),
        }
    }
}

struct Ending;

impl Written for Ending {
    fn body(&self) -> Value {
        Value::Null
    }

    fn said<'a>(&self, _: &'a Value) -> Said<'a> {
        Said::End
    }
}

pub(super) fn request<K: Kind>(verb: Verb, name: &str) -> Request<'_> {
    Request { verb, kind: K::NAME, name }
}

pub(super) fn without_version(patch: &Patch) -> Patch {
    let mut patch = patch.clone();
    if let Patch::Merge(merge) = &mut patch
        && let Some(metadata) = merge.get_mut("metadata").and_then(serde_json::Value::as_object_mut)
    {
        metadata.remove("resourceVersion");
    }
    patch
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
