//! Deletes the instance of a machine. Its disks go with it, unless the class keeps them.

use machine_driver::{Code, Status};

use crate::{
    compute::Session,
    errors,
    lookup::{self, Protection},
    resources::{Instance, Operation},
    search::{self, Reach},
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
    if let Some(location) = subject.location()? {
        let by = if subject.machine.metadata.uid.is_some() { FoundBy::Id } else { FoundBy::ListedId };
        let found = gce.instance(&location.place, &location.name).await.map_err(|failure| failed(failure.into()))?;
        let Some(found) = found else { return Err(is_gone()) };
        return instance(subject, gce, &location, (&found, by)).await.map_err(failed);
    }
    let Some(name) = subject.name() else { return Err(is_gone()) };
    // An instance is deleted even if its operation can't be asked for.
    let is_running = creation_runs(subject, gce).await;
    let found = search::by_name(subject, gce, name, Reach::All).await.map_err(|failure| failed(failure.into()))?;
    let is_owned = |(_, found): &search::Found| lookup::is_owned(found, &subject.owner);
    let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_owned);
    for (place, found) in &ours {
        let location = InstanceLocation { place: place.clone(), name: name.to_owned() };
        instance(subject, gce, &location, (found, FoundBy::Name)).await.map_err(failed)?;
    }
    if !ours.is_empty() {
        return Ok(());
    }
    if let Some((place, other)) = others.iter().find(|(_, other)| lookup::is_of_cluster(other, &subject.owner)) {
        return Err(failed(lookup::of_another_role(place, other, &subject.owner)));
    }
    if is_running.map_err(failed)? {
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

/// Deletes an instance, which was found in this way, and waits until it is gone.
async fn instance(
    subject: &Subject<'_>,
    gce: &Session<'_>,
    location: &InstanceLocation,
    (instance, by): (&Instance, FoundBy),
) -> Result<(), Status> {
    let InstanceLocation { place, name } = location;
    match by {
        FoundBy::Id => lookup::check_named_by_id(instance, location, &subject.owner, subject.shown_name())?,
        FoundBy::ListedId if !lookup::is_owned(instance, &subject.owner) => {
            let message = format!("instance {} lacks the network tags {}", place.provider_id(name), subject.owner);
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        FoundBy::ListedId | FoundBy::Name => {}
    }
    match Protection::of(instance, &subject.spec, subject.machine) {
        Protection::Absent => {}
        Protection::Lifted => {
            let operation = gce.lift_protection(place, name).await?;
            ended(gce, place, operation).await?;
        }
        Protection::Kept => return Err(lookup::protected(place, name)),
    }
    let Some(operation) = gce.delete(place, name).await? else { return Ok(()) };
    ended(gce, place, operation).await
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
        Waited::Done(operation) => match errors::of_operation(&operation.failures()) {
            Some(status) if status.code != Code::NotFound => Err(status),
            _ => Ok(()),
        },
    }
}
