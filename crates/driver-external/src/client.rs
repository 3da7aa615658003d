//! A driver in another process, as the core sees it.
//!
//! Source: spec/providers §9.3. The core decides about every repetition but one: a read whose connection broke is sent once more.

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
    VmIdentity, VolumeIdsRequest, async_trait, same_instance,
};
use tonic::transport::Channel;

use crate::{
    address::Address,
    attempts::{Attempts, request_id},
    codes,
    connection::{self, TlsFiles},
    convert::{self, CallHead},
    info::Accepted,
    keeper,
    link::{AfterLoss, DOWN_AFTER, Link, RETRY_WITHIN, after_loss},
    supervise,
    told::Told,
    wire::driver::{ListMachinesChunk, NodeIdCompare, Op, driver_client::DriverClient},
};

/// A verdict over a class counts so long; then the driver is asked again.
const VERDICT_HOLDS: Duration = Duration::from_secs(300);
/// So many verdicts are remembered.
const MOST_VERDICTS: usize = 1024;
/// So long a verdict may take.
const VERDICT_WITHIN: Duration = Duration::from_secs(5);
/// What ends a call so shortly before its deadline is the deadline.
const AT_THE_DEADLINE: Duration = Duration::from_millis(50);
/// What begins under a leadership waits so long for the first connection.
const FIRST_CONNECTION_WITHIN: Duration = Duration::from_secs(10);

/// Where a driver comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It listens somewhere.
    At(Address),
    /// It is a program that runs as long as this process leads.
    Program(PathBuf),
}

/// What an external driver needs.
pub struct Options {
    /// The `provider` string that it serves.
    pub provider: String,
    /// Where it is.
    pub place: Place,
    /// The files for mutual TLS.
    pub tls: Option<TlsFiles>,
    /// The version of this program, told to the driver.
    pub version: String,
    /// A driver that is ill or away for longer is down.
    pub down_after: Duration,
    /// So often the driver is asked whether it answers, and files for TLS are looked at.
    pub looks_every: Duration,
    /// Hears whenever the driver comes up or goes down.
    pub tell: Box<dyn Fn(&News) + Send + Sync>,
}

/// What becomes of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It serves.
    Up,
    /// It is ill or away for too long.
    Down {
        /// What is known of the reason.
        why: String,
    },
    /// Its connection is kept no more.
    Ended,
}

impl Options {
    /// The driver of this provider at this place, of which nobody hears whether it is up.
    pub fn new(provider: impl Into<String>, place: Place) -> Self {
        Self {
            provider: provider.into(),
            place,
            tls: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            down_after: DOWN_AFTER,
            looks_every: keeper::LOOKS_EVERY,
            tell: Box::new(|_| ()),
        }
    }
}

/// What the keeper of the connection and the callers share.
pub struct Shared {
    pub(crate) version: String,
    pub(crate) told: Told,
    pub(crate) link: Link,
    pub(crate) looks_every: Duration,
    pub(crate) tell: Box<dyn Fn(&News) + Send + Sync>,
    attempts: Attempts,
    verdicts: Mutex<BTreeMap<u64, Instant>>,
}

impl Shared {
    pub(crate) fn provider(&self) -> &'static str {
        self.told.info.name
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
    /// The driver of these options; it is connected to from [`Self::keep`], or from the beginning of a leadership on.
    pub fn new(options: Options) -> Self {
        let told = Told::nothing(&options.provider);
        let link = Link::new(told.info.name, options.down_after, Instant::now());
        let shared = Shared {
            version: options.version,
            told,
            link,
            looks_every: options.looks_every,
            tell: options.tell,
            attempts: Attempts::default(),
            verdicts: Mutex::default(),
        };
        Self { shared: Arc::new(shared), place: options.place, tls: options.tls, is_kept: AtomicBool::new(false) }
    }

    /// Keeps the connection until `stop`, also where this process does not lead: admission needs the schema, and views need lists.
    /// `None` for a program, which runs on the leader only, and for a connection that is kept already.
    pub fn keep(&self, stop: CancellationToken) -> Option<BoxFuture<'static, ()>> {
        let Place::At(address) = &self.place else { return None };
        if self.is_kept.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(keeper::keep(Arc::clone(&self.shared), address.clone(), self.tls.clone(), stop).boxed())
    }

    /// What the driver has told of itself last.
    pub fn accepted(&self) -> Option<&Accepted> {
        self.shared.told.last().accepted.as_ref()
    }

    fn head(&self, cx: &OpContext, deadline: Instant) -> CallHead {
        let reads_owner = self.accepted().is_some_and(|told| told.owner_in_class);
        CallHead {
            owner: cx.owner().filter(|_| !reads_owner).cloned(),
            deadline: convert::ahead(Timestamp::now(), deadline.saturating_duration_since(Instant::now())),
            ..CallHead::default()
        }
    }

    /// A call about one machine: what it is asked, and what its answer means.
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
        let answer = self.call(op, deadline, convert::machine_request(head, request)?, send).await;
        if answer.is_ok() {
            self.shared.attempts.succeeded(&id);
        }
        answer
    }

    /// Until when a call may take: the caller's deadline, or sooner where the driver says so.
    fn deadline(&self, op: Op, cx: &OpContext) -> Instant {
        let limit = self.accepted().and_then(|told| told.limits.get(&op));
        limit.map_or(cx.deadline, |limit| cx.deadline.min(Instant::now() + *limit))
    }

    async fn call<Q: prost::Message + Clone, A: Send>(
        &self,
        op: Op,
        deadline: Instant,
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
        // Sent, it would look like a connection that broke, and be sent again for ever.
        if length > limit {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("{} would be sent with {length} bytes, and the limit is {limit}", op.as_str_name()),
            ));
        }
        let _slot = match &session.slots {
            Some(slots) => {
                let slot = tokio::time::timeout_at(deadline, Arc::clone(slots).acquire_owned()).await;
                // The semaphore is never closed.
                slot.map_err(|_| late())?.ok()
            }
            None => None,
        };
        let mut sent = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // The slot may have come with the deadline: what nobody waits for is not begun.
            if left.is_zero() {
                return Err(late());
            }
            let mut request = tonic::Request::new(request.clone());
            request.set_timeout(left);
            let answer = tokio::time::timeout_at(deadline, send(session.client.clone(), request)).await;
            sent += 1;
            let error = match answer.map_err(|_| late())? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if codes::is_late(&error) {
                return Err(late());
            }
            // What has a cause here was made here: the connection broke.
            if std::error::Error::source(&error).is_none() {
                return Err(told(op, codes::from_wire(&error)));
            }
            // Or the driver, which knows the deadline, too, has cut the call off a moment before us.
            if deadline.saturating_duration_since(Instant::now()) < AT_THE_DEADLINE {
                return Err(late());
            }
            let next = match after_loss(op, sent) {
                AfterLoss::Tell => None,
                AfterLoss::Again => {
                    self.shared.link.next_session(session.number, deadline.min(Instant::now() + RETRY_WITHIN)).await
                }
            };
            session = next.ok_or_else(|| {
                let why = connection::words(&error);
                self.shared.link.unavailable(&format!("was lost during {}: {why}", op.as_str_name()))
            })?;
        }
    }

    /// Lets the driver judge a class before a VM of it is made, where it can.
    async fn judge(&self, cx: &OpContext, class: &MachineClass, secret: &SecretData) -> Result<(), Status> {
        if !self.accepted().is_some_and(|told| told.capabilities.contains(&Op::Validate)) {
            return Ok(());
        }
        let deadline = self.deadline(Op::Validate, cx).min(Instant::now() + VERDICT_WITHIN);
        let request = convert::validate_request(&self.head(cx, deadline), class, secret)?;
        let asked = fingerprint(&request);
        if self.is_fine(asked) {
            return Ok(());
        }
        let answer = self
            .call(Op::Validate, deadline, request, |mut client, request| {
                async move { client.validate(request).await.map(tonic::Response::into_inner) }.boxed()
            })
            .await;
        match answer.map(convert::refusal) {
            Ok(Some(refusal)) => Err(Status::new(Code::InvalidArgument, refusal)),
            Ok(None) => {
                self.remember_fine(asked);
                Ok(())
            }
            // A driver need not judge classes.
            Err(status) if status.code == Code::Unimplemented => Ok(()),
            Err(status) => Err(status),
        }
    }

    fn is_fine(&self, asked: u64) -> bool {
        let verdicts = self.shared.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.get(&asked).is_some_and(|at| at.elapsed() < VERDICT_HOLDS)
    }

    fn remember_fine(&self, asked: u64) {
        let mut verdicts = self.shared.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        if verdicts.len() >= MOST_VERDICTS {
            verdicts.clear();
        }
        verdicts.insert(asked, Instant::now());
    }
}

/// A client of one connection.
type Client = DriverClient<Channel>;
/// A call about one machine.
type AboutMachine = tonic::Request<crate::wire::driver::MachineRequest>;
/// The answer of a call that was sent.
type Answer<A> = BoxFuture<'static, Result<A, tonic::Status>>;

/// Which class and Secret a verdict is over.
fn fingerprint(request: &crate::wire::driver::ValidateRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    request.machine_class.as_ref().map(|class| &class.json).hash(&mut hasher);
    let secret: BTreeMap<_, _> = request.secret.iter().collect();
    secret.hash(&mut hasher);
    hasher.finish()
}

/// What a failure means in this call: a driver that can't create or delete is defective, whatever it says.
fn told(op: Op, status: Status) -> Status {
    match (op, status.code) {
        (Op::Create | Op::Delete, Code::Unimplemented) => Status { code: Code::Internal, ..status },
        _ => status,
    }
}

/// The memory that a list may take, in bytes: some 400,000 VMs.
const LARGEST_LIST: usize = 64 << 20;

/// The list in these chunks, which is whole only when the last one says so.
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
        &self.shared.told.last().info
    }

    async fn begin(&self, stop: CancellationToken) -> Result<Vec<DriverTask>, Status> {
        if let Place::Program(program) = &self.place {
            let socket = supervise::new_socket(self.shared.provider())
                .map_err(|error| Status::new(Code::Unavailable, format!("no place for a socket: {error}")))?;
            let address = Address::Unix(socket.path().to_owned());
            let shared = Arc::clone(&self.shared);
            let ill_for = move || shared.link.ill_for(Instant::now());
            let program = supervise::run(program.clone(), self.shared.provider(), socket, ill_for, stop.clone());
            let connection = keeper::keep(Arc::clone(&self.shared), address, None, stop);
            return Ok(vec![
                DriverTask { name: "external-driver-program", run: program.boxed() },
                DriverTask { name: "external-driver-connection", run: connection.boxed() },
            ]);
        }
        if let Some(connection) = self.keep(stop) {
            return Ok(vec![DriverTask { name: "external-driver-connection", run: connection }]);
        }
        // Without it in time calls fail, and are made again.
        self.shared.link.next_session(0, Instant::now() + FIRST_CONNECTION_WITHIN).await;
        Ok(Vec::new())
    }

    fn owner(&self, _class: &MachineClass) -> Option<Owner> {
        // A driver that reads it in the class needs none of ours; that there is one is all that matters to callers.
        self.accepted().filter(|told| told.owner_in_class).map(|_| Owner::new("as the class says", ""))
    }

    fn validate(&self, _class: &MachineClass, _found: &mut Findings) {
        // Admission has the schema; the driver itself is asked before a VM is made (decisions.md 37).
    }

    fn missing_in_secret(&self, rules: Option<&dyn ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        match self.shared.told.last().secret_words.as_slice() {
            [] => rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default(),
            required => required.iter().filter(|(key, _)| !keys.contains(key)).map(|(_, words)| *words).collect(),
        }
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.judge(cx, &request.class, &request.secret).await?;
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
        self.call(Op::List, deadline, request, |mut client, request| {
            async move { whole_list(client.list_machines(request).await?.into_inner()).await }.boxed()
        })
        .await
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        match self.accepted() {
            Some(told) if told.lists_by_owner && !told.owner_in_class => {
                class.metadata.namespace.clone().unwrap_or_default()
            }
            _ => class.provider_spec.to_string(),
        }
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        match self.accepted().map(|told| told.compare) {
            Some(NodeIdCompare::LastSegment) => same_instance::by_last_segment(machine, node),
            Some(NodeIdCompare::Whole) => whole(machine, node),
            Some(NodeIdCompare::None) | None => same_instance::same_or_unknown(machine, node),
        }
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        let deadline = self.deadline(Op::Volumes, cx);
        let request = convert::volumes_request(&self.head(cx, deadline), &request)?;
        self.call(Op::Volumes, deadline, request, |mut client, request| {
            async move { client.get_volume_i_ds(request).await.map(|answer| answer.into_inner().volume_ids) }.boxed()
        })
        .await
    }
}

/// Whether ids that are compared as a whole name one instance.
fn whole(machine: &str, node: &str) -> SameInstance {
    match (machine.is_empty() || node.is_empty(), machine.eq_ignore_ascii_case(node)) {
        (true, _) => SameInstance::Unknown,
        (false, true) => SameInstance::Same,
        (false, false) => SameInstance::Another,
    }
}
