//! Deletes the instance of a machine. Its disks go with it, unless the class keeps them.

use machine_driver::{Code, Status};

use crate::{
    compute::Session,
    errors,
    lookup::{self, Protection},
    plan::{Known, Reach, Removal},
    resources::{Instance, Operation},
    search,
    subject::Subject,
    waiting::{self, Waited},
    zone::{ProviderId, Zone},
};

/// How an instance was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundBy {
    /// The provider id of the machine.
    Id,
    /// The provider id in a list: the machine is made up by the collector of orphans.
    ListedId,
    /// The name of the machine, and the tags of its owner.
    Name,
}

/// Deletes the instance of a machine.
///
/// # Errors
/// `NotFound` if there is none, `FailedPrecondition` if it must not be deleted, `Unavailable` while an instance may still appear.
pub async fn machine(subject: &Subject<'_>, gce: &Session<'_>) -> Result<(), Status> {
    let failed = |status: Status| {
        let message = format!("Delete machine {:?} failed: {}", subject.shown_name(), status.message);
        Status { message, ..status }
    };
    let is_gone = || lookup::not_found(subject.shown_name());
    if let Some(id) = subject.provider_id()? {
        let by = if subject.machine.metadata.uid.is_some() { FoundBy::Id } else { FoundBy::ListedId };
        let found = gce.instance(&id.zone, &id.instance).await.map_err(|failure| failed(failure.into()))?;
        let Some(found) = found else { return Err(is_gone()) };
        return instance(subject, gce, &id, (&found, by)).await.map_err(failed);
    }
    let Some(name) = subject.name() else { return Err(is_gone()) };
    let known = subject.known()?;
    // An instance is deleted even if its operation can't be asked for.
    let is_running = creation_runs(&known, gce).await;
    let found = search::by_name(&known, gce, name, Reach::All).await.map_err(|failure| failed(failure.into()))?;
    match known.removal(&found) {
        Removal::Delete(ours) => {
            for (zone, found) in ours {
                let id = ProviderId { zone: zone.clone(), instance: name.to_owned() };
                instance(subject, gce, &id, (found, FoundBy::Name)).await.map_err(failed)?;
            }
            Ok(())
        }
        Removal::Refuse(status) => Err(failed(status)),
        Removal::Nothing if is_running.map_err(failed)? => {
            let message = "the creation of the instance has not ended; its instance is deleted as soon as it is shown";
            Err(failed(Status::new(Code::Unavailable, message)))
        }
        Removal::Nothing => Err(is_gone()),
    }
}

/// Whether the operation that creates the instance still runs.
async fn creation_runs(known: &Known<'_>, gce: &Session<'_>) -> Result<bool, Status> {
    let Some((zone, operation)) = known.operation() else { return Ok(false) };
    Ok(gce.operation(&zone, operation).await?.is_some_and(|operation| !operation.is_done()))
}

/// Deletes an instance, which was found in this way, and waits until it is gone.
async fn instance(
    subject: &Subject<'_>,
    gce: &Session<'_>,
    id: &ProviderId,
    (instance, by): (&Instance, FoundBy),
) -> Result<(), Status> {
    let ProviderId { zone, instance: name } = id;
    match by {
        FoundBy::Id => lookup::check_named_by_id(instance, id, &subject.tags, subject.shown_name())?,
        FoundBy::ListedId => {
            let owner = subject.owner()?;
            if !lookup::is_owned(instance, owner) {
                let message = format!("instance {} lacks the network tags {owner}", zone.provider_id(name));
                return Err(Status::new(Code::FailedPrecondition, message));
            }
        }
        FoundBy::Name => {}
    }
    match Protection::of(instance, &subject.spec, subject.machine) {
        Protection::Absent => {}
        Protection::Lifted => {
            let operation = gce.lift_protection(zone, name).await?;
            ended(gce, zone, operation).await?;
        }
        Protection::Kept => return Err(lookup::protected(zone, name)),
    }
    let Some(operation) = gce.delete(zone, name).await? else { return Ok(()) };
    ended(gce, zone, operation).await
}

/// Waits for the end of an operation of a deletion. That the instance does not exist any more is a success.
async fn ended(gce: &Session<'_>, zone: &Zone, operation: Operation) -> Result<(), Status> {
    let running = operation.name.clone();
    match waiting::until_done(gce, zone, operation).await? {
        Waited::StillRuns => {
            let message = format!("operation {running} has not ended yet; the next attempt deletes again");
            Err(Status::new(Code::DeadlineExceeded, message))
        }
        // Whether the instance is gone is found out by the next attempt.
        Waited::Forgotten => Err(Status::new(Code::Unavailable, format!("GCE does not know operation {running}"))),
        Waited::Done(operation) => match errors::of_operation(&operation.failures()) {
            Some(status) if status.code != Code::NotFound => Err(status),
            _ => Ok(()),
        },
    }
}
