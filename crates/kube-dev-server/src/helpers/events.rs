//! The expiration of events: an event is deleted an hour after its last write, like in kube-apiserver (`--event-ttl`).
//!
//! Both groups of events are one collection. The deletion is like the end of a lease of etcd: finalizers and webhooks can't prevent it, and watches
//! receive it. All expiration times are in a sorted set, for which the timer of the controllers wakes up.
//! Source: spec/extension-apiserver §6.1, §6.3 no. 8.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Helpers;
use crate::{
    object::text,
    stand_ins::StandIn,
    store::{Change, Collection, Expect},
};

/// The time between the last write of an event and its deletion.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);
/// The shortest time until the timer wakes up for events.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// An expired event at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expired {
    key: String,
    revision: u64,
}

/// The expiration times of events.
#[derive(Default)]
pub(super) struct Expirations {
    ends: BTreeSet<(Timestamp, String)>,
    /// The expiration time and the revision of each event.
    known: BTreeMap<String, (Timestamp, u64)>,
}

impl Expirations {
    /// Starts the time of an event again after a write.
    fn set(&mut self, key: &str, revision: u64, at: Timestamp) {
        self.remove(key);
        let end = at.saturating_add(EVENT_TTL).unwrap_or(Timestamp::MAX);
        self.ends.insert((end, key.to_owned()));
        self.known.insert(key.to_owned(), (end, revision));
    }

    fn remove(&mut self, key: &str) {
        if let Some((end, _)) = self.known.remove(key) {
            self.ends.remove(&(end, key.to_owned()));
        }
    }

    /// The time until the next expiration. `None` without events.
    pub(super) fn pause(&self, now: Timestamp) -> Option<Duration> {
        let (first, _) = self.ends.first()?;
        Some(first.duration_since(now).try_into().unwrap_or(Duration::ZERO).max(SHORTEST_PAUSE))
    }

    /// Removes and returns the expired events.
    fn take_expired(&mut self, now: Timestamp) -> Vec<Expired> {
        let mut expired = Vec::new();
        while self.ends.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, key)) = self.ends.pop_first()
        {
            if let Some((_, revision)) = self.known.remove(&key) {
                expired.push(Expired { key, revision });
            }
        }
        expired
    }
}

/// The time of the last write of a stored event, by the time stamps that the server itself sets; never later than now.
fn last_written(event: &Value, now: Timestamp) -> Timestamp {
    let entries = event["metadata"]["managedFields"].as_array().into_iter().flatten();
    let times = entries.map(|entry| text(entry, "/time")).chain([text(event, "/metadata/creationTimestamp")]);
    let newest = times.filter_map(|time| time.parse::<Timestamp>().ok()).max();
    newest.unwrap_or(now).min(now)
}

fn events() -> Collection {
    Collection::new("", "events")
}

/// Whether a collection is the collection of events.
pub(super) fn holds(collection: &Collection) -> bool {
    collection.group.is_empty() && collection.resource == "events"
}

impl Helpers {
    /// Reads the expiration times of all stored events.
    pub(super) fn load_events(&mut self) {
        if !self.runs(StandIn::EventTtl) {
            return;
        }
        self.expirations = Expirations::default();
        let now = self.server.now();
        for (key, stored) in self.server.store.list(&events(), "").objects {
            self.expirations.set(&key, stored.revision, last_written(&stored.whole(), now));
        }
    }

    /// Updates the expiration time of a written or deleted event.
    pub(super) fn track_event(&mut self, change: &Change) {
        match &change.after {
            Some(after) if self.runs(StandIn::EventTtl) => {
                self.expirations.set(&change.key, after.revision, self.server.now());
            }
            Some(_) => {}
            None => self.expirations.remove(&change.key),
        }
    }

    /// Deletes the expired events.
    pub(super) fn delete_expired_events(&mut self) {
        for Expired { key, revision } in self.expirations.take_expired(self.server.now()) {
            // A conflict means a new write, and its change starts the time of the event again.
            let _ = self.server.store.write(&events(), &key, Expect::Revision(revision), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::testing::{HandClock, ask, cluster, cluster_in, eventually, watch};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_time_of_an_event_starts_again_with_each_write() {
        let mut expirations = Expirations::default();
        assert_eq!(expirations.pause(at(0)), None);
        expirations.set("n/a", 1, at(0));
        expirations.set("n/b", 2, at(10));
        expirations.set("n/a", 3, at(20));
        expirations.set("n/c", 4, at(15));
        expirations.remove("n/c");
        assert_eq!(expirations.pause(at(10)), Some(Duration::from_secs(3600)));
        assert_eq!(expirations.pause(at(9_999)), Some(SHORTEST_PAUSE), "the pause is never zero");
        let expired = |key: &str, revision| Expired { key: key.to_owned(), revision };
        assert_eq!(expirations.take_expired(at(3_609)), []);
        assert_eq!(expirations.take_expired(at(3_610)), [expired("n/b", 2)]);
        assert_eq!(expirations.take_expired(at(3_620)), [expired("n/a", 3)]);
        assert!(expirations.ends.is_empty() && expirations.known.is_empty());
    }

    #[rstest]
    #[case::never_changed(json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z"}}), 10)]
    #[case::changed_later(
        json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z", "managedFields": [
            {"time": "1970-01-01T00:00:30Z"}, {"time": "1970-01-01T00:00:20Z"}]}}), 30
    )]
    #[case::written_by_a_clock_that_was_ahead(json!({"metadata": {"creationTimestamp": "1970-01-01T01:00:00Z"}}), 100)]
    #[case::without_any_time(json!({}), 100)]
    fn the_time_of_the_last_write_of_an_event(#[case] event: Value, #[case] expected: i64) {
        assert_eq!(last_written(&event, at(100)), at(expected));
    }

    const CORE: &str = "/api/v1/namespaces/default/events";
    const GROUPED: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

    fn event(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "default"}, "reason": "Tested", "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        })
    }

    fn names(list: &Value) -> Vec<&str> {
        list["items"].as_array().unwrap().iter().map(|item| text(item, "/metadata/name")).collect()
    }

    fn version(list: &Value) -> &str {
        text(list, "/metadata/resourceVersion")
    }

    async fn pass(minutes: u64) {
        tokio::time::sleep(Duration::from_secs(minutes * 60)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_deleted_an_hour_after_its_last_write_in_both_groups() {
        let cluster = cluster([]);
        for name in ["old", "repeated"] {
            ask(&cluster, "POST", CORE, &event(name)).await.unwrap();
        }
        let grouped = json!({
            "metadata": {"name": "grouped", "namespace": "default"}, "reason": "Tested", "type": "Normal",
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "action": "Testing",
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/tester",
            "reportingInstance": "tester-0",
        });
        ask(&cluster, "POST", GROUPED, &grouped).await.unwrap();
        let map = json!({"metadata": {"name": "stays"}});
        ask(&cluster, "POST", "/api/v1/namespaces/default/configmaps", &map).await.unwrap();
        pass(59).await;
        ask(&cluster, "PATCH", &format!("{CORE}/repeated"), &json!({"count": 2})).await.unwrap();
        for path in [CORE, GROUPED] {
            let list = ask(&cluster, "GET", path, &Value::Null).await.unwrap();
            assert_eq!(names(&list), ["grouped", "old", "repeated"], "{path}");
        }
        pass(2).await;
        for path in [CORE, GROUPED] {
            let list = ask(&cluster, "GET", path, &Value::Null).await.unwrap();
            assert_eq!(names(&list), ["repeated"], "{path}");
        }
        pass(60).await;
        assert!(names(&ask(&cluster, "GET", CORE, &Value::Null).await.unwrap()).is_empty());
        ask(&cluster, "GET", "/api/v1/namespaces/default/configmaps/stays", &Value::Null).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn watches_receive_the_deletion_and_finalizers_do_not_prevent_it() {
        let cluster = cluster([]);
        let mut held = event("held");
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        ask(&cluster, "POST", CORE, &held).await.unwrap();
        let received = watch(&cluster, &format!("{CORE}?watch=1&timeoutSeconds=3700")).await;
        let kinds: Vec<&str> = received.iter().map(|event| text(event, "/type")).collect();
        assert_eq!(kinds, ["ADDED", "DELETED"], "{received:?}");
        assert_eq!(text(&received[1], "/object/metadata/name"), "held");
    }

    /// This test uses real time, because paused time would advance while the test waits for the disk.
    #[tokio::test]
    async fn the_expiration_time_is_the_same_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("data");
        let clock = HandClock::at(at(0));
        {
            let cluster = cluster_in(&folder, &clock, []).await;
            ask(&cluster, "POST", CORE, &event("old")).await.unwrap();
        }
        clock.set(at(50 * 60));
        {
            let cluster = cluster_in(&folder, &clock, []).await;
            ask(&cluster, "POST", CORE, &event("new")).await.unwrap();
            let list = ask(&cluster, "GET", CORE, &Value::Null).await.unwrap();
            assert_eq!(names(&list), ["new", "old"]);
            clock.set(at(61 * 60));
            // The timer uses the clock of the process, which has not moved. The new event wakes the controllers, which then use the clock of the
            // server.
            ask(&cluster, "POST", CORE, &event("newer")).await.unwrap();
            let since = format!("{CORE}?watch=1&timeoutSeconds=1&resourceVersion={}", version(&list));
            let received = watch(&cluster, &since).await;
            assert!(received.iter().any(|event| text(event, "/type") == "DELETED"), "no deletion: {received:?}");
        }
        let cluster = cluster_in(&folder, &clock, []).await;
        assert_eq!(names(&ask(&cluster, "GET", CORE, &Value::Null).await.unwrap()), ["new", "newer"]);
        clock.set(at(110 * 60));
        let cluster = {
            drop(cluster);
            cluster_in(&folder, &clock, []).await
        };
        eventually("the deletion of the other event in the new process", async || {
            let list = ask(&cluster, "GET", CORE, &Value::Null).await.unwrap();
            (names(&list) == ["newer"]).then_some(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn events_stay_when_the_controller_is_off() {
        let cluster = cluster([StandIn::EventTtl]);
        ask(&cluster, "POST", CORE, &event("old")).await.unwrap();
        pass(600).await;
        assert_eq!(names(&ask(&cluster, "GET", CORE, &Value::Null).await.unwrap()), ["old"]);
    }
}
