//! Deletes servers with their ports and volumes, and waits until all are deleted.

use cloud_client::FailureKind;
use machine_driver::{Instant, Status};

use crate::{
    cloud::Session,
    lookup,
    memory::Memory,
    nova::Server,
    plan::{Presence, ServerDeletion, VolumeDeletion, VolumeStep},
    storage::Volume,
    subject::{Subject, Wait, looked_for},
};

/// Deletes the servers of a machine with their ports and volumes.
pub async fn machine(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<(), Status> {
    let servers = subject.servers(cloud).await?;
    all(subject, cloud, &servers).await
}

/// Deletes all servers with this name that belong to the machine's owners, with their ports and volumes.
pub async fn by_name(subject: &Subject<'_>, cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    let servers = lookup::ours(cloud.servers_named(name).await?, &subject.memory.owners);
    all(subject, cloud, &servers).await
}

/// Deletes these servers and the ports and volumes of the machine. All the servers belong to the owner.
///
/// # Errors
/// The first failure, with a state that contains the keys of the servers. The next call may not find the servers any more.
async fn all(subject: &Subject<'_>, cloud: &Session<'_>, servers: &[Server]) -> Result<(), Status> {
    let memory = subject.memory.clone().with(servers);
    let ended = all_of(subject, &memory, cloud, servers).await;
    ended.map_err(|status| Status { last_known_state: Some(memory.state()), ..status })
}

async fn all_of(subject: &Subject<'_>, memory: &Memory, cloud: &Session<'_>, servers: &[Server]) -> Result<(), Status> {
    let mut failed = None;
    let mut ending = Vec::new();
    for server in servers {
        // A failure does not stop the others.
        match cloud.delete_server(&server.id).await {
            Ok(()) => ending.push(&server.id),
            Err(failure) => failed = failed.or(Some(failure.status)),
        }
    }
    for id in ending {
        failed = failed.or(gone(cloud, id).await.err());
    }
    if let Some(status) = failed {
        return Err(status);
    }
    // Without a name, ports and volumes can't be found.
    let Ok(name) = subject.name() else { return Ok(()) };
    ports(subject, memory, cloud, name).await?;
    // The class may have asked for a volume before, whatever it says now.
    volumes(subject, memory, cloud, name).await
}

/// Waits until a server is deleted.
async fn gone(cloud: &Session<'_>, id: &str) -> Result<(), Status> {
    let (mut wait, mut asked) = (Wait::within(cloud.cx), Instant::now());
    let (mut presence, mut status) = (Presence::BEGIN, String::new());
    loop {
        match cloud.server(id).await {
            Ok(server) => {
                let Some(now) = presence.after(server.as_ref()) else { return Ok(()) };
                presence = now;
                match ServerDeletion::next(server.as_ref(), asked.elapsed()) {
                    ServerDeletion::Wait => {}
                    ServerDeletion::Repeat => {
                        cloud.delete_server(id).await?;
                        asked = Instant::now();
                    }
                }
                status = server.map_or(status, |server| server.status);
            }
            Err(failure) if failure.kind == FailureKind::Permanent => return Err(failure.status),
            Err(_) => {}
        }
        wait.pause(|| format!("error while waiting for server [ID={id:?}] to be deleted: it is still {status}"))
            .await?;
    }
}

/// Whether a port or a volume is in use by a server that exists. It may be another server with the machine's name.
///
/// # Errors
/// `Aborted` if it is the machine's own server, which Nova has not shown before in this call.
async fn is_in_use(subject: &Subject<'_>, cloud: &Session<'_>, server: &str) -> Result<bool, Status> {
    if server.is_empty() {
        return Ok(false);
    }
    // Any user of the project can write any text into the field.
    if !lookup::is_id(server) {
        return Ok(true);
    }
    let Some(shown) = looked_for(cloud, server).await? else { return Ok(false) };
    let is_own = subject.place()?.is_some_and(|place| place.id == server);
    // A server without the keys of an owner has no machine (row O07).
    if is_own && subject.own_server(shown)?.is_some() { Err(lookup::shown_again(server)) } else { Ok(true) }
}

async fn ports(subject: &Subject<'_>, memory: &Memory, cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    for port in lookup::our_ports(cloud.ports_named(name).await?, &memory.owners) {
        if !is_in_use(subject, cloud, &port.device_id).await? {
            cloud.delete_port(&port.id).await?;
        }
    }
    Ok(())
}

async fn volumes(subject: &Subject<'_>, memory: &Memory, cloud: &Session<'_>, name: &str) -> Result<(), Status> {
    let found = cloud.volumes_if_any(memory.volumes, cloud.volumes_named(name)).await?;
    for volume in lookup::our_volumes(found, &memory.owners) {
        remove_volume(subject, cloud, volume).await?;
    }
    Ok(())
}

/// Deletes a volume as soon as it is detached, and waits until it is deleted.
async fn remove_volume(subject: &Subject<'_>, cloud: &Session<'_>, mut volume: Volume) -> Result<(), Status> {
    for attachment in &volume.attachments {
        // A host that has the volume can't be asked.
        let Some(server) = &attachment.server_id else { return Ok(()) };
        if is_in_use(subject, cloud, server).await? {
            return Ok(());
        }
    }
    let (mut wait, mut progress) = (Wait::within(cloud.cx), VolumeDeletion::BEGIN);
    loop {
        let id = volume.id.clone();
        match progress.next(&volume) {
            VolumeStep::Request => progress = progress.after(&id, cloud.delete_volume(&id).await)?,
            VolumeStep::Wait => {}
            VolumeStep::Fail(status) => return Err(status),
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
