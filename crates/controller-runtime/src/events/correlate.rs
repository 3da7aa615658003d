//! Decides which notes become events, which increase the count of an event, and which are dropped.
//!
//! client-go's `EventCorrelator` with its numbers. Similar notes (same object, reason and kind) are combined after ten different
//! messages within ten minutes. Equal events are counted, not repeated. An object gets 25 events at once and then one in five
//! minutes. All memory is bounded, and keys are stored as hashes. Pure: the time is an argument.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{EventKind, Pending};

/// The number of objects, reasons and events that are remembered (client-go's `maxLruCacheEntries`).
const REMEMBERED: usize = 4096;
/// From this number of different messages on, similar notes are combined. Notes are similar within [`SIMILAR_FOR`].
const COMBINED_FROM: usize = 10;
const SIMILAR_FOR: SignedDuration = SignedDuration::from_mins(10);
/// The number of events that an object gets at once, and the time until it gets another.
const BURST: u32 = 25;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// The longest message that the API server accepts.
const LONGEST_MESSAGE: usize = 1024;

/// The decision about a note.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Create this event.
    Create(Box<Event>),
    /// Increase the count of an event that was created before. The whole event is included, in case the created one has expired.
    Count(Box<Event>),
    /// Drop it: the object has had too many events.
    Drop,
}

/// Remembers earlier events, so that few new ones are needed.
#[derive(Debug, Default)]
pub struct Correlator {
    similar: Recent<Similar>,
    past: Recent<PastEvent>,
    allowance: Recent<Allowance>,
    /// The number in the name of the last event. Names must differ.
    last_stamp: i128,
}

#[derive(Debug)]
struct Similar {
    messages: Vec<u64>,
    last: Timestamp,
}

#[derive(Clone, Debug)]
struct PastEvent {
    name: String,
    first: Timestamp,
    count: i32,
}

/// A token bucket, represented by the time at which it would be full.
#[derive(Debug)]
struct Allowance {
    full_at: Timestamp,
}

impl Correlator {
    /// Decides what to do with one note.
    pub fn correlate(&mut self, pending: &Pending, now: Timestamp) -> Verdict {
        let object = &pending.about;
        let source =
            (pending.component, &object.kind, &object.namespace, &object.name, &object.uid, &object.api_version);
        let by_object = hash_of(&source);
        let by_reason = hash_of(&(by_object, pending.note.kind, pending.note.reason));
        let (key, message) = if self.is_one_of_many(by_reason, hash_of(&pending.note.message), now) {
            (by_reason, format!("(combined from similar events): {}", pending.note.message))
        } else {
            // Events differ by the object's field path and by the message.
            (hash_of(&(by_reason, &object.field_path, &pending.note.message)), pending.note.message.clone())
        };
        let event = self.count(key, pending, now);
        if !self.is_allowed(by_object, now) {
            return Verdict::Drop;
        }
        let is_first = event.count == 1;
        let event = Box::new(event_of(pending, event, shortened(message), now));
        if is_first { Verdict::Create(event) } else { Verdict::Count(event) }
    }

    fn is_one_of_many(&mut self, by_reason: u64, message: u64, now: Timestamp) -> bool {
        let similar = self.similar.entry(by_reason, || Similar { messages: Vec::new(), last: now });
        if now.duration_since(similar.last) > SIMILAR_FOR {
            similar.messages.clear();
        }
        similar.last = now;
        if !similar.messages.contains(&message) {
            similar.messages.push(message);
        }
        if similar.messages.len() < COMBINED_FROM {
            return false;
        }
        // Removes one, so that the length stays at the limit.
        similar.messages.remove(0);
        true
    }

    fn count(&mut self, key: u64, pending: &Pending, now: Timestamp) -> PastEvent {
        let stamp = now.as_nanosecond().max(self.last_stamp + 1);
        let mut is_new = false;
        let event = self.past.entry(key, || {
            is_new = true;
            let name = format!("{}.{stamp:x}", pending.about.name.as_deref().unwrap_or_default());
            PastEvent { name, first: now, count: 0 }
        });
        event.count = event.count.saturating_add(1);
        if is_new {
            self.last_stamp = stamp;
        }
        event.clone()
    }

    fn is_allowed(&mut self, by_object: u64, now: Timestamp) -> bool {
        let allowance = self.allowance.entry(by_object, || Allowance { full_at: now });
        let from = allowance.full_at.max(now);
        let ahead = REFILL * i32::try_from(BURST - 1).unwrap_or(i32::MAX);
        if from.duration_since(now) > ahead {
            return false;
        }
        allowance.full_at = from.checked_add(REFILL).unwrap_or(Timestamp::MAX);
        true
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    // The hasher has fixed keys, so that equal histories give equal events.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Shortens a message to the limit of events (1 KiB).
pub fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        let mut end = LONGEST_MESSAGE - '…'.len_utf8();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

fn event_of(pending: &Pending, event: PastEvent, message: String, now: Timestamp) -> Event {
    let namespace = pending.about.namespace.clone().filter(|namespace| !namespace.is_empty());
    Event {
        metadata: ObjectMeta {
            name: Some(event.name),
            // Events about cluster-scoped objects are stored in the default namespace.
            namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        involved_object: pending.about.clone(),
        type_: Some(
            match pending.note.kind {
                EventKind::Normal => "Normal",
                EventKind::Warning => "Warning",
            }
            .to_owned(),
        ),
        reason: Some(pending.note.reason.to_owned()),
        message: Some(message),
        count: Some(event.count),
        first_timestamp: Some(Time(event.first)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(pending.component.to_owned()), host: None }),
        reporting_component: Some(pending.component.to_owned()),
        reporting_instance: Some(String::new()),
        ..Event::default()
    }
}

/// A map that drops the entry that was unused for longest.
#[derive(Debug)]
struct Recent<V> {
    entries: BTreeMap<u64, (u64, V)>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }
}

impl<V> Recent<V> {
    fn entry(&mut self, key: u64, new: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        if let Some((used, _)) = self.entries.get(&key) {
            self.by_use.remove(used);
        } else if self.entries.len() >= REMEMBERED
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.by_use.insert(self.uses, key);
        let (used, value) = self.entries.entry(key).or_insert_with(|| (0, new()));
        *used = self.uses;
        value
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use rstest::rstest;

    use super::*;
    use crate::events::EventNote;

    fn pending(object: &str, reason: &'static str, message: impl Into<String>) -> Pending {
        Pending {
            about: ObjectReference {
                kind: Some("Machine".to_owned()),
                namespace: Some("ns".to_owned()),
                name: Some(object.to_owned()),
                uid: Some(format!("uid-{object}")),
                ..ObjectReference::default()
            },
            component: "machine-controller",
            note: EventNote::warning(reason, message),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn shape(verdict: &Verdict) -> (&'static str, i32, String) {
        match verdict {
            Verdict::Create(event) => ("create", event.count.unwrap(), event.message.clone().unwrap()),
            Verdict::Count(event) => ("count", event.count.unwrap(), event.message.clone().unwrap()),
            Verdict::Drop => ("drop", 0, String::new()),
        }
    }

    #[test]
    fn an_equal_note_counts_the_event_of_the_first() {
        let mut correlator = Correlator::default();
        let Verdict::Create(first) = correlator.correlate(&pending("m", "Failed", "no quota"), at(0)) else { panic!() };
        let Verdict::Count(second) = correlator.correlate(&pending("m", "Failed", "no quota"), at(60)) else {
            panic!()
        };
        assert_eq!(second.metadata.name, first.metadata.name);
        assert_eq!((second.count, second.first_timestamp.clone()), (Some(2), first.first_timestamp.clone()));
        assert_eq!(second.last_timestamp, Some(Time(at(60))));
        assert_eq!(first.metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(first.type_.as_deref(), Some("Warning"));
        assert_eq!(first.source.as_ref().unwrap().component.as_deref(), Some("machine-controller"));
    }

    #[test]
    fn the_tenth_different_message_is_combined_and_then_counted() {
        let mut correlator = Correlator::default();
        let events: Vec<_> =
            (0..12).map(|n| shape(&correlator.correlate(&pending("m", "Failed", format!("try {n}")), at(n)))).collect();
        assert!(events[..9].iter().all(|(what, count, _)| (*what, *count) == ("create", 1)), "{events:?}");
        assert_eq!(events[9], ("create", 1, "(combined from similar events): try 9".to_owned()));
        assert_eq!(events[10], ("count", 2, "(combined from similar events): try 10".to_owned()));
        assert_eq!(events[11].1, 3);
    }

    #[test]
    fn messages_of_another_time_or_reason_or_object_are_not_similar() {
        let mut correlator = Correlator::default();
        for n in 0..9 {
            correlator.correlate(&pending("m", "Failed", format!("try {n}")), at(n));
        }
        for (object, reason, when) in [("m", "Other", 10), ("n", "Failed", 10), ("m", "Failed", 10 + 601)] {
            let verdict = correlator.correlate(&pending(object, reason, "another"), at(when));
            assert_eq!(shape(&verdict), ("create", 1, "another".to_owned()));
        }
    }

    #[rstest]
    #[case::at_once(0, 25)]
    #[case::nothing_before_five_minutes(299, 25)]
    #[case::one_after_five_minutes(300, 26)]
    #[case::two_after_ten(600, 27)]
    fn an_object_gets_25_events_and_then_one_in_five_minutes(#[case] later: i64, #[case] expected: usize) {
        let mut correlator = Correlator::default();
        let now = pending("m", "Failed", "same");
        let times = (0..100).map(|_| at(0)).chain((0..10).map(|_| at(later)));
        let events = times.filter(|when| correlator.correlate(&now, *when) != Verdict::Drop).count();
        assert_eq!(events, expected);
        assert_ne!(correlator.correlate(&pending("n", "Failed", "same"), at(later)), Verdict::Drop);
    }

    #[test]
    fn dropped_events_are_counted() {
        let mut correlator = Correlator::default();
        let note = pending("m", "Failed", "same");
        for _ in 0..100 {
            correlator.correlate(&note, at(0));
        }
        assert_eq!(shape(&correlator.correlate(&note, at(300))).1, 101);
    }

    #[test]
    fn names_differ_even_in_the_same_moment() {
        let mut correlator = Correlator::default();
        let names: std::collections::BTreeSet<_> = (0..5)
            .filter_map(|n| match correlator.correlate(&pending("m", "Failed", format!("try {n}")), at(0)) {
                Verdict::Create(event) => event.metadata.name,
                _ => None,
            })
            .collect();
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..2 * i64::try_from(REMEMBERED).unwrap() {
            correlator.correlate(&pending(&format!("m{n}"), "Failed", "x"), at(0));
        }
        assert_eq!(correlator.past.entries.len(), REMEMBERED);
        assert_eq!(correlator.past.by_use.len(), REMEMBERED);
        assert_eq!(correlator.allowance.entries.len(), REMEMBERED);
    }

    #[test]
    fn a_long_message_is_cut_at_a_letter() {
        let text = shortened("ä".repeat(2000));
        assert!(text.len() <= LONGEST_MESSAGE && text.ends_with('…'));
        assert_eq!(shortened("short".to_owned()), "short");
    }

    #[test]
    fn an_object_of_the_whole_cluster_has_its_events_in_the_default_namespace() {
        let mut note = pending("node-1", "Drained", "x");
        note.about.namespace = None;
        let Verdict::Create(event) = Correlator::default().correlate(&note, at(0)) else { panic!() };
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    }
}
