//! Pages of long lists. Views have no history, so the whole list is kept for a while, and a token leads back to it.
//!
//! A token is worth nothing to another user, view or namespace, with other selectors, on another replica or after five minutes, when its list is gone.
//! Source: spec/extension-apiserver §2.6, §8 (TH-33).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use tokio::time::Instant;

use super::rows::Row;
use kube_protocol::status::ApiStatus;

/// How long a list is kept.
const KEPT: Duration = Duration::from_secs(300);
/// So much later it is certainly too old.
const A_MOMENT: Duration = Duration::from_millis(10);
/// Bytes of all lists that are kept.
const BUDGET: usize = 64 << 20;

/// Whose list of what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Plural of the view.
    pub view: String,
    /// Namespace; none for all.
    pub namespace: Option<String>,
    /// Name of the user.
    pub user: String,
    /// Its label selector and its field selector, as they were sent: what one may list depends on them.
    pub selection: [String; 2],
}

/// A kept list.
#[derive(Debug)]
pub struct Kept {
    /// Its objects, selected and in order.
    pub rows: Vec<Arc<dyn Row>>,
    /// Its `resourceVersion`.
    pub version: u64,
    /// Whether it was asked for with a selector.
    pub is_selected: bool,
}

struct Slot {
    id: u128,
    place: Place,
    list: Arc<Kept>,
    bytes: usize,
    since: Instant,
}

/// The lists that are kept, oldest first.
pub struct Pages {
    slots: Arc<Mutex<VecDeque<Slot>>>,
    budget: usize,
    ids: Box<dyn Fn() -> u128 + Send + Sync>,
}

impl Pages {
    /// Keeps lists under ids that nobody can guess.
    pub fn new(ids: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self { slots: Arc::default(), budget: BUDGET, ids: Box::new(ids) }
    }

    /// Keeps a list of which only the first `offset` objects are answered now, and answers the token for the others. A list that is
    /// larger than all that may be kept is not; its token is one that has expired.
    pub fn keep(&self, place: Place, list: &Arc<Kept>, offset: usize) -> String {
        let id = (self.ids)();
        let bytes: usize = list.rows.iter().map(|row| row.bytes()).sum();
        if bytes <= self.budget {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            forget(&mut slots, self.budget - bytes);
            slots.push_back(Slot { id, place, list: Arc::clone(list), bytes, since: Instant::now() });
            self.forget_later();
        }
        token(id, offset)
    }

    /// Lets go of what is too old by then, also if nobody ever asks again.
    fn forget_later(&self) {
        let (slots, budget) = (Arc::downgrade(&self.slots), self.budget);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT + A_MOMENT).await;
            if let Some(slots) = slots.upgrade() {
                forget(&mut slots.lock().unwrap_or_else(PoisonError::into_inner), budget);
            }
        });
    }

    /// The list that a token leads to, its id and the first object that is still to be answered.
    ///
    /// # Errors
    /// 400 for what is no token of this caller for this list, 410 for one that has expired.
    pub fn open(&self, text: &str, place: &Place) -> Result<(Arc<Kept>, Bookmark), ApiStatus> {
        let foreign = || {
            let why = "it was not made by this server for this list, these selectors and this user";
            ApiStatus::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bookmark = read_token(text).ok_or_else(foreign)?;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut slots, self.budget);
        let slot = slots.iter().find(|slot| slot.id == bookmark.id).ok_or_else(|| {
            ApiStatus::expired(
                "The provided continue parameter is too old to display a consistent list result: computed lists are kept for \
                 five minutes, on the replica that made them. Start a new list without the continue parameter.",
            )
        })?;
        if slot.place != *place || bookmark.offset > slot.list.rows.len() {
            return Err(foreign());
        }
        Ok((Arc::clone(&slot.list), bookmark))
    }

    /// How many lists are kept.
    pub fn len(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a token leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    id: u128,
    /// The first object that is still to be answered.
    pub offset: usize,
}

impl Bookmark {
    /// The token for a later place of the same list.
    pub fn token_at(self, offset: usize) -> String {
        token(self.id, offset)
    }
}

/// Forgets what is too old, and the oldest until the others take at most `room` bytes.
fn forget(slots: &mut VecDeque<Slot>, room: usize) {
    slots.retain(|slot| slot.since.elapsed() <= KEPT);
    let mut taken: usize = slots.iter().map(|slot| slot.bytes).sum();
    while taken > room {
        let Some(oldest) = slots.pop_front() else { return };
        taken -= oldest.bytes;
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

    fn place(view: &str, namespace: &str, user: &str) -> Place {
        let (view, user, selection) = (view.to_owned(), user.to_owned(), Default::default());
        Place { view, namespace: Some(namespace.to_owned()), user, selection }
    }

    /// Else a right that has shrunk to a selector would go on opening what was listed without it.
    #[rstest]
    #[case::labels(["a=b", ""])]
    #[case::fields(["", "metadata.name=m1"])]
    #[tokio::test]
    async fn a_token_is_worth_nothing_with_other_selectors(#[case] selection: [&str; 2]) {
        let (pages, here) = (pages(BUDGET), place("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        let elsewhere = Place { selection: selection.map(str::to_owned), ..here.clone() };
        assert_eq!(pages.open(&token, &elsewhere).unwrap_err().code, 400);
        assert!(pages.open(&token, &here).is_ok());
    }

    /// Each takes seven bytes.
    fn list(length: usize) -> Arc<Kept> {
        let rows = (0..length).map(|n| TestView::row(json!({"metadata": {}, "n": n}))).collect();
        Arc::new(Kept { rows, version: 1, is_selected: false })
    }

    #[rstest]
    #[case::the_same("pvm", "n", "alice", Ok(3))]
    #[case::th_33_another_user("pvm", "n", "bob", Err(400))]
    #[case::th_33_another_namespace("pvm", "m", "alice", Err(400))]
    #[case::th_33_another_view("mco", "n", "alice", Err(400))]
    #[tokio::test]
    async fn a_token_leads_back_to_its_own_list(
        #[case] view: &str,
        #[case] namespace: &str,
        #[case] user: &str,
        #[case] expected: Result<usize, u16>,
    ) {
        let pages = pages(BUDGET);
        let token = pages.keep(place("pvm", "n", "alice"), &list(5), 3);
        let found = pages.open(&token, &place(view, namespace, user));
        assert_eq!(found.map(|(_, bookmark)| bookmark.offset).map_err(|status| status.code), expected);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::nonsense("!!!")]
    #[case::another_servers("NTp4")]
    #[tokio::test]
    async fn th_33_what_is_no_token(#[case] text: &str) {
        assert_eq!(pages(BUDGET).open(text, &place("pvm", "n", "alice")).unwrap_err().code, 400);
    }

    #[tokio::test]
    async fn th_33_a_place_beyond_the_end_is_forged() {
        let (pages, here) = (pages(BUDGET), place("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        let (_, bookmark) = pages.open(&token, &here).unwrap();
        assert!(pages.open(&bookmark.token_at(5), &here).is_ok());
        assert_eq!(pages.open(&bookmark.token_at(6), &here).unwrap_err().code, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_expires() {
        let (pages, here) = (pages(BUDGET), place("pvm", "n", "alice"));
        let token = pages.keep(here.clone(), &list(5), 3);
        tokio::time::advance(KEPT).await;
        assert!(pages.open(&token, &here).is_ok());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pages.open(&token, &here).unwrap_err().code, 410);
        assert!(pages.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_is_let_go_of_though_nobody_asks() {
        let pages = pages(BUDGET);
        pages.keep(place("pvm", "n", "alice"), &list(5), 3);
        tokio::time::sleep(KEPT).await;
        assert_eq!(pages.len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pages.len(), 0);
    }

    #[tokio::test]
    async fn the_oldest_gives_way_and_what_is_too_large_is_not_kept() {
        let (pages, here) = (pages(100), place("pvm", "n", "alice"));
        let [first, second] = [0, 0].map(|_| pages.keep(here.clone(), &list(10), 3));
        assert_eq!(pages.open(&first, &here).unwrap_err().code, 410);
        assert!(pages.open(&second, &here).is_ok());
        let large = pages.keep(here.clone(), &list(20), 3);
        assert_eq!((pages.open(&large, &here).unwrap_err().code, pages.len()), (410, 1));
    }
}
