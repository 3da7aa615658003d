//! The driver: implements the calls of the trait.

use std::iter;

use cloud_client::Client;
use kube_values::field::Findings;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, Machine, MachineClass,
    MachineRequest, OpContext, Owner, PersistentVolumeSpec, SameInstance, SecretData, Status, VmIdentity,
    VolumeIdsRequest, async_trait, same_instance,
};

use crate::{
    CLASSES, OPENSTACK, ask,
    cloud::{Clouds, Session},
    create::Creation,
    errors,
    lookup::{self, Backing},
    memory::Owners,
    nova::Server,
    options::{MachineStatus, OpenStackOptions},
    ports, remove,
    spec::Spec,
    state::State,
    subject::{NameLocks, Subject, built},
};

/// Creates, finds and deletes servers of `OpenStack`.
pub struct OpenStackDriver {
    info: DriverInfo,
    clouds: Clouds,
    options: OpenStackOptions,
    locks: NameLocks,
}

impl OpenStackDriver {
    /// A driver that sends its requests over the network.
    pub fn new(options: OpenStackOptions) -> Self {
        Self::with_clouds(Clouds::new(), options)
    }

    /// A driver that sends all requests through this client.
    pub fn through(client: Client, options: OpenStackOptions) -> Self {
        Self::with_clouds(Clouds::through(client), options)
    }

    fn with_clouds(clouds: Clouds, options: OpenStackOptions) -> Self {
        let capabilities = Capabilities { create_is_idempotent: false, lists_creation_time: true };
        let info = DriverInfo {
            name: "openstack",
            providers: vec![OPENSTACK.to_owned()],
            schema: Some(CLASSES.schema().clone()),
            capabilities,
        };
        Self { info, clouds, options, locks: NameLocks::default() }
    }

    fn subject<'a>(&self, spec: Spec, machine: &'a Machine, secret: &'a SecretData) -> Result<Subject<'a>, Status> {
        Subject::of(spec, machine, secret, &self.options)
    }

    async fn created(&self, cx: &OpContext, request: &MachineRequest) -> Result<CreatedVm, Status> {
        let (subject, name) = self.to_create(request)?;
        let _held = subject.lock_name(&self.locks)?;
        let mut subject = self.coded(subject.logged_in(&self.clouds, cx).await)?;
        // The failure has no state, so that a mistyped region is not kept.
        self.coded(subject.session_of_class(&self.clouds, cx).find_nova().await.map_err(Status::from))?;
        for cloud in self.coded(subject.earlier_sessions(&self.clouds, cx).await)? {
            self.coded(remove::by_name(&subject, &cloud, name).await)?;
        }
        subject.memory.earlier_regions.clear();
        let cloud = subject.session_of_class(&self.clouds, cx);
        self.coded(Creation { subject: &subject, cloud: &cloud, name }.run().await)
    }

    /// The subject and the name of a machine that gets a server.
    ///
    /// # Errors
    /// `InvalidArgument` if no request for a server would be sent.
    fn to_create<'a>(&self, request: &'a MachineRequest) -> Result<(Subject<'a>, &'a str), Status> {
        let subject = self.subject(Spec::checked(&request.class)?, &request.machine, &request.secret)?;
        let name = subject.name()?;
        if subject.secret.get(SecretData::USER_DATA).is_none_or(<[u8]>::is_empty) {
            return Err(Status::new(Code::InvalidArgument, "data[userData]: Required value: userData is required"));
        }
        if name.len() > LONGEST_NAME {
            let message = format!(
                "the machine's name is its Node's, and {name:?} has more than {LONGEST_NAME} characters: no Node registers with it"
            );
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok((subject, name))
    }

    async fn asked(&self, cx: &OpContext, request: &MachineRequest) -> Result<VmIdentity, Status> {
        let subject = Spec::read(&request.class).and_then(|spec| self.subject(spec, &request.machine, &request.secret));
        if self.options.status == MachineStatus::Unimplemented {
            let unimplemented = Status::new(Code::Unimplemented, "openstack.getMachineStatus=false");
            let Ok(subject) = subject else { return Err(unimplemented) };
            let subject = self.coded(subject.logged_in(&self.clouds, cx).await)?;
            if subject.machine.spec.provider_id.is_empty() {
                self.coded(subject.session_of_class(&self.clouds, cx).find_nova().await.map_err(Status::from))?;
            }
            return Err(self.before_creation(unimplemented, request, &subject));
        }
        let subject = self.coded(subject?.logged_in(&self.clouds, cx).await)?;
        let cloud = self.coded(subject.session_of_server(&self.clouds, cx).await)?;
        let found = self.coded(status(&subject, &cloud).await);
        found.map_err(|status| self.before_creation(status, request, &subject))
    }

    /// The failure of a look-up, with a state if a creation follows. A creation that sends nothing leaves nothing, so that it needs no state.
    fn before_creation(&self, status: Status, request: &MachineRequest, subject: &Subject<'_>) -> Status {
        match self.to_create(request) {
            Ok(_) => lookup::before_creation(status, &subject.memory),
            Err(_) => status,
        }
    }

    /// The outcome with the codes that the options select.
    fn coded<T>(&self, outcome: Result<T, Status>) -> Result<T, Status> {
        outcome.map_err(|status| self.options.codes.of(status, errors::as_go))
    }
}

/// The maximum number of characters of a machine's name. The kubelet writes the name of its Node into a label, and the value of a label has
/// at most 63.
const LONGEST_NAME: usize = 63;

/// The server of a machine.
///
/// # Errors
/// `NotFound` if there is none, `OutOfRange` for several, `Aborted` for a server that is being deleted and must not be used again.
async fn server(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<Server, Status> {
    let mut found = subject.servers(cloud).await?;
    // A machine with a provider id, or one that is being deleted, does not take over a server that it finds by name.
    let has_its_server = subject.place()?.is_some() || subject.machine.metadata.deletion_timestamp.is_some();
    if has_its_server && found.len() == 1 {
        return Ok(found.remove(0));
    }
    match Backing::of(found)? {
        Backing::Server(server) => Ok(*server),
        Backing::Nothing => Err(Status::new(Code::NotFound, "no server of the machine was found")),
        Backing::Ending(id) => Err(Status::new(Code::Aborted, format!("server [ID={id:?}] is still being deleted"))),
    }
}

/// The name of the Node: the machine's name, or the server's name for a machine without one.
fn node_name<'a>(subject: &Subject<'a>, server: &'a Server) -> &'a str {
    subject.name().unwrap_or(&server.name)
}

/// Waits for the server and lets its ports pass the addresses of pods.
async fn initialized(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<VmIdentity, Status> {
    let mut server = server(subject, cloud).await?;
    if State::of(&server) == State::Building {
        server = built(cloud, &server.id).await?;
    }
    ports::let_pods_pass(subject, cloud, &server.id).await?;
    Ok(lookup::identity(cloud.region, &server, node_name(subject, &server)))
}

/// The identity of the machine's server.
///
/// # Errors
/// `Unimplemented` for a server that is not built, so that the next call is a creation. `Uninitialized` if the addresses of pods do not pass.
async fn status(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<VmIdentity, Status> {
    let server = server(subject, cloud).await?;
    let state = State::of(&server);
    if matches!(state, State::Building | State::Failed) && subject.place()?.is_none() {
        // The server is left from an interrupted creation. The next creation waits for it or makes another one.
        let message = format!("server [ID={:?}] is {}: it is not whole", server.id, server.status);
        return Err(Status::new(Code::Unimplemented, message));
    }
    let identity = lookup::identity(cloud.region, &server, node_name(subject, &server));
    if state != State::Built {
        return Ok(identity);
    }
    lookup::initialised(identity, &server.id, ports::pod_traffic(subject, cloud, &server.id).await)
}

/// The servers of the owner, and what is left of servers of the owner that are deleted.
async fn listed(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<Vec<ListedVm>, Status> {
    let Subject { spec, owner, memory, .. } = subject;
    let servers = lookup::ours(cloud.servers().await?, &Owners::of_class(owner.clone()));
    let ports = cloud.ports_of_owner(owner).await?;
    let metadata = spec.owner_metadata()?;
    let volumes = cloud.volumes_if_any(memory.volumes, cloud.volumes_with(&metadata)).await?;
    let left = lookup::leftovers(cloud.region, owner, &servers, ports, volumes);
    Ok(servers.into_iter().map(|server| lookup::listed(cloud.region, server)).chain(left).collect())
}

/// A failure that keeps the state of the machine. The controllers forget it after some codes if the failure has none.
fn keeping(status: Status, machine: &Machine) -> Status {
    let known = &machine.status.last_known_state;
    let state = status.last_known_state.or_else(|| (!known.is_empty()).then(|| known.clone()));
    Status { last_known_state: state, ..status }
}

#[async_trait]
impl Driver for OpenStackDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        Some(Spec::read(class).ok()?.owner_tags().ok()?.owner().clone())
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        CLASSES.validate(class, found);
    }

    async fn create_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        self.created(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let subject = self.subject(Spec::read(&request.class)?, &request.machine, &request.secret)?;
        let subject = self.coded(subject.logged_in(&self.clouds, cx).await)?;
        let cloud = self.coded(subject.session_of_server(&self.clouds, cx).await)?;
        self.coded(initialized(&subject, &cloud).await)
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let subject = self.subject(Spec::read(&request.class)?, &request.machine, &request.secret)?;
        let _held = subject.lock_name(&self.locks)?;
        let subject = self.coded(subject.logged_in(&self.clouds, cx).await)?;
        let now = subject.session(&self.clouds, cx, subject.region()?);
        let earlier = self.coded(subject.earlier_sessions(&self.clouds, cx).await)?;
        for cloud in iter::once(now).chain(earlier) {
            self.coded(remove::machine(&subject, &cloud).await)?;
        }
        Ok(DeletedVm::default())
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        self.asked(cx, &request).await.map_err(|status| keeping(status, &request.machine))
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let machine = Machine::default();
        let subject = self.subject(Spec::read(&request.class)?, &machine, &request.secret)?;
        let cloud = subject.session_of_class(&self.clouds, cx);
        self.coded(listed(&subject, &cloud).await)
    }

    async fn ask_about_class(&self, cx: &OpContext, request: ListRequest) -> Result<Findings, Status> {
        let machine = Machine::default();
        let subject = self.subject(Spec::checked(&request.class)?, &machine, &request.secret)?;
        self.coded(ask::about(&subject.session_of_class(&self.clouds, cx), &subject.spec).await)
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        let key = Spec::read(class).and_then(|spec| Ok(format!("{} {}", spec.region, spec.owner_tags()?)));
        key.unwrap_or_else(|_| class.provider_spec.to_string())
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        same_instance::by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.iter().filter_map(volume_id).collect())
    }
}

/// The name of the CSI driver for volumes of Cinder.
const CSI: &str = "cinder.csi.openstack.org";

fn volume_id(volume: &PersistentVolumeSpec) -> Option<String> {
    let old = volume.cinder.as_ref().map(|cinder| &cinder.volume_id);
    let csi = volume.csi.as_ref().filter(|csi| csi.driver == CSI).map(|csi| &csi.volume_handle);
    old.or(csi).cloned()
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
