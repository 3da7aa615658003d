//! The server that makes any [`Driver`] available to a manager in another process.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _, future::join_all, stream};
use jiff::Timestamp;
use machine_driver::{
    CancellationToken, Code, Driver, Findings, MachineClass, OpContext, SameInstance, SecretData, Status, TraceParent,
    answered,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
};
use tonic::transport::server::Connected;

use crate::{
    codes,
    connection::{folder_is_closed, peer_is_ours},
    convert::{self, CallHead},
    info::PROTOCOL,
    keeper::LONGEST_MESSAGE,
    wire::{
        driver::{
            DeleteMachineResponse, GetInfoRequest, GetInfoResponse, GetVolumeIDsRequest, GetVolumeIDsResponse,
            ListMachinesChunk, ListMachinesRequest, MachineRequest, MachineResponse, MigrateRequest, MigrateResponse,
            NodeIdCompare, Op, ValidateRequest, ValidateResponse,
            driver_server::{Driver as Service, DriverServer},
        },
        health::{
            HealthCheckRequest, HealthCheckResponse,
            health_check_response::ServingStatus,
            health_server::{Health, HealthServer},
        },
    },
};

/// The longest time of a call without a deadline.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// How long running calls may take when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// A driver that is served, and its settings.
#[derive(Clone)]
pub struct Served {
    driver: Arc<dyn Driver>,
    owner_in_class: bool,
}

impl Served {
    /// This driver. If its [`Driver::owner`] is `None` for a class, it uses the owner in the request of the manager.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, owner_in_class: false }
    }

    /// The same driver, whose [`Driver::owner`] knows the owner of every class. Managers then need no `--cluster-name` for it.
    #[must_use]
    pub fn reading_owners_in_classes(self) -> Self {
        Self { owner_in_class: true, ..self }
    }

    /// Serves managers over these connections until `stop`. [`Driver::begin`] is called before the first call, [`Driver::end`] after the last one.
    ///
    /// # Errors
    /// When the driver can't begin, and errors of the transport.
    pub async fn over<S>(
        self,
        connections: impl Stream<Item = io::Result<S>> + Send + 'static,
        stop: CancellationToken,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let driver = Arc::clone(&self.driver);
        let tasks = driver.begin(stop.clone()).await.map_err(io::Error::other)?;
        let calls = DriverServer::new(self)
            .max_decoding_message_size(LONGEST_MESSAGE)
            .max_encoding_message_size(LONGEST_MESSAGE);
        let health = HealthServer::new(HealthService(stop.clone()));
        let serving = tonic::transport::Server::builder()
            .add_service(calls)
            .add_service(health)
            .serve_with_incoming_shutdown(connections, stop.clone().cancelled_owned());
        let serving = async {
            let cut_off = async {
                stop.cancelled().await;
                tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
            };
            let served = tokio::select! {
                served = serving => served.map_err(io::Error::other),
                () = cut_off => Ok(()),
            };
            // The tasks of the driver must end with the server, also after an error.
            stop.cancel();
            served
        };
        let (served, _) = tokio::join!(serving, join_all(tasks.into_iter().map(|task| task.run)));
        driver.end().await;
        served
    }

    /// The context of a call about this class.
    fn context(&self, head: &CallHead, class: &MachineClass) -> OpContext {
        let owner = self.driver.owner(class).or_else(|| head.owner.clone());
        OpContext::within(time_left(head)).about(owner)
    }
}

/// Serves a driver on a Unix socket until `stop`. The folder of the socket must be closed to other users, and is created if it is missing.
/// Only processes of the same user and of root can connect.
///
/// # Errors
/// When the socket can't be made, or the driver can't begin.
pub async fn serve(served: Served, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let ours = rustix::process::geteuid().as_raw();
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.exists() {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    }
    let found = fs::metadata(folder)?;
    folder_is_closed(folder, found.mode(), found.uid(), ours).map_err(io::Error::other)?;
    remove_stale_socket(socket).await?;
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    let connections = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let trusted = connections.filter_map(move |accepted| {
        let peer = accepted.and_then(|stream| Ok((stream.peer_cred()?.uid(), stream)));
        let trusted = match peer {
            Ok((uid, stream)) => peer_is_ours(uid, ours)
                .inspect_err(|why| tracing::warn!(error = why, "a connection is refused"))
                .is_ok()
                .then_some(Ok(stream)),
            Err(error) => Some(Err(error)),
        };
        async { trusted }
    });
    let ended = served.over(trusted, stop).await;
    let _ = fs::remove_file(socket);
    ended
}

/// Removes a socket that an ended process has left.
///
/// # Errors
/// When the path is no socket, or another process listens on it.
async fn remove_stale_socket(socket: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(socket) else { return Ok(()) };
    let in_use = |kind, why: &str| Err(io::Error::new(kind, format!("{}: {why}", socket.display())));
    if !found.file_type().is_socket() {
        return in_use(io::ErrorKind::AlreadyExists, "there is something that is no socket");
    }
    if tokio::net::UnixStream::connect(socket).await.is_ok() {
        return in_use(io::ErrorKind::AddrInUse, "another process listens there");
    }
    fs::remove_file(socket)
}

/// The time that is left for a call.
fn time_left(head: &CallHead) -> Duration {
    let left = head.deadline.map(|deadline| deadline.duration_since(Timestamp::now()));
    left.map_or(DEFAULT_TIMEOUT, |left| Duration::try_from(left).unwrap_or(Duration::ZERO))
}

/// The span of the caller, from the metadata of its call.
fn trace_of<T>(request: &tonic::Request<T>) -> Option<TraceParent> {
    TraceParent::parse(request.metadata().get(TraceParent::HEADER)?.to_str().ok()?)
}

/// The gRPC status of a failed call, without values of the Secret.
fn failed(secret: &SecretData, status: Status) -> tonic::Status {
    codes::to_wire(&Status { message: secret.redacted(&status.message), ..status })
}

/// The gRPC status for a request that can't be read.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn unreadable(status: Status) -> tonic::Status {
    codes::to_wire(&status)
}

/// Refuses a call that looks for VMs by name if their owner is unknown. Otherwise the call could find VMs of other clusters.
fn require_owner(cx: &OpContext, what: &str) -> Result<(), tonic::Status> {
    if cx.owner().is_some() {
        return Ok(());
    }
    let message = format!("{what}, and neither the providerSpec nor the request says whose VMs these are");
    Err(codes::to_wire(&Status::new(Code::FailedPrecondition, message)))
}

/// How a driver compares ids. It is derived from the answers of the driver for example ids.
fn node_id_compare(driver: &dyn Driver) -> NodeIdCompare {
    let same = |machine: &str, node: &str| driver.same_instance(machine, node);
    match (same("a:///x/one", "a:///y/one"), same("a:///x/one", "a:///x/two")) {
        (SameInstance::Same, SameInstance::Another) => NodeIdCompare::LastSegment,
        (SameInstance::Another, SameInstance::Another) => NodeIdCompare::Whole,
        _ => NodeIdCompare::None,
    }
}

#[tonic::async_trait]
impl Service for Served {
    async fn get_info(
        &self,
        _: tonic::Request<GetInfoRequest>,
    ) -> Result<tonic::Response<GetInfoResponse>, tonic::Status> {
        let info = self.driver.info();
        let all = [Op::Create, Op::Initialize, Op::Delete, Op::Status, Op::List, Op::Volumes, Op::Validate];
        Ok(tonic::Response::new(GetInfoResponse {
            name: info.name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL.to_string(),
            providers: info.providers.clone(),
            capabilities: all.map(Into::into).to_vec(),
            provider_spec_json_schema: info
                .schema
                .as_ref()
                .map(|schema| schema.to_string().into_bytes())
                .unwrap_or_default(),
            node_id_compare: node_id_compare(&*self.driver).into(),
            create_is_idempotent: info.capabilities.create_is_idempotent,
            lists_creation_time: info.capabilities.lists_creation_time,
            owner_in_class: self.owner_in_class,
            ..GetInfoResponse::default()
        }))
    }

    async fn validate(
        &self,
        request: tonic::Request<ValidateRequest>,
    ) -> Result<tonic::Response<ValidateResponse>, tonic::Status> {
        let class = convert::read_validate_request(request.into_inner()).map_err(unreadable)?;
        let mut found = Findings::new();
        self.driver.validate(&class, &mut found);
        Ok(tonic::Response::new(convert::wire_findings(&found)))
    }

    async fn create_machine(
        &self,
        request: tonic::Request<MachineRequest>,
    ) -> Result<tonic::Response<MachineResponse>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_machine_request(request.into_inner()).map_err(unreadable)?;
        let (cx, secret) = (self.context(&head, &request.class).traced(trace), request.secret.clone());
        let answer = answered(cx.left(), self.driver.create_machine(&cx, request)).await;
        let created = answer.map_err(|status| failed(&secret, status))?;
        Ok(tonic::Response::new(convert::wire_machine(created.vm, created.last_known_state)))
    }

    async fn initialize_machine(
        &self,
        request: tonic::Request<MachineRequest>,
    ) -> Result<tonic::Response<MachineResponse>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_machine_request(request.into_inner()).map_err(unreadable)?;
        let (cx, secret) = (self.context(&head, &request.class).traced(trace), request.secret.clone());
        let answer = answered(cx.left(), self.driver.initialize_machine(&cx, request)).await;
        Ok(tonic::Response::new(convert::wire_machine(answer.map_err(|status| failed(&secret, status))?, None)))
    }

    async fn delete_machine(
        &self,
        request: tonic::Request<MachineRequest>,
    ) -> Result<tonic::Response<DeleteMachineResponse>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_machine_request(request.into_inner()).map_err(unreadable)?;
        let (cx, secret) = (self.context(&head, &request.class).traced(trace), request.secret.clone());
        if request.machine.spec.provider_id.is_empty() {
            require_owner(&cx, "the VM of a machine without a provider id is deleted by its name")?;
        }
        let answer = answered(cx.left(), self.driver.delete_machine(&cx, request)).await;
        Ok(tonic::Response::new(convert::wire_deleted(answer.map_err(|status| failed(&secret, status))?)))
    }

    async fn get_machine_status(
        &self,
        request: tonic::Request<MachineRequest>,
    ) -> Result<tonic::Response<MachineResponse>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_machine_request(request.into_inner()).map_err(unreadable)?;
        let (cx, secret) = (self.context(&head, &request.class).traced(trace), request.secret.clone());
        let answer = answered(cx.left(), self.driver.get_machine_status(&cx, request)).await;
        Ok(tonic::Response::new(convert::wire_machine(answer.map_err(|status| failed(&secret, status))?, None)))
    }

    type ListMachinesStream = Pin<Box<dyn Stream<Item = Result<ListMachinesChunk, tonic::Status>> + Send>>;

    async fn list_machines(
        &self,
        request: tonic::Request<ListMachinesRequest>,
    ) -> Result<tonic::Response<Self::ListMachinesStream>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_list_request(request.into_inner()).map_err(unreadable)?;
        let (cx, secret) = (self.context(&head, &request.class).traced(trace), request.secret.clone());
        require_owner(&cx, "VMs are listed by their owner")?;
        let answer = answered(cx.left(), self.driver.list_machines(&cx, request)).await;
        let chunks = convert::chunks(&answer.map_err(|status| failed(&secret, status))?);
        Ok(tonic::Response::new(stream::iter(chunks.into_iter().map(Ok)).boxed()))
    }

    async fn get_volume_i_ds(
        &self,
        request: tonic::Request<GetVolumeIDsRequest>,
    ) -> Result<tonic::Response<GetVolumeIDsResponse>, tonic::Status> {
        let trace = trace_of(&request);
        let (head, request) = convert::read_volumes_request(request.get_ref()).map_err(unreadable)?;
        let cx = OpContext::within(time_left(&head)).traced(trace);
        let answer = answered(cx.left(), self.driver.get_volume_ids(&cx, request)).await;
        let volume_ids = answer.map_err(|status| failed(&SecretData::default(), status))?;
        Ok(tonic::Response::new(GetVolumeIDsResponse { volume_ids, index: Vec::new() }))
    }

    async fn generate_machine_class_for_migration(
        &self,
        _: tonic::Request<MigrateRequest>,
    ) -> Result<tonic::Response<MigrateResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented("old class objects are not converted"))
    }
}

/// The health service. It reports `SERVING` until the server stops.
struct HealthService(CancellationToken);

const SERVING: HealthCheckResponse = HealthCheckResponse { status: ServingStatus::Serving as i32 };

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        _: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, tonic::Status> {
        Ok(tonic::Response::new(SERVING))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, tonic::Status>> + Send>>;

    async fn watch(
        &self,
        _: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, tonic::Status> {
        let never = stream::pending().take_until(self.0.clone().cancelled_owned());
        Ok(tonic::Response::new(stream::iter([Ok(SERVING)]).chain(never).boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_103_a_call_may_carry_the_span_of_its_caller() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (value, expected) in [(Some(header), Some(header)), (Some("nonsense"), None), (None, None)] {
            let mut request = tonic::Request::new(());
            if let Some(value) = value {
                request.metadata_mut().insert(TraceParent::HEADER, value.parse().unwrap());
            }
            assert_eq!(trace_of(&request).map(|trace| trace.to_string()).as_deref(), expected);
        }
    }

    #[tokio::test]
    async fn only_a_socket_without_a_listener_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("driver.sock");
        remove_stale_socket(&path).await.unwrap();
        let listening = UnixListener::bind(&path).unwrap();
        assert_eq!(remove_stale_socket(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listening);
        remove_stale_socket(&path).await.unwrap();
        fs::write(&path, "notes").unwrap();
        assert_eq!(remove_stale_socket(&path).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
    }
}
