//! The machine, class and login of a call, and waiting for its server.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cloud_client::CredentialsKey;
use machine_driver::{Code, Instant, Machine, OpContext, OwnerTags, SecretData, Status};

use crate::{
    cloud::{Clouds, Session},
    login::Login,
    lookup::{self, Deletion, Place},
    memory::Memory,
    nova::Server,
    options::OpenStackOptions,
    plan::Presence,
    spec::Spec,
    state::{self, State},
};

/// The machine of a call, with the parsed class and the login.
pub struct Subject<'a> {
    pub spec: Spec,
    /// The owner in the class.
    pub owner: OwnerTags,
    /// The memory of the machine.
    pub memory: Memory,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    /// The id of the login's project. `None` before [`Self::logged_in`], and for a login without a project.
    project: Option<String>,
    login: Login,
}

impl<'a> Subject<'a> {
    /// The subject of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for a class without an owner and for invalid Secrets.
    pub fn of(
        spec: Spec,
        machine: &'a Machine,
        secret: &'a SecretData,
        options: &OpenStackOptions,
    ) -> Result<Self, Status> {
        let owner = spec.owner_tags()?;
        let memory = Memory::of(&spec, &owner, &machine.status.last_known_state);
        let login = Login::of(secret, options.endpoint.as_deref())?;
        Ok(Self { spec, owner, memory, machine, secret, project: None, login })
    }

    /// The subject with the project of its login. A machine without a provider id may get a server there next.
    ///
    /// # Errors
    /// `FailedPrecondition` if the machine was made in another project, and failures of the login.
    pub async fn logged_in(mut self, clouds: &Clouds, cx: &OpContext) -> Result<Self, Status> {
        self.project = self.session_of_class(clouds, cx).project().await?;
        self.memory.check_project(self.project.as_deref())?;
        if self.machine.spec.provider_id.is_empty() {
            self.memory = self.memory.in_project(self.project.as_deref());
        }
        Ok(self)
    }

    /// The memory of the machine with what these servers of the machine show.
    pub fn memory_with(&self, servers: &[Server]) -> Memory {
        let memory = self.memory.clone().with(servers);
        if servers.is_empty() { memory } else { memory.in_project(self.project.as_deref()) }
    }

    /// The machine's name.
    ///
    /// # Errors
    /// `InvalidArgument` without a name, because an empty name would select servers of other machines.
    pub fn name(&self) -> Result<&'a str, Status> {
        let name = self.machine.metadata.name.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| Status::new(Code::InvalidArgument, "the machine has no name"))
    }

    /// What a deletion deletes that has found these servers. Only machines of the API server have a UID.
    pub fn deletion(&self, servers: &[Server]) -> Deletion {
        match self.machine.metadata.uid.as_deref() {
            None | Some("") if servers.is_empty() => Deletion::Remains,
            None | Some("") => Deletion::Orphan,
            Some(_) => Deletion::Machine,
        }
    }

    /// The place in the provider id of the machine. `None` without a provider id.
    pub fn place(&self) -> Result<Option<Place<'a>>, Status> {
        let id = self.machine.spec.provider_id.as_str();
        if id.is_empty() {
            return Ok(None);
        }
        let place = Place::of(id);
        place
            .map(Some)
            .ok_or_else(|| Status::new(Code::InvalidArgument, format!("{id:?} is no provider id of OpenStack")))
    }

    /// The region of the machine: the region in its provider id, or the region of the class for a machine without one.
    pub fn region(&self) -> Result<&str, Status> {
        Ok(self.place()?.and_then(|place| place.region).unwrap_or(&self.spec.region))
    }

    /// Sessions in the regions of earlier versions of the class, where a machine without a region in its provider id may have a server. The state
    /// of a machine contains no mistyped region: calls in a region that the catalogue lacks fail before the region is kept.
    ///
    /// # Errors
    /// `FailedPrecondition` for a region that the catalogue lacks now. Its servers would run on.
    pub async fn earlier_sessions<'s>(
        &'s self,
        clouds: &'s Clouds,
        cx: &'s OpContext,
    ) -> Result<Vec<Session<'s>>, Status> {
        let mut sessions = Vec::new();
        if self.place()?.and_then(|place| place.region).is_none() {
            for region in &self.memory.earlier_regions {
                let cloud = self.session(clouds, cx, region);
                cloud.find_nova().await.map_err(|failure| lookup::region_is_missing(region, failure.status))?;
                sessions.push(cloud);
            }
        }
        Ok(sessions)
    }

    /// A session in a region.
    pub const fn session<'s>(&'s self, clouds: &'s Clouds, cx: &'s OpContext, region: &'s str) -> Session<'s> {
        clouds.session(cx, &self.login, region)
    }

    /// A session in the region of the class, where servers are made.
    pub fn session_of_class<'s>(&'s self, clouds: &'s Clouds, cx: &'s OpContext) -> Session<'s> {
        self.session(clouds, cx, &self.spec.region)
    }

    /// A session in the region of the machine's server, or in the region of the class if no region has a server of the machine.
    pub async fn session_of_server<'s>(&'s self, clouds: &'s Clouds, cx: &'s OpContext) -> Result<Session<'s>, Status> {
        for cloud in self.earlier_sessions(clouds, cx).await? {
            if !self.servers(&cloud).await?.is_empty() {
                return Ok(cloud);
            }
        }
        Ok(self.session(clouds, cx, self.region()?))
    }

    /// The servers of the machine: the server with its provider id, or all servers with its name. Servers of other owners with its name are left out.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server with its provider id belongs to another owner.
    pub async fn servers(&self, cloud: &Session<'_>) -> Result<Vec<Server>, Status> {
        let Some(place) = self.place()? else {
            return Ok(lookup::ours(cloud.servers_named(self.name()?).await?, &self.memory.owners));
        };
        let Some(server) = looked_for(cloud, place.id).await? else { return Ok(Vec::new()) };
        Ok(self.own_server(server)?.into_iter().collect())
    }

    /// The server with the machine's provider id, if it belongs to the machine.
    ///
    /// # Errors
    /// `FailedPrecondition` if it belongs to another owner.
    pub fn own_server(&self, server: Server) -> Result<Option<Server>, Status> {
        let name = self.machine.metadata.name.as_deref().unwrap_or_default();
        lookup::named_by_id(server, &self.owner, &self.memory.owners, name)
    }

    /// Locks the machine's name until the lock is dropped.
    ///
    /// # Errors
    /// `Aborted` if another call holds the lock.
    pub fn lock_name(&self, locks: &NameLocks) -> Result<NameLock, Status> {
        let key = (self.login.account, self.machine.metadata.name.clone().unwrap_or_default());
        let mut names = locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.insert(key.clone()) {
            let message = format!("a creation or deletion of {} is under way already", key.1);
            return Err(Status::new(Code::Aborted, message));
        }
        drop(names);
        Ok(NameLock { locks: locks.clone(), key })
    }
}

type Name = (CredentialsKey, String);

/// The names of machines with a running creation or deletion. Nova would make two servers for two creations with the same name.
#[derive(Clone, Default)]
pub struct NameLocks(Arc<Mutex<HashSet<Name>>>);

/// A locked name.
pub struct NameLock {
    locks: NameLocks,
    key: Name,
}

impl Drop for NameLock {
    fn drop(&mut self) {
        self.locks.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest wait (spec/providers §6.2).
const LONGEST_WAIT: Duration = Duration::from_secs(1200);
/// The time of a call that is kept for cleaning up after a wait.
const RESERVE: Duration = Duration::from_secs(60);

/// Waits for an operation of the cloud that takes minutes, with growing pauses between requests.
pub struct Wait {
    until: Instant,
    pause: Duration,
    /// The last state of the awaited object, and the time since which it has this state.
    shown: (String, Instant),
}

impl Wait {
    /// A wait within a call. A part of the time that is left for the call is kept for cleaning up.
    pub fn within(cx: &OpContext) -> Self {
        let left = cx.left();
        let limit = left.saturating_sub(RESERVE).max(left / 2).min(LONGEST_WAIT);
        let now = Instant::now();
        Self { until: now + limit, pause: FIRST_PAUSE, shown: (String::new(), now) }
    }

    /// For how long the awaited object has had the state that is shown now.
    pub fn unchanged(&mut self, shown: &str) -> Duration {
        if self.shown.0 != shown {
            self.shown = (shown.to_owned(), Instant::now());
        }
        self.shown.1.elapsed()
    }

    /// Waits until the next request.
    ///
    /// # Errors
    /// `DeadlineExceeded` with this message when the time is over.
    pub async fn pause(&mut self, message: impl FnOnce() -> String) -> Result<(), Status> {
        let pause = self.pause.mul_f64(0.75 + cloud_client::draw() / 2.0);
        if Instant::now() + pause >= self.until {
            return Err(Status::new(Code::DeadlineExceeded, message()));
        }
        tokio::time::sleep(pause).await;
        self.pause = self.pause.mul_f64(1.5).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// The server with this id, also a deleted one that Nova shows. `None` only if it is surely gone: the machine of a server that one look does not find
/// may still have it.
///
/// # Errors
/// Errors of Nova, and `DeadlineExceeded`.
pub async fn looked_for(cloud: &Session<'_>, id: &str) -> Result<Option<Server>, Status> {
    let (mut wait, mut presence) = (Wait::within(cloud.cx), Presence::BEGIN);
    loop {
        let shown = cloud.server(id).await?;
        match presence.after(shown.as_ref()) {
            Some(unseen) if shown.is_none() => presence = unseen,
            Some(_) | None => return Ok(shown),
        }
        wait.pause(|| format!("looking for server [ID={id:?}]: Nova has not shown it")).await?;
    }
}

/// Waits until Nova has made a server.
///
/// # Errors
/// The fault of the server, `Aborted` if a user deletes it meanwhile, and `DeadlineExceeded`.
pub async fn built(cloud: &Session<'_>, id: &str) -> Result<Server, Unbuilt> {
    let (mut wait, mut presence) = (Wait::within(cloud.cx), Presence::BEGIN);
    loop {
        match cloud.server(id).await {
            Ok(shown) => {
                presence = presence.after(shown.as_ref()).ok_or_else(|| Unbuilt::Surely(deleted_meanwhile(id)))?;
                match shown.map(|server| (State::of(&server), server)) {
                    None | Some((State::Building, _)) => {}
                    Some((State::Built, server)) if server.status == "ACTIVE" => return Ok(server),
                    // A new server in another state than ACTIVE and ERROR was changed by a user.
                    Some((State::Built | State::Failed, server)) => {
                        return Err(Unbuilt::Surely(state::fault(&server)));
                    }
                    Some((State::Ending | State::SoftDeleted | State::Gone, _)) => {
                        return Err(Unbuilt::Surely(deleted_meanwhile(id)));
                    }
                }
            }
            // A passing failure may be over before the wait ends.
            Err(failure) if failure.kind == cloud_client::FailureKind::Permanent => {
                return Err(Unbuilt::Unseen(failure.status));
            }
            Err(_) => {}
        }
        wait.pause(|| format!("error waiting for server [ID={id:?}] to reach target status: it is still being built"))
            .await
            .map_err(Unbuilt::Surely)?;
    }
}

/// Why a server is not built.
#[derive(Debug)]
pub enum Unbuilt {
    /// The server has failed, is deleted, or takes too long.
    Surely(Status),
    /// The state of the server is unknown, because requests fail. It may be built.
    Unseen(Status),
}

impl From<Unbuilt> for Status {
    fn from(unbuilt: Unbuilt) -> Self {
        match unbuilt {
            Unbuilt::Surely(status) | Unbuilt::Unseen(status) => status,
        }
    }
}

fn deleted_meanwhile(id: &str) -> Status {
    Status::new(Code::Aborted, format!("server [ID={id:?}] was deleted while it was being built"))
}
