//! Creates the instance of a machine, or goes on with an earlier creation.
//!
//! Names of instances are unique in a zone, and a request id is carried out once. So a creation begins with the request for an instance, and GCE says
//! whether there is one: it refuses the name, or answers with the operation of an earlier request.

use cloud_client::{Failure, FailureKind};
use machine_driver::{Code, CreatedVm, OwnerTags, SecretData, Status};
use serde_json::Value;

use crate::{
    body::{self, NewInstance},
    compute::{Session, SilentZones},
    errors,
    lookup::{self, State},
    plan::{Attempt, Beginning},
    request_id,
    resources::{Instance, Operation},
    state::{self, Pending},
    subject::Subject,
    waiting::{self, Waited},
    zone::Zone,
};

/// The most request ids that one call tries. A request id of an instance that has ended can't be used again.
const MAX_ATTEMPTS: u32 = 4;

/// The creation of an instance.
pub struct Creation<'a> {
    pub subject: &'a Subject<'a>,
    pub owner: &'a OwnerTags,
    pub gce: Session<'a>,
    pub name: &'a str,
}

/// The end of one attempt.
enum Outcome {
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
        let Attempt { zone, number: first, operation: mut earlier } = self.begin().await?;
        for number in first..first.saturating_add(MAX_ATTEMPTS) {
            let pending = Pending { operation: earlier.take(), ..Pending::before(&zone, number) };
            match self.attempt(&zone, pending).await? {
                Outcome::Created(instance) => {
                    let vm = lookup::identity(&zone, &instance);
                    let state = state::created(&vm.provider_id);
                    return Ok(CreatedVm { vm, last_known_state: Some(state) });
                }
                Outcome::Outdated => {}
            }
        }
        let status = Status::new(Code::Internal, "the instances of all earlier creations of this machine are gone");
        let next = Pending { ended: true, ..Pending::before(&zone, first.saturating_add(MAX_ATTEMPTS)) };
        Err(keeping(self.failed(status), &next))
    }

    /// Asks GCE for what the plan needs to know of earlier creations.
    async fn begin(&self) -> Result<Attempt, Status> {
        let known = self.subject.known()?;
        match known.beginning() {
            Beginning::At(attempt) => Ok(attempt),
            Beginning::Look { zone, number } => {
                let found = self.gce.instance(&zone, self.name).await.map_err(|failure| self.failed(failure.into()))?;
                Ok(known.after_look(zone, number, found.as_ref()))
            }
            Beginning::Search { number } => {
                let found = self.gce.named(known.class.project(), self.name, SilentZones::Pass).await;
                let found = found.map_err(|failure| self.failed(failure.into()))?;
                let zone = known.after_search(self.owner, &found).map_err(|status| self.failed(status))?;
                Ok(Attempt { zone, number, operation: None })
            }
        }
    }

    async fn attempt(&self, zone: &Zone, pending: Pending) -> Result<Outcome, Status> {
        let operation = match &pending.operation {
            Some(name) => Operation { name: name.clone(), ..Operation::default() },
            None => match self.insert(zone, pending.attempt).await {
                Ok(operation) => operation,
                Err(failure) if failure.reason == errors::ALREADY_EXISTS => {
                    return self.existing(zone, failure.status).await;
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
        let waited = waiting::until_done(&self.gce, zone, operation).await;
        match waited.map_err(|failure| keeping(self.failed(failure.into()), &running))? {
            Waited::StillRuns => {
                let message = format!("operation {name} has not ended yet; the next attempt waits for it");
                Err(keeping(self.failed(Status::new(Code::DeadlineExceeded, message)), &running))
            }
            Waited::Forgotten => Ok(Outcome::Outdated),
            Waited::Done(operation) => match errors::of_operation(&operation.failures()) {
                None => self.made(zone, &running).await,
                Some(status) if status.code == Code::AlreadyExists => self.existing(zone, status).await,
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

    async fn insert(&self, zone: &Zone, attempt: u32) -> Result<Operation, Failure> {
        let Subject { spec, secret, machine, .. } = self.subject;
        let user_data = secret.get(SecretData::USER_DATA).unwrap_or_default();
        let new = NewInstance { spec, zone, name: self.name, user_data };
        let body: Value = body::instance(new)?;
        self.gce.insert(zone, &request_id::of(machine, attempt), &body).await
    }

    /// The instance of an operation that has ended well.
    async fn made(&self, zone: &Zone, running: &Pending) -> Result<Outcome, Status> {
        let found = self.gce.instance(zone, self.name).await;
        let found = found.map_err(|failure| keeping(self.failed(failure.into()), running))?;
        Ok(found.map_or(Outcome::Outdated, Outcome::Created))
    }

    /// The instance that has the name already. `refusal` is what GCE says.
    ///
    /// # Errors
    /// `AlreadyExists` for an instance of another owner and for a disk with the name, `Aborted` for an instance that can't be used yet or any more.
    async fn existing(&self, zone: &Zone, refusal: Status) -> Result<Outcome, Status> {
        let found = self.gce.instance(zone, self.name).await.map_err(|failure| self.failed(failure.into()))?;
        let id = zone.provider_id(self.name);
        let Some(instance) = found else {
            // A disk that was kept when its instance was deleted has the instance's name.
            let is_of_instance = refusal.message.contains(&format!("/instances/{}'", self.name));
            let code = if is_of_instance { Code::Aborted } else { Code::AlreadyExists };
            return Err(self.failed(Status { code, ..refusal }));
        };
        if !lookup::is_owned(&instance, self.owner) {
            let message = format!("instance {id} exists and lacks the network tags {}; it is not touched", self.owner);
            return Err(self.failed(Status::new(Code::AlreadyExists, message)));
        }
        match State::of(&instance) {
            State::Exists => Ok(Outcome::Created(instance)),
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
