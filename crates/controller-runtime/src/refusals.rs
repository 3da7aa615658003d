//! Writes that the API server refuses (403 by a quota, a policy or missing rights, 422 by admission), and when they may be tried
//! again.
//!
//! One rule for all rooms: a refused write is not sent again before its pause is over. Until then each attempt is answered
//! with the same refusal, from here. So a room may run a pass whenever something happens, and need not know what the last
//! pass was refused. Lost answers, conflicts and servers that fail are no refusals, and nothing here holds them back.
//!
//! What lives here: what was refused, by the object that it was about, and the pauses. The [`Ledger`] is pure; the time comes in
//! as a value. [`Refusals`] is the ledger that the [`Objects`](super::objects::Objects) of a cluster share.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::Resource;
use serde_json::Value;
use tokio::time::Instant;

use super::{error::ApiError, key::ObjectKey, snapshot::Snapshot, store::Change};

/// Pauses after the first refusal, the second one and so on; the last one stays. Together with the time until the next pass over
/// a key ([`super::queue::Outcome::Refused`]) the longest one is five minutes (spec/machine-controller §17.14, MC-282).
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(25),
    Duration::from_secs(125),
    Duration::from_secs(285),
];
/// A write that nobody has asked for in this time is forgotten: the decision was another one since.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);
/// So many different writes of one object may be refused without a pause. Further ones wait as if they were the same: a write that
/// says something else each time is no other write.
const KNOWN_APART: usize = 4;
/// Changes of an object make its writes due, ever later; after this time without a change they do so at once again.
const CHANGES_FORGOTTEN: Duration = Duration::from_secs(3600);

/// The object that a write is about. A creation is about the owner of the new object, which has another name at each try.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The kind.
    pub kind: &'a str,
    /// Namespace and name.
    pub key: &'a ObjectKey,
}

/// What is written, as far as it tells one write from another.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    /// A new object. Its name does not count.
    New(&'a Value),
    /// A change of the object.
    Change(&'a Value),
    /// A change of its status.
    Status(&'a Value),
    /// Its end.
    End,
}

impl Said<'_> {
    /// The same number for the same write. Times, names of new objects and preconditions differ from try to try and don't count.
    fn number(self) -> u64 {
        // Fixed keys: the same history gives the same pauses.
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
            Self::End => "end".hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Whether the error may say that somebody else was faster, and not that the write is refused: a JSON patch whose test failed is
    /// answered like one that admission refuses.
    fn may_be_late(self, error: &ApiError) -> bool {
        matches!((self, error), (Self::Change(Value::Array(_)) | Self::Status(Value::Array(_)), ApiError::Invalid(_)))
    }
}

/// Takes in a value but for these fields of its metadata and the times in its texts.
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
                    // A JSON patch tests the version that it was made for.
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

/// The parts of a text between times such as `2027-01-15T08:00:00Z`.
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

/// A write that was refused.
#[derive(Debug)]
struct Write {
    /// When it was sent last.
    tried: Duration,
    /// When somebody wanted it last.
    wanted: Duration,
    /// Whether it may be granted by now: the object has changed since it was sent.
    is_lifted: bool,
    error: ApiError,
}

/// What was refused about one object.
#[derive(Debug, Default)]
struct Refused {
    /// Refusals so far.
    refusals: usize,
    /// Changes of the object that made a write due earlier.
    lifts: usize,
    /// When the last of them was.
    lifted: Duration,
    writes: BTreeMap<u64, Write>,
}

impl Refused {
    /// Whether a write may be sent now; the refusal otherwise.
    fn standing(&mut self, number: u64, now: Duration) -> Option<ApiError> {
        self.writes.retain(|_, write| !is_past(write.wanted, FORGOTTEN, now));
        if self.writes.is_empty() {
            *self = Self::default();
            return None;
        }
        // Each of several writes waits for the others, too, so that the object costs as much as with one.
        let writes = u32::try_from(self.writes.len()).unwrap_or(u32::MAX);
        let pause = pause(self.refusals).saturating_mul(writes);
        let lifted = pause_after_change(self.lifts).saturating_mul(writes);
        let is_known = self.writes.contains_key(&number);
        let write = if is_known {
            self.writes.get_mut(&number)?
        } else if self.writes.len() < KNOWN_APART {
            return None;
        } else {
            self.writes.values_mut().max_by_key(|write| write.tried)?
        };
        if is_known {
            write.wanted = now;
        }
        let pause = if write.is_lifted { pause.min(lifted) } else { pause };
        (!is_past(write.tried, pause, now)).then(|| write.error.clone())
    }
}

fn is_past(then: Duration, pause: Duration, now: Duration) -> bool {
    now.saturating_sub(then) >= pause
}

/// The pause after so many refusals.
fn pause(refusals: usize) -> Duration {
    PAUSES[refusals.saturating_sub(1).min(PAUSES.len() - 1)]
}

/// The pause between two tries after so many changes of the object between them: none at first, then as after refusals.
fn pause_after_change(changes: usize) -> Duration {
    if changes <= 1 { Duration::ZERO } else { pause(changes - 1) }
}

/// What was refused, by object.
#[derive(Debug, Default)]
pub struct Ledger {
    objects: BTreeMap<String, BTreeMap<ObjectKey, Refused>>,
    /// When objects were last looked through for those that nobody writes about any more.
    swept: Duration,
}

impl Ledger {
    /// Whether anything was refused of the object and not granted since.
    pub fn knows(&self, about: About<'_>) -> bool {
        self.objects.get(about.kind).is_some_and(|all| all.contains_key(about.key))
    }

    /// The refusal that a write would meet again, as far as is known; `None` when it may be sent.
    pub fn standing(&mut self, about: About<'_>, said: Said<'_>, now: Duration) -> Option<ApiError> {
        self.of(about)?.standing(said.number(), now)
    }

    /// A write was sent, and this came of it.
    pub fn learn(&mut self, about: About<'_>, said: Said<'_>, error: Option<&ApiError>, now: Duration) {
        match error {
            Some(error) if error.is_refusal() => {
                self.sweep(now);
                let all = self.objects.entry(about.kind.to_owned()).or_default();
                let refused = all.entry(about.key.clone()).or_default();
                refused.refusals += 1;
                let number = said.number();
                let is_lifted = said.may_be_late(error) && !refused.writes.contains_key(&number);
                refused.writes.insert(number, Write { tried: now, wanted: now, is_lifted, error: error.clone() });
            }
            // Nothing is known of what was not answered.
            Some(_) => {}
            None => self.accepted(about, said, now),
        }
    }

    fn accepted(&mut self, about: About<'_>, said: Said<'_>, now: Duration) {
        let Some(refused) = self.of(about) else { return };
        if refused.writes.remove(&said.number()).is_none() {
            return;
        }
        if refused.writes.is_empty() {
            self.forget(about);
        } else {
            // What refused them may be gone, too.
            lift(refused, now);
        }
    }

    /// The object, or what its writes depend on, has changed: what was refused may be granted now.
    pub fn changed(&mut self, about: About<'_>, now: Duration) {
        if let Some(refused) = self.of(about) {
            lift(refused, now);
        }
    }

    /// The object is gone.
    pub fn forget(&mut self, about: About<'_>) {
        if let Some(all) = self.objects.get_mut(about.kind) {
            all.remove(about.key);
        }
    }

    /// Takes in a change that a watch, or a write of ours, has brought. One of the status alone is no reason to try again: we tell
    /// of the refusal there.
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

    /// Forgets objects that nobody writes about any more.
    fn sweep(&mut self, now: Duration) {
        if !is_past(self.swept, FORGOTTEN, now) {
            return;
        }
        self.swept = now;
        for all in self.objects.values_mut() {
            all.retain(|_, refused| refused.writes.values().any(|write| !is_past(write.wanted, FORGOTTEN, now)));
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

/// The ledger of a cluster. Cheap to clone; all clones are one ledger.
#[derive(Clone)]
pub struct Refusals {
    ledger: Arc<Mutex<Ledger>>,
    /// Goes on steadily, from any beginning.
    time: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Default for Refusals {
    fn default() -> Self {
        let began = Instant::now();
        Self::timed_by(move || began.elapsed())
    }
}

impl Refusals {
    /// A ledger by another clock, which goes on steadily, from any beginning.
    pub fn timed_by(time: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { ledger: Arc::default(), time: Arc::new(time) }
    }

    /// Whether anything was refused of the object and not granted since.
    pub fn knows(&self, about: About<'_>) -> bool {
        self.lock().knows(about)
    }

    /// [`Ledger::standing`] at this moment.
    ///
    /// # Errors
    /// The refusal.
    pub fn may_try(&self, about: About<'_>, said: Said<'_>) -> Result<(), ApiError> {
        self.lock().standing(about, said, self.now()).map_or(Ok(()), Err)
    }

    /// [`Ledger::learn`] at this moment. The first refusal about an object goes to the log: not every room has a place on its objects
    /// to tell of it.
    pub fn learn<T>(&self, about: About<'_>, said: Said<'_>, answer: &Result<T, ApiError>) {
        let mut ledger = self.lock();
        let was_known = ledger.knows(about);
        ledger.learn(about, said, answer.as_ref().err(), self.now());
        if let Err(error) = answer
            && !was_known
            && ledger.knows(about)
        {
            tracing::warn!(kind = about.kind, object = %about.key, %error, "a write is refused; it is tried again ever later");
        }
    }

    /// [`Ledger::changed`] at this moment.
    pub fn changed(&self, about: About<'_>) {
        self.lock().changed(about, self.now());
    }

    /// [`Ledger::see`] at this moment.
    pub fn see<S: Snapshot>(&self, change: &Change<S>) {
        self.lock().see(change, self.now());
    }

    fn now(&self) -> Duration {
        (self.time)()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
