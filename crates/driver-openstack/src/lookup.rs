//! Decides what is found: whose servers, ports and volumes are, which one backs a machine, and what its state means. Pure.

use machine_driver::{Code, NodeAddress, OwnerTags, Status, VmIdentity};
use serde_json::{Value, json};

use crate::{errors, neutron::Port, nova::Server, rules::network_of, spec, storage::Volume};

const PREFIX: &str = "openstack:///";

/// Where a provider id says that a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// `None` in the spelling of the cloud's controller manager.
    pub region: Option<&'a str>,
    pub id: &'a str,
}

impl<'a> Place<'a> {
    /// The place of `openstack:///REGION/ID` or `openstack:///ID`.
    pub fn of(provider_id: &'a str) -> Option<Self> {
        // The controller manager writes the region in the place of a host.
        let path = provider_id.strip_prefix("openstack://")?;
        let path = path.strip_prefix('/').unwrap_or(path);
        let (region, id) = path.rsplit_once('/').map_or((None, path), |(region, id)| (Some(region), id));
        let is_region = region.is_none_or(|region| !region.is_empty() && !region.contains('/'));
        (is_id(id) && is_region).then_some(Self { region, id })
    }
}

/// Whether a text can be the id of a server: it becomes a part of a path.
pub fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// The provider id of a server.
pub fn provider_id(region: &str, id: &str) -> String {
    format!("{PREFIX}{region}/{id}")
}

/// Who a server is. Of several networks nobody can say in which one the others look for it.
pub fn identity(region: &str, server: &Server, machine: &str) -> VmIdentity {
    let networks: Vec<_> = server.addresses.values().collect();
    let addresses = match networks.as_slice() {
        [addresses] => addresses
            .iter()
            .filter(|address| address.kind.as_deref() != Some("floating"))
            .map(|address| NodeAddress { address: address.addr.clone(), type_: "InternalIP".to_owned() })
            .collect(),
        _ => Vec::new(),
    };
    VmIdentity { provider_id: provider_id(region, &server.id), node_name: machine.to_owned(), addresses }
}

/// What the state of a server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nova still makes it.
    Building,
    /// Its making, or something later, has failed.
    Failed,
    /// It exists: running, or stopped or the like by somebody.
    Built,
    /// Its deletion has begun. Nova goes on to call it ACTIVE.
    Ending,
    /// It is gone.
    Gone,
}

impl State {
    /// The state of a server.
    pub fn of(server: &Server) -> Self {
        match server.status.as_str() {
            "DELETED" | "SOFT_DELETED" => Self::Gone,
            _ if matches!(server.task_state.as_deref(), Some("deleting" | "soft-deleting")) => Self::Ending,
            "BUILD" => Self::Building,
            "ERROR" => Self::Failed,
            _ => Self::Built,
        }
    }
}

/// The failure of a server that is not built, in the original's words.
pub fn fault(server: &Server) -> Status {
    let mut message = format!("server [ID={:?}] reached unexpected status {:?}", server.id, server.status);
    let Some(fault) = &server.fault else { return Status::new(Code::Internal, message) };
    message = format!("{message}, fault: {} (code {})", fault.message, fault.code);
    let code = if errors::tells_of_exhaustion(&fault.message) { Code::ResourceExhausted } else { Code::Internal };
    Status::new(code, message)
}

/// What backs a machine.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Nothing.
    Nothing,
    /// This server.
    Server(Box<Server>),
    /// A server whose deletion has begun, which still has the machine's port.
    Ending(String),
}

impl Backing {
    /// What backs a machine that has these servers, all of them ours.
    ///
    /// # Errors
    /// `OutOfRange` for several.
    pub fn of(servers: Vec<Server>) -> Result<Self, Status> {
        let (ending, mut live): (Vec<_>, Vec<_>) =
            servers.into_iter().partition(|server| State::of(server) == State::Ending);
        match (live.len(), ending.into_iter().next()) {
            (0, None) => Ok(Self::Nothing),
            (0, Some(ending)) => Ok(Self::Ending(ending.id)),
            (1, _) => Ok(Self::Server(Box::new(live.remove(0)))),
            _ => Err(too_many(&live)),
        }
    }
}

/// More servers than one back the machine.
fn too_many(servers: &[Server]) -> Status {
    let ids: Vec<&str> = servers.iter().map(|server| server.id.as_str()).collect();
    Status::new(Code::OutOfRange, format!("multiple servers found for the machine: [{}]", ids.join(", ")))
}

/// Those of the servers that are there and ours.
pub fn ours(servers: Vec<Server>, owner: &OwnerTags) -> Vec<Server> {
    servers.into_iter().filter(|server| owns(owner, server) && State::of(server) != State::Gone).collect()
}

fn owns(owner: &OwnerTags, server: &Server) -> bool {
    owner.own(|key| server.metadata.contains_key(key))
}

/// The server that a machine names by its id; `None` when it is gone or another's.
///
/// The tags of a class are edited while its machines live: one that has the machine's name, and a key of the class's cluster, is
/// the machine's whatever its other keys are.
pub fn named_by_id(server: Server, owner: &OwnerTags, machine: &str) -> Option<Server> {
    let is_of_cluster =
        || server.name == machine && owner.share_a_cluster_with(|key| server.metadata.contains_key(key));
    (State::of(&server) != State::Gone && (owns(owner, &server) || is_of_cluster())).then_some(server)
}

/// Whose the things are that were made for a machine with these servers: the class's owner, and those that the servers name, since
/// the class may have been edited.
pub fn owners_of(owner: &OwnerTags, servers: &[Server]) -> Vec<OwnerTags> {
    let of_servers = servers.iter().filter_map(|server| spec::owner_tags(server.metadata.keys()));
    [owner.clone()].into_iter().chain(of_servers).collect()
}

/// What follows a page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPage {
    /// Nothing.
    End,
    /// The page that a link of this one names by its query.
    Linked(String),
    /// The page that begins behind the thing with this id.
    Behind(String),
    /// The first page: the list is begun anew.
    First,
}

/// What follows a page of servers.
///
/// Nova reads the servers that it is about to build, then those that it has built or begun to build, and fills a page with
/// them. A server that it finds in both counts twice for the size of the page and is shown once: the page is short then,
/// lacks a link, and others follow.
///
/// A page must not begin behind a server that is being built. When Nova begins to build that server between the two
/// requests, the second one leaves out all servers that are still to be built.
pub fn next_page(page: &[Server], link: Option<String>) -> NextPage {
    let is_building = |server: &Server| State::of(server) == State::Building;
    match (page.last(), link) {
        (Some(last), None) if page.iter().any(is_building) => NextPage::Behind(last.id.clone()),
        (_, None) => NextPage::End,
        (Some(last), Some(_)) if is_building(last) => NextPage::First,
        (_, Some(link)) => NextPage::Linked(link),
    }
}

/// What stands in the description of a port that the driver makes: a port gets its tags only after it is made, and an
/// answer that is lost in between must not make it a stranger.
pub fn mark(owner: &OwnerTags) -> String {
    format!("made by machine-controller-manager for {owner}")
}

/// Whether a port of the machine's name is ours.
pub fn owns_port(owner: &OwnerTags, port: &Port) -> bool {
    owner.own(|key| port.tags.iter().any(|tag| tag == key)) || port.description.as_deref() == Some(&mark(owner))
}

/// The tags that a port must have in place of those it has; `None` when nothing is missing.
pub fn tags_of_port<'t>(owner: &'t OwnerTags, port: &'t Port) -> Option<Vec<&'t str>> {
    let missing: Vec<&str> = owner.keys().filter(|key| !port.tags.iter().any(|tag| tag == key)).collect();
    let kept = port.tags.iter().map(String::as_str);
    (!missing.is_empty()).then(|| kept.chain(missing.iter().copied()).collect())
}

/// The address pairs of a port in place of those it has: the same and those of the pod networks that are missing (O1);
/// `None` when nothing is missing.
pub fn pairs<'c>(port: &Port, pod_networks: impl IntoIterator<Item = &'c str>) -> Option<Vec<Value>> {
    let of = |pair: &Value| pair.get("ip_address").and_then(Value::as_str).and_then(network_of);
    let mut pairs = port.allowed_address_pairs.clone();
    for network in pod_networks {
        let wanted = network_of(network);
        if !pairs.iter().any(|pair| of(pair) == wanted) {
            pairs.push(json!({"ip_address": network}));
        }
    }
    (pairs.len() > port.allowed_address_pairs.len()).then_some(pairs)
}

/// What becomes of a volume of the machine's name that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// A server can boot from it.
    Ready,
    /// It is being made, or let go by a server: look again.
    Changing,
    /// It is of no use.
    Broken,
    /// A server has it.
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

/// Those of the volumes that are ours.
pub fn our_volumes(volumes: Vec<Volume>, owners: &[OwnerTags]) -> Vec<Volume> {
    let is_ours = |volume: &Volume| owners.iter().any(|owner| owner.own(|key| volume.metadata.contains_key(key)));
    volumes.into_iter().filter(is_ours).collect()
}

/// The one of this name among those that a service has found, as the original resolves names.
///
/// # Errors
/// `NotFound` for none, `OutOfRange` for several.
pub fn unique<'f, T>(kind: &str, name: &str, found: &'f [T], is_named: impl Fn(&T) -> bool) -> Result<&'f T, Status> {
    let named: Vec<&T> = found.iter().filter(|thing| is_named(thing)).collect();
    match named.as_slice() {
        [one] => Ok(one),
        [] => Err(Status::new(Code::NotFound, format!("Unable to find {kind} with name {name}"))),
        _ => Err(Status::new(
            Code::OutOfRange,
            format!("Found {} resources of kind {kind} with name {name}", named.len()),
        )),
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
