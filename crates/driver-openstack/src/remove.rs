//! Deletes servers with their ports and volumes, and waits until all are deleted.

use cloud_client::FailureKind;
use machine_driver::{Instant, Status};

use crate::{
    cloud::Session,
    lookup::{self, Deletion, User},
    memory::Memory,
    nova::Server,
    plan::{Presence, ServerDeletion, VolumeDeletion, VolumeStep},
    state::{self, State},
    storage::Volume,
    subject::{Subject, Wait, looked_for},
};

/// Deletes the servers of a machine with their ports and volumes.
///
/// # Errors
/// `Aborted` before anything is deleted, if the state of the machine lacks what the servers show.
pub async fn machine(subject: &Subject<'_>, cloud: &Session<'_>) -> Result<(), Status> {
    let servers = subject.servers(cloud).await?;
    match subject.deletion(&servers) {
        Deletion::Machine => subject.memory.check_kept(&subject.memory_with(&servers), subject.spec.root_disk())?,
        // Nothing keeps a state for it.
        Deletion::Orphan | Deletion::Remains => {}
    }
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
    let memory = subject.memory_with(servers);
    let ended = all_of(subject, &memory, cloud, servers).await;
    ended.map_err(|status| Status { last_known_state: Some(memory.state()), ..status })
}

async fn all_of(subject: &Subject<'_>, memory: &Memory, cloud: &Session<'_>, servers: &[Server]) -> Result<(), Status> {
    let mut failed = None;
    let (mut ending, mut ended) = (Vec::new(), Vec::new());
    for server in servers {
        // A failure does not stop the others.
        match cloud.delete_server(&server.id).await {
            Ok(_) => ending.push(&server.id),
            Err(failure) => failed = failed.or(Some(failure.status)),
        }
    }
    for id in ending {
        match gone(cloud, id).await {
            Ok(State::SoftDeleted) => {}
            Ok(_) => ended.push(id.as_str()),
            Err(status) => failed = failed.or(Some(status)),
        }
    }
    if let Some(status) = failed {
        return Err(status);
    }
    // Without a name, ports and volumes can't be found.
    let Ok(name) = subject.name() else { return Ok(()) };
    let leftovers = Leftovers { subject, memory, cloud, deletion: subject.deletion(servers), ended: &ended };
    leftovers.remove_ports(name).await?;
    // The class may have asked for a volume before, whatever it says now.
    leftovers.remove_volumes(name).await
}

/// Waits until a server is deleted, and returns its last state.
async fn gone(cloud: &Session<'_>, id: &str) -> Result<State, Status> {
    let (mut wait, mut asked, mut requests) = (Wait::within(cloud.cx), Instant::now(), 1);
    let (mut presence, mut status) = (Presence::BEGIN, String::new());
    loop {
        match cloud.server(id).await {
            Ok(server) => {
                let Some(now) = presence.after(server.as_ref()) else {
                    return Ok(server.as_ref().map_or(State::Gone, State::of));
                };
                presence = now;
                status = server.as_ref().map_or(status, state::server_in_words);
                match ServerDeletion::next(server.as_ref(), requests, asked.elapsed(), wait.unchanged(&status)) {
                    ServerDeletion::Wait => {}
                    ServerDeletion::Repeat => {
                        cloud.delete_server(id).await?;
                        (asked, requests) = (Instant::now(), requests + 1);
                    }
                    ServerDeletion::Fail(status) => return Err(status),
                }
            }
            Err(failure) if failure.kind == FailureKind::Permanent => return Err(failure.status),
            Err(_) => {}
        }
        wait.pause(|| format!("error while waiting for server [ID={id:?}] to be deleted: it is still {status}"))
            .await?;
    }
}

/// The ports and volumes of a machine whose servers are deleted.
struct Leftovers<'a> {
    subject: &'a Subject<'a>,
    memory: &'a Memory,
    cloud: &'a Session<'a>,
    deletion: Deletion,
    /// The ids of the servers that this call has deleted.
    ended: &'a [&'a str],
}

impl Leftovers<'_> {
    /// Whether a port or a volume is in use by a server that exists. It may be another server with the machine's name.
    ///
    /// # Errors
    /// `Aborted` if it is the machine's own server, which Nova has not shown before in this call.
    async fn is_in_use(&self, server: &str) -> Result<bool, Status> {
        let Self { subject, cloud, deletion, ended, .. } = *self;
        let own = subject.place()?.map(|place| place.id);
        match lookup::user(server, ended, own, deletion) {
            User::Nobody => return Ok(false),
            User::Another => return Ok(true),
            User::AskNova => {}
        }
        let Some(shown) = looked_for(cloud, server).await?.filter(|shown| State::of(shown) != State::Gone) else {
            return Ok(false);
        };
        let is_own = own.is_some_and(|own| lookup::is_same_id(own, server));
        // A server without the keys of an owner has no machine (row O07).
        if is_own && subject.own_server(shown)?.is_some() { Err(lookup::shown_again(server)) } else { Ok(true) }
    }

    async fn remove_ports(&self, name: &str) -> Result<(), Status> {
        let mut wait = Wait::within(self.cloud.cx);
        loop {
            let found = self.cloud.ports_named(name).await?;
            let mut unknown = None;
            for port in lookup::ports_to_delete(found, &self.memory.owners, self.deletion) {
                if !self.is_in_use(&port.device_id).await? && self.cloud.delete_port(&port.id).await?.is_none() {
                    unknown = Some(port.id);
                }
            }
            // Neutron has just shown the port. Another server of its API may not know the port yet.
            let Some(id) = unknown else { return Ok(()) };
            wait.pause(|| format!("port {id} is listed, and Neutron does not find it")).await?;
        }
    }

    async fn remove_volumes(&self, name: &str) -> Result<(), Status> {
        let found = self.cloud.volumes_if_any(self.memory.volumes, self.cloud.volumes_named(name)).await?;
        for volume in lookup::volumes_to_delete(found, &self.memory.owners, self.deletion) {
            self.remove_volume(volume).await?;
        }
        Ok(())
    }

    /// Deletes a volume as soon as it is detached, and waits until it is deleted.
    async fn remove_volume(&self, mut volume: Volume) -> Result<(), Status> {
        for attachment in &volume.attachments {
            // A host that has the volume can't be asked.
            let Some(server) = &attachment.server_id else { return Ok(()) };
            if self.is_in_use(server).await? {
                return Ok(());
            }
        }
        let (mut wait, mut progress, mut unseen) = (Wait::within(self.cloud.cx), VolumeDeletion::BEGIN, 0);
        let id = volume.id.clone();
        loop {
            match progress.next(&volume, wait.unchanged(&state::volume_in_words(&volume))) {
                // The volume may be gone.
                _ if unseen > 0 => {}
                VolumeStep::Request => progress = progress.after(&id, self.cloud.delete_volume(&id).await)?,
                VolumeStep::Wait => {}
                VolumeStep::Fail(status) => return Err(status),
            }
            wait.pause(|| format!("volume {id} is still {}", volume.status)).await?;
            let shown = self.cloud.volume(&id).await?;
            unseen = if shown.is_some() { 0 } else { unseen + 1 };
            if progress.is_gone(unseen) {
                return Ok(());
            }
            volume = shown.unwrap_or(volume);
        }
    }
}

#[cfg(test)]
#[path = "remove_tests.rs"]
mod tests;
