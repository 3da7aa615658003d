//! The client against peers over real sockets, and any driver behind client and server. Rows E01 to E07 of spec/providers §11.5.

mod golang;
mod hostile;
mod peer;
mod python;
mod tls;

use std::{io::Write as _, path::PathBuf, process::Command, sync::Arc, time::Duration};

use driver_external::{
    Address, Served, serve,
    wire::{
        driver::{
            FieldError, Kind, ListMachinesChunk, MachineResponse, NodeIdCompare, Op, StatusDetail, ValidateResponse,
        },
        health::health_check_response::ServingStatus,
        rpc,
    },
};
use example_driver::{FolderDriver, PROVIDER};
use machine_driver::{
    CancellationToken, Code, Driver, ListRequest, MachineClass, OpContext, SameInstance, SecretData, VolumeIdsRequest,
    contract,
};
use prost::Message as _;

use self::peer::{Kept, Living, Peer, Script, class, code, cx, request, until};

/// What a script of `scripts/` prints: the path of a program. `None`, told where nobody can miss it, when what the program needs is
/// missing; all other failures are failures of the test.
fn program_of(script: &str) -> Option<PathBuf> {
    let path = format!("{}/../../scripts/{script}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(path).output().expect("the script runs");
    let told = String::from_utf8_lossy(&ran.stderr);
    match ran.status.code() {
        Some(0) => Some(String::from_utf8_lossy(&ran.stdout).trim().into()),
        Some(3) => {
            // Not eprintln!: its output is captured for tests that pass.
            let _ = writeln!(std::io::stderr(), "SKIPPED driver-external: {}", told.lines().last().unwrap_or_default());
            None
        }
        _ => panic!("scripts/{script}: {told}"),
    }
}

fn list() -> ListRequest {
    ListRequest { class: class(), secret: SecretData::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_over_the_wire() {
    let (cloud, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The server makes the folder, closed to others.
    let socket = place.path().join("run/driver.sock");
    let (stop, served) = (CancellationToken::new(), Served::new(Arc::new(FolderDriver::new(cloud.path()))));
    let serving = tokio::spawn({
        let (socket, stop) = (socket.clone(), stop.clone());
        async move { serve(served, &socket, stop).await }
    });
    let kept = Kept::new(PROVIDER, Address::Unix(socket.clone()), |_| ());
    until(|| kept.driver.accepted().is_some()).await;
    let provider_spec = serde_json::json!({ "cluster": "shoot-a", "size": "small" });
    let mut class = MachineClass { provider: PROVIDER.to_owned(), provider_spec, ..MachineClass::default() };
    class.metadata.namespace = Some("shoot-a".to_owned());
    contract::holds_for(&kept.driver, class, SecretData::default()).await;
    let info = kept.driver.info();
    assert_eq!(info.schema, FolderDriver::new("/").info().schema, "the schema comes over the wire");
    assert!(info.capabilities.create_is_idempotent);
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("the server ends").unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn e01_uninitialized_comes_with_ids() {
    let vm =
        MachineResponse { provider_id: "s:///9".to_owned(), node_name: "n9".to_owned(), ..MachineResponse::default() };
    let detail = StatusDetail { machine_code: 17, partial: Some(vm), last_known_state: String::new() };
    let any = prost_types::Any {
        type_url: "type.googleapis.com/machine.driver.v1.StatusDetail".to_owned(),
        value: detail.encode_to_vec(),
    };
    let wrapped = rpc::Status { code: 9, message: "half".to_owned(), details: vec![any] };
    let status = tonic::Status::with_details(tonic::Code::FailedPrecondition, "half", wrapped.encode_to_vec().into());
    let living = Living::new(&Peer::new(Script { status: Err(status), ..Script::default() }));
    let answer = Kept::of(&living).await.status().await.unwrap_err();
    let vm = answer.partial.expect("what is known of the VM");
    assert_eq!((answer.code, vm.provider_id.as_str(), vm.node_name.as_str()), (Code::Uninitialized, "s:///9", "n9"));
}

#[tokio::test]
async fn e02_a_number_that_is_no_code_is_unknown() {
    let status = Err(tonic::Status::internal("odd"));
    let living = Living::new(&Peer::new(Script { status, number: Some("42"), ..Script::default() }));
    let kept = Kept::of(&living).await;
    assert_eq!(code(kept.status().await), Code::Unknown);
    assert_eq!(code(kept.driver.delete_machine(&cx(), request("worker-1")).await), Code::Unknown);
}

#[tokio::test]
async fn e03_a_list_without_its_last_chunk_is_unavailable() {
    let chunk = |id: &str, last| ListMachinesChunk {
        machines: [(id.to_owned(), format!("machine-{id}"))].into_iter().collect(),
        last,
        ..ListMachinesChunk::default()
    };
    let peer = Peer::new(Script { chunks: vec![chunk("1", false), chunk("2", false)], ..Script::default() });
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    assert_eq!(code(kept.driver.list_machines(&cx(), list()).await), Code::Unavailable);
    peer.script.lock().unwrap().chunks = vec![chunk("1", false), chunk("2", true)];
    let whole = kept.driver.list_machines(&cx(), list()).await.unwrap();
    assert_eq!(whole.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_a_peer_that_dies_during_a_creation_is_asked_again_as_the_second_attempt() {
    let peer = Peer::new(Script { creation: Duration::from_secs(60), ..Script::default() });
    let mut living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let creations = || peer.seen.creations.lock().unwrap().clone();
    let (cx, worker) = (cx(), request("worker-1"));
    let dying = async {
        until(|| creations().len() == 1).await;
        tokio::task::block_in_place(|| living.die());
    };
    let (lost, ()) = tokio::join!(kept.driver.create_machine(&cx, worker.clone()), dying);
    assert_eq!(code(lost), Code::Unavailable, "nothing is sent twice by itself");
    peer.script.lock().unwrap().creation = Duration::ZERO;
    tokio::task::block_in_place(|| living.revive(&peer));
    let mut answer = kept.driver.create_machine(&cx, worker.clone()).await;
    for _ in 0..100 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        answer = kept.driver.create_machine(&cx, worker.clone()).await;
    }
    answer.expect("the driver is back");
    let seen = creations();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].attempt, seen[0].request_id.as_str()), (1, "uid-of-worker-1-CREATE"));
    assert!(seen[1].attempt >= 2, "{}", seen[1].attempt);
    assert_eq!(seen[1].request_id, seen[0].request_id);
    let owner = seen[0].owner.clone().expect("an owner");
    assert_eq!((owner.cluster.as_str(), owner.role.as_str()), ("shoot", "worker"));
    assert!(seen[0].deadline.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_connection_breaks_is_sent_once_more() {
    let peer = Peer::new(Script::default());
    let mut living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    tokio::task::block_in_place(|| living.revive(&peer));
    // Whether the loss is known by now or not, one of a few reads goes to the new connection.
    let mut answers = Vec::new();
    for _ in 0..40 {
        answers.push(code(kept.status().await));
        if answers.last() == Some(&Code::OK) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{answers:?}");
}

#[tokio::test]
async fn e05_a_driver_that_is_ill_for_too_long_is_down_and_its_lists_are_errors() {
    let last = ListMachinesChunk { last: true, ..ListMachinesChunk::default() };
    let peer = Peer::new(Script { chunks: vec![last], ..Script::default() });
    let living = Living::new(&peer);
    let kept =
        Kept::new("scripted", Address::Unix(living.socket()), |options| options.down_after = Duration::from_secs(2));
    let ups = || kept.ups.lock().unwrap().clone();
    until(|| ups() == [true]).await;
    kept.driver.list_machines(&cx(), list()).await.expect("a list");
    peer.health.send_replace(ServingStatus::NotServing);
    until(|| ups() == [true, false]).await;
    let calls = peer.seen.calls.lock().unwrap().len();
    // An error is evidence of nothing: no orphan is found by it.
    let refused = kept.driver.list_machines(&cx(), list()).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("NOT_SERVING"), "{}", refused.message);
    assert_eq!(peer.seen.calls.lock().unwrap().len(), calls, "nothing is sent");
    peer.health.send_replace(ServingStatus::Serving);
    until(|| ups() == [true, false, true]).await;
    kept.driver.list_machines(&cx(), list()).await.expect("a list");
}

/// All else of the driver works.
#[tokio::test]
async fn e05_a_watch_of_health_that_fails_says_nothing_of_the_driver() {
    let last = ListMachinesChunk { last: true, ..ListMachinesChunk::default() };
    let peer = Peer::new(Script { chunks: vec![last], is_without_health: true, ..Script::default() });
    let living = Living::new(&peer);
    let kept =
        Kept::new("scripted", Address::Unix(living.socket()), |options| options.down_after = Duration::from_secs(2));
    until(|| *kept.ups.lock().unwrap() == [true]).await;
    for _ in 0..20 {
        kept.driver.list_machines(&cx(), list()).await.expect("a list");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(*kept.ups.lock().unwrap(), [true], "the connection is kept");
}

#[tokio::test]
async fn e07_a_peer_that_claims_a_provider_that_nobody_gave_it_is_refused() {
    let mut script = Script::default();
    script.info.providers = vec!["AWS".to_owned()];
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    let kept = Kept::new("scripted", Address::Unix(living.socket()), |_| ());
    let mut refused = kept.status().await.unwrap_err();
    for _ in 0..200 {
        if refused.message.contains("AWS") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
        refused = kept.status().await.unwrap_err();
    }
    assert_eq!(refused.code, Code::Unavailable);
    assert!(
        refused.message.contains("it serves \"AWS\", and the configuration names it for scripted"),
        "{}",
        refused.message
    );
    assert!(peer.seen.calls.lock().unwrap().is_empty(), "it gets no Secret");
    assert_eq!(kept.driver.info().providers, ["scripted"], "AWS stays with whoever serves it");
    // Where the configuration names it, it serves.
    let named = Kept::new("AWS", Address::Unix(living.socket()), |_| ());
    until(|| named.driver.accepted().is_some()).await;
}

#[tokio::test]
async fn what_a_driver_can_not_do_it_is_not_asked() {
    let mut script = Script::default();
    script.info.capabilities = vec![Op::Create.into(), Op::Delete.into()];
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    assert_eq!(code(Kept::of(&living).await.status().await), Code::Unimplemented);
    assert!(peer.seen.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_driver_that_can_not_create_after_all_is_defective() {
    let status = Err(tonic::Status::unimplemented("no"));
    let living = Living::new(&Peer::new(Script { status, ..Script::default() }));
    let kept = Kept::of(&living).await;
    assert_eq!(code(kept.driver.create_machine(&cx(), request("worker-1")).await), Code::Internal);
    assert_eq!(code(kept.status().await), Code::Unimplemented);
}

#[tokio::test]
async fn a_vm_without_an_id_is_no_vm() {
    let living = Living::new(&Peer::new(Script { status: Ok(MachineResponse::default()), ..Script::default() }));
    let kept = Kept::of(&living).await;
    let refused = kept.driver.create_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::Internal, "driver returned no providerID"));
}

#[tokio::test]
async fn calls_keep_to_the_drivers_limits() {
    let mut script = Script { creation: Duration::from_secs(60), ..Script::default() };
    script.info.max_deadline_seconds = [("CREATE".to_owned(), 1)].into_iter().collect();
    script.info.max_concurrency = 1;
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let (cx, sooner) = (cx(), OpContext::within(Duration::from_millis(500)));
    let (one, other) = tokio::join!(
        kept.driver.create_machine(&cx, request("worker-1")),
        kept.driver.create_machine(&sooner, request("worker-2")),
    );
    assert_eq!((code(one), code(other)), (Code::DeadlineExceeded, Code::DeadlineExceeded));
    assert_eq!(peer.seen.creations.lock().unwrap().len(), 1, "the second one had no slot");
}

#[tokio::test]
async fn a_class_that_the_driver_refuses_gets_no_vm() {
    let error = |warning| FieldError {
        path: "providerSpec.size".to_owned(),
        kind: Kind::Invalid.into(),
        value: "huge".to_owned(),
        detail: "there is no such size".to_owned(),
        warning,
    };
    let mut script = Script { verdict: ValidateResponse { errors: vec![error(false)] }, ..Script::default() };
    script.info.capabilities.push(Op::Validate.into());
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let refused = kept.driver.create_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert_eq!(refused.message, "providerSpec.size: Invalid value: \"huge\": there is no such size");
    peer.script.lock().unwrap().verdict.errors = vec![error(true)];
    for name in ["worker-1", "worker-2"] {
        kept.driver.create_machine(&cx(), request(name)).await.expect("a warning refuses nothing");
    }
    assert_eq!(
        *peer.seen.calls.lock().unwrap(),
        ["validate", "validate", "create", "create"],
        "a verdict holds for a while"
    );
}

#[tokio::test]
async fn what_a_driver_tells_of_itself_is_used() {
    let mut script = Script::default();
    script.info.node_id_compare = NodeIdCompare::LastSegment.into();
    script.info.required_secret_keys = vec!["token".to_owned(), "user".to_owned()];
    script.info.provider_spec_json_schema = br#"{"type":"object"}"#.to_vec();
    let living = Living::new(&Peer::new(script));
    let Kept { driver, .. } = &Kept::of(&living).await;
    assert_eq!(driver.same_instance("s:///a/1", "s:///b/2"), SameInstance::Another);
    assert_eq!(driver.missing_in_secret(None, &["token".to_owned()].into_iter().collect()), ["Mention user"]);
    assert_eq!(driver.info().schema, Some(serde_json::json!({ "type": "object" })));
    assert_eq!(driver.get_volume_ids(&cx(), VolumeIdsRequest { volumes: Vec::new() }).await.unwrap(), ["vol-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_changes_with_a_new_connection_is_used() {
    let mut script = Script::default();
    script.info.provider_spec_json_schema = br#"{"type":"object"}"#.to_vec();
    let peer = Peer::new(script);
    let mut living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let before = kept.driver.info();
    peer.script.lock().unwrap().info.provider_spec_json_schema = b"true".to_vec();
    tokio::task::block_in_place(|| living.revive(&peer));
    until(|| kept.driver.info().schema == Some(serde_json::json!(true))).await;
    assert_eq!(before.schema, Some(serde_json::json!({ "type": "object" })), "whoever still holds it may go on");
}

#[tokio::test]
async fn a_socket_in_a_folder_that_is_open_to_others_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt as _;
    let peer = Peer::new(Script::default());
    let living = Living::new(&peer);
    std::fs::set_permissions(living.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let kept = Kept::new("scripted", Address::Unix(living.socket()), |_| ());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = kept.status().await.unwrap_err();
    assert!(refused.message.contains("must be 0700"), "{}", refused.message);
}
