//! Decides what the states of servers and volumes mean, and says them in words. Pure functions.

use machine_driver::{Code, Status};

use crate::{
    errors,
    nova::{Fault, Server},
    storage::Volume,
};

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nova is building the server.
    Building,
    /// Building, or a later operation, has failed.
    Failed,
    /// The server exists. It may be running, or a user may have stopped it.
    Built,
    /// The deletion of the server has begun. Nova may still report it as ACTIVE.
    Ending,
    /// The server is deleted, and can be restored until Nova reclaims it. It still has its ports and volumes.
    SoftDeleted,
    /// The server is deleted.
    Gone,
}

impl State {
    /// The state of a server.
    pub fn of(server: &Server) -> Self {
        match server.status.as_str() {
            "DELETED" => Self::Gone,
            "SOFT_DELETED" => Self::SoftDeleted,
            _ if matches!(server.task_state.as_deref(), Some("deleting" | "soft-deleting")) => Self::Ending,
            "BUILD" => Self::Building,
            "ERROR" => Self::Failed,
            _ => Self::Built,
        }
    }

    /// Whether the deletion of the server has ended.
    pub fn is_deleted(self) -> bool {
        matches!(self, Self::SoftDeleted | Self::Gone)
    }
}

/// The failure of a server that is not built. The text is that of the Go driver.
pub fn fault(server: &Server) -> Status {
    let message =
        format!("server [ID={:?}] reached unexpected status {:?}{}", server.id, server.status, said_of(server));
    let is_exhausted = server.fault.as_ref().is_some_and(|fault| errors::tells_of_exhaustion(&fault.message));
    Status::new(if is_exhausted { Code::ResourceExhausted } else { Code::Internal }, message)
}

/// The fault of a server, for the end of a message.
fn said_of(server: &Server) -> String {
    let said = |fault: &Fault| format!(", fault: {} (code {})", fault.message, fault.code);
    server.fault.as_ref().map(said).unwrap_or_default()
}

/// The state of a server in words.
pub fn server_in_words(server: &Server) -> String {
    let task = server.task_state.as_ref().map(|task| format!(" ({task})")).unwrap_or_default();
    format!("{}{task}{}", server.status, said_of(server))
}

/// The state of a volume of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// A server can boot from the volume.
    Ready,
    /// The volume is being created, detached or deleted.
    Changing,
    /// The volume can't be used.
    Broken,
    /// The volume is attached to a server.
    InUse,
}

impl Disk {
    /// The state of a volume.
    pub fn of(volume: &Volume) -> Self {
        match volume.status.as_str() {
            "available" => Self::Ready,
            "creating" | "downloading" | "detaching" | "deleting" | "reserved" => Self::Changing,
            "in-use" | "attaching" => Self::InUse,
            _ => Self::Broken,
        }
    }
}

/// The state of a volume in words.
pub fn volume_in_words(volume: &Volume) -> String {
    let users: Vec<&str> = volume.attachments.iter().filter_map(|one| one.server_id.as_deref()).collect();
    let of = if users.is_empty() { String::new() } else { format!(" by server {}", users.join(", ")) };
    format!("{}{of}", volume.status)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn server(status: &str, task: Option<&str>) -> Server {
        Server {
            id: "1".to_owned(),
            status: status.to_owned(),
            task_state: task.map(str::to_owned),
            ..Server::default()
        }
    }

    #[rstest]
    #[case("BUILD", None, State::Building)]
    #[case("BUILD", Some("spawning"), State::Building)]
    #[case("ACTIVE", None, State::Built)]
    #[case("ACTIVE", Some("deleting"), State::Ending)]
    #[case("ERROR", Some("deleting"), State::Ending)]
    #[case("ERROR", None, State::Failed)]
    #[case("SHUTOFF", None, State::Built)]
    #[case("UNKNOWN", None, State::Built)]
    #[case("SOFT_DELETED", None, State::SoftDeleted)]
    #[case("DELETED", None, State::Gone)]
    fn a_state_means(#[case] status: &str, #[case] task: Option<&str>, #[case] expected: State) {
        assert_eq!(State::of(&server(status, task)), expected);
    }

    #[rstest]
    #[case::no_capacity(
        Some("No valid host was found. There are not enough hosts available."),
        Code::ResourceExhausted
    )]
    #[case::something_else(Some("disk on fire"), Code::Internal)]
    #[case::no_fault(None, Code::Internal)]
    fn a_fault_has_its_code(#[case] fault: Option<&str>, #[case] code: Code) {
        let fault = fault.map(|message| Fault { code: 500, message: message.to_owned() });
        let status = super::fault(&Server { fault: fault.clone(), ..server("ERROR", None) });
        assert_eq!(status.code, code);
        let rest = fault.map(|fault| format!(", fault: {} (code 500)", fault.message)).unwrap_or_default();
        assert_eq!(status.message, format!("server [ID=\"1\"] reached unexpected status \"ERROR\"{rest}"));
    }
}
