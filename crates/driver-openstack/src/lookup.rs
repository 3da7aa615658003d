//! Decides who owns servers, ports and volumes, and which of them belong to a machine and serve it. Pure functions.

use std::collections::BTreeSet;

use jiff::Timestamp;
use machine_driver::{Code, ListedVm, NodeAddress, OwnerTags, Status, VmIdentity};
use serde_json::{Value, json};

use crate::{
    bodies::MADE_FOR,
    memory::{Memory, Owners},
    neutron::{NamedThing, Port, Subnet},
    nova::Server,
    rules::network_of,
    spec::{self, Spec},
    state::{Disk, State},
    storage::Volume,
};

const PREFIX: &str = "openstack:///";

/// The region and the id of a server, from a provider id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// `None` for an id that the cloud controller manager has written without a region.
    pub region: Option<&'a str>,
    pub id: &'a str,
}

impl<'a> Place<'a> {
    /// Parses `openstack:///REGION/ID`, `openstack:///ID` or `openstack://REGION/ID`. `None` for any other text.
    pub fn of(provider_id: &'a str) -> Option<Self> {
        // The cloud controller manager may write the region in the place of the host.
        let path = provider_id.strip_prefix("openstack://")?;
        let path = path.strip_prefix('/').unwrap_or(path);
        let (region, id) = path.rsplit_once('/').map_or((None, path), |(region, id)| (Some(region), id));
        let is_region = region.is_none_or(|region| !region.is_empty() && !region.contains('/'));
        (is_id(id) && is_region).then_some(Self { region, id })
    }
}

/// Whether a text has the form of an id. An id becomes a part of a path.
pub fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Whether two ids name the same object. Databases of the services compare them without case.
pub fn is_same_id(id: &str, other: &str) -> bool {
    id.eq_ignore_ascii_case(other)
}

/// The provider id of a server.
pub fn provider_id(region: &str, id: &str) -> String {
    format!("{PREFIX}{region}/{id}")
}

/// The identity of a server. It contains addresses only if the server is in a single network. With several networks, it is unknown which of the
/// addresses other components use.
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

/// The server of a machine.
#[derive(Clone, Debug)]
pub enum Backing {
    /// The machine has no server.
    Nothing,
    /// The machine has this server.
    Server(Box<Server>),
    /// The deletion of the server with this id has begun. The server still has the machine's port.
    Ending(String),
}

impl Backing {
    /// The server among these servers of the machine, which all belong to the owner of the class.
    ///
    /// # Errors
    /// `OutOfRange` for several servers.
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

/// The error for a machine with several servers.
fn too_many(servers: &[Server]) -> Status {
    let ids: Vec<&str> = servers.iter().map(|server| server.id.as_str()).collect();
    Status::new(Code::OutOfRange, format!("multiple servers found for the machine: [{}]", ids.join(", ")))
}

/// The servers that belong to one of the owners and are not deleted.
pub fn ours(servers: Vec<Server>, owners: &Owners) -> Vec<Server> {
    let is_ours = |server: &Server| owners.own(server.metadata.keys());
    servers.into_iter().filter(|server| is_ours(server) && !State::of(server).is_deleted()).collect()
}

/// The server with the machine's provider id. `None` if it is deleted, or has no key of a cluster (row O07).
///
/// A user may edit the tags of a class that has machines. Therefore a server belongs to the machine if it has the machine's name and at least one tag
/// key of the class's cluster. Its other keys may differ.
///
/// # Errors
/// `FailedPrecondition` for a server with other keys. It may be the machine's server, because a user may also have edited the cluster's key in the
/// class, or keys of the server. It runs, so this is no `NotFound`, which would end the machine without its server.
pub fn named_by_id(
    server: Server,
    class: &OwnerTags,
    owners: &Owners,
    machine: &str,
) -> Result<Option<Server>, Status> {
    let keys = || server.metadata.keys();
    let has_key_of_cluster = || class.share_a_cluster_with(|key| server.metadata.contains_key(key));
    if State::of(&server).is_deleted() {
        return Ok(None);
    }
    if owners.own(keys()) || server.name == machine && has_key_of_cluster() {
        return Ok(Some(server));
    }
    let left = spec::keys_of_clusters(keys());
    if left.is_empty() {
        return Ok(None);
    }
    let Server { id, name, .. } = &server;
    let other = left.join(" ");
    let message = format!(
        "server [ID={id:?}] runs and does not belong to the machine with its provider id: its name is {name:?} and its owner {other}, not \
         {class}. It is not deleted. If it is the machine's, write the keys of the class to its metadata; if not, remove the finalizer of \
         the machine to let the machine go without it"
    );
    Err(Status::new(Code::FailedPrecondition, message))
}

/// The machine that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// A machine of the API server.
    Machine,
    /// A server that no machine has. The collector of orphans deletes it. A machine of the same name may have another server.
    Orphan,
    /// What the driver has made for a deleted server. The collector of orphans deletes it.
    Remains,
}

/// The user of a port or a volume in a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// No server uses it.
    Nobody,
    /// Something that stays uses it.
    Another,
    /// Nova knows whether the server exists.
    AskNova,
}

/// The user of a port or a volume that names this server. `ended` are the servers that the call has deleted. `own` is the server in the provider id
/// of the machine.
pub fn user(server: &str, ended: &[&str], own: Option<&str>, deletion: Deletion) -> User {
    let is_own = own.is_some_and(|own| is_same_id(own, server));
    if server.is_empty() || ended.iter().any(|ended| is_same_id(ended, server)) {
        User::Nobody
    // Any user of the project can write any text into the field.
    } else if is_id(server) && (is_own || deletion == Deletion::Machine) {
        User::AskNova
    } else {
        User::Another
    }
}

/// The error for the machine's server that Nova shows although it did not show it before in the same call.
pub fn shown_again(id: &str) -> Status {
    Status::new(
        Code::Aborted,
        format!("server [ID={id:?}] was not shown before and exists; its deletion is tried again"),
    )
}

/// A server in a list.
pub fn listed(region: &str, server: Server) -> ListedVm {
    ListedVm {
        provider_id: provider_id(region, &server.id),
        machine_name: server.name,
        created: server.created.parse().ok(),
    }
}

/// The remains of deleted servers: ports and volumes that the driver has made for an owner. The list has one port or volume for each machine, because
/// a deletion deletes everything of a machine.
///
/// Their ids stand for the deleted server, so that orphans whose deletion was refused or interrupted are found again.
///
/// Only ports and volumes with the mark of the driver count. The keys of the owner alone are no proof: other programs and users give them to their
/// own objects of a cluster.
///
/// `servers` are all servers of the owner. Ports and volumes with the name of a server are deleted with the server.
pub fn leftovers(
    region: &str,
    owner: &OwnerTags,
    servers: &[Server],
    ports: Vec<Port>,
    volumes: Vec<Volume>,
) -> Vec<ListedVm> {
    let mut names: BTreeSet<String> = servers.iter().map(|server| server.name.clone()).collect();
    let owners = Owners::of_class(owner.clone());
    let ports = ports.into_iter().filter(|port| is_made(port, &owners) && port.device_id.is_empty());
    let volumes = our_volumes(volumes, &owners)
        .into_iter()
        .filter(|volume| volume.metadata.contains_key(MADE_FOR))
        .filter(|volume| volume.attachments.is_empty() && matches!(Disk::of(volume), Disk::Ready | Disk::Broken));
    let ports = ports.map(|port| (port.id, port.name, port.created_at));
    let volumes = volumes.map(|volume| (volume.id, volume.name.unwrap_or_default(), volume.created_at));
    let mut left = Vec::new();
    for (id, machine_name, created) in ports.chain(volumes) {
        if !machine_name.is_empty() && names.insert(machine_name.clone()) {
            let created = created.and_then(|created| time(&created));
            left.push(ListedVm { provider_id: provider_id(region, &id), machine_name, created });
        }
    }
    left
}

/// A time as the services write it. Cinder leaves out the zone, which is UTC.
fn time(text: &str) -> Option<Timestamp> {
    text.parse().or_else(|_| format!("{text}Z").parse()).ok()
}

/// The page that follows a page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPage {
    /// No page: the list is complete.
    End,
    /// The page with this query, from the link of the page before.
    Linked(String),
    /// The page that begins after the object with this id.
    Behind(String),
    /// The first page: the list must be read again.
    First,
}

/// The page that follows a page of servers.
///
/// Nova fills a page with the servers that wait for their build, and then with the servers that it has built or begun to build. A
/// server that Nova finds in both groups counts twice for the size of the page and is shown once. Then the page is short and has no
/// link, although more pages follow.
///
/// A page must not begin behind a server that is being built. When Nova begins to build that server between the two
/// requests, the second answer leaves out all servers that wait for their build. Therefore the next page begins behind the last built server of the
/// page, and shows the servers after it again. The driver does not wait for the end of a build, because a build may take long.
pub fn next_page(page: &[Server], link: Option<String>) -> NextPage {
    let is_building = |server: &Server| State::of(server) == State::Building;
    match (page.last(), link) {
        (Some(last), None) if page.iter().any(is_building) => NextPage::Behind(last.id.clone()),
        (_, None) => NextPage::End,
        (Some(last), Some(_)) if is_building(last) => {
            let built = page.iter().rev().find(|server| !is_building(server));
            built.map_or(NextPage::First, |built| NextPage::Behind(built.id.clone()))
        }
        (_, Some(link)) => NextPage::Linked(link),
    }
}

/// The description of a port that the driver makes. It identifies the owner, because a port gets its tags only in a second request, which may be
/// lost.
pub fn mark(owner: &OwnerTags) -> String {
    format!("made by machine-controller-manager for {owner}")
}

/// The ports, or the security groups, of a project. All of them for a login without a project. `project_of` returns the project of one object.
pub fn of_project<T>(found: Vec<T>, project: Option<&str>, project_of: impl Fn(&T) -> Option<&str>) -> Vec<T> {
    // Neutron ignores filters that it does not know. Then it does not show the field either.
    let is_of_project = |one: &T| match (project_of(one), project) {
        (Some(of), Some(project)) => of == project,
        (None, _) | (_, None) => true,
    };
    found.into_iter().filter(is_of_project).collect()
}

/// The names that no object has.
pub fn missing<'n>(names: &[&'n str], found: &[NamedThing]) -> Vec<&'n str> {
    names.iter().copied().filter(|name| found.iter().all(|thing| thing.name != *name)).collect()
}

/// The ports that belong to one of the owners.
pub fn our_ports(ports: Vec<Port>, owners: &Owners) -> Vec<Port> {
    ports.into_iter().filter(|port| own_port(owners, port)).collect()
}

/// Whether a port belongs to one of the owners.
fn own_port(owners: &Owners, port: &Port) -> bool {
    owners.own(port.tags.iter()) || is_made(port, owners)
}

/// Whether the driver has made a port for one of the owners.
fn is_made(port: &Port, owners: &Owners) -> bool {
    port.description.as_deref().is_some_and(|text| owners.are_described_by(text, mark))
}

/// The ports that a deletion deletes if nothing uses them. `ports` have the name of the machine. A user may give the name and the keys of the
/// class to other ports.
pub fn ports_to_delete(ports: Vec<Port>, owners: &Owners, deletion: Deletion) -> Vec<Port> {
    let mut ports = our_ports(ports, owners);
    if deletion == Deletion::Remains {
        ports.retain(|port| is_made(port, owners));
    }
    ports
}

/// The volumes that a deletion deletes if nothing uses them, as [`ports_to_delete`].
pub fn volumes_to_delete(volumes: Vec<Volume>, owners: &Owners, deletion: Deletion) -> Vec<Volume> {
    let mut volumes = our_volumes(volumes, owners);
    if deletion == Deletion::Remains {
        volumes.retain(|volume| volume.metadata.contains_key(MADE_FOR));
    }
    volumes
}

/// The tags of a port with the missing tags of the owner added. `None` if no tag is missing.
pub fn tags_of_port<'t>(owner: &'t OwnerTags, port: &'t Port) -> Option<Vec<&'t str>> {
    let missing: Vec<&str> = owner.keys().filter(|key| !port.tags.iter().any(|tag| tag == key)).collect();
    let kept = port.tags.iter().map(String::as_str);
    (!missing.is_empty()).then(|| kept.chain(missing.iter().copied()).collect())
}

/// The address pairs of a port with the missing pod networks added (O1). `None` if no pod network is missing.
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

/// Whether the addresses of pods pass all ports of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodTraffic {
    /// They pass.
    Passes,
    /// At least one port does not let them pass.
    Blocked,
}

/// The identity of a server that is built. `traffic` is the result of a look at its ports.
///
/// # Errors
/// `Uninitialized` with the identity for a server whose ports must be changed, and for a class with a network that is not found or not unique. The
/// codes for such a network would mean that the server is deleted, or that there are several servers.
pub fn initialised(
    identity: VmIdentity,
    server: &str,
    traffic: Result<PodTraffic, Status>,
) -> Result<VmIdentity, Status> {
    let message = match traffic {
        Ok(PodTraffic::Passes) => return Ok(identity),
        Ok(PodTraffic::Blocked) => format!("the addresses of pods do not pass the ports of server [ID={server:?}]"),
        Err(status) if matches!(status.code, Code::NotFound | Code::OutOfRange) => status.message,
        Err(status) => return Err(status),
    };
    Err(Status::new(Code::Uninitialized, message).with_partial(identity))
}

/// The error for a region that the state of a machine names and the catalogue lacks. Other failures stay as they are.
pub fn region_is_missing(region: &str, status: Status) -> Status {
    if status.code != Code::FailedPrecondition {
        return status;
    }
    let message = format!(
        "the creation of the machine's server has begun in region {region:?}, and {}. What is there can't be found until the catalogue has the \
         region again. If the region is closed, remove the finalizer of the machine",
        status.message
    );
    Status { message, ..status }
}

/// The failure of a look-up. It has a state if a creation follows.
///
/// The controllers store the state before the creation, because a creation that is cut off returns no state.
pub fn before_creation(status: Status, memory: &Memory) -> Status {
    match status.code {
        Code::NotFound | Code::Unimplemented => Status { last_known_state: Some(memory.state()), ..status },
        _ => status,
    }
}

/// The ports, or the volumes, that earlier requests have made for a machine. The answers may have been lost, and a user may have edited the class
/// since. A machine needs one port and one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier<T> {
    /// The machine can use this one.
    Usable(T),
    /// The machine can't use any of them, and a server uses this one.
    InUse(T),
    /// The machine can't use any of these.
    Unusable(Vec<T>),
}

/// Whether a machine can use a port or a volume.
enum Fit {
    Usable,
    InUse,
    Unusable,
}

impl<T> Earlier<T> {
    fn of(made: Vec<T>, fit: impl Fn(&T) -> Fit) -> Self {
        let (mut in_use, mut unusable) = (None, Vec::new());
        for one in made {
            match fit(&one) {
                Fit::Usable => return Self::Usable(one),
                Fit::InUse => in_use = in_use.or(Some(one)),
                Fit::Unusable => unusable.push(one),
            }
        }
        in_use.map_or(Self::Unusable(unusable), Self::InUse)
    }

    /// The port or volume that the machine can use, if there is one.
    pub fn usable(self) -> Option<T> {
        match self {
            Self::Usable(one) => Some(one),
            Self::InUse(_) | Self::Unusable(_) => None,
        }
    }
}

/// The subnets of these ports that the class does not name.
pub fn other_subnets<'p>(ports: &'p [Port], spec: &Spec) -> BTreeSet<&'p str> {
    let named = spec.subnets();
    let of_ports = ports.iter().flat_map(|port| &port.fixed_ips).map(|ip| ip.subnet_id.as_str());
    of_ports.filter(|id| !id.is_empty() && !named.contains(id)).collect()
}

/// The ports that earlier requests have made for a machine.
///
/// `ports` have the machine's name. `groups` are the ids of the class's security groups, or of the default group of the project for a class without
/// groups. `others` is Neutron's answer about the [`other_subnets`].
pub fn earlier_port(
    ports: Vec<Port>,
    owners: &Owners,
    spec: &Spec,
    groups: &[String],
    others: &[Subnet],
) -> Earlier<Port> {
    let mut ours = our_ports(ports, owners);
    // A port in another network that a server uses is neither waited for nor deleted.
    ours.retain(|port| port.device_id.is_empty() || port.network_id == spec.network_id);
    Earlier::of(ours, |port| match port.device_id.as_str() {
        "" if is_as_wanted(port, spec, groups, others) => Fit::Usable,
        "" => Fit::Unusable,
        _ => Fit::InUse,
    })
}

/// The modes of IPv6 subnets in which Neutron gives every port of the network an address.
const AUTOMATIC: [&str; 2] = ["slaac", "dhcpv6-stateless"];

/// Whether Neutron gives every port of the network an address in this subnet.
fn is_automatic(subnet: &Subnet) -> bool {
    let modes = [&subnet.ipv6_address_mode, &subnet.ipv6_ra_mode];
    modes.into_iter().flatten().any(|mode| AUTOMATIC.contains(&mode.as_str()))
}

/// Whether a port has what the class requests. Missing networks of pods are added later.
fn is_as_wanted(port: &Port, spec: &Spec, groups: &[String], others: &[Subnet]) -> bool {
    let named = spec.subnets();
    let subnets: BTreeSet<&str> = port.fixed_ips.iter().map(|ip| ip.subnet_id.as_str()).collect();
    let automatic: BTreeSet<&str> =
        others.iter().filter(|subnet| is_automatic(subnet)).map(|subnet| subnet.id.as_str()).collect();
    let has: BTreeSet<&String> = port.security_groups.iter().collect();
    let wanted: BTreeSet<&String> = groups.iter().collect();
    // A network without port security gives its ports no default group.
    let are_groups_right = if spec.security_groups.is_empty() { has.is_subset(&wanted) } else { has == wanted };
    let pods: Vec<_> = spec.pod_networks().into_iter().map(network_of).collect();
    let passing = port.allowed_address_pairs.iter().map(|pair| pair["ip_address"].as_str().and_then(network_of));
    port.network_id == spec.network_id
        && subnets.is_superset(&named)
        && subnets.difference(&named).all(|other| automatic.contains(other))
        && are_groups_right
        && passing.into_iter().all(|network| pods.contains(&network))
}

/// The volumes that earlier requests have made for a machine. `volumes` have the machine's name. `made_for` is the text of
/// [`made_for`](crate::bodies::made_for) for the machine.
pub fn earlier_volume(volumes: Vec<Volume>, owners: &Owners, made_for: &str) -> Earlier<Volume> {
    Earlier::of(our_volumes(volumes, owners), |volume| {
        let is_for_it = volume.metadata.get(MADE_FOR).is_some_and(|made| made == made_for);
        match Disk::of(volume) {
            _ if !is_for_it => Fit::Unusable,
            Disk::InUse => Fit::InUse,
            Disk::Ready | Disk::Changing | Disk::Broken => Fit::Usable,
        }
    })
}

/// The volumes that belong to one of the owners.
pub fn our_volumes(volumes: Vec<Volume>, owners: &Owners) -> Vec<Volume> {
    volumes.into_iter().filter(|volume| owners.own(volume.metadata.keys())).collect()
}

/// The only object with this name among the objects that a service has found. Names are resolved as in the Go driver.
///
/// # Errors
/// `NotFound` if there is none, `OutOfRange` if there are several.
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
