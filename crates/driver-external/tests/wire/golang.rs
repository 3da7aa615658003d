//! Tests with `tests/go-driver`: a driver for Gardener's Go interface that `drivers/go` serves. Its cloud is a map in memory.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use driver_external::{Address, ExternalDriver, Options, Place, PlainText};
use machine_driver::{
    CancellationToken, Code, Driver, ListRequest, Machine, MachineClass, MachineRequest, OpContext,
    PersistentVolumeSpec, SameInstance, SecretData, VolumeIdsRequest, contract,
};
use serde_json::{Value, json};

use crate::{
    peer::{TestClient, until},
    program_of,
    tls::{authority, files, issued},
};

static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();

/// The path of the program. `None` if Go or its modules are missing.
fn program() -> Option<PathBuf> {
    PROGRAM.get_or_init(|| program_of("go-driver")).clone()
}

/// The running program on its own socket. Dropping this value ends the program.
struct Served {
    child: Child,
    _folder: tempfile::TempDir,
    client: TestClient,
}

impl Served {
    async fn start() -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().unwrap();
        // The program makes the folder `run` with mode 0700.
        let socket = folder.path().join("run/driver.sock");
        let child = Command::new(program).arg("-socket").arg(&socket).stderr(Stdio::piped()).spawn().unwrap();
        let client = TestClient::new("memory", Address::Unix(socket), |_| ());
        until(|| client.driver.accepted().is_some()).await;
        Some(Self { child, _folder: folder, client })
    }

    fn driver(&self) -> &ExternalDriver {
        &self.client.driver
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TOKEN: &str = "hunter2-and-more";

fn secret() -> SecretData {
    let mut secret = SecretData::default();
    secret.set("token", TOKEN.as_bytes().to_vec());
    secret
}

fn class(spec: Value) -> MachineClass {
    let mut class = MachineClass { provider: "memory".to_owned(), provider_spec: spec, ..MachineClass::default() };
    class.metadata.namespace = Some("shoot-a".to_owned());
    class
}

fn request(name: &str, spec: Value) -> MachineRequest {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.namespace = Some("shoot-a".to_owned());
    machine.metadata.uid = Some(format!("uid-of-{name}"));
    MachineRequest { machine: machine.into(), class: class(spec).into(), secret: secret() }
}

fn within(time: Duration) -> OpContext {
    OpContext::within(time)
}

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_for_a_driver_in_go() {
    let Some(served) = Served::start().await else { return };
    contract::holds_for(served.driver(), class(json!({ "cluster": "shoot-a" })), secret()).await;
    let info = served.driver().info();
    assert_eq!(info.schema, Some(json!({ "type": "object", "required": ["cluster"] })));
    assert_eq!(served.driver().missing_in_secret(None, &std::collections::BTreeSet::new()), ["Mention token"]);
    assert_eq!(served.driver().same_instance("memory:///a/x", "memory:///b/x"), SameInstance::Same);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_gardeners_answers_arrive() {
    let Some(served) = Served::start().await else { return };
    let (driver, worker) = (served.driver(), request("worker-1", json!({ "cluster": "shoot-b" })));
    let made = driver.create_machine(&within(TIMEOUT), worker.clone()).await.unwrap();
    assert_eq!((made.vm.provider_id.as_str(), made.vm.node_name.as_str()), ("memory:///shoot-b/worker-1", "worker-1"));
    assert_eq!(made.last_known_state.as_deref(), Some("it is made"));
    assert_eq!(
        (made.vm.addresses[0].type_.as_str(), made.vm.addresses[0].address.as_str()),
        ("InternalIP", "10.0.0.1")
    );
    let initialised = driver.initialize_machine(&within(TIMEOUT), worker.clone()).await.unwrap_err();
    assert_eq!(initialised.code, Code::Unimplemented);
    let gone = driver.delete_machine(&within(TIMEOUT), worker).await.unwrap();
    assert_eq!(gone.last_known_state.as_deref(), Some("it is gone"));

    let volume = |spec: Value| serde_json::from_value::<PersistentVolumeSpec>(spec).unwrap();
    let csi = |handle: &str| volume(json!({ "csi": { "driver": "d", "volumeHandle": handle } }));
    let volumes = vec![csi("vol-1"), volume(json!({ "hostPath": { "path": "/x" } })), csi("vol-2")];
    let ids = driver.get_volume_ids(&within(TIMEOUT), VolumeIdsRequest { volumes }).await.unwrap();
    assert_eq!(ids, ["vol-1", "vol-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_more_than_a_thousand_vms_is_complete() {
    let Some(served) = Served::start().await else { return };
    let driver = served.driver();
    let creations = (0..1203).map(|number| {
        let request = request(&format!("worker-{number}"), json!({ "cluster": "shoot-c" }));
        async move { driver.create_machine(&within(TIMEOUT), request).await.map(drop) }
    });
    futures::future::try_join_all(creations).await.unwrap();
    let request = ListRequest { class: Arc::new(class(json!({ "cluster": "shoot-c" }))), secret: secret() };
    assert_eq!(driver.list_machines(&within(TIMEOUT), request).await.unwrap().len(), 1203);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_code_of_gardeners_errors_arrives_and_no_secret_with_it() {
    let Some(served) = Served::start().await else { return };
    for code in Code::ALL.iter().copied().filter(|code| *code != Code::OK) {
        let worker = request("worker-1", json!({ "cluster": "a", "fails": code.to_string() }));
        let error = served.driver().delete_machine(&within(TIMEOUT), worker.clone()).await.unwrap_err();
        // A driver must implement deletion.
        let expected = if code == Code::Unimplemented { Code::Internal } else { code };
        assert_eq!(error.code, expected, "{error}");
        assert_eq!(error.message, format!("it says {code} to token <redacted>"));
        assert_eq!(error.last_known_state.as_deref(), Some("it failed"));
        let listed = ListRequest { class: worker.class, secret: secret() };
        assert_eq!(served.driver().list_machines(&within(TIMEOUT), listed).await.unwrap_err().code, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e01_uninitialized_of_a_driver_in_go_comes_with_ids() {
    let Some(served) = Served::start().await else { return };
    let worker = request("worker-1", json!({ "cluster": "a", "fails": "Uninitialized", "partial": true }));
    let error = served.driver().get_machine_status(&within(TIMEOUT), worker).await.unwrap_err();
    let vm = error.partial.expect("what is known of the VM");
    assert_eq!(
        (error.code, vm.provider_id.as_str(), vm.node_name.as_str()),
        (Code::Uninitialized, "memory:///a/worker-1", "worker-1")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_reach_the_context_of_a_driver_in_go() {
    let Some(served) = Served::start().await else { return };
    let driver = served.driver();
    let began = Instant::now();
    let waiting = request("worker-1", json!({ "cluster": "a", "waits": true }));
    let error = driver.create_machine(&within(Duration::from_millis(300)), waiting).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    // This call gets an answer only if the deadline has ended the creation through its context.
    let found = driver.get_machine_status(&within(TIMEOUT), request("worker-1", json!({ "cluster": "a" }))).await;
    assert_eq!(found.unwrap_err().code, Code::NotFound);
    assert!(began.elapsed() < TIMEOUT / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_call_after_a_creation_that_timed_out_finds_its_vm() {
    let Some(served) = Served::start().await else { return };
    let driver = served.driver();
    let slow = request("worker-1", json!({ "cluster": "a", "takes": 1500 }));
    let error = driver.create_machine(&within(Duration::from_millis(300)), slow).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    let found = driver.get_machine_status(&within(TIMEOUT), request("worker-1", json!({ "cluster": "a" }))).await;
    assert_eq!(found.unwrap().provider_id, "memory:///a/worker-1", "the driver ignores its context and goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_in_go_that_panics_still_serves_and_logs_no_secret() {
    let Some(mut served) = Served::start().await else { return };
    let panics = request("worker-1", json!({ "cluster": "a", "panics": true }));
    let error = served.driver().create_machine(&within(TIMEOUT), panics).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Internal, "the driver panicked: a string"));
    let normal = request("worker-1", json!({ "cluster": "a" }));
    served.driver().create_machine(&within(TIMEOUT), normal).await.unwrap();
    served.child.kill().unwrap();
    let mut log = String::new();
    std::io::Read::read_to_string(&mut served.child.stderr.take().unwrap(), &mut log).unwrap();
    assert!(log.contains("the driver panicked") && !log.contains(TOKEN), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_in_go_is_run_by_the_leader() {
    let Some(program) = program() else { return };
    let driver = ExternalDriver::new(Options::new("memory", Place::Program(program)));
    let stop = CancellationToken::new();
    let tasks = driver.begin(stop.clone()).await.unwrap();
    let running: Vec<_> = tasks.into_iter().map(|task| tokio::spawn(task.run)).collect();
    until(|| driver.accepted().is_some()).await;
    driver.create_machine(&within(TIMEOUT), request("worker-1", json!({ "cluster": "a" }))).await.unwrap();
    stop.cancel();
    for task in running {
        tokio::time::timeout(Duration::from_secs(10), task).await.expect("it ends with the leadership").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_in_go_presents_a_certificate_and_requires_one() {
    let Some(program) = program() else { return };
    let (ours, theirs, folder) = (authority(), authority(), tempfile::tempdir().unwrap());
    let (certificate, key) = issued(&ours, "127.0.0.1");
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, text: String| fs::write(path(name), text).unwrap();
    write("server.crt", certificate.pem());
    write("server.key", key.serialize_pem());
    write("clients.crt", ours.pem());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut child = Command::new(program)
        .args(["-listen", &format!("127.0.0.1:{port}")])
        .arg("-tls-cert-file")
        .arg(path("server.crt"))
        .arg("-tls-key-file")
        .arg(path("server.key"))
        .arg("-client-ca-file")
        .arg(path("clients.crt"))
        .spawn()
        .unwrap();
    let address = || Address::parse(&format!("https://127.0.0.1:{port}"), PlainText::Refused).unwrap();
    let client_files = |name: &str, own| {
        let folder = path(name);
        fs::create_dir(&folder).unwrap();
        files(Path::new(&folder), &ours, own)
    };
    let (good, bad) = (client_files("good", &ours), client_files("bad", &theirs));
    let client = TestClient::new("memory", address(), |options| options.tls = Some(good));
    until(|| client.driver.accepted().is_some()).await;
    let worker = request("worker-1", json!({ "cluster": "a" }));
    client.driver.create_machine(&within(TIMEOUT), worker.clone()).await.unwrap();
    let stranger = TestClient::new("memory", address(), |options| options.tls = Some(bad));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        crate::peer::code(stranger.driver.get_machine_status(&within(TIMEOUT), worker).await),
        Code::Unavailable
    );
    child.kill().unwrap();
    child.wait().unwrap();
}
