//! Events of watches as they are written, kept for a while: a thousand watchers of one kind are told of a change in the same
//! bytes, which are written once.
//!
//! Source: spec/extension-apiserver §6.11.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::kinds::Served;

/// Lines that are kept.
const MOST: usize = 1_000;
/// What they may take of memory together.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// A line of a change, in one version of its kind.
struct Line {
    kind: &'static str,
    served: Arc<Served>,
    text: Bytes,
}

#[derive(Default)]
struct Kept {
    lines: HashMap<u64, Vec<Line>>,
    /// The revisions of the changes, as they came.
    order: VecDeque<u64>,
    bytes: usize,
}

impl Kept {
    fn find(&self, revision: u64, kind: &str, served: &Arc<Served>) -> Option<Bytes> {
        let lines = self.lines.get(&revision)?;
        let line = lines.iter().find(|line| line.kind == kind && Arc::ptr_eq(&line.served, served))?;
        Some(line.text.clone())
    }

    fn add(&mut self, revision: u64, line: Line) {
        self.bytes += line.text.len();
        self.lines.entry(revision).or_default().push(line);
        self.order.push_back(revision);
        while self.order.len() > MOST || self.bytes > MOST_BYTES && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { return };
            let Some(lines) = self.lines.get_mut(&oldest) else { continue };
            self.bytes -= lines.remove(0).text.len();
            if lines.is_empty() {
                self.lines.remove(&oldest);
            }
        }
    }
}

/// The newest lines of a server.
#[derive(Default)]
pub(super) struct WatchLines(Mutex<Kept>);

impl WatchLines {
    /// The line of a change, if somebody was told of it in this version a moment ago.
    pub(super) fn find(&self, revision: u64, kind: &str, served: &Arc<Served>) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).find(revision, kind, served)
    }

    /// Keeps a line for the next one.
    pub(super) fn keep(&self, revision: u64, kind: &'static str, served: &Arc<Served>, text: Bytes) {
        let line = Line { kind, served: Arc::clone(served), text };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(revision, line);
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
    fn a_line_is_that_of_its_change_its_kind_of_event_and_its_version() {
        let [pods, nodes] = served();
        let lines = WatchLines::default();
        lines.keep(7, "ADDED", &pods, Bytes::from_static(b"a"));
        lines.keep(7, "MODIFIED", &pods, Bytes::from_static(b"m"));
        assert_eq!(lines.find(7, "MODIFIED", &pods).as_deref(), Some(b"m".as_slice()));
        assert_eq!(lines.find(7, "DELETED", &pods), None);
        assert_eq!(lines.find(8, "ADDED", &pods), None);
        assert_eq!(lines.find(7, "ADDED", &nodes), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let [pods, _] = served();
        let lines = WatchLines::default();
        for revision in 0..3 * MOST as u64 {
            lines.keep(revision, "ADDED", &pods, Bytes::from_static(b"a"));
        }
        assert_eq!(lines.0.lock().unwrap().lines.len(), MOST);
        assert_eq!(lines.find(0, "ADDED", &pods), None);
        lines.keep(u64::MAX, "ADDED", &pods, Bytes::from(vec![0; 2 * MOST_BYTES]));
        let kept = lines.0.lock().unwrap();
        assert_eq!(
            (kept.lines.len(), kept.order.len(), kept.bytes),
            (1, 1, 2 * MOST_BYTES),
            "one is kept, however long"
        );
    }

    /// Watchers of one kind, in different versions and selections, see what each would have seen alone.
    #[tokio::test(start_paused = true)]
    async fn watchers_share_lines_and_see_their_own() {
        use serde_json::{Value, json};
        let cluster = testing::cluster([]);
        let maps = "/api/v1/namespaces/default/configmaps";
        let since = testing::ask(&cluster, "GET", maps, &Value::Null).await.unwrap();
        let since = since["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let labelled = |label: &str| json!({"metadata": {"name": "m", "labels": {"l": label}}});
        testing::ask(&cluster, "POST", maps, &labelled("1")).await.unwrap();
        testing::ask(&cluster, "PATCH", &format!("{maps}/m"), &labelled("2")).await.unwrap();
        testing::ask(&cluster, "DELETE", &format!("{maps}/m"), &Value::Null).await.unwrap();
        let told = async |more: &str| {
            let path = format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={since}{more}");
            let events = testing::watch(&cluster, &path).await;
            let brief = |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["labels"]["l"]);
            events.iter().map(brief).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(told("").await, [r#""ADDED" "1""#, r#""MODIFIED" "2""#, r#""DELETED" "2""#]);
            assert_eq!(told("&labelSelector=l%3D1").await, [r#""ADDED" "1""#, r#""DELETED" "1""#]);
            assert_eq!(told("&labelSelector=l%3D2").await, [r#""ADDED" "2""#, r#""DELETED" "2""#]);
        }
    }
}
