//! Creates the instance of a machine, or goes on with an earlier creation.
//!
//! Names of instances are unique in a zone, and a request id is carried out once. So a creation begins with the request for an instance, and GCE says
//! whether there is one: it refuses the name, or answers with the operation of an earlier request.

use cloud_client::{Failure, FailureKind};
use machine_driver::{Code, CreatedVm, SecretData, Status};
use serde_json::Value;

use crate::{
    body::{self, NewInstance},
    compute::Session,
    errors,
    lookup::{self, State},
    request_id,
    resources::{Instance, Operation},
    state::{self, Pending},
    subject::{Place, Subject},
    waiting::{self, Waited},
};

/// The most request ids that one call tries. A request id of an instance that has ended can't be used again.
const MAX_ATTEMPTS: u32 = 4;

/// The creation of an instance.
pub struct Creation<'a> {
    pub subject: &'a Subject<'a>,
    pub gce: Session<'a>,
    pub name: &'a str,
}

/// The end of one attempt.
enum Attempt {
    /// The machine has this instance.
    Created(Instance),
    /// The request id belongs to an earlier instance, which is gone.
    Outdated,
}

impl Creation<'_> {
    /// Creates the instance.
    ///
    /// # Errors
    /// The failure, with the state for the next call if there may be an instance later.
    pub async fn run(self) -> Result<CreatedVm, Status> {
        let (place, first, mut earlier) = self.begin().await?;
        for attempt in first..first.saturating_add(MAX_ATTEMPTS) {
            let pending = Pending {
                project: place.project().to_owned(),
                zone: place.zone().to_owned(),
                attempt,
                operation: earlier.take(),
                ended: false,
            };
            match self.attempt(&place, pending).await? {
                Attempt::Created(instance) => {
                    let vm = lookup::identity(&place, &instance);
                    let state = state::created(&vm.provider_id);
                    return Ok(CreatedVm { vm, last_known_state: Some(state) });
                }
                Attempt::Outdated => {}
            }
        }
        let status = Status::new(Code::Internal, "the instances of all earlier creations of this machine are gone");
        let next = Pending {
            project: place.project().to_owned(),
            zone: place.zone().to_owned(),
            attempt: first.saturating_add(MAX_ATTEMPTS),
            operation: None,
            ended: true,
        };
        Err(keeping(self.failed(status), &next))
    }

    /// Where the creation goes on, with which attempt, and which operation of it may still run.
    async fn begin(&self) -> Result<(Place, u32, Option<String>), Status> {
        let of_class = self.subject.place_of_class()?;
        let pending = self.subject.pending.as_ref();
        let (Some(pending), Some(place)) = (pending, self.subject.place_of_creation()) else {
            // An earlier process may have ended before it wrote where it creates the instance, and the class may have been edited since.
            let attempt = pending.map_or(0, |pending| pending.attempt);
            return Ok((self.place_of_name(of_class).await?, attempt, None));
        };
        if place == of_class || pending.operation.is_some() {
            return Ok((place, pending.attempt, pending.operation.clone()));
        }
        // The class names another zone now. An instance of the earlier creation, whose answer may have been lost, is not left behind.
        let there = self.gce.instance(&place, self.name).await.map_err(|failure| self.failed(failure.into()))?;
        let is_ours = there.is_some_and(|instance| lookup::is_owned(&instance, &self.subject.owner));
        let attempt = pending.attempt;
        Ok(if is_ours { (place, attempt, None) } else { (of_class, attempt.saturating_add(1), None) })
    }

    /// The place of an instance that the machine has already, or else the place of the class.
    async fn place_of_name(&self, of_class: Place) -> Result<Place, Status> {
        let owner = &self.subject.owner;
        let found = self.gce.named(of_class.project(), self.name).await;
        let mut found = found.map_err(|failure| self.failed(failure.into()))?;
        // GCE itself says whether there is one in the zone of the class.
        if found.iter().any(|(place, instance)| *place == of_class && lookup::is_owned(instance, owner)) {
            return Ok(of_class);
        }
        found.retain(|(place, _)| *place != of_class);
        if let Some((place, _)) = found.iter().find(|(_, instance)| lookup::is_owned(instance, owner)) {
            return Ok(place.clone());
        }
        if let Some((place, instance)) = found.iter().find(|(_, instance)| lookup::is_of_cluster(instance, owner)) {
            let status = lookup::of_another_role(place, instance, owner);
            return Err(self.failed(Status { code: Code::AlreadyExists, ..status }));
        }
        Ok(of_class)
    }

    async fn attempt(&self, place: &Place, pending: Pending) -> Result<Attempt, Status> {
        let operation = match &pending.operation {
            Some(name) => Operation { name: name.clone(), ..Operation::default() },
            None => match self.insert(place, pending.attempt).await {
                Ok(operation) => operation,
                Err(failure) if failure.reason == errors::ALREADY_EXISTS => {
                    return self.existing(place, failure.status).await;
                }
                Err(failure) => {
                    // A refused request leaves nothing. After another failure there may be an instance, also of an earlier try of the request.
                    let is_refusal = failure.kind == FailureKind::Permanent && failure.status.code != Code::Internal;
                    let status = self.failed(failure.into());
                    return Err(if is_refusal { status } else { keeping(status, &pending) });
                }
            },
        };
        let name = operation.name.clone();
        let running = Pending { operation: Some(name.clone()), ..pending.clone() };
        let waited = waiting::until_done(&self.gce, place, operation).await;
        match waited.map_err(|failure| keeping(self.failed(failure.into()), &running))? {
            Waited::StillRuns => {
                let message = format!("operation {name} has not ended yet; the next attempt waits for it");
                Err(keeping(self.failed(Status::new(Code::DeadlineExceeded, message)), &running))
            }
            Waited::Forgotten => Ok(Attempt::Outdated),
            Waited::Done(operation) => match errors::of_operation(&operation.failures()) {
                None => self.made(place, &running).await,
                Some(status) if status.code == Code::AlreadyExists => self.existing(place, status).await,
                Some(status) => {
                    // GCE would answer the same request id with the same failure.
                    let attempt = pending.attempt.saturating_add(1);
                    let next = Pending { operation: None, attempt, ended: true, ..pending };
                    // What is missing is a resource that the class names, not the instance.
                    let code = if status.code == Code::NotFound { Code::Internal } else { status.code };
                    Err(keeping(self.failed(Status { code, ..status }), &next))
                }
            },
        }
    }

    async fn insert(&self, place: &Place, attempt: u32) -> Result<Operation, Failure> {
        let Subject { spec, secret, machine, .. } = self.subject;
        let user_data = secret.get(SecretData::USER_DATA).unwrap_or_default();
        let new = NewInstance { spec, place, name: self.name, user_data };
        let body: Value = body::instance(new)?;
        self.gce.insert(place, &request_id::of(machine, attempt), &body).await
    }

    /// The instance of an operation that has ended well.
    async fn made(&self, place: &Place, running: &Pending) -> Result<Attempt, Status> {
        let found = self.gce.instance(place, self.name).await;
        let found = found.map_err(|failure| keeping(self.failed(failure.into()), running))?;
        Ok(found.map_or(Attempt::Outdated, Attempt::Created))
    }

    /// The instance that has the name already. `refusal` is what GCE says.
    ///
    /// # Errors
    /// `AlreadyExists` for an instance of another owner and for a disk with the name, `Aborted` for an instance that can't be used yet or any more.
    async fn existing(&self, place: &Place, refusal: Status) -> Result<Attempt, Status> {
        let found = self.gce.instance(place, self.name).await.map_err(|failure| self.failed(failure.into()))?;
        let id = place.provider_id(self.name);
        let Some(instance) = found else {
            // A disk that was kept when its instance was deleted has the instance's name.
            let is_of_instance = refusal.message.contains(&format!("/instances/{}'", self.name));
            let code = if is_of_instance { Code::Aborted } else { Code::AlreadyExists };
            return Err(self.failed(Status { code, ..refusal }));
        };
        if !lookup::is_owned(&instance, &self.subject.owner) {
            let message =
                format!("instance {id} exists and lacks the network tags {}; it is not touched", self.subject.owner);
            return Err(self.failed(Status::new(Code::AlreadyExists, message)));
        }
        match State::of(&instance) {
            State::Exists => Ok(Attempt::Created(instance)),
            State::BeingCreated | State::Ending => {
                let message = format!("instance {id} is {}", instance.status);
                Err(self.failed(Status::new(Code::Aborted, message)))
            }
        }
    }

    /// The failure with the text of the Go driver.
    fn failed(&self, status: Status) -> Status {
        let message = format!("Create machine {:?} failed: {}", self.name, errors::without_metadata(&status.message));
        Status { message, ..status }
    }
}

/// The failure with the state of a creation that the next call goes on with.
fn keeping(status: Status, pending: &Pending) -> Status {
    Status { last_known_state: Some(pending.state()), ..status }
}
