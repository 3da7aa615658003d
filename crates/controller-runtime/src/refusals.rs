//! Writes that the API server refuses (403 by a quota, a policy or missing rights, 413 for their size, 422 by admission), and when
//! they may be sent again.
//!
//! One rule for all controllers: a refused write is not sent again before its pause is over. Until then each try fails here, with
//! the recorded refusal. So a controller may run a pass at any change, without knowing what the API server refused in the last
//! pass. Lost answers, conflicts and server errors are not refusals, and do not delay a write.
//!
//! [`Ledger`] records the refusals and pauses by object. It is pure: the time is an argument. [`Refusals`] is the ledger that the
//! [`Objects`](super::objects::Objects) of a cluster share.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use kube::Resource;
use serde_json::Value;
use tokio::time::Instant;

use super::{error::ApiError, key::ObjectKey, snapshot::Snapshot, store::Change};
use crate::lock;

/// Pause after the first refusal, after the second, and so on; the last one stays. Together with the time until the next pass over
/// a key ([`super::queue::Outcome::Refused`]), the longest pause is five minutes (spec/machine-controller §17.14, MC-282).
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(25),
    Duration::from_secs(125),
    Duration::from_secs(285),
];
/// A write that was not sent for this time is forgotten, because the decision has changed since.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);
/// This number of different writes of one object may be refused without a pause. Further ones wait as if they were the same write,
/// because a write may have different content at each try.
const MAX_DISTINCT: usize = 4;
/// A change of an object makes its writes due, after pauses that grow with each change. After this time without a change, they
/// start at zero again.
const CHANGES_FORGOTTEN: Duration = Duration::from_secs(3600);

/// The object that a write is about. For a creation it is the owner of the new object, because the new object has another name at
/// each try.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The kind.
    pub kind: &'a str,
    /// Namespace and name.
    pub key: &'a ObjectKey,
}

/// The content of a write, as far as it distinguishes writes.
#[derive(Clone, Copy, Debug)]
pub enum WriteContent<'a> {
    /// A new object. Its name is ignored.
    New(&'a Value),
    /// A change of the object.
    Change(&'a Value),
    /// A change of the object's status.
    Status(&'a Value),
    /// The deletion of the object.
    Deletion,
}

impl WriteContent<'_> {
    /// A hash that is equal for equal writes. It ignores times, names of new objects and preconditions, because they differ between
    /// tries.
    fn number(self) -> u64 {
        // The hasher has fixed keys, so that equal histories give equal pauses.
        let mut hasher = DefaultHasher::new();
        match self {
            Self::New(object) => {
                "new".hash(&mut hasher);
                digest(object, &["name", "uid", "resourceVersion"], &mut hasher);
            }
            Self::Change(patch) => {
                "change".hash(&mut hasher);
                digest(patch, &["uid", "resourceVersion"], &mut hasher);
            }
            Self::Status(patch) => {
                "status".hash(&mut hasher);
                digest(patch, &["uid", "resourceVersion"], &mut hasher);
            }
            Self::Deletion => "end".hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Whether the error may mean that another client changed the object first, and not that the write is refused: the API server
    /// answers a JSON patch with a failed test like one that admission refuses.
    fn may_be_overtaken(self, error: &ApiError) -> bool {
        matches!((self, error), (Self::Change(Value::Array(_)) | Self::Status(Value::Array(_)), ApiError::Invalid(_)))
    }
}

/// Hashes a value, without these fields of its metadata and without the times in its texts.
fn digest(value: &Value, apart: &[&str], hasher: &mut impl Hasher) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                name.hash(hasher);
                match value {
                    Value::Object(metadata) if name == "metadata" => {
                        for (name, value) in metadata.iter().filter(|(name, _)| !apart.contains(&name.as_str())) {
                            name.hash(hasher);
                            digest(value, &[], hasher);
                        }
                    }
                    // The version that a JSON patch tests.
                    _ if is_test_of_version(fields) && name == "value" => {}
                    value => digest(value, &[], hasher),
                }
            }
        }
        Value::Array(items) => {
            items.len().hash(hasher);
            for item in items {
                digest(item, &[], hasher);
            }
        }
        Value::String(text) => without_times(text, |part| part.hash(hasher)),
        Value::Number(number) => number.to_string().hash(hasher),
        Value::Bool(is_true) => is_true.hash(hasher),
        Value::Null => 0_u8.hash(hasher),
    }
}

fn is_test_of_version(fields: &serde_json::Map<String, Value>) -> bool {
    fields.get("path").is_some_and(|path| path == "/metadata/resourceVersion")
}

/// Calls `take` with the parts of a text between times such as `2027-01-15T08:00:00Z`.
fn without_times(text: &str, mut take: impl FnMut(&str)) {
    let (mut rest, mut from) = (text, 0);
    while let Some(place) = rest.get(from..).and_then(|rest| rest.find('T')).map(|place| place + from) {
        let begin = place.checked_sub("2027-01-15".len()).filter(|begin| is_date(rest.as_bytes().get(*begin..place)));
        let time = |c: char| c.is_ascii_digit() || matches!(c, ':' | '.');
        let after = rest.get(place + 1..).unwrap_or_default();
        match (begin, after.find(|c| !time(c))) {
            (Some(begin), Some(end)) if after[end..].starts_with('Z') => {
                take(rest.get(..begin).unwrap_or_default());
                (rest, from) = (&after[end + 1..], 0);
            }
            _ => from = place + 1,
        }
    }
    take(rest);
}

fn is_date(text: Option<&[u8]>) -> bool {
    text.is_some_and(|text| {
        text.iter()
            .enumerate()
            .all(|(place, byte)| if matches!(place, 4 | 7) { *byte == b'-' } else { byte.is_ascii_digit() })
    })
}

/// A refused write.
#[derive(Debug)]
struct Write {
    /// When it was last sent.
    sent: Duration,
    /// When it was last tried, whether or not it was sent.
    last_tried: Duration,
    /// Whether it may succeed now: the object has changed since it was sent.
    is_lifted: bool,
    error: ApiError,
}

/// The refused writes about one object.
#[derive(Debug, Default)]
struct Refused {
    /// The number of refusals.
    refusals: usize,
    /// The number of object changes that made a write due earlier.
    lifts: usize,
    /// The time of the last such change.
    lifted: Duration,
    writes: BTreeMap<u64, Write>,
}

impl Refused {
    /// The recorded refusal of a write; `None` when it may be sent now.
    fn standing(&mut self, number: u64, now: Duration) -> Option<ApiError> {
        self.writes.retain(|_, write| !is_past(write.last_tried, FORGOTTEN, now));
        if self.writes.is_empty() {
            *self = Self::default();
            return None;
        }
        // The pause grows with the number of writes, so that several refused writes of an object cost as many requests as one.
        let writes = u32::try_from(self.writes.len()).unwrap_or(u32::MAX);
        let pause = pause(self.refusals).saturating_mul(writes);
        let lifted = pause_after_change(self.lifts).saturating_mul(writes);
        let is_known = self.writes.contains_key(&number);
        let write = if is_known {
            self.writes.get_mut(&number)?
        } else if self.writes.len() < MAX_DISTINCT {
            return None;
        } else {
            self.writes.values_mut().max_by_key(|write| write.sent)?
        };
        if is_known {
            write.last_tried = now;
        }
        let pause = if write.is_lifted { pause.min(lifted) } else { pause };
        (!is_past(write.sent, pause, now)).then(|| write.error.clone())
    }
}

fn is_past(then: Duration, pause: Duration, now: Duration) -> bool {
    now.saturating_sub(then) >= pause
}

/// The pause after this number of refusals.
fn pause(refusals: usize) -> Duration {
    PAUSES[refusals.saturating_sub(1).min(PAUSES.len() - 1)]
}

/// The pause between two tries after this number of object changes: none at first, then as after refusals.
fn pause_after_change(changes: usize) -> Duration {
    if changes <= 1 { Duration::ZERO } else { pause(changes - 1) }
}

/// Refused writes, by object.
#[derive(Debug, Default)]
pub struct Ledger {
    objects: BTreeMap<String, BTreeMap<ObjectKey, Refused>>,
    /// When unused objects were last removed.
    swept: Duration,
}

impl Ledger {
    /// Whether a write about the object was refused and not accepted since.
    pub fn knows(&self, about: About<'_>) -> bool {
        self.objects.get(about.kind).is_some_and(|all| all.contains_key(about.key))
    }

    /// The recorded refusal of a write; `None` when it may be sent.
    pub fn standing(&mut self, about: About<'_>, content: WriteContent<'_>, now: Duration) -> Option<ApiError> {
        self.of(about)?.standing(content.number(), now)
    }

    /// Records the result of a write that was sent.
    pub fn learn(&mut self, about: About<'_>, content: WriteContent<'_>, error: Option<&ApiError>, now: Duration) {
        match error {
            Some(error) if error.is_refusal() => {
                self.sweep(now);
                let all = self.objects.entry(about.kind.to_owned()).or_default();
                let refused = all.entry(about.key.clone()).or_default();
                refused.refusals += 1;
                let number = content.number();
                let is_lifted = content.may_be_overtaken(error) && !refused.writes.contains_key(&number);
                refused.writes.insert(number, Write { sent: now, last_tried: now, is_lifted, error: error.clone() });
            }
            // Without an answer nothing is known.
            Some(_) => {}
            None => self.accepted(about, content, now),
        }
    }

    fn accepted(&mut self, about: About<'_>, content: WriteContent<'_>, now: Duration) {
        let Some(refused) = self.of(about) else { return };
        if refused.writes.remove(&content.number()).is_none() {
            return;
        }
        if refused.writes.is_empty() {
            self.forget(about);
        } else {
            // The cause of the other refusals may be gone too.
            lift(refused, now);
        }
    }

    /// The object, or something its writes depend on, has changed: refused writes may succeed now.
    pub fn changed(&mut self, about: About<'_>, now: Duration) {
        if let Some(refused) = self.of(about) {
            lift(refused, now);
        }
    }

    /// The object was deleted.
    pub fn forget(&mut self, about: About<'_>) {
        if let Some(all) = self.objects.get_mut(about.kind) {
            all.remove(about.key);
        }
    }

    /// Records a change from a watch or from a write of this process. A change of the status alone is no reason to try again,
    /// because this process writes the refusal there.
    pub fn see<S: Snapshot>(&mut self, change: &Change<S>, now: Duration) {
        let kind = S::Object::kind(&());
        let Some(newest) = change.newest() else { return };
        let key = newest.key();
        let about = About { kind: &kind, key: &key };
        if self.of(about).is_none() {
            return;
        }
        match (&change.old, &change.new) {
            (_, None) => self.forget(about),
            (Some(old), Some(new)) if old.has_metadata_of(new) => {}
            _ => self.changed(about, now),
        }
    }

    fn of(&mut self, about: About<'_>) -> Option<&mut Refused> {
        self.objects.get_mut(about.kind)?.get_mut(about.key)
    }

    /// Removes objects without recent tries.
    fn sweep(&mut self, now: Duration) {
        if !is_past(self.swept, FORGOTTEN, now) {
            return;
        }
        self.swept = now;
        for all in self.objects.values_mut() {
            all.retain(|_, refused| refused.writes.values().any(|write| !is_past(write.last_tried, FORGOTTEN, now)));
        }
    }
}

fn lift(refused: &mut Refused, now: Duration) {
    if is_past(refused.lifted, CHANGES_FORGOTTEN, now) {
        refused.lifts = 0;
    }
    refused.lifts += 1;
    refused.lifted = now;
    refused.writes.values_mut().for_each(|write| write.is_lifted = true);
}

/// The ledger of a cluster. Cheap to clone; all clones share one ledger.
#[derive(Clone)]
pub struct Refusals {
    ledger: Arc<Mutex<Ledger>>,
    /// Monotonic time since any moment.
    time: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Default for Refusals {
    fn default() -> Self {
        let began = Instant::now();
        Self::timed_by(move || began.elapsed())
    }
}

impl Refusals {
    /// A ledger with this monotonic clock, which may start at any time.
    pub fn timed_by(time: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { ledger: Arc::default(), time: Arc::new(time) }
    }

    /// Whether a write about the object was refused and not accepted since.
    pub fn knows(&self, about: About<'_>) -> bool {
        self.lock().knows(about)
    }

    /// [`Ledger::standing`] now.
    ///
    /// # Errors
    /// The recorded refusal.
    pub fn may_try(&self, about: About<'_>, content: WriteContent<'_>) -> Result<(), ApiError> {
        self.lock().standing(about, content, self.now()).map_or(Ok(()), Err)
    }

    /// [`Ledger::learn`] now. The first refusal about an object is logged, because not every controller can report it in a status.
    pub fn learn<T>(&self, about: About<'_>, content: WriteContent<'_>, answer: &Result<T, ApiError>) {
        let mut ledger = self.lock();
        let was_known = ledger.knows(about);
        ledger.learn(about, content, answer.as_ref().err(), self.now());
        if let Err(error) = answer
            && !was_known
            && ledger.knows(about)
        {
            tracing::warn!(
                kind = about.kind, namespace = about.key.namespace, name = about.key.name, %error,
                "a write is refused; it is sent again after growing pauses"
            );
        }
    }

    /// [`Ledger::changed`] now.
    pub fn changed(&self, about: About<'_>) {
        self.lock().changed(about, self.now());
    }

    /// [`Ledger::see`] now.
    pub fn see<S: Snapshot>(&self, change: &Change<S>) {
        self.lock().see(change, self.now());
    }

    fn now(&self) -> Duration {
        (self.time)()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

#[cfg(test)]
mod tests;
