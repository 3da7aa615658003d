//! Pages of long lists. Views have no history, so the server keeps the whole list for a while, and a token identifies the list.
//!
//! A token is valid only for its user, view, namespace and selectors, on the replica that made it, and for five minutes: then the
//! list is evicted.
//! Source: spec/extension-apiserver §2.6, §8 (TH-33).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tokio::time::Instant;

use super::rows::Row;
use controller_runtime::lock;
use kube_protocol::status::ApiStatus;

/// How long a list is kept.
const LIFETIME: Duration = Duration::from_secs(300);
/// Lists are evicted this much later than their lifetime ends, so that they are certainly too old.
const MARGIN: Duration = Duration::from_millis(10);
/// Maximum size of all kept lists together, in bytes.
const BUDGET: usize = 64 << 20;

/// The request that a list answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListKey {
    /// Plural of the view.
    pub view: String,
    /// Namespace; `None` for all.
    pub namespace: Option<String>,
    /// Name of the user.
    pub user: String,
    /// Label selector and field selector, as sent: the rights of the user may depend on them.
    pub selection: [String; 2],
}

/// A kept list.
#[derive(Debug)]
pub struct KeptList {
    /// The selected objects, in order.
    pub rows: Vec<Arc<dyn Row>>,
    /// The `resourceVersion` of the list.
    pub version: u64,
    /// Whether the request has a selector.
    pub is_selected: bool,
}

struct Entry {
    id: u128,
    key: ListKey,
    list: Arc<KeptList>,
    bytes: usize,
    since: Instant,
}

/// The kept lists, oldest first.
pub struct Pages {
    entries: Arc<Mutex<VecDeque<Entry>>>,
    budget: usize,
    ids: Box<dyn Fn() -> u128 + Send + Sync>,
}

impl Pages {
    /// No lists yet. `ids` returns ids that clients can't guess.
    pub fn new(ids: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self { entries: Arc::default(), budget: BUDGET, ids: Box::new(ids) }
    }

    /// Keeps a list of which only the first `offset` objects are answered now, and returns the token for the other objects. A list
    /// that is larger than the budget is not kept, so that its token has expired at once.
    pub fn keep(&self, key: ListKey, list: &Arc<KeptList>, offset: usize) -> String {
        let id = (self.ids)();
        let bytes: usize = list.rows.iter().map(|row| row.bytes()).sum();
        if bytes <= self.budget {
            let mut entries = lock(&self.entries);
            evict(&mut entries, self.budget - bytes);
            entries.push_back(Entry { id, key, list: Arc::clone(list), bytes, since: Instant::now() });
            self.evict_later();
        }
        token(id, offset)
    }

    /// Evicts this list at the end of its lifetime, even if no request comes.
    fn evict_later(&self) {
        let (entries, budget) = (Arc::downgrade(&self.entries), self.budget);
        tokio::spawn(async move {
            tokio::time::sleep(LIFETIME + MARGIN).await;
            if let Some(entries) = entries.upgrade() {
                evict(&mut lock(&entries), budget);
            }
        });
    }

    /// The list of a token, and the bookmark of the next page.
    ///
    /// # Errors
    /// 400 for an invalid token or the token of another request, 410 for an expired token.
    pub fn open(&self, text: &str, key: &ListKey) -> Result<(Arc<KeptList>, Bookmark), ApiStatus> {
        let foreign = || {
            let why = "it was not made by this server for this list, these selectors and this user";
            ApiStatus::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bookmark = read_token(text).ok_or_else(foreign)?;
        let mut entries = lock(&self.entries);
        evict(&mut entries, self.budget);
        let entry = entries.iter().find(|entry| entry.id == bookmark.id).ok_or_else(|| {
            ApiStatus::expired(
                "The provided continue parameter is too old to display a consistent list result: computed lists are kept for \
                 five minutes, on the replica that made them. Start a new list without the continue parameter.",
            )
        })?;
        if entry.key != *key || bookmark.offset > entry.list.rows.len() {
            return Err(foreign());
        }
        Ok((Arc::clone(&entry.list), bookmark))
    }

    /// Number of kept lists.
    pub fn len(&self) -> usize {
        lock(&self.entries).len()
    }

    /// Whether no list is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A list and the position of a page in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    id: u128,
    /// Position of the first object of the next page.
    pub offset: usize,
}

impl Bookmark {
    /// The token for another position of the same list.
    pub fn token_at(self, offset: usize) -> String {
        token(self.id, offset)
    }
}

/// Evicts the lists that are too old, and then the oldest ones until the rest has at most `room` bytes.
fn evict(entries: &mut VecDeque<Entry>, room: usize) {
    entries.retain(|entry| entry.since.elapsed() <= LIFETIME);
    let mut bytes: usize = entries.iter().map(|entry| entry.bytes).sum();
    while bytes > room {
        let Some(oldest) = entries.pop_front() else { return };
        bytes -= oldest.bytes;
    }
}

fn token(id: u128, offset: usize) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("1:{id:032x}:{offset}"))
}

fn read_token(text: &str) -> Option<Bookmark> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (id, offset) = text.strip_prefix("1:")?.split_once(':')?;
    Some(Bookmark { id: u128::from_str_radix(id, 16).ok()?, offset: offset.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::extension::testing::TestView;

    fn pages(budget: usize) -> Pages {
        let next = AtomicU64::new(1);
        Pages { budget, ..Pages::new(move || u128::from(next.fetch_add(1, Ordering::SeqCst))) }
    }

    fn key(view: &str, namespace: &str, user: &str) -> ListKey {
        let (view, user, selection) = (view.to_owned(), user.to_owned(), Default::default());
        ListKey { view, namespace: Some(namespace.to_owned()), user, selection }
    }

    /// Otherwise a user whose rights are now limited to a selector could still open the list without the selector.
    #[rstest]
    #[case::labels(["a=b", ""])]
    #[case::fields(["", "metadata.name=m1"])]
    #[tokio::test]
    async fn a_token_is_invalid_with_other_selectors(#[case] selection: [&str; 2]) {
        let (pages, here) = (pages(BUDGET), key("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        let elsewhere = ListKey { selection: selection.map(str::to_owned), ..here.clone() };
        assert_eq!(pages.open(&token, &elsewhere).unwrap_err().code, 400);
        assert!(pages.open(&token, &here).is_ok());
    }

    /// Each object takes seven bytes.
    fn list(length: usize) -> Arc<KeptList> {
        let rows = (0..length).map(|n| TestView::row(json!({"metadata": {}, "n": n}))).collect();
        Arc::new(KeptList { rows, version: 1, is_selected: false })
    }

    #[rstest]
    #[case::the_same("pvm", "n", "alice", Ok(3))]
    #[case::th_33_another_user("pvm", "n", "bob", Err(400))]
    #[case::th_33_another_namespace("pvm", "m", "alice", Err(400))]
    #[case::th_33_another_view("mco", "n", "alice", Err(400))]
    #[tokio::test]
    async fn a_token_opens_its_own_list(
        #[case] view: &str,
        #[case] namespace: &str,
        #[case] user: &str,
        #[case] expected: Result<usize, u16>,
    ) {
        let pages = pages(BUDGET);
        let token = pages.keep(key("pvm", "n", "alice"), &list(5), 3);
        let found = pages.open(&token, &key(view, namespace, user));
        assert_eq!(found.map(|(_, bookmark)| bookmark.offset).map_err(|status| status.code), expected);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::nonsense("!!!")]
    #[case::another_servers("NTp4")]
    #[tokio::test]
    async fn th_33_a_text_that_is_no_token(#[case] text: &str) {
        assert_eq!(pages(BUDGET).open(text, &key("pvm", "n", "alice")).unwrap_err().code, 400);
    }

    #[tokio::test]
    async fn th_33_a_position_beyond_the_end_is_forged() {
        let (pages, here) = (pages(BUDGET), key("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        let (_, bookmark) = pages.open(&token, &here).unwrap();
        assert!(pages.open(&bookmark.token_at(5), &here).is_ok());
        assert_eq!(pages.open(&bookmark.token_at(6), &here).unwrap_err().code, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_expires() {
        let (pages, here) = (pages(BUDGET), key("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        tokio::time::advance(LIFETIME).await;
        assert!(pages.open(&token, &here).is_ok());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pages.open(&token, &here).unwrap_err().code, 410);
        assert!(pages.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_list_is_evicted_even_without_a_request() {
        let pages = pages(BUDGET);
        pages.keep(key("pvm", "n", "alice"), &list(5), 3);
        tokio::time::sleep(LIFETIME).await;
        assert_eq!(pages.len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pages.len(), 0);
    }

    #[tokio::test]
    async fn the_oldest_list_is_evicted_and_a_too_large_one_is_not_kept() {
        let (pages, here) = (pages(100), key("pvm", "n", "alice"));
        let [first, second] = [0, 0].map(|_| pages.keep(here.clone(), &list(10), 3));
        assert_eq!(pages.open(&first, &here).unwrap_err().code, 410);
        assert!(pages.open(&second, &here).is_ok());
        let large = pages.keep(here.clone(), &list(20), 3);
        assert_eq!((pages.open(&large, &here).unwrap_err().code, pages.len()), (410, 1));
    }
}
