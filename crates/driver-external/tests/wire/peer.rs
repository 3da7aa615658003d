//! A driver that a test controls: its answers, its health, and when it stops. And the client that is tested.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use driver_external::{
    Address, DriverState, ExternalDriver, Options, Place,
    wire::{
        driver::{
            DeleteMachineResponse, GetInfoRequest, GetInfoResponse, GetVolumeIDsRequest, GetVolumeIDsResponse,
            ListMachinesChunk, ListMachinesRequest, MachineRequest, MachineResponse, MigrateRequest, MigrateResponse,
            Op, ValidateRequest, ValidateResponse,
            driver_server::{Driver as Service, DriverServer},
        },
        health::{
            HealthCheckRequest, HealthCheckResponse,
            health_check_response::ServingStatus,
            health_server::{Health, HealthServer},
        },
    },
};
use futures::{Stream, StreamExt as _, stream};
use machine_driver::{
    CancellationToken, Code, Driver, Machine, MachineClass, OpContext, Owner, SecretData, Status, TraceParent,
};
use tokio::{net::UnixListener, sync::watch};
use tonic::{Request, Response};

type Answered<T> = Result<Response<T>, tonic::Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

/// The answers of the peer. Tests change single fields.
#[derive(Clone)]
pub struct Script {
    pub info: GetInfoResponse,
    pub status: Result<MachineResponse, tonic::Status>,
    pub chunks: Vec<ListMachinesChunk>,
    pub verdict: ValidateResponse,
    /// How long a creation takes.
    pub creation: Duration,
    /// Whether `GetInfo` gets no answer.
    pub unresponsive: bool,
    /// Whether watching the health fails.
    pub is_without_health: bool,
    /// The HTTP status of the page with which a proxy answers in place of the driver.
    pub page: Option<u16>,
    /// The value of the header `grpc-status` of all failures, in place of their code.
    pub number: Option<&'static str>,
}

impl Default for Script {
    fn default() -> Self {
        let all = [Op::Create, Op::Initialize, Op::Delete, Op::Status, Op::List, Op::Volumes];
        let info = GetInfoResponse {
            name: "scripted".to_owned(),
            protocol: "1.0".to_owned(),
            providers: vec!["scripted".to_owned()],
            capabilities: all.map(Into::into).to_vec(),
            ..GetInfoResponse::default()
        };
        let vm = MachineResponse { provider_id: "s:///1".to_owned(), ..MachineResponse::default() };
        Self {
            info,
            status: Ok(vm),
            chunks: Vec::new(),
            verdict: ValidateResponse::default(),
            creation: Duration::ZERO,
            unresponsive: false,
            is_without_health: false,
            page: None,
            number: None,
        }
    }
}

/// The requests that a peer has received.
#[derive(Default)]
pub struct Recorded {
    pub creations: Mutex<Vec<MachineRequest>>,
    /// The header `traceparent` of each creation.
    pub traces: Mutex<Vec<Option<String>>>,
    /// All calls but those for `GetInfo`.
    pub calls: Mutex<Vec<&'static str>>,
    /// The creations that run now, and the most that ran at once.
    pub running: AtomicUsize,
    pub most: AtomicUsize,
    /// The number of connections so far.
    pub connections: AtomicUsize,
}

#[derive(Clone)]
pub struct Peer {
    pub script: Arc<Mutex<Script>>,
    pub recorded: Arc<Recorded>,
    pub health: watch::Sender<ServingStatus>,
}

impl Peer {
    pub fn new(script: Script) -> Self {
        Self {
            script: Arc::new(Mutex::new(script)),
            recorded: Arc::default(),
            health: watch::Sender::new(ServingStatus::Serving),
        }
    }

    fn script(&self, call: &'static str) -> Script {
        self.recorded.calls.lock().unwrap().push(call);
        self.script.lock().unwrap().clone()
    }

    /// Serves the peer over these connections.
    pub async fn over<S>(self, connections: impl Stream<Item = std::io::Result<S>>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + tonic::transport::server::Connected + Unpin + Send + 'static,
    {
        let number = self.script.lock().unwrap().number;
        let script = Arc::clone(&self.script);
        let proxied = tower::util::MapResponseLayer::new(move |answer: http::Response<tonic::body::Body>| {
            let Some(status) = script.lock().unwrap().page else { return answer };
            let page = tonic::body::Body::new("<html>no route</html>".to_owned());
            http::Response::builder().status(status).header("content-type", "text/html").body(page).unwrap()
        });
        let renumbered = tower::util::MapResponseLayer::new(move |mut answer: http::Response<tonic::body::Body>| {
            if let (Some(number), Some(status)) = (number, answer.headers_mut().get_mut("grpc-status")) {
                *status = http::HeaderValue::from_static(number);
            }
            answer
        });
        tonic::transport::Server::builder()
            .layer(proxied)
            .layer(renumbered)
            .add_service(DriverServer::new(self.clone()))
            .add_service(HealthServer::new(self))
            .serve_with_incoming(connections)
            .await
            .unwrap();
    }
}

/// A peer that runs in its own runtime and listens on a socket in its own folder.
pub struct RunningPeer {
    pub folder: tempfile::TempDir,
    socket: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
}

impl RunningPeer {
    pub fn new(peer: &Peer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let socket = folder.path().join("driver.sock");
        let mut running_peer = Self { folder, socket, runtime: None };
        running_peer.restart(peer);
        running_peer
    }

    /// A peer that listens on a socket in another folder.
    pub fn at(socket: PathBuf, peer: &Peer) -> Self {
        let mut running_peer = Self { folder: tempfile::tempdir().unwrap(), socket, runtime: None };
        running_peer.restart(peer);
        running_peer
    }

    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Stops the peer like a killed process: its connections end while calls are running.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On another thread, because waiting here could consume a wake-up that the test itself needs.
            std::thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(5))).join().unwrap();
        }
        let _ = std::fs::remove_file(self.socket());
    }

    pub fn restart(&mut self, peer: &Peer) {
        self.stop();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(self.socket()).unwrap()
        };
        let connections = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        runtime.spawn(peer.clone().over(connections.boxed()));
        self.runtime = Some(runtime);
    }
}

impl Drop for RunningPeer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The client that is tested. It keeps its connection until it is dropped.
pub struct TestClient {
    pub driver: ExternalDriver,
    /// The reported states: `true` for up, `false` for down.
    pub states: Arc<Mutex<Vec<bool>>>,
    stop: CancellationToken,
}

impl TestClient {
    pub fn new(provider: &str, address: Address, change: impl FnOnce(&mut Options)) -> Self {
        let states = Arc::<Mutex<Vec<bool>>>::default();
        let reported = Arc::clone(&states);
        let mut options = Options::new(provider, Place::At(address));
        options.on_change = Box::new(move |state| reported.lock().unwrap().push(matches!(state, DriverState::Up)));
        change(&mut options);
        let (driver, stop) = (ExternalDriver::new(options), CancellationToken::new());
        tokio::spawn(driver.keep(stop.clone()).expect("the first call returns the task"));
        Self { driver, states, stop }
    }

    /// A client of this peer, after it has connected.
    pub async fn of(running_peer: &RunningPeer) -> Self {
        let client = Self::new("scripted", Address::Unix(running_peer.socket()), |_| ());
        until(|| client.driver.accepted().is_some()).await;
        client
    }

    pub async fn status(&self) -> Result<machine_driver::VmIdentity, Status> {
        self.driver.get_machine_status(&cx(), request("worker-1")).await
    }
}

impl Drop for TestClient {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(20)).about(Some(Owner::new("shoot", "worker")))
}

pub fn class() -> Arc<MachineClass> {
    let mut class = MachineClass { provider: "scripted".to_owned(), ..MachineClass::default() };
    class.metadata.name = Some("small".to_owned());
    Arc::new(class)
}

pub fn request(name: &str) -> machine_driver::MachineRequest {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.uid = Some(format!("uid-of-{name}"));
    let mut secret = SecretData::default();
    secret.set("token", b"hunter2-and-more".to_vec());
    machine_driver::MachineRequest { machine: Arc::new(machine), class: class(), secret }
}

pub async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..800 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it does not happen within 20 s");
}

pub fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code, |_| Code::OK)
}

#[tonic::async_trait]
impl Service for Peer {
    async fn get_info(&self, _: Request<GetInfoRequest>) -> Answered<GetInfoResponse> {
        let Script { unresponsive, info, .. } = self.script.lock().unwrap().clone();
        if unresponsive {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(info))
    }

    async fn validate(&self, _: Request<ValidateRequest>) -> Answered<ValidateResponse> {
        Ok(Response::new(self.script("validate").verdict))
    }

    async fn create_machine(&self, request: Request<MachineRequest>) -> Answered<MachineResponse> {
        let Script { creation, status, .. } = self.script("create");
        let trace = request.metadata().get(TraceParent::HEADER).map(|value| value.to_str().unwrap().to_owned());
        self.recorded.traces.lock().unwrap().push(trace);
        self.recorded.creations.lock().unwrap().push(request.into_inner());
        let running = self.recorded.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.recorded.most.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(creation).await;
        self.recorded.running.fetch_sub(1, Ordering::SeqCst);
        status.map(Response::new)
    }

    async fn initialize_machine(&self, _: Request<MachineRequest>) -> Answered<MachineResponse> {
        self.script("initialize").status.map(Response::new)
    }

    async fn delete_machine(&self, _: Request<MachineRequest>) -> Answered<DeleteMachineResponse> {
        self.script("delete").status.map(|_| Response::new(DeleteMachineResponse::default()))
    }

    async fn get_machine_status(&self, _: Request<MachineRequest>) -> Answered<MachineResponse> {
        self.script("status").status.map(Response::new)
    }

    type ListMachinesStream = Streamed<ListMachinesChunk>;

    async fn list_machines(&self, _: Request<ListMachinesRequest>) -> Answered<Self::ListMachinesStream> {
        Ok(Response::new(stream::iter(self.script("list").chunks.into_iter().map(Ok)).boxed()))
    }

    async fn get_volume_i_ds(&self, _: Request<GetVolumeIDsRequest>) -> Answered<GetVolumeIDsResponse> {
        Ok(Response::new(GetVolumeIDsResponse { volume_ids: vec!["vol-1".to_owned()], index: vec![0] }))
    }

    async fn generate_machine_class_for_migration(&self, _: Request<MigrateRequest>) -> Answered<MigrateResponse> {
        Err(tonic::Status::unimplemented("no"))
    }
}

#[tonic::async_trait]
impl Health for Peer {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Answered<HealthCheckResponse> {
        Ok(Response::new(HealthCheckResponse { status: (*self.health.borrow()).into() }))
    }

    type WatchStream = Streamed<HealthCheckResponse>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Answered<Self::WatchStream> {
        if self.script.lock().unwrap().is_without_health {
            return Err(tonic::Status::internal("no health"));
        }
        let mut changes = self.health.subscribe();
        changes.mark_changed();
        let health = stream::unfold(changes, |mut changes| async {
            changes.changed().await.ok()?;
            let status = (*changes.borrow_and_update()).into();
            Some((Ok(HealthCheckResponse { status }), changes))
        });
        Ok(Response::new(health.boxed()))
    }
}
