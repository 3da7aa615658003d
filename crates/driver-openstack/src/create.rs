//! Makes the server of a machine, with its port and volume, or takes over the machine's existing server.

use std::time::Duration;

use cloud_client::Failure;
use machine_driver::{Code, CreatedVm, SecretData, Status};
use serde_json::{Value, json};

use crate::{
    bodies,
    cloud::Session,
    lookup::{self, Backing, Earlier, unique},
    neutron::{NamedThing, Port},
    nova::Server,
    plan::{self, Boot, Made, Supply},
    ports, remove,
    spec::{RootDisk, Spec},
    state::{self, State},
    storage::Volume,
    subject::{Subject, Unbuilt, Wait, built},
};

/// The longest time in which a failed creation deletes what it has made.
const LONGEST_CLEAN_UP: Duration = Duration::from_secs(30);

/// The name of the security group that Neutron makes for each project.
const DEFAULT_GROUP: &str = "default";

/// A creation.
#[derive(Clone, Copy)]
pub struct Creation<'a> {
    pub subject: &'a Subject<'a>,
    pub cloud: &'a Session<'a>,
    pub name: &'a str,
}

/// The ids of the objects that the class names.
struct Resolved {
    image: String,
    flavor: String,
    networks: Vec<String>,
    security_groups: Vec<String>,
}

/// The reason why no server was made.
enum Refused {
    /// There is no server. Its port and its volume can be deleted.
    Surely(Status),
    /// There may be a server, which needs its port and its volume. The core looks for it before it requests another one (decisions.md 58).
    Perhaps(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self::Surely(status)
    }
}

impl From<Unbuilt> for Refused {
    fn from(unbuilt: Unbuilt) -> Self {
        match unbuilt {
            Unbuilt::Surely(status) => Self::Surely(status),
            Unbuilt::Unseen(status) => Self::Perhaps(status),
        }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Surely(failure.status)
    }
}

impl Creation<'_> {
    /// The server of the machine.
    ///
    /// # Errors
    /// The first failure. Server, port and volume are deleted then, unless the server may exist. The error has a state, with which later calls find
    /// the rest, also after an edit of the class.
    pub async fn run(self) -> Result<CreatedVm, Status> {
        self.made().await.map_err(|status| {
            let state = status.last_known_state.unwrap_or_else(|| self.subject.memory.state());
            Status { last_known_state: Some(state), ..status }
        })
    }

    async fn made(&self) -> Result<CreatedVm, Status> {
        let found = self.cloud.servers_named(self.name).await?;
        let server = match Backing::of(lookup::ours(found, &self.subject.memory.owners))? {
            Backing::Nothing => self.make().await?,
            Backing::Ending(id) => {
                let message = format!("server [Name={:?}, ID={id:?}] is still being deleted", self.name);
                return Err(Status::new(Code::Aborted, message));
            }
            Backing::Server(server) => self.taken_over(*server).await?,
        };
        // A failure here does not matter: the core requests the initialisation of the server next, which repeats the request and reports the failure.
        let _ = ports::let_pods_pass(self.subject, self.cloud, &server.id).await;
        let memory = self.subject.memory_with(std::slice::from_ref(&server));
        let vm = lookup::identity(self.cloud.region, &server, self.name);
        Ok(CreatedVm { vm, last_known_state: Some(memory.state()) })
    }

    /// A server that an earlier creation made.
    async fn taken_over(&self, server: Server) -> Result<Server, Status> {
        let outcome = match State::of(&server) {
            State::Building => built(self.cloud, &server.id).await,
            State::Failed => Err(Unbuilt::Surely(state::fault(&server))),
            State::Built | State::Ending | State::SoftDeleted | State::Gone => Ok(server),
        };
        match outcome {
            Ok(server) => Ok(server),
            Err(Unbuilt::Surely(status)) => Err(self.cleaned_up(status).await),
            Err(Unbuilt::Unseen(status)) => Err(status),
        }
    }

    async fn make(&self) -> Result<Server, Status> {
        let resolved = match self.resolve().await {
            Ok(resolved) => resolved,
            Err(status) if plan::is_refusal(&status) => return Err(self.cleaned_up(status).await),
            Err(status) => return Err(status),
        };
        match self.make_of(&resolved).await {
            Ok(server) => Ok(server),
            Err(Refused::Perhaps(status)) => Err(status),
            Err(Refused::Surely(status)) => Err(self.cleaned_up(status).await),
        }
    }

    /// The failure of a creation, after which nothing of it is left. The failure does not wait for a deletion that lasts: the autoscaler needs it.
    /// Later calls find the rest.
    async fn cleaned_up(&self, status: Status) -> Status {
        let clean_up = remove::by_name(self.subject, self.cloud, self.name);
        let cleaned = tokio::time::timeout(LONGEST_CLEAN_UP, clean_up).await;
        match cleaned.unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "its deletion lasts"))) {
            Ok(()) => {
                let state = self.subject.memory.clone().in_no_project().state();
                Status { last_known_state: Some(state), ..status }
            }
            Err(rest) => {
                let message = format!("{} (and what was made could not be deleted: {})", status.message, rest.message);
                Status { message, last_known_state: rest.last_known_state, ..status }
            }
        }
    }

    /// Looks for the objects that the class names, before anything is made.
    async fn resolve(&self) -> Result<Resolved, Status> {
        let spec = &self.subject.spec;
        let in_networks =
            |status: Status| prefixed(&format!("failed to resolve server [Name={:?}] networks", self.name), status);
        let security_groups = self.security_groups().await.map_err(in_networks)?;
        let networks = self.networks().await.map_err(in_networks)?;
        let image = if spec.image_id.is_empty() {
            let found = self.cloud.images_named(&spec.image_name).await?;
            let message = format!("error resolving image ID from image name {:?}", spec.image_name);
            unique("image", &spec.image_name, &found, |_| true).map_err(|status| prefixed(&message, status))?.id.clone()
        } else {
            spec.image_id.clone()
        };
        Ok(Resolved { image, flavor: self.flavor().await?, networks, security_groups })
    }

    async fn flavor(&self) -> Result<String, Status> {
        let name = &self.subject.spec.flavor_name;
        let flavors = self.cloud.flavors().await?;
        let flavor = unique("flavor", name, &flavors, |flavor| flavor.name == *name).map_err(|status| {
            let status = prefixed(&format!("error resolving flavor ID from flavor name {name:?}"), status);
            // Clouds hide the flavors that they have nothing left of; the autoscaler is to try another class.
            if status.code == Code::NotFound { Status { code: Code::ResourceExhausted, ..status } } else { status }
        })?;
        Ok(flavor.id.clone())
    }

    /// The security groups of a port that the driver makes. Nova looks for the security groups of its own ports. For a class without groups, Neutron
    /// uses the default group of the project.
    async fn security_groups(&self) -> Result<Vec<String>, Status> {
        let names: Vec<&str> = self.subject.spec.security_groups.iter().map(String::as_str).collect();
        if !self.subject.spec.has_own_port() {
            return Ok(Vec::new());
        }
        if names.is_empty() {
            let found = self.cloud.security_groups_named(&[DEFAULT_GROUP]).await?;
            return Ok(found.into_iter().map(|group| group.id).collect());
        }
        let found = self.cloud.security_groups_named(&names).await?;
        ids("security group", &names, &found)
    }

    async fn networks(&self) -> Result<Vec<String>, Status> {
        let spec = &self.subject.spec;
        if spec.network_id.is_empty() {
            return ports::network_ids(self.cloud, &spec.networks).await;
        }
        networks_of_subnets(self.cloud, spec).await?;
        Ok(vec![spec.network_id.clone()])
    }

    async fn make_of(&self, resolved: &Resolved) -> Result<Server, Refused> {
        let spec = &self.subject.spec;
        let port = if spec.has_own_port() { Some(self.port(resolved).await?) } else { None };
        let networks: Vec<Value> = match &port {
            Some(port) => vec![json!({ "port": port })],
            None => resolved.networks.iter().map(|network| json!({"uuid": network})).collect(),
        };
        let volume = match spec.root_disk() {
            RootDisk::Own { size, kind } => Some(self.volume(resolved, size, kind).await?),
            RootDisk::OfFlavor | RootDisk::MadeByNova(_) => None,
        };
        let body = bodies::server(&bodies::Wanted {
            spec,
            machine: self.name,
            user_data: self.subject.secret.get(SecretData::USER_DATA).unwrap_or_default(),
            flavor: &resolved.flavor,
            image: &resolved.image,
            networks,
            volume: volume.as_deref(),
        });
        let id = match Made::from(self.cloud.make_server(&body).await) {
            Made::This(id) => id,
            Made::Unknown(failure) => self.made_unheard(failure).await?,
            Made::Nothing(failure) => return Err(self.deploying(failure.status).into()),
        };
        Ok(built(self.cloud, &id).await?)
    }

    /// The server of a request whose answer is lost.
    async fn made_unheard(&self, failure: Failure) -> Result<String, Refused> {
        let status = self.deploying(failure.status);
        let Ok(found) = self.cloud.servers_named(self.name).await else { return Err(Refused::Perhaps(status)) };
        match Backing::of(lookup::ours(found, &self.subject.memory.owners)) {
            Ok(Backing::Server(server)) => Ok(server.id),
            // The server may still appear.
            Ok(Backing::Nothing | Backing::Ending(_)) | Err(_) => Err(Refused::Perhaps(status)),
        }
    }

    fn deploying(&self, status: Status) -> Status {
        prefixed(&format!("failed to deploy server [Name={:?}]", self.name), status)
    }

    /// The machine's own port: the port of an earlier request, or a new port.
    async fn port(&self, resolved: &Resolved) -> Result<String, Status> {
        let port = match plan::port(self.earlier_port(resolved).await?) {
            Supply::Use(port) => port,
            Supply::Make { instead_of } => {
                for port in instead_of {
                    let _ = self.cloud.delete_port(&port.id).await;
                }
                self.new_port(resolved).await?
            }
            Supply::Fail(status) => return Err(status),
        };
        if let Some(tags) = lookup::tags_of_port(&self.subject.owner, &port) {
            self.cloud.tag_port(&port.id, &tags).await?;
        }
        Ok(port.id)
    }

    async fn new_port(&self, resolved: &Resolved) -> Result<Port, Status> {
        let Subject { spec, owner, .. } = self.subject;
        match Made::from(self.cloud.make_port(&bodies::port(spec, owner, self.name, &resolved.security_groups)).await) {
            Made::This(port) => Ok(port),
            Made::Unknown(failure) => Ok(self.earlier_port(resolved).await?.usable().ok_or(failure)?),
            Made::Nothing(failure) => Err(failure.into()),
        }
    }

    async fn earlier_port(&self, resolved: &Resolved) -> Result<Earlier<Port>, Status> {
        let Subject { spec, memory, .. } = self.subject;
        let found = self.cloud.ports_named(self.name).await?;
        let subnets = self.cloud.subnets(&lookup::other_subnets(&found, spec)).await?;
        Ok(lookup::earlier_port(found, &memory.owners, spec, &resolved.security_groups, &subnets))
    }

    async fn earlier_volume(&self, made_for: &str) -> Result<Earlier<Volume>, Status> {
        let found = self.cloud.volumes_named(self.name).await?;
        Ok(lookup::earlier_volume(found, &self.subject.memory.owners, made_for))
    }

    /// The volume that the server boots from: the volume of an earlier request, or a new volume.
    async fn volume(&self, resolved: &Resolved, size: i64, kind: &str) -> Result<String, Status> {
        let uid = self.subject.machine.metadata.uid.as_deref().unwrap_or_default();
        let made_for = bodies::made_for(uid, &resolved.image, size);
        let id = match plan::volume(self.earlier_volume(&made_for).await?) {
            Supply::Use(volume) => volume.id,
            Supply::Make { instead_of } => {
                for volume in instead_of {
                    let _ = self.cloud.delete_volume(&volume.id).await;
                }
                let body = bodies::volume(&self.subject.spec, self.name, &made_for, &resolved.image, size, kind);
                self.new_volume(&body, &made_for).await?.id
            }
            Supply::Fail(status) => return Err(status),
        };
        let mut wait = Wait::within(self.cloud.cx);
        loop {
            let volume = self.cloud.volume(&id).await?;
            match plan::boot(&id, volume.as_ref()) {
                Boot::Ready => return Ok(id),
                Boot::Wait => {}
                Boot::Fail(status) => return Err(status),
            }
            wait.pause(|| format!("volume {id} is still {}", volume.map(|volume| volume.status).unwrap_or_default()))
                .await?;
        }
    }

    async fn new_volume(&self, body: &Value, made_for: &str) -> Result<Volume, Status> {
        match Made::from(self.cloud.make_volume(body).await) {
            Made::This(volume) => Ok(volume),
            Made::Unknown(failure) => Ok(self.earlier_volume(made_for).await?.usable().ok_or(failure)?),
            Made::Nothing(failure) => Err(failure.into()),
        }
    }
}

/// Checks that the subnets of a class exist and belong to its network.
///
/// # Errors
/// `NotFound` and `InvalidArgument` for the first subnet that does not, and errors of Neutron.
pub async fn networks_of_subnets(cloud: &Session<'_>, spec: &Spec) -> Result<(), Status> {
    let wanted = spec.subnets();
    let found = cloud.subnets(&wanted).await?;
    for id in wanted {
        let subnet = found.iter().find(|subnet| subnet.id == id);
        let subnet =
            subnet.ok_or_else(|| Status::new(Code::NotFound, format!("Unable to find subnet with id {id}")))?;
        if subnet.network_id != spec.network_id {
            let message = format!("subnet {id} is in network {}, not in {}", subnet.network_id, spec.network_id);
            return Err(Status::new(Code::InvalidArgument, message));
        }
    }
    Ok(())
}

/// A failure with the place where it happened at the beginning of its message.
pub fn prefixed(what: &str, status: Status) -> Status {
    Status { message: format!("{what}: {}", status.message), ..status }
}

/// The id of each of these names.
///
/// # Errors
/// `NotFound` and `OutOfRange` for the first name that is not unique.
pub fn ids(kind: &str, names: &[&str], found: &[NamedThing]) -> Result<Vec<String>, Status> {
    names
        .iter()
        .map(|name| unique(kind, name, found, |thing| thing.name == *name).map(|thing| thing.id.clone()))
        .collect()
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
