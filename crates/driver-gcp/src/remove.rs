//! Deletes the instance of a machine. Its disks go with it, unless the class keeps them.

use machine_driver::{Code, Status};

use crate::{
    compute::Session,
    errors,
    lookup::{self, Protection},
    resources::Operation,
    subject::{InstanceLocation, Place, Subject},
    waiting::{self, Waited},
};

/// How an instance was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundBy {
    /// The provider id of the machine.
    Id,
    /// The provider id in a list: the machine is made up by the collector of orphans.
    ListedId,
    /// The name of the machine.
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
    if let Some(location) = subject.location()? {
        let by = if subject.machine.metadata.uid.is_some() { FoundBy::Id } else { FoundBy::ListedId };
        let was_there = instance(subject, gce, &location, by).await.map_err(failed)?;
        return if was_there { Ok(()) } else { Err(is_gone()) };
    }
    let Some(name) = subject.name() else { return Err(is_gone()) };
    let is_running = creation_runs(subject, gce).await.map_err(failed)?;
    let mut was_there = false;
    for place in subject.places()? {
        let location = InstanceLocation { place, name: name.to_owned() };
        was_there |= instance(subject, gce, &location, FoundBy::Name).await.map_err(failed)?;
    }
    if was_there {
        return Ok(());
    }
    if is_running {
        let message = "the creation of the instance has not ended; its instance is deleted as soon as it is shown";
        return Err(failed(Status::new(Code::Unavailable, message)));
    }
    Err(is_gone())
}

/// Whether the operation that creates the instance still runs.
async fn creation_runs(subject: &Subject<'_>, gce: &Session<'_>) -> Result<bool, Status> {
    let operation = subject.pending.as_ref().and_then(|pending| pending.operation.as_deref());
    let (Some(operation), Some(place)) = (operation, subject.place_of_creation()) else { return Ok(false) };
    Ok(gce.operation(&place, operation).await?.is_some_and(|operation| !operation.is_done()))
}

/// Deletes an instance and waits until it is gone. Returns whether there was one.
async fn instance(
    subject: &Subject<'_>,
    gce: &Session<'_>,
    location: &InstanceLocation,
    by: FoundBy,
) -> Result<bool, Status> {
    let InstanceLocation { place, name } = location;
    let Some(instance) = gce.instance(place, name).await? else { return Ok(false) };
    let is_owned = lookup::is_owned(&instance, &subject.owner);
    match by {
        FoundBy::Id => lookup::check_named_by_id(&instance, location, &subject.owner, subject.shown_name())?,
        FoundBy::ListedId if !is_owned => {
            let message = format!("instance {} lacks the network tags {}", place.provider_id(name), subject.owner);
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        FoundBy::Name if !is_owned => return Ok(false),
        FoundBy::ListedId | FoundBy::Name => {}
    }
    match Protection::of(&instance, &subject.spec, subject.machine) {
        Protection::Absent => {}
        Protection::Lifted => {
            let operation = gce.lift_protection(place, name).await?;
            ended(gce, place, operation).await?;
        }
        Protection::Kept => return Err(lookup::protected(place, name)),
    }
    let Some(operation) = gce.delete(place, name).await? else { return Ok(true) };
    ended(gce, place, operation).await.map(|()| true)
}

/// Waits for the end of an operation of a deletion. That the instance does not exist any more is a success.
async fn ended(gce: &Session<'_>, place: &Place, operation: Operation) -> Result<(), Status> {
    let running = operation.name.clone();
    match waiting::until_done(gce, place, operation).await? {
        Waited::StillRuns => {
            let message = format!("operation {running} has not ended yet; the next attempt deletes again");
            Err(Status::new(Code::DeadlineExceeded, message))
        }
        // Whether the instance is gone is found out by the next attempt.
        Waited::Forgotten => Err(Status::new(Code::Unavailable, format!("GCE does not know operation {running}"))),
        Waited::Done(operation) => match errors::of_operation(operation.failures()) {
            Some(status) if status.code != Code::NotFound => Err(status),
            _ => Ok(()),
        },
    }
}
