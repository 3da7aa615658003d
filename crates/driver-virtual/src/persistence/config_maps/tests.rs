//! Several writers of one state, with a small API server.

use super::{
    super::testing::{Shared, access},
    *,
};

fn machine(made: u32) -> Entry {
    Entry::Machine { key: "ns/m".into(), made, calls: vec![0] }
}

async fn open(server: &Shared, writer: u64) -> (ConfigMaps, Vec<Entry>) {
    ConfigMaps::open(&access(server), "vms", writer).await.unwrap()
}

#[tokio::test]
async fn the_next_writer_reads_the_state_and_the_former_is_refused() {
    let server = Shared::default();
    let (mut first, found) = open(&server, 1).await;
    assert_eq!(found, Vec::new());
    first.append(&[machine(1)]).await.unwrap();
    let (mut second, found) = open(&server, 2).await;
    assert_eq!(found, vec![machine(1)]);
    // The request of the first writer fails because of the version. After reading again, the writer knows the reason.
    assert!(first.append(&[machine(7)]).await.is_err());
    assert!(first.must_read);
    let refused = first.replace(&[machine(7)]).await.unwrap_err();
    assert!(matches!(refused, StateError::Taken { .. }), "{refused}");
    second.append(&[machine(2)]).await.unwrap();
    assert_eq!(open(&server, 3).await.1, vec![machine(2)]);
}

#[tokio::test]
async fn after_a_lost_reply_everything_is_read_again_and_nothing_is_lost() {
    let server = Shared::default();
    let (mut store, _) = open(&server, 1).await;
    server.lock().unwrap().loses_reply = true;
    assert!(store.append(&[machine(1)]).await.is_err());
    assert!(store.must_read);
    store.replace(&[machine(2)]).await.unwrap();
    assert!(!store.must_read);
    assert_eq!(open(&server, 2).await.1, vec![machine(2)]);
}

#[tokio::test]
async fn a_foreign_config_map_is_refused_and_not_changed() {
    let server = Shared::default();
    let foreign = json!({"metadata": {"name": "vms", "resourceVersion": "1"}, "data": {"mine": "1"}});
    server.lock().unwrap().objects.insert("vms".to_owned(), foreign.clone());
    let refused = ConfigMaps::open(&access(&server), "vms", 1).await.unwrap_err();
    assert!(matches!(refused, StateError::NotOurs { .. }), "{refused}");
    assert_eq!(server.lock().unwrap().objects["vms"], foreign);
}

#[tokio::test]
async fn an_unreadable_record_is_reported_with_the_remedy() {
    let server = Shared::default();
    drop(open(&server, 1).await);
    server.lock().unwrap().objects.get_mut("vms").unwrap()["data"] = json!({"vm.1": "rubbish"});
    let refused = ConfigMaps::open(&access(&server), "vms", 2).await.unwrap_err().to_string();
    assert!(refused.contains("ConfigMap ns/vms: key \"vm.1\"") && refused.contains("delete it"), "{refused}");
}
