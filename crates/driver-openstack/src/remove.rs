//! Deletes servers and what was made for them, and waits until nothing is left.

use std::time::Duration;

use cloud_client::FailureKind;
use machine_driver::{Code, Instant, OwnerTags, Status};

use crate::{
    cloud::Session,
    lookup::{self, Disk, State},
    nova::Server,
    spec::RootDisk,
    storage::Volume,
    subject::{Subject, Wait},
};

/// Nova may lose a deletion; it is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Deletes the servers of a machine, and what was made for them.
pub async fn machine(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<(), Status> {
    let servers = subject.servers(cloud).await?;
    all(subject, cloud, &servers).await
}

/// Deletes all servers of this name that are ours, and what was made for them.
pub async fn by_name(subject: &Subject<'_>, cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    let servers = lookup::ours(cloud.servers_named(name).await?, &subject.owner);
    all(subject, cloud, &servers).await
}

/// Deletes these servers, all of them ours, and what was made for the machine.
async fn all(subject: &Subject<'_>, cloud: &Session<'_>, servers: &[Server]) -> Result<(), Status> {
    for server in servers {
        cloud.delete_server(&server.id).await?;
    }
    for server in servers {
        gone(cloud, &server.id).await?;
    }
    // Nothing is looked for by an empty name.
    let Ok(name) = subject.name() else { return Ok(()) };
    let owners = lookup::owners_of(&subject.owner, servers);
    ports(&owners, cloud, name).await?;
    match subject.spec.root_disk() {
        RootDisk::Own { .. } => volumes(&owners, cloud, name).await,
        // The class may have asked for a volume when the server was made.
        RootDisk::OfFlavor | RootDisk::MadeByNova(_) if servers.iter().any(|server| !server.volumes.is_empty()) => {
            match volumes(&owners, cloud, name).await {
                // They may be volumes of pods, and the login need not know Cinder.
                Err(status) if status.code == Code::PermissionDenied => Ok(()),
                outcome => outcome,
            }
        }
        RootDisk::OfFlavor | RootDisk::MadeByNova(_) => Ok(()),
    }
}

/// Waits until a server is gone.
async fn gone(cloud: &Session<'_>, id: &str) -> Result<(), Status> {
    let (mut wait, mut asked) = (Wait::within(cloud.cx), Instant::now());
    let mut status = String::new();
    loop {
        match cloud.server(id).await {
            Ok(None) => return Ok(()),
            Ok(Some(server)) => match State::of(&server) {
                State::Gone => return Ok(()),
                State::Ending => status = server.status,
                State::Building | State::Failed | State::Built => {
                    status = server.status;
                    if asked.elapsed() > ASK_AGAIN {
                        cloud.delete_server(id).await?;
                        asked = Instant::now();
                    }
                }
            },
            Err(failure) if failure.kind == FailureKind::Permanent => return Err(failure.status),
            Err(_) => {}
        }
        wait.pause(|| format!("error while waiting for server [ID={id:?}] to be deleted: it is still {status}"))
            .await?;
    }
}

/// Whether something that is ours belongs to a server that lives: of two servers of one name only one has the port.
async fn is_in_use(cloud: &Session<'_>, server: &str) -> Result<bool, Status> {
    if server.is_empty() {
        return Ok(false);
    }
    // Anybody in the project can write anything there.
    if !lookup::is_id(server) {
        return Ok(true);
    }
    Ok(cloud.server(server).await?.is_some_and(|server| State::of(&server) != State::Gone))
}

async fn ports(owners: &[OwnerTags], cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    for port in cloud.ports_named(name).await? {
        if owners.iter().any(|owner| lookup::owns_port(owner, &port)) && !is_in_use(cloud, &port.device_id).await? {
            cloud.delete_port(&port.id).await?;
        }
    }
    Ok(())
}

async fn volumes(owners: &[OwnerTags], cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    for volume in lookup::our_volumes(cloud.volumes_named(name).await?, owners) {
        remove_volume(cloud, volume).await?;
    }
    Ok(())
}

/// Deletes a volume as soon as the server has let it go, and waits until it is gone.
async fn remove_volume(cloud: &Session<'_>, mut volume: Volume) -> Result<(), Status> {
    for attachment in &volume.attachments {
        if is_in_use(cloud, &attachment.server_id).await? {
            return Ok(());
        }
    }
    let (mut wait, mut asked) = (Wait::within(cloud.cx), false);
    loop {
        let id = volume.id.clone();
        match Disk::of(&volume) {
            Disk::Broken if asked => {
                return Err(Status::new(
                    Code::Internal,
                    format!("volume {id} can't be deleted: it is {}", volume.status),
                ));
            }
            Disk::Ready | Disk::Broken if !asked => match cloud.delete_volume(&id).await {
                Ok(()) => asked = true,
                // A server has not let it go yet, whatever the volume says.
                Err(failure) if failure.status.code == Code::InvalidArgument => {}
                Err(failure) => return Err(failure.into()),
            },
            Disk::Ready | Disk::Broken | Disk::Changing | Disk::InUse => {}
        }
        wait.pause(|| format!("volume {id} is still {}", volume.status)).await?;
        match cloud.volume(&id).await? {
            None => return Ok(()),
            Some(now) => volume = now,
        }
    }
}

#[cfg(test)]
#[path = "remove_tests.rs"]
mod tests;
