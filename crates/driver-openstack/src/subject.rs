//! What a call is about: a machine, its class and its login, read.

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
    lookup::{self, Place, State},
    nova::Server,
    options::OpenStackOptions,
    spec::Spec,
};

/// A machine and its class, read.
pub struct Subject<'a> {
    pub spec: Spec,
    pub owner: OwnerTags,
    pub machine: &'a Machine,
    pub secret: &'a SecretData,
    login: Login,
}

impl<'a> Subject<'a> {
    /// What a request is about.
    pub fn of(
        spec: Spec,
        machine: &'a Machine,
        secret: &'a SecretData,
        options: &OpenStackOptions,
    ) -> Result<Self, Status> {
        let owner = spec.owner_tags()?;
        let login = Login::of(secret, options.endpoint.as_deref())?;
        Ok(Self { spec, owner, machine, secret, login })
    }

    /// The machine's name.
    ///
    /// # Errors
    /// `InvalidArgument` without one: nothing is looked for by an empty name.
    pub fn name(&self) -> Result<&'a str, Status> {
        let name = self.machine.metadata.name.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| Status::new(Code::InvalidArgument, "the machine has no name"))
    }

    /// Where the machine's server is, if the machine says so; else `None`.
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

    /// The region of the machine's server. The class's own counts for a machine that names none: classes are edited.
    pub fn session<'s>(&'s self, clouds: &'s Clouds, cx: &'s OpContext) -> Result<Session<'s>, Status> {
        let region = self.place()?.and_then(|place| place.region).unwrap_or(&self.spec.region);
        Ok(clouds.session(cx, &self.login, region))
    }

    /// The region of the class, where servers are made.
    pub fn session_of_class<'s>(&'s self, clouds: &'s Clouds, cx: &'s OpContext) -> Session<'s> {
        clouds.session(cx, &self.login, &self.spec.region)
    }

    /// The servers of the machine: the one with its id, or those with its name. Those without our metadata are not ours.
    pub async fn servers(&self, cloud: &Session<'_>) -> Result<Vec<Server>, Status> {
        let Some(place) = self.place()? else {
            return Ok(lookup::ours(cloud.servers_named(self.name()?).await?, &self.owner));
        };
        let found = cloud.server(place.id).await?;
        let name = self.machine.metadata.name.as_deref().unwrap_or_default();
        Ok(found.and_then(|server| lookup::named_by_id(server, &self.owner, name)).into_iter().collect())
    }

    /// Keeps others from the machine's name until it is dropped.
    ///
    /// # Errors
    /// `Aborted` when somebody else has it.
    pub fn hold(&self, busy: &Busy) -> Result<Held, Status> {
        let key = (self.login.account, self.machine.metadata.name.clone().unwrap_or_default());
        let mut names = busy.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.insert(key.clone()) {
            let message = format!("a creation or deletion of {} is under way already", key.1);
            return Err(Status::new(Code::Aborted, message));
        }
        drop(names);
        Ok(Held { busy: busy.clone(), key })
    }
}

type Name = (CredentialsKey, String);

/// Names of machines that something is made or deleted for. Nova makes a second server of the same name if it is asked twice.
#[derive(Clone, Default)]
pub struct Busy(Arc<Mutex<HashSet<Name>>>);

/// A name that is held.
pub struct Held {
    busy: Busy,
    key: Name,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// No wait is longer (spec/providers §6.2).
const LONGEST_WAIT: Duration = Duration::from_secs(1200);
/// What an operation keeps for cleaning up.
const RESERVE: Duration = Duration::from_secs(60);

/// A wait for something that takes minutes, with pauses that grow.
pub struct Wait {
    until: Instant,
    pause: Duration,
}

impl Wait {
    /// A wait within an operation, of which a part is kept for what comes after it.
    pub fn within(cx: &OpContext) -> Self {
        let left = cx.left();
        let limit = left.saturating_sub(RESERVE).max(left / 2).min(LONGEST_WAIT);
        Self { until: Instant::now() + limit, pause: FIRST_PAUSE }
    }

    /// Waits until the next look; `what` has not come about yet.
    ///
    /// # Errors
    /// `DeadlineExceeded` when the time is over.
    pub async fn pause(&mut self, what: impl FnOnce() -> String) -> Result<(), Status> {
        let pause = self.pause.mul_f64(0.75 + cloud_client::draw() / 2.0);
        if Instant::now() + pause >= self.until {
            return Err(Status::new(Code::DeadlineExceeded, what()));
        }
        tokio::time::sleep(pause).await;
        self.pause = self.pause.mul_f64(1.5).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Waits until Nova has made a server.
///
/// # Errors
/// The server's fault; `Aborted` when somebody deletes it meanwhile.
pub async fn built(cloud: &Session<'_>, id: &str) -> Result<Server, Unbuilt> {
    let mut wait = Wait::within(cloud.cx);
    loop {
        match cloud.server(id).await {
            Ok(Some(server)) => match State::of(&server) {
                State::Building => {}
                State::Built if server.status == "ACTIVE" => return Ok(server),
                // A new server that is neither ACTIVE nor in ERROR has been touched by somebody.
                State::Built | State::Failed => return Err(Unbuilt::Surely(lookup::fault(&server))),
                State::Ending | State::Gone => return Err(Unbuilt::Surely(deleted_meanwhile(id))),
            },
            Ok(None) => return Err(Unbuilt::Surely(deleted_meanwhile(id))),
            // What passes may pass while the wait lasts.
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
    /// It has failed, is gone, or takes too long.
    Surely(Status),
    /// It can't be looked at, and may be built all the same.
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
