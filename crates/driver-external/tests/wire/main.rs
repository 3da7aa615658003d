//! Tests of the client against peers over real sockets, and of drivers behind client and server. Rows E01 to E07 of spec/providers §11.5.

mod golang;
mod hostile;
mod peer;
mod python;
mod tls;

use std::{
    io::Write as _, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command, sync::Arc, time::Duration,
};

use driver_external::{
    Address, ExternalDriver, Options, Place, Served, serve,
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
    CancellationToken, Code, Driver, ListRequest, MachineClass, OpContext, SameInstance, SecretData, TraceParent,
    VolumeIdsRequest, contract,
};
use prost::Message as _;

use self::peer::{Peer, RunningPeer, Script, TestClient, class, code, cx, request, until};

/// Runs a script of `scripts/` that prints the path of a program. `None` if a tool is missing that the program needs; this is printed.
/// Any other failure of the script fails the test.
fn program_of(script: &str) -> Option<PathBuf> {
    let path = format!("{}/../../scripts/{script}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(path).output().expect("the script runs");
    let errors = String::from_utf8_lossy(&ran.stderr);
    match ran.status.code() {
        Some(0) => Some(String::from_utf8_lossy(&ran.stdout).trim().into()),
        Some(3) => {
            // `eprintln!` would not be visible, because its output is captured for tests that pass.
            let _ =
                writeln!(std::io::stderr(), "SKIPPED driver-external: {}", errors.lines().last().unwrap_or_default());
            None
        }
        _ => panic!("scripts/{script}: {errors}"),
    }
}

fn list() -> ListRequest {
    ListRequest { class: class(), secret: SecretData::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_over_the_wire() {
    let (cloud, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The server makes the folder `run` with mode 0700.
    let socket = folder.path().join("run/driver.sock");
    let (stop, served) = (CancellationToken::new(), Served::new(Arc::new(FolderDriver::new(cloud.path()))));
    let serving = tokio::spawn({
        let (socket, stop) = (socket.clone(), stop.clone());
        async move { serve(served, &socket, stop).await }
    });
    let client = TestClient::new(PROVIDER, Address::Unix(socket.clone()), |_| ());
    until(|| client.driver.accepted().is_some()).await;
    let provider_spec = serde_json::json!({ "cluster": "shoot-a", "size": "small" });
    let mut class = MachineClass { provider: PROVIDER.to_owned(), provider_spec, ..MachineClass::default() };
    class.metadata.namespace = Some("shoot-a".to_owned());
    contract::holds_for(&client.driver, class, SecretData::default()).await;
    let info = client.driver.info();
    assert_eq!(info.schema, FolderDriver::new("/").info().schema, "the schema is sent");
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
    let running_peer = RunningPeer::new(&Peer::new(Script { status: Err(status), ..Script::default() }));
    let answer = TestClient::of(&running_peer).await.status().await.unwrap_err();
    let vm = answer.partial.expect("what is known of the VM");
    assert_eq!((answer.code, vm.provider_id.as_str(), vm.node_name.as_str()), (Code::Uninitialized, "s:///9", "n9"));
}

#[tokio::test]
async fn e02_an_unknown_grpc_code_is_unknown() {
    let status = Err(tonic::Status::internal("odd"));
    let running_peer = RunningPeer::new(&Peer::new(Script { status, number: Some("42"), ..Script::default() }));
    let client = TestClient::of(&running_peer).await;
    assert_eq!(code(client.status().await), Code::Unknown);
    assert_eq!(code(client.driver.delete_machine(&cx(), request("worker-1")).await), Code::Unknown);
}

#[tokio::test]
async fn e03_a_list_without_its_last_chunk_is_unavailable() {
    let chunk = |id: &str, last| ListMachinesChunk {
        machines: [(id.to_owned(), format!("machine-{id}"))].into_iter().collect(),
        last,
        ..ListMachinesChunk::default()
    };
    let peer = Peer::new(Script { chunks: vec![chunk("1", false), chunk("2", false)], ..Script::default() });
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    assert_eq!(code(client.driver.list_machines(&cx(), list()).await), Code::Unavailable);
    peer.script.lock().unwrap().chunks = vec![chunk("1", false), chunk("2", true)];
    let whole = client.driver.list_machines(&cx(), list()).await.unwrap();
    assert_eq!(whole.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_a_creation_that_is_repeated_after_a_crash_of_the_peer_is_the_second_attempt() {
    let peer = Peer::new(Script { creation: Duration::from_secs(60), ..Script::default() });
    let mut running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let creations = || peer.recorded.creations.lock().unwrap().clone();
    let (cx, worker) = (cx(), request("worker-1"));
    let crash = async {
        until(|| creations().len() == 1).await;
        tokio::task::block_in_place(|| running_peer.stop());
    };
    let (lost, ()) = tokio::join!(client.driver.create_machine(&cx, worker.clone()), crash);
    assert_eq!(code(lost), Code::Unavailable, "the client itself does not repeat a creation");
    peer.script.lock().unwrap().creation = Duration::ZERO;
    tokio::task::block_in_place(|| running_peer.restart(&peer));
    let mut answer = client.driver.create_machine(&cx, worker.clone()).await;
    for _ in 0..100 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        answer = client.driver.create_machine(&cx, worker.clone()).await;
    }
    answer.expect("the restarted driver answers");
    let recorded = creations();
    assert_eq!(recorded.len(), 2);
    assert_eq!((recorded[0].attempt, recorded[0].request_id.as_str()), (1, "uid-of-worker-1-CREATE"));
    assert!(recorded[1].attempt >= 2, "{}", recorded[1].attempt);
    assert_eq!(recorded[1].request_id, recorded[0].request_id);
    let owner = recorded[0].owner.clone().expect("an owner");
    assert_eq!((owner.cluster.as_str(), owner.role.as_str()), ("shoot", "worker"));
    assert!(recorded[0].deadline.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_connection_breaks_is_sent_once_more() {
    let peer = Peer::new(Script::default());
    let mut running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    tokio::task::block_in_place(|| running_peer.restart(&peer));
    // The client may not have noticed the loss yet. After a few reads it uses the new connection.
    let mut answers = Vec::new();
    for _ in 0..40 {
        answers.push(code(client.status().await));
        if answers.last() == Some(&Code::OK) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{answers:?}");
}

/// The process of the old driver has left the group of its program, so it runs on and keeps its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_started_again_is_connected_to_although_the_old_connection_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("driver");
    let script = "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho \"$MCM_DRIVER_SOCKET\" >> lives\n\
        until [ -e \"end-$(wc -l < lives)\" ]; do sleep 0.05; done\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let lives = || std::fs::read_to_string(folder.path().join("lives")).unwrap_or_default();
    let socket = || PathBuf::from(lives().lines().next().unwrap());
    let driver = ExternalDriver::new(Options::new("scripted", Place::Program(program)));
    let stop = CancellationToken::new();
    let tasks = driver.begin(stop.clone()).await.unwrap();
    let tasks: Vec<_> = tasks.into_iter().map(|task| tokio::spawn(task.run)).collect();
    until(|| lives().lines().count() == 1).await;
    let (old, new) = (Peer::new(Script::default()), Peer::new(Script::default()));
    let old_peer = RunningPeer::at(socket(), &old);
    until(|| driver.accepted().is_some()).await;
    driver.get_machine_status(&cx(), request("worker-1")).await.expect("the old driver answers");
    std::fs::write(folder.path().join("end-1"), "").unwrap();
    until(|| lives().lines().count() == 2).await;
    let new_peer = RunningPeer::at(socket(), &new);
    for _ in 0..200 {
        // The driver may be disconnected for a moment.
        let _ = driver.get_machine_status(&cx(), request("worker-1")).await;
        if !new.recorded.calls.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(!new.recorded.calls.lock().unwrap().is_empty(), "the new driver is asked");
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    drop((old_peer, new_peer));
}

#[tokio::test]
async fn e05_a_driver_that_is_unhealthy_for_too_long_is_down_and_its_lists_are_errors() {
    let last = ListMachinesChunk { last: true, ..ListMachinesChunk::default() };
    let peer = Peer::new(Script { chunks: vec![last], ..Script::default() });
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |options| {
        options.down_after = Duration::from_secs(2);
    });
    let states = || client.states.lock().unwrap().clone();
    until(|| states() == [true]).await;
    client.driver.list_machines(&cx(), list()).await.expect("a list");
    peer.health.send_replace(ServingStatus::NotServing);
    until(|| states() == [true, false]).await;
    let calls = peer.recorded.calls.lock().unwrap().len();
    // The list must fail: with an empty list, all VMs would count as gone.
    let refused = client.driver.list_machines(&cx(), list()).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("NOT_SERVING"), "{}", refused.message);
    assert_eq!(peer.recorded.calls.lock().unwrap().len(), calls, "nothing is sent");
    peer.health.send_replace(ServingStatus::Serving);
    until(|| states() == [true, false, true]).await;
    client.driver.list_machines(&cx(), list()).await.expect("a list");
}

/// The driver answers all other calls.
#[tokio::test]
async fn e05_a_driver_whose_health_can_not_be_watched_is_up() {
    let last = ListMachinesChunk { last: true, ..ListMachinesChunk::default() };
    let peer = Peer::new(Script { chunks: vec![last], is_without_health: true, ..Script::default() });
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |options| {
        options.down_after = Duration::from_secs(2);
    });
    until(|| *client.states.lock().unwrap() == [true]).await;
    for _ in 0..20 {
        client.driver.list_machines(&cx(), list()).await.expect("a list");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(*client.states.lock().unwrap(), [true], "the connection is kept");
}

#[tokio::test]
async fn e07_a_peer_for_a_provider_that_is_not_configured_is_refused() {
    let mut script = Script::default();
    script.info.providers = vec!["AWS".to_owned()];
    let peer = Peer::new(script);
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |_| ());
    let mut refused = client.status().await.unwrap_err();
    for _ in 0..200 {
        if refused.message.contains("AWS") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
        refused = client.status().await.unwrap_err();
    }
    assert_eq!(refused.code, Code::Unavailable);
    assert!(
        refused.message.contains("it serves \"AWS\", and the configuration names it for scripted"),
        "{}",
        refused.message
    );
    assert!(peer.recorded.calls.lock().unwrap().is_empty(), "it gets no Secret");
    assert_eq!(client.driver.info().providers, ["scripted"], "another driver keeps provider AWS");
    // With the provider in the configuration, the same peer is accepted.
    let named = TestClient::new("AWS", Address::Unix(running_peer.socket()), |_| ());
    until(|| named.driver.accepted().is_some()).await;
}

#[tokio::test]
async fn a_call_that_the_driver_does_not_implement_is_not_sent() {
    let mut script = Script::default();
    script.info.capabilities = vec![Op::Create.into(), Op::Delete.into()];
    let peer = Peer::new(script);
    let running_peer = RunningPeer::new(&peer);
    assert_eq!(code(TestClient::of(&running_peer).await.status().await), Code::Unimplemented);
    assert!(peer.recorded.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn unimplemented_as_the_answer_to_a_creation_is_an_internal_error() {
    let status = Err(tonic::Status::unimplemented("no"));
    let running_peer = RunningPeer::new(&Peer::new(Script { status, ..Script::default() }));
    let client = TestClient::of(&running_peer).await;
    assert_eq!(code(client.driver.create_machine(&cx(), request("worker-1")).await), Code::Internal);
    assert_eq!(code(client.status().await), Code::Unimplemented);
}

#[tokio::test]
async fn a_created_vm_without_a_provider_id_is_an_error() {
    let running_peer =
        RunningPeer::new(&Peer::new(Script { status: Ok(MachineResponse::default()), ..Script::default() }));
    let client = TestClient::of(&running_peer).await;
    let refused = client.driver.create_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::Internal, "driver returned no providerID"));
}

#[tokio::test]
async fn pk_103_a_call_carries_the_span_of_its_caller() {
    let peer = Peer::new(Script::default());
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for cx in [cx().traced(TraceParent::parse(header)), cx()] {
        client.driver.create_machine(&cx, request("worker-1")).await.unwrap();
    }
    assert_eq!(*peer.recorded.traces.lock().unwrap(), [Some(header.to_owned()), None]);
}

#[tokio::test]
async fn calls_keep_to_the_drivers_limits() {
    let mut script = Script { creation: Duration::from_secs(60), ..Script::default() };
    script.info.max_deadline_seconds = [("CREATE".to_owned(), 1)].into_iter().collect();
    script.info.max_concurrency = 1;
    let peer = Peer::new(script);
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let (cx, sooner) = (cx(), OpContext::within(Duration::from_millis(500)));
    let (one, other) = tokio::join!(
        client.driver.create_machine(&cx, request("worker-1")),
        client.driver.create_machine(&sooner, request("worker-2")),
    );
    assert_eq!((code(one), code(other)), (Code::DeadlineExceeded, Code::DeadlineExceeded));
    assert_eq!(peer.recorded.creations.lock().unwrap().len(), 1, "the second one had no slot");
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
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let refused = client.driver.create_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert_eq!(refused.message, "providerSpec.size: Invalid value: \"huge\": there is no such size");
    peer.script.lock().unwrap().verdict.errors = vec![error(true)];
    for name in ["worker-1", "worker-2"] {
        client.driver.create_machine(&cx(), request(name)).await.expect("a warning refuses nothing");
    }
    assert_eq!(
        *peer.recorded.calls.lock().unwrap(),
        ["validate", "validate", "create", "create"],
        "the approval of the class is cached"
    );
}

#[tokio::test]
async fn the_answer_to_get_info_is_used() {
    let mut script = Script::default();
    script.info.node_id_compare = NodeIdCompare::LastSegment.into();
    script.info.required_secret_keys = vec!["token".to_owned(), "user".to_owned()];
    script.info.provider_spec_json_schema = br#"{"type":"object"}"#.to_vec();
    let running_peer = RunningPeer::new(&Peer::new(script));
    let TestClient { driver, .. } = &TestClient::of(&running_peer).await;
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
    let mut running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let before = client.driver.info();
    peer.script.lock().unwrap().info.provider_spec_json_schema = b"true".to_vec();
    tokio::task::block_in_place(|| running_peer.restart(&peer));
    until(|| client.driver.info().schema == Some(serde_json::json!(true))).await;
    assert_eq!(before.schema, Some(serde_json::json!({ "type": "object" })), "references to the old answer stay valid");
}

#[tokio::test]
async fn a_socket_in_a_folder_that_is_open_to_others_is_not_trusted() {
    let peer = Peer::new(Script::default());
    let running_peer = RunningPeer::new(&peer);
    std::fs::set_permissions(running_peer.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |_| ());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = client.status().await.unwrap_err();
    assert!(refused.message.contains("must be 0700"), "{}", refused.message);
}
