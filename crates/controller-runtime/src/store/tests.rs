//! The content and the notifications of a store, for any order of lists, events and answers.

use std::sync::Mutex;

use super::*;
use machine_api::v1alpha1::Machine;

fn machine(name: &str, uid: &str, version: u64, class: &str) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.namespace = Some("ns".to_owned());
    machine.metadata.uid = Some(uid.to_owned());
    machine.metadata.resource_version = Some(version.to_string());
    machine.spec.class.name = class.to_owned();
    machine
}

fn store() -> Store<Arc<Machine>> {
    Store::new(vec![("class", |machine| vec![machine.spec.class.name.clone()])])
}

fn names(objects: &[Arc<Machine>]) -> Vec<&str> {
    objects.iter().filter_map(|object| object.metadata.name.as_deref()).collect()
}

#[test]
fn an_object_that_is_known_to_be_gone_is_not_brought_back_by_older_events() {
    let store = store();
    store.observe_write(machine("a", "1", 5, "x"));
    let mut last = machine("a", "1", 9, "x");
    last.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    // A write of this process removed its last finalizer. The watch still has all events before it.
    store.observe_write(last);
    store.apply(machine("a", "1", 4, "x"));
    store.apply(machine("a", "1", 7, "x"));
    assert!(store.is_empty(), "it is back");
    store.delete(&machine("a", "1", 9, "x"));
    store.apply(machine("a", "2", 11, "x"));
    assert_eq!(names(&store.snapshot()), ["a"]);
    // A list counts, because it was read later.
    store.forget(&ObjectKey::new("ns", "a"), "2");
    store.list_begins();
    store.apply(machine("a", "2", 12, "x"));
    store.list_ends();
    assert_eq!(store.len(), 1);
}

#[test]
fn an_index_follows_its_objects() {
    let store = store();
    store.apply(machine("b", "1", 1, "x"));
    store.apply(machine("a", "2", 2, "x"));
    assert_eq!(names(&store.by_index("class", "x")), ["a", "b"]);
    store.apply(machine("b", "1", 3, "y"));
    assert_eq!(names(&store.by_index("class", "x")), ["a"]);
    store.delete(&machine("a", "2", 4, "x"));
    assert!(store.by_index("class", "x").is_empty());
    assert_eq!(names(&store.by_index("class", "y")), ["b"]);
}

#[test]
fn a_late_watch_event_does_not_undo_our_own_write() {
    let store = store();
    store.apply(machine("a", "1", 1, "x"));
    store.observe_write(machine("a", "1", 5, "z"));
    store.apply(machine("a", "1", 3, "y"));
    assert_eq!(names(&store.by_index("class", "z")), ["a"]);
}

#[test]
fn a_late_answer_does_not_bring_a_deleted_object_back() {
    let store = store();
    store.apply(machine("a", "1", 1, "x"));
    store.delete(&machine("a", "1", 7, "x"));
    store.observe_write(machine("a", "1", 5, "x"));
    assert!(store.is_empty());
}

#[test]
fn objects_missing_in_a_list_are_gone_and_our_writes_meanwhile_stay() {
    let store = store();
    store.apply(machine("old", "1", 1, "x"));
    store.list_begins();
    store.apply(machine("kept", "2", 2, "x"));
    store.observe_write(machine("new", "3", 9, "x"));
    store.list_ends();
    assert_eq!(names(&store.snapshot()), ["kept", "new"]);
    assert!(store.is_synced());
}

#[test]
fn a_namesake_with_another_uid_replaces_the_object() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("a", "2", 6, "x"));
    assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
    store.delete(&machine("a", "1", 7, "x"));
    assert_eq!(store.len(), 1);
}

#[test]
fn a_late_event_of_a_deleted_object_does_not_replace_our_new_one() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.observe_write(machine("a", "2", 9, "x"));
    store.apply(machine("a", "1", 6, "x"));
    store.delete(&machine("a", "1", 7, "x"));
    assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
}

#[test]
fn a_list_puts_a_namesake_right_even_when_versions_went_backwards() {
    let store = store();
    store.apply(machine("a", "1", 900, "x"));
    store.list_begins();
    store.apply(machine("a", "2", 5, "x"));
    store.list_ends();
    assert_eq!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.uid.as_deref(), Some("2"));
}

#[test]
fn a_write_that_the_list_has_come_past_does_not_keep_a_deleted_object() {
    let store = store();
    store.list_begins();
    store.observe_write(machine("a", "1", 5, "x"));
    store.apply(machine("b", "2", 8, "x"));
    store.list_ends();
    assert_eq!(names(&store.snapshot()), ["b"]);
}

#[test]
fn the_answer_that_takes_the_last_finalizer_ends_the_object() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    let mut answer = machine("a", "1", 6, "x");
    answer.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    answer.metadata.finalizers = Some(vec!["f".to_owned()]);
    store.observe_write(answer.clone());
    assert_eq!(store.len(), 1, "it waits for its finalizer");
    answer.metadata.finalizers = Some(Vec::new());
    answer.metadata.resource_version = Some("7".to_owned());
    store.observe_write(answer);
    assert!(store.is_empty());
}

#[test]
fn an_object_that_a_list_mentions_but_that_cannot_be_read_stays_as_it_was_known() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.list_begins();
    store.observe_undecodable(&ObjectKey::new("ns", "a"), "1", 5);
    store.list_ends();
    assert_eq!(names(&store.snapshot()), ["a"]);
}

#[test]
fn listeners_get_each_change_once() {
    let store = store();
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&received);
    store.set_listeners(vec![Box::new(move |change: &Change<Arc<Machine>>| {
        log.lock().unwrap().push((change.old.is_some(), change.new.is_some()));
    })]);
    store.observe_write(machine("a", "1", 5, "x"));
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("a", "1", 6, "x"));
    store.forget(&ObjectKey::new("ns", "a"), "1");
    assert_eq!(*received.lock().unwrap(), [(false, true), (true, true), (true, false)]);
}

fn marked(version: u64, finalizers: &[&str]) -> Machine {
    let mut marked = machine("a", "1", version, "x");
    marked.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    marked.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
    marked
}

fn versions(store: &Store<Arc<Machine>>) -> Vec<(String, String)> {
    let text = |object: &Arc<Machine>| {
        (object.metadata.name.clone().unwrap_or_default(), object.metadata.resource_version.clone().unwrap_or_default())
    };
    store.snapshot().iter().map(text).collect()
}

fn pair(name: &str, version: &str) -> (String, String) {
    (name.to_owned(), version.to_owned())
}

#[test]
fn old_events_replayed_after_our_own_deletion_bring_nothing_back() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.observe_write(marked(9, &["f"]));
    store.observe_write(marked(12, &[]));
    for version in [5, 9, 12] {
        store.apply(machine("a", "1", version, "x"));
    }
    assert!(store.is_empty(), "before the event of the deletion");
    store.delete(&machine("a", "1", 13, "x"));
    for version in [5, 9, 12, 13] {
        store.apply(machine("a", "1", version, "x"));
    }
    assert!(store.is_empty(), "afterwards");
}

#[test]
fn a_forgotten_object_is_restored_by_a_newer_event_but_not_by_a_known_one() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.forget(&ObjectKey::new("ns", "a"), "1");
    store.apply(machine("a", "1", 5, "x"));
    assert!(store.is_empty());
    store.apply(machine("a", "1", 6, "x"));
    assert_eq!(versions(&store), [pair("a", "6")]);
}

#[test]
fn a_forgotten_object_comes_back_by_a_live_read_and_by_a_list_at_any_version() {
    let key = ObjectKey::new("ns", "a");
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("b", "2", 8, "x"));
    store.forget(&key, "1");
    let asked = store.moment();
    store.observe_read(Arc::new(machine("a", "1", 4, "x")), asked);
    assert_eq!(store.len(), 2, "by a read");
    store.forget(&key, "1");
    store.list_begins();
    store.apply(machine("a", "1", 3, "x"));
    store.apply(machine("b", "2", 8, "x"));
    store.list_ends();
    assert_eq!(store.len(), 2, "by a list");
    store.apply(machine("a", "1", 4, "x"));
    assert_eq!(versions(&store), [pair("a", "4"), pair("b", "8")], "events of it count again");
}

#[test]
fn a_read_that_was_sent_before_a_removal_does_not_undo_it() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    let asked = store.moment();
    store.delete(&machine("a", "1", 7, "x"));
    store.observe_read(Arc::new(machine("a", "1", 5, "x")), asked);
    assert!(store.is_empty());
}

#[test]
fn an_answer_about_a_namesake_that_is_known_to_be_gone_changes_nothing() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("a", "2", 9, "x"));
    store.observe_write(machine("a", "1", 7, "x"));
    store.forget(&ObjectKey::new("ns", "a"), "1");
    assert_eq!(versions(&store), [pair("a", "9")]);
}

#[test]
fn after_a_restore_by_a_thousand_versions_the_store_equals_the_list() {
    let store = store();
    store.apply(machine("gone", "0", 1500, "x"));
    store.delete(&machine("gone", "0", 1990, "x"));
    store.apply(marked(2000, &["f"]));
    store.apply(machine("made-since", "3", 1900, "x"));
    store.list_begins();
    assert_eq!(store.list_is_of(1000), History::WentBack);
    assert!(!store.is_whole(), "nothing is decided on half of it");
    store.apply(machine("a", "1", 900, "x"));
    store.apply(machine("gone", "0", 950, "x"));
    store.list_ends();
    assert!(store.is_whole());
    assert_eq!(versions(&store), [pair("a", "900"), pair("gone", "950")]);
    assert!(store.get(&ObjectKey::new("ns", "a")).unwrap().metadata.deletion_timestamp.is_none());
    // The history continues from there.
    store.apply(machine("a", "1", 1001, "y"));
    store.observe_write(machine("new", "4", 1002, "y"));
    store.delete(&machine("gone", "0", 1003, "x"));
    store.apply(machine("gone", "0", 1002, "x"));
    assert_eq!(versions(&store), [pair("a", "1001"), pair("new", "1002")]);
}

#[test]
fn a_list_overrides_everything_except_answers_since_it_began() {
    let store = store();
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("b", "2", 6, "x"));
    store.list_begins();
    assert_eq!(store.list_is_of(6), History::GoesOn);
    store.observe_write(machine("a", "1", 9, "z"));
    store.forget(&ObjectKey::new("ns", "b"), "2");
    store.apply(machine("a", "1", 5, "x"));
    store.apply(machine("b", "2", 6, "x"));
    store.list_ends();
    assert_eq!(versions(&store), [pair("a", "9")]);
}

#[tokio::test]
async fn waiting_for_a_whole_store_ends_with_the_list() {
    let store = Arc::new(store());
    store.apply(machine("a", "1", 20, "x"));
    store.list_begins();
    store.list_is_of(10);
    let waiting = Arc::clone(&store);
    let waiting = tokio::spawn(async move { waiting.wait_whole().await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    store.list_ends();
    waiting.await.unwrap();
}
