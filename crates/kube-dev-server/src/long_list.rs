//! Long lists are encoded in parts. So a list of ten thousand objects is never in memory as a whole, and its encoding does not block other requests.
//!
//! Source: spec/extension-apiserver §6.11.

use std::{convert::Infallible, sync::Arc, vec};

use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    kinds::Served,
    plain::{self, Form},
    server::{Answer, AnswerBody, Call},
    store::Stored,
};

/// A list with at least this number of objects is encoded in parts.
const LONG: usize = 500;
/// The number of objects in a part.
const PART: usize = 100;

/// A list that is being encoded.
struct LongList {
    served: Arc<Served>,
    rest: vec::IntoIter<Arc<Stored>>,
    /// The text before the next object: the head of the list, or a comma.
    before: Vec<u8>,
    ended: bool,
}

impl LongList {
    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut part = Vec::new();
        for stored in self.rest.by_ref().take(PART) {
            part.append(&mut self.before);
            plain::write(&stored, &self.served, Form::Item, &mut part);
            self.before.push(b',');
        }
        if self.rest.len() == 0 {
            self.ended = true;
            part.extend_from_slice(b"]}\n");
        }
        Some(Bytes::from(part))
    }
}

/// Whether a list is encoded in parts. A list is encoded as a whole if it is short, if the client accepts another representation than plain JSON
/// objects, or if a webhook must convert some of the objects.
pub(super) fn is_long(call: &Call<'_>, stored: &[Arc<Stored>]) -> bool {
    let needs_webhook = |stored: &Arc<Stored>| plain::needs_webhook(stored, &call.served);
    stored.len() >= LONG && plain::is_wanted(call) && !stored.iter().any(needs_webhook)
}

/// Answers with a list in parts.
pub(super) fn in_parts(call: &Call<'_>, stored: Vec<Arc<Stored>>, metadata: &Value) -> Answer {
    let head =
        json!({"apiVersion": call.served.api_version(), "kind": call.served.resource.list_kind, "metadata": metadata});
    let mut before = head.to_string().into_bytes();
    before.pop();
    before.extend_from_slice(b",\"items\":[");
    let list = LongList { served: Arc::clone(&call.served), rest: stored.into_iter(), before, ended: false };
    let parts = futures::stream::unfold(list, |mut list| async move {
        let part = list.next()?;
        Some((Ok::<_, Infallible>(part), list))
    });
    Answer::new(StatusCode::OK, AnswerBody::Stream(Body::from_stream(parts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ask, cluster};

    const COUNT: usize = LONG + 50;
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    #[tokio::test(start_paused = true)]
    async fn a_long_list_is_equal_to_its_pages() {
        let cluster = cluster([]);
        for number in 0..COUNT {
            let map =
                json!({"metadata": {"name": format!("m-{number:04}"), "labels": {"odd": (number % 2).to_string()}}});
            ask(&cluster, "POST", MAPS, &map).await.unwrap();
        }
        let get = async |path: &str| ask(&cluster, "GET", path, &Value::Null).await.unwrap();
        let whole = get(MAPS).await;
        let items = whole["items"].as_array().unwrap();
        assert_eq!((whole["kind"].as_str(), whole["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));
        let mut pages = Vec::new();
        let mut path = format!("{MAPS}?limit=200");
        loop {
            let page = get(&path).await;
            pages.extend(page["items"].as_array().unwrap().clone());
            match page["metadata"]["continue"].as_str() {
                Some(token) => path = format!("{MAPS}?limit=200&continue={token}"),
                None => break,
            }
        }
        assert_eq!(*items, pages, "short pages are encoded as a whole");
        assert_eq!(items.len(), COUNT);
        assert!(items[0].get("kind").is_none(), "items of built-in kinds have no kind");
        let half = get(&format!("{MAPS}?labelSelector=odd%3D1")).await;
        assert_eq!(half["items"].as_array().unwrap().len(), COUNT / 2);
    }
}
