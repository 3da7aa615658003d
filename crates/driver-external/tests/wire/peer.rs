//! A peer that a test rules: what it tells of itself, what it answers, whether it is well, and when it dies.

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
    Address, ExternalDriver, News, Options, Place,
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
use machine_driver::{CancellationToken, Code, Driver, Machine, MachineClass, OpContext, Owner, SecretData, Status};
use tokio::{net::UnixListener, sync::watch};
use tonic::{Request, Response};

type Answered<T> = Result<Response<T>, tonic::Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

/// What a peer does; tests change single answers.
#[derive(Clone)]
pub struct Script {
    pub info: GetInfoResponse,
    pub status: Result<MachineResponse, tonic::Status>,
    pub chunks: Vec<ListMachinesChunk>,
    pub verdict: ValidateResponse,
    /// How long a creation takes.
    pub creation: Duration,
    /// `GetInfo` has no answer any more.
    pub silent: bool,
    /// Its watch of health fails.
    pub is_without_health: bool,
    /// What all failures say in `grpc-status`, in place of their number.
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
            silent: false,
            is_without_health: false,
            number: None,
        }
    }
}

/// What a peer saw.
#[derive(Default)]
pub struct Seen {
    pub creations: Mutex<Vec<MachineRequest>>,
    /// All calls but those for `GetInfo`.
    pub calls: Mutex<Vec<&'static str>>,
    /// Creations that run now, and the most that ran at once.
    pub running: AtomicUsize,
    pub most: AtomicUsize,
    /// Connections so far.
    pub connections: AtomicUsize,
}

#[derive(Clone)]
pub struct Peer {
    pub script: Arc<Mutex<Script>>,
    pub seen: Arc<Seen>,
    pub health: watch::Sender<ServingStatus>,
}

impl Peer {
    pub fn new(script: Script) -> Self {
        Self {
            script: Arc::new(Mutex::new(script)),
            seen: Arc::default(),
            health: watch::Sender::new(ServingStatus::Serving),
        }
    }

    fn script(&self, call: &'static str) -> Script {
        self.seen.calls.lock().unwrap().push(call);
        self.script.lock().unwrap().clone()
    }

    /// The services of this peer over these connections.
    pub async fn over<S>(self, connections: impl Stream<Item = std::io::Result<S>>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + tonic::transport::server::Connected + Unpin + Send + 'static,
    {
        let number = self.script.lock().unwrap().number;
        let renumbered = tower::util::MapResponseLayer::new(move |mut answer: http::Response<tonic::body::Body>| {
            if let (Some(number), Some(status)) = (number, answer.headers_mut().get_mut("grpc-status")) {
                *status = http::HeaderValue::from_static(number);
            }
            answer
        });
        tonic::transport::Server::builder()
            .layer(renumbered)
            .add_service(DriverServer::new(self.clone()))
            .add_service(HealthServer::new(self))
            .serve_with_incoming(connections)
            .await
            .unwrap();
    }
}

/// A peer in a runtime of its own, on a socket in a folder of its own.
pub struct Living {
    pub folder: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Living {
    pub fn new(peer: &Peer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut living = Self { folder, runtime: None };
        living.revive(peer);
        living
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    /// The peer dies as a process does: its connections end in the middle of whatever is under way.
    pub fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: waiting here would take the wake of the test that waits here, too.
            std::thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(5))).join().unwrap();
        }
        let _ = std::fs::remove_file(self.socket());
    }

    pub fn revive(&mut self, peer: &Peer) {
        self.die();
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

impl Drop for Living {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client, kept for as long as it lives.
pub struct Kept {
    pub driver: ExternalDriver,
    pub ups: Arc<Mutex<Vec<bool>>>,
    stop: CancellationToken,
}

impl Kept {
    pub fn new(provider: &str, address: Address, change: impl FnOnce(&mut Options)) -> Self {
        let ups = Arc::<Mutex<Vec<bool>>>::default();
        let told = Arc::clone(&ups);
        let mut options = Options::new(provider, Place::At(address));
        options.tell = Box::new(move |news| told.lock().unwrap().push(matches!(news, News::Up)));
        change(&mut options);
        let (driver, stop) = (ExternalDriver::new(options), CancellationToken::new());
        tokio::spawn(driver.keep(stop.clone()).expect("it is kept once"));
        Self { driver, ups, stop }
    }

    /// A client of a peer on a socket, once it is connected.
    pub async fn of(living: &Living) -> Self {
        let kept = Self::new("scripted", Address::Unix(living.socket()), |_| ());
        until(|| kept.driver.accepted().is_some()).await;
        kept
    }

    pub async fn status(&self) -> Result<machine_driver::VmIdentity, Status> {
        self.driver.get_machine_status(&cx(), request("worker-1")).await
    }
}

impl Drop for Kept {
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
        let Script { silent, info, .. } = self.script.lock().unwrap().clone();
        if silent {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(info))
    }

    async fn validate(&self, _: Request<ValidateRequest>) -> Answered<ValidateResponse> {
        Ok(Response::new(self.script("validate").verdict))
    }

    async fn create_machine(&self, request: Request<MachineRequest>) -> Answered<MachineResponse> {
        let Script { creation, status, .. } = self.script("create");
        self.seen.creations.lock().unwrap().push(request.into_inner());
        let running = self.seen.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.seen.most.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(creation).await;
        self.seen.running.fetch_sub(1, Ordering::SeqCst);
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
        let told = stream::unfold(changes, |mut changes| async {
            changes.changed().await.ok()?;
            let status = (*changes.borrow_and_update()).into();
            Some((Ok(HealthCheckResponse { status }), changes))
        });
        Ok(Response::new(told.boxed()))
    }
}
