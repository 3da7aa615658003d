//! The client of a driver in another process. It implements [`Driver`].
//!
//! The client repeats a call in one case only: it sends a read once more after the connection broke. The controllers decide about all other
//! repetitions. Source: spec/providers §9.3.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use machine_driver::{
    CancellationToken, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, DriverTask, Findings, Instant,
    ListRequest, ListedVm, MachineClass, MachineRequest, OpContext, Owner, SameInstance, SecretData, Status,
    TraceParent, VmIdentity, VolumeIdsRequest, async_trait, same_instance,
};
use tokio::sync::watch;

use crate::{
    address::Address,
    attempts::{Attempts, request_id},
    codes::{self, Sender},
    connection::{self, TlsFiles},
    convert::{self, CallHead},
    grpc_only::GrpcOnly,
    info::Accepted,
    info_history::InfoHistory,
    keeper,
    link::{DOWN_AFTER, Link, RETRY_WITHIN, may_resend},
    proven::{self, Knowledge, ProvenOperations},
    supervise,
    wire::driver::{ListMachinesChunk, NodeIdCompare, Op, driver_client::DriverClient},
};

/// How long the driver's approval of a class is cached.
const APPROVAL_TTL: Duration = Duration::from_secs(300);
/// The most approvals that are cached.
const MAX_APPROVALS: usize = 1024;
/// The longest time of a `Validate` call.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(5);
/// An error that comes this shortly before the deadline of a call counts as the deadline.
const DEADLINE_TOLERANCE: Duration = Duration::from_millis(50);
/// How long a process that begins to lead waits for the first connection.
const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The place where a driver runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a process that listens on this address.
    At(Address),
    /// In a program that this process runs while it leads.
    Program(PathBuf),
}

/// The settings of an external driver.
pub struct Options {
    /// The `provider` string that the driver serves.
    pub provider: String,
    /// The place where the driver runs.
    pub place: Place,
    /// The files for mutual TLS.
    pub tls: Option<TlsFiles>,
    /// The version of this program, which `GetInfo` sends to the driver.
    pub version: String,
    /// A driver that is unhealthy or disconnected for longer than this is down.
    pub down_after: Duration,
    /// The time between two checks whether the driver answers and whether the files for TLS have changed.
    pub check_interval: Duration,
    /// Called when the driver comes up, when it goes down, and when this process closes the connection.
    pub on_change: Box<dyn Fn(&DriverState) + Send + Sync>,
}

/// The state of a driver, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverState {
    /// The driver serves.
    Up,
    /// The driver has been unhealthy or disconnected for too long.
    Down {
        /// The reason, for users.
        why: String,
    },
    /// This process is ending and has closed the connection.
    Ended,
}

impl Options {
    /// The default settings of a driver for this provider. Changes of its state are not reported.
    pub fn new(provider: impl Into<String>, place: Place) -> Self {
        Self {
            provider: provider.into(),
            place,
            tls: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            down_after: DOWN_AFTER,
            check_interval: keeper::CHECK_INTERVAL,
            on_change: Box::new(|_| ()),
        }
    }
}

/// The state that the callers share with the task that keeps the connection.
pub struct Shared {
    pub(crate) version: String,
    pub(crate) history: InfoHistory,
    pub(crate) link: Link,
    pub(crate) check_interval: Duration,
    pub(crate) on_change: Box<dyn Fn(&DriverState) + Send + Sync>,
    /// Is notified when the program of the driver has ended. Its connection must be replaced then, also if it lasts.
    pub(crate) program_ended: watch::Sender<()>,
    attempts: Attempts,
    proven: ProvenOperations,
    /// When the driver approved a class with its Secret, by their fingerprint.
    approvals: Mutex<BTreeMap<u64, Instant>>,
}

impl Shared {
    pub(crate) fn provider(&self) -> &'static str {
        self.history.info.name
    }
}

/// A driver in another process.
pub struct ExternalDriver {
    shared: Arc<Shared>,
    place: Place,
    tls: Option<TlsFiles>,
    is_kept: AtomicBool,
}

impl ExternalDriver {
    /// A driver with these settings. [`Self::keep`] connects to it, or [`Driver::begin`] if `keep` was not called.
    pub fn new(options: Options) -> Self {
        let history = InfoHistory::new(&options.provider);
        let link = Link::new(history.info.name, options.down_after, Instant::now());
        let shared = Shared {
            version: options.version,
            history,
            link,
            check_interval: options.check_interval,
            on_change: options.on_change,
            program_ended: watch::Sender::new(()),
            attempts: Attempts::default(),
            proven: ProvenOperations::default(),
            approvals: Mutex::default(),
        };
        Self { shared: Arc::new(shared), place: options.place, tls: options.tls, is_kept: AtomicBool::new(false) }
    }

    /// The task that keeps the connection until `stop`. It also runs on replicas that do not lead, because admission needs the schema and views
    /// need lists. `None` for a program, which only the leader runs, and after the first call.
    pub fn keep(&self, stop: CancellationToken) -> Option<BoxFuture<'static, ()>> {
        let Place::At(address) = &self.place else { return None };
        if self.is_kept.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(keeper::keep(Arc::clone(&self.shared), address.clone(), self.tls.clone(), stop).boxed())
    }

    /// The last answer of `GetInfo` that was accepted.
    pub fn accepted(&self) -> Option<&Accepted> {
        self.shared.history.last().accepted.as_ref()
    }

    fn head(&self, cx: &OpContext, deadline: Instant) -> CallHead {
        let reads_owner = self.accepted().is_some_and(|info| info.owner_in_class);
        CallHead {
            owner: cx.owner().filter(|_| !reads_owner).cloned(),
            deadline: convert::ahead(Timestamp::now(), deadline.saturating_duration_since(Instant::now())),
            ..CallHead::default()
        }
    }

    /// Makes a call about one machine and counts it as an attempt.
    async fn about_machine<A: Send>(
        &self,
        op: Op,
        cx: &OpContext,
        request: &MachineRequest,
        send: impl Fn(Client, AboutMachine) -> Answer<A> + Send + Sync,
    ) -> Result<A, Status> {
        let id = request_id(&request.machine, op);
        let attempt = self.shared.attempts.begin(&id);
        let deadline = self.deadline(op, cx);
        let head = CallHead { request_id: id.clone(), attempt, ..self.head(cx, deadline) };
        let request = convert::machine_request(head, request)?;
        let answer = self.call(op, (deadline, cx.trace()), request, send).await;
        if answer.is_ok() {
            self.shared.attempts.succeeded(&id);
        }
        answer
    }

    /// The deadline of a call: the deadline of the caller, or an earlier one if the driver limits the operation.
    fn deadline(&self, op: Op, cx: &OpContext) -> Instant {
        let limit = self.accepted().and_then(|info| info.limits.get(&op));
        limit.map_or(cx.deadline, |limit| cx.deadline.min(Instant::now() + *limit))
    }

    async fn call<Q: prost::Message + Clone, A: Send>(
        &self,
        op: Op,
        (deadline, trace): (Instant, Option<TraceParent>),
        request: Q,
        send: impl Fn(Client, tonic::Request<Q>) -> Answer<A> + Send + Sync,
    ) -> Result<A, Status> {
        let late = || Status::new(Code::DeadlineExceeded, format!("{} had no answer in time", op.as_str_name()));
        let mut session = self.shared.link.session(Instant::now())?;
        if !session.accepted.capabilities.contains(&op) {
            return Err(Status::new(
                Code::Unimplemented,
                format!("{} is not supported by this driver", op.as_str_name()),
            ));
        }
        let (length, limit) = (request.encoded_len(), keeper::LONGEST_MESSAGE);
        // tonic reports a message that is too long like a broken connection, so the call would be repeated for ever.
        if length > limit {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("{} would be sent with {length} bytes, and the limit is {limit}", op.as_str_name()),
            ));
        }
        let _slot = match &session.slots {
            Some(slots) => {
                let slot = tokio::time::timeout_at(deadline, Arc::clone(slots).acquire_owned()).await;
                // `acquire_owned` fails only for a closed semaphore, and this one is never closed.
                slot.map_err(|_| late())?.ok()
            }
            None => None,
        };
        let mut sent = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // If the slot became free only at the deadline, the caller no longer waits.
            if left.is_zero() {
                return Err(late());
            }
            let mut request = tonic::Request::new(request.clone());
            request.set_timeout(left);
            if let Some(value) = trace.and_then(|trace| trace.to_string().parse().ok()) {
                request.metadata_mut().insert(TraceParent::HEADER, value);
            }
            let answer = tokio::time::timeout_at(deadline, send(session.client.clone(), request)).await;
            sent += 1;
            let version = &session.accepted.version;
            let error = match answer.map_err(|_| late())? {
                Ok(answer) => {
                    self.shared.proven.record(version, op);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if codes::is_late(&error) {
                return Err(late());
            }
            if !connection::is_lost(&error) {
                let (status, sender) = (codes::from_wire(&error), codes::sender_of(&error));
                if proven::proves(status.code, sender) {
                    self.shared.proven.record(version, op);
                }
                // An `Unimplemented` of the driver itself is taken as it is.
                let knowledge = match sender {
                    Sender::Driver => Knowledge::Unknown,
                    Sender::Unclear => self.shared.proven.knowledge(version, op),
                };
                return Err(proven::judged(op, knowledge, status));
            }
            // The driver also knows the deadline, and may have ended the call a moment earlier than this process.
            if deadline.saturating_duration_since(Instant::now()) < DEADLINE_TOLERANCE {
                return Err(late());
            }
            let next = if may_resend(op, sent) {
                self.shared.link.next_session(session.number, deadline.min(Instant::now() + RETRY_WITHIN)).await
            } else {
                None
            };
            session = next.ok_or_else(|| {
                let why = connection::describe(&error);
                self.shared.link.unavailable(&format!("was lost during {}: {why}", op.as_str_name()))
            })?;
        }
    }

    /// Asks the driver to validate a class before a VM is made, if the driver can do that. This is part of a creation: a refusal is counted as a
    /// failed creation, as the checks at the beginning of a Go driver's `CreateMachine` are.
    async fn validate_class(&self, cx: &OpContext, class: &MachineClass, secret: &SecretData) -> Result<(), Status> {
        if !self.accepted().is_some_and(|info| info.capabilities.contains(&Op::Validate)) {
            return Ok(());
        }
        let deadline = self.deadline(Op::Validate, cx).min(Instant::now() + VALIDATE_TIMEOUT);
        let request = convert::validate_request(&self.head(cx, deadline), class, secret)?;
        let fingerprint = fingerprint(&request);
        if self.is_approved(fingerprint) {
            return Ok(());
        }
        let answer = self
            .call(Op::Validate, (deadline, cx.trace()), request, |mut client, request| {
                async move { client.validate(request).await.map(tonic::Response::into_inner) }.boxed()
            })
            .await;
        match answer.map(convert::refusal) {
            Ok(Some(refusal)) => Err(Status::new(Code::InvalidArgument, refusal)),
            Ok(None) => {
                self.remember_approval(fingerprint);
                Ok(())
            }
            // `Validate` is optional.
            Err(status) if status.code == Code::Unimplemented => Ok(()),
            Err(status) => Err(status),
        }
    }

    fn is_approved(&self, fingerprint: u64) -> bool {
        let approvals = self.shared.approvals.lock().unwrap_or_else(PoisonError::into_inner);
        approvals.get(&fingerprint).is_some_and(|at| at.elapsed() < APPROVAL_TTL)
    }

    fn remember_approval(&self, fingerprint: u64) {
        let mut approvals = self.shared.approvals.lock().unwrap_or_else(PoisonError::into_inner);
        if approvals.len() >= MAX_APPROVALS {
            approvals.clear();
        }
        approvals.insert(fingerprint, Instant::now());
    }
}

/// The client of one connection.
type Client = DriverClient<GrpcOnly>;
/// The request of a call about one machine.
type AboutMachine = tonic::Request<crate::wire::driver::MachineRequest>;
/// The pending answer of a call.
type Answer<A> = BoxFuture<'static, Result<A, tonic::Status>>;

/// A hash of the class and the Secret of a request.
fn fingerprint(request: &crate::wire::driver::ValidateRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.machine_class.as_ref().map(|class| &class.json).hash(&mut hasher);
    let secret: BTreeMap<_, _> = request.secret.iter().collect();
    secret.hash(&mut hasher);
    hasher.finish()
}

/// The most memory that a list may take, in bytes. It is enough for about 400,000 VMs.
const LARGEST_LIST: usize = 64 << 20;

/// Collects the chunks of a list. A list is complete only if its final chunk is marked as the last one.
async fn whole_list(mut stream: tonic::Streaming<ListMachinesChunk>) -> Result<Vec<ListedVm>, tonic::Status> {
    let (mut all, mut size) = (Vec::new(), 0);
    while let Some(chunk) = stream.message().await? {
        let is_last = chunk.last;
        for vm in convert::listed(chunk) {
            size += size_of::<ListedVm>() + vm.provider_id.len() + vm.machine_name.len();
            all.push(vm);
        }
        if is_last {
            return Ok(all);
        }
        if size > LARGEST_LIST {
            return Err(tonic::Status::internal(format!("the list does not end: it has {} VMs already", all.len())));
        }
    }
    Err(tonic::Status::unavailable("the list ended before its last chunk"))
}

#[async_trait]
impl Driver for ExternalDriver {
    fn info(&self) -> &DriverInfo {
        &self.shared.history.last().info
    }

    async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        if let Place::Program(program) = &self.place {
            let socket = supervise::new_socket(self.shared.provider())
                .map_err(|error| Status::new(Code::Unavailable, format!("no place for a socket: {error}")))?;
            let address = Address::Unix(socket.path().to_owned());
            let (link, program_ended) = (Arc::clone(&self.shared), self.shared.program_ended.clone());
            let unhealthy_for = move || link.link.unhealthy_for(Instant::now());
            let ended = move || program_ended.send_replace(());
            let (program, name) = (program.clone(), self.shared.provider());
            let program = supervise::run(program, name, socket, unhealthy_for, ended, stop.clone());
            let connection = keeper::keep(Arc::clone(&self.shared), address, None, stop);
            return Ok(vec![
                DriverTask { name: "external-driver-program", run: program.boxed() },
                DriverTask { name: "external-driver-connection", run: connection.boxed() },
            ]);
        }
        if let Some(connection) = self.keep(stop) {
            return Ok(vec![DriverTask { name: "external-driver-connection", run: connection }]);
        }
        // If there is no connection in time, calls fail and the controllers repeat them.
        self.shared.link.next_session(0, Instant::now() + FIRST_CONNECTION_TIMEOUT).await;
        Ok(Vec::new())
    }

    fn owner(&self, _class: &MachineClass) -> Option<Owner> {
        // A driver that reads the owner in the class needs none from this process. Callers only check that there is an owner.
        self.accepted().filter(|info| info.owner_in_class).map(|_| Owner::new("as the class says", ""))
    }

    fn validate(&self, _class: &MachineClass, _found: &mut Findings) {
        // Admission checks the schema. The driver validates the class before a VM is made (decisions.md 37).
    }

    fn missing_in_secret(&self, rules: Option<&ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        match self.shared.history.last().required_keys.as_slice() {
            [] => rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default(),
            required => required.iter().filter(|(key, _)| !keys.contains(key)).map(|(_, text)| *text).collect(),
        }
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.validate_class(cx, &request.class, &request.secret).await?;
        let send = |mut client: Client, request: AboutMachine| {
            async move { client.create_machine(request).await.map(tonic::Response::into_inner) }.boxed()
        };
        convert::created(self.about_machine(Op::Create, cx, &request, send).await?)
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let send = |mut client: Client, request: AboutMachine| {
            async move { client.initialize_machine(request).await.map(tonic::Response::into_inner) }.boxed()
        };
        Ok(convert::identity(self.about_machine(Op::Initialize, cx, &request, send).await?))
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let send = |mut client: Client, request: AboutMachine| {
            async move { client.delete_machine(request).await.map(tonic::Response::into_inner) }.boxed()
        };
        Ok(convert::deleted(self.about_machine(Op::Delete, cx, &request, send).await?))
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let send = |mut client: Client, request: AboutMachine| {
            async move { client.get_machine_status(request).await.map(tonic::Response::into_inner) }.boxed()
        };
        Ok(convert::identity(self.about_machine(Op::Status, cx, &request, send).await?))
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let deadline = self.deadline(Op::List, cx);
        let request = convert::list_request(self.head(cx, deadline), &request)?;
        self.call(Op::List, (deadline, cx.trace()), request, |mut client, request| {
            async move { whole_list(client.list_machines(request).await?.into_inner()).await }.boxed()
        })
        .await
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        match self.accepted() {
            Some(info) if info.lists_by_owner && !info.owner_in_class => {
                class.metadata.namespace.clone().unwrap_or_default()
            }
            _ => class.provider_spec.to_string(),
        }
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        match self.accepted().map(|info| info.compare) {
            Some(NodeIdCompare::LastSegment) => same_instance::by_last_segment(machine, node),
            Some(NodeIdCompare::Whole) => whole(machine, node),
            Some(NodeIdCompare::None) | None => same_instance::same_or_unknown(machine, node),
        }
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        let deadline = self.deadline(Op::Volumes, cx);
        let request = convert::volumes_request(&self.head(cx, deadline), &request)?;
        self.call(Op::Volumes, (deadline, cx.trace()), request, |mut client, request| {
            async move { client.get_volume_i_ds(request).await.map(|answer| answer.into_inner().volume_ids) }.boxed()
        })
        .await
    }
}

/// Compares two ids as whole texts, without regard to case.
fn whole(machine: &str, node: &str) -> SameInstance {
    match (machine.is_empty() || node.is_empty(), machine.eq_ignore_ascii_case(node)) {
        (true, _) => SameInstance::Unknown,
        (false, true) => SameInstance::Same,
        (false, false) => SameInstance::Another,
    }
}
