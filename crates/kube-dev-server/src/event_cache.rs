//! A cache of encoded watch events. If a thousand watches of a kind receive a change, its event is encoded only once.
//!
//! Source: spec/extension-apiserver §6.11.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::kinds::Served;

/// The maximum number of events in the cache.
const MAX_EVENTS: usize = 1_000;
/// The maximum number of bytes of all events in the cache.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// The encoded event of a change, in one version of its kind.
struct Event {
    /// The type of the event, such as `ADDED`.
    kind: &'static str,
    served: Arc<Served>,
    text: Bytes,
}

#[derive(Default)]
struct State {
    /// The events by the revision of their change.
    events: HashMap<u64, Vec<Event>>,
    /// The revisions of the events, oldest event first.
    order: VecDeque<u64>,
    bytes: usize,
}

impl State {
    fn find(&self, revision: u64, kind: &str, served: &Arc<Served>) -> Option<Bytes> {
        let events = self.events.get(&revision)?;
        let event = events.iter().find(|event| event.kind == kind && Arc::ptr_eq(&event.served, served))?;
        Some(event.text.clone())
    }

    fn add(&mut self, revision: u64, event: Event) {
        self.bytes += event.text.len();
        self.events.entry(revision).or_default().push(event);
        self.order.push_back(revision);
        while self.order.len() > MAX_EVENTS || self.bytes > MAX_BYTES && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { return };
            let Some(events) = self.events.get_mut(&oldest) else { continue };
            self.bytes -= events.remove(0).text.len();
            if events.is_empty() {
                self.events.remove(&oldest);
            }
        }
    }
}

/// The newest encoded events of a server.
#[derive(Default)]
pub(super) struct EventCache(Mutex<State>);

impl EventCache {
    /// The event of a change in a version of its kind, if it is in the cache.
    pub(super) fn find(&self, revision: u64, kind: &str, served: &Arc<Served>) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).find(revision, kind, served)
    }

    /// Adds the event of a change.
    pub(super) fn add(&self, revision: u64, kind: &'static str, served: &Arc<Served>, text: Bytes) {
        let event = Event { kind, served: Arc::clone(served), text };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(revision, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kinds::Registry, testing};

    fn served() -> [Arc<Served>; 2] {
        let registry = Registry::new(Vec::new());
        ["pods", "nodes"].map(|plural| registry.find("", "v1", plural).expect("it is built in"))
    }

    #[test]
    fn an_event_is_found_by_revision_type_and_version_of_the_kind() {
        let [pods, nodes] = served();
        let cache = EventCache::default();
        cache.add(7, "ADDED", &pods, Bytes::from_static(b"a"));
        cache.add(7, "MODIFIED", &pods, Bytes::from_static(b"m"));
        assert_eq!(cache.find(7, "MODIFIED", &pods).as_deref(), Some(b"m".as_slice()));
        assert_eq!(cache.find(7, "DELETED", &pods), None);
        assert_eq!(cache.find(8, "ADDED", &pods), None);
        assert_eq!(cache.find(7, "ADDED", &nodes), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let [pods, _] = served();
        let cache = EventCache::default();
        for revision in 0..3 * MAX_EVENTS as u64 {
            cache.add(revision, "ADDED", &pods, Bytes::from_static(b"a"));
        }
        assert_eq!(cache.0.lock().unwrap().events.len(), MAX_EVENTS);
        assert_eq!(cache.find(0, "ADDED", &pods), None);
        cache.add(u64::MAX, "ADDED", &pods, Bytes::from(vec![0; 2 * MAX_BYTES]));
        let state = cache.0.lock().unwrap();
        assert_eq!(
            (state.events.len(), state.order.len(), state.bytes),
            (1, 1, 2 * MAX_BYTES),
            "the newest event stays, even if it is too long"
        );
    }

    /// Watches of a kind with different selectors receive the same events as without the cache.
    #[tokio::test(start_paused = true)]
    async fn watches_with_different_selectors_receive_their_own_events() {
        use serde_json::{Value, json};
        let cluster = testing::cluster([]);
        let maps = "/api/v1/namespaces/default/configmaps";
        let since = testing::ask(&cluster, "GET", maps, &Value::Null).await.unwrap();
        let since = since["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let labelled = |label: &str| json!({"metadata": {"name": "m", "labels": {"l": label}}});
        testing::ask(&cluster, "POST", maps, &labelled("1")).await.unwrap();
        testing::ask(&cluster, "PATCH", &format!("{maps}/m"), &labelled("2")).await.unwrap();
        testing::ask(&cluster, "DELETE", &format!("{maps}/m"), &Value::Null).await.unwrap();
        let received = async |more: &str| {
            let path = format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={since}{more}");
            let events = testing::watch(&cluster, &path).await;
            let brief = |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["labels"]["l"]);
            events.iter().map(brief).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(received("").await, [r#""ADDED" "1""#, r#""MODIFIED" "2""#, r#""DELETED" "2""#]);
            assert_eq!(received("&labelSelector=l%3D1").await, [r#""ADDED" "1""#, r#""DELETED" "1""#]);
            assert_eq!(received("&labelSelector=l%3D2").await, [r#""ADDED" "2""#, r#""DELETED" "2""#]);
        }
    }
}
