//! Events do not stay: one that nobody wrote for an hour is forgotten, as kube-apiserver forgets it (`--event-ttl`).
//!
//! Both groups of events are one collection. As with a lease of etcd, what is forgotten is not asked about: neither
//! finalizers nor webhooks hold it, and watchers are told that it is gone. All ends stand in one ordered set, served by the
//! helpers' one timer. Source: spec/extension-apiserver §6.1, §6.3 no. 8.

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

/// How long an event is kept after it was last written.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);
/// The timer does not ring more often.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// An event at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    key: String,
    revision: u64,
}

/// When events end.
#[derive(Default)]
pub(super) struct Lifetimes {
    ends: BTreeSet<(Timestamp, String)>,
    /// End and revision of each event.
    known: BTreeMap<String, (Timestamp, u64)>,
}

impl Lifetimes {
    /// An event was written: its time begins anew.
    fn written(&mut self, key: &str, revision: u64, at: Timestamp) {
        self.gone(key);
        let end = at.saturating_add(EVENT_TTL).unwrap_or(Timestamp::MAX);
        self.ends.insert((end, key.to_owned()));
        self.known.insert(key.to_owned(), (end, revision));
    }

    fn gone(&mut self, key: &str) {
        if let Some((end, _)) = self.known.remove(key) {
            self.ends.remove(&(end, key.to_owned()));
        }
    }

    /// How long nothing has to be done; none if there is no event.
    pub(super) fn pause(&self, now: Timestamp) -> Option<Duration> {
        let (first, _) = self.ends.first()?;
        Some(first.duration_since(now).try_into().unwrap_or(Duration::ZERO).max(SHORTEST_PAUSE))
    }

    /// Takes out the events that have ended.
    fn due(&mut self, now: Timestamp) -> Vec<Due> {
        let mut due = Vec::new();
        while self.ends.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, key)) = self.ends.pop_first()
        {
            if let Some((_, revision)) = self.known.remove(&key) {
                due.push(Due { key, revision });
            }
        }
        due
    }
}

/// When a stored event was last written, by what the server itself noted on it; never later than now.
fn last_written(event: &Value, now: Timestamp) -> Timestamp {
    let entries = event["metadata"]["managedFields"].as_array().into_iter().flatten();
    let times = entries.map(|entry| text(entry, "/time")).chain([text(event, "/metadata/creationTimestamp")]);
    let newest = times.filter_map(|time| time.parse::<Timestamp>().ok()).max();
    newest.unwrap_or(now).min(now)
}

fn events() -> Collection {
    Collection::new("", "events")
}

/// Whether a collection is that of the events, of both groups.
pub(super) fn holds(collection: &Collection) -> bool {
    collection.group.is_empty() && collection.resource == "events"
}

impl Helpers {
    /// Learns of the events that an earlier process has left.
    pub(super) fn know_events(&mut self) {
        if !self.stands_in_for(StandIn::EventTtl) {
            return;
        }
        self.lifetimes = Lifetimes::default();
        let now = self.server.now();
        for (key, stored) in self.server.store.list(&events(), "").objects {
            self.lifetimes.written(&key, stored.revision, last_written(&stored.whole(), now));
        }
    }

    /// An event was written, or is gone.
    pub(super) fn see_event(&mut self, change: &Change) {
        match &change.after {
            Some(after) if self.stands_in_for(StandIn::EventTtl) => {
                self.lifetimes.written(&change.key, after.revision, self.server.now());
            }
            Some(_) => {}
            None => self.lifetimes.gone(&change.key),
        }
    }

    /// Forgets the events whose time is over.
    pub(super) fn forget_events(&mut self) {
        for Due { key, revision } in self.lifetimes.due(self.server.now()) {
            // Somebody has written it meanwhile: the change begins its time anew.
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
    fn the_time_of_an_event_begins_with_each_write() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.pause(at(0)), None);
        lifetimes.written("n/a", 1, at(0));
        lifetimes.written("n/b", 2, at(10));
        lifetimes.written("n/a", 3, at(20));
        lifetimes.written("n/c", 4, at(15));
        lifetimes.gone("n/c");
        assert_eq!(lifetimes.pause(at(10)), Some(Duration::from_secs(3600)));
        assert_eq!(lifetimes.pause(at(9_999)), Some(SHORTEST_PAUSE), "what is overdue does not ring all the time");
        let due = |key: &str, revision| Due { key: key.to_owned(), revision };
        assert_eq!(lifetimes.due(at(3_609)), []);
        assert_eq!(lifetimes.due(at(3_610)), [due("n/b", 2)]);
        assert_eq!(lifetimes.due(at(3_620)), [due("n/a", 3)]);
        assert!(lifetimes.ends.is_empty() && lifetimes.known.is_empty());
    }

    #[rstest]
    #[case::never_changed(json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z"}}), 10)]
    #[case::changed_later(
        json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z", "managedFields": [
            {"time": "1970-01-01T00:00:30Z"}, {"time": "1970-01-01T00:00:20Z"}]}}), 30
    )]
    #[case::written_by_a_clock_that_was_ahead(json!({"metadata": {"creationTimestamp": "1970-01-01T01:00:00Z"}}), 100)]
    #[case::without_any_time(json!({}), 100)]
    fn when_an_event_was_last_written(#[case] event: Value, #[case] expected: i64) {
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
    async fn an_event_is_gone_an_hour_after_its_last_write_in_both_groups() {
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
    async fn watchers_are_told_and_finalizers_do_not_hold_it() {
        let cluster = cluster([]);
        let mut held = event("held");
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        ask(&cluster, "POST", CORE, &held).await.unwrap();
        let told = watch(&cluster, &format!("{CORE}?watch=1&timeoutSeconds=3700")).await;
        let kinds: Vec<&str> = told.iter().map(|event| text(event, "/type")).collect();
        assert_eq!(kinds, ["ADDED", "DELETED"], "{told:?}");
        assert_eq!(text(&told[1], "/object/metadata/name"), "held");
    }

    /// On real time: paused time would pass while the disk is waited for.
    #[tokio::test]
    async fn the_rest_of_its_time_outlives_the_process() {
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
            // The timer sleeps by the process's clock, and by the server's only what is due is decided: a change wakes it.
            ask(&cluster, "POST", CORE, &event("newer")).await.unwrap();
            let since = format!("{CORE}?watch=1&timeoutSeconds=1&resourceVersion={}", version(&list));
            let told = watch(&cluster, &since).await;
            assert!(
                told.iter().any(|event| text(event, "/type") == "DELETED"),
                "told without another request: {told:?}"
            );
        }
        let cluster = cluster_in(&folder, &clock, []).await;
        assert_eq!(names(&ask(&cluster, "GET", CORE, &Value::Null).await.unwrap()), ["new", "newer"]);
        clock.set(at(110 * 60));
        let cluster = {
            drop(cluster);
            cluster_in(&folder, &clock, []).await
        };
        eventually("the other one to go, too late for the first process", async || {
            let list = ask(&cluster, "GET", CORE, &Value::Null).await.unwrap();
            (names(&list) == ["newer"]).then_some(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn events_stay_when_the_controller_is_left_out() {
        let cluster = cluster([StandIn::EventTtl]);
        ask(&cluster, "POST", CORE, &event("old")).await.unwrap();
        pass(600).await;
        assert_eq!(names(&ask(&cluster, "GET", CORE, &Value::Null).await.unwrap()), ["old"]);
    }
}
