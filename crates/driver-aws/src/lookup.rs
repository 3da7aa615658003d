//! Decides which instances belong to a machine and what their state means (spec/providers §3.5). Pure functions.

use std::time::Duration;

use jiff::Timestamp;
use machine_api::v1alpha1::{Machine, OperationType};
use machine_driver::{Code, NodeAddress, OwnerTags, Status, VmIdentity};

use crate::{
    actions::{Instance, Interface},
    regions,
    spec::{NetworkInterface, Spec},
    state::LaunchState,
};

/// The region and the id of an instance, from a provider id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLocation<'a> {
    pub region: &'a str,
    pub id: &'a str,
}

impl<'a> InstanceLocation<'a> {
    /// Parses a provider id of the form `aws:///<region>/<instance>`. `None` for any other text.
    pub fn of(provider_id: &'a str) -> Option<Self> {
        let mut segments = provider_id.rsplit('/');
        let (id, region) = (segments.next()?, segments.next()?);
        (!id.is_empty() && crate::regions::is_region(region)).then_some(Self { region, id })
    }

    /// The same location, with a zone replaced by its region: cloud controllers write provider ids with the zone. The zone is one of this region of
    /// the class, or of another region that this version knows: the region of a class may be edited.
    pub fn with_zone_as_region(self, region: &'a str) -> Self {
        let is_its_region = |region: &&str| regions::is_zone_of(region, self.region);
        let found = Some(region).filter(is_its_region).or_else(|| regions::known().find(is_its_region));
        found.map_or(self, |region| Self { region, ..self })
    }
}

/// The provider id of an instance.
pub fn provider_id(region: &str, id: &str) -> String {
    format!("aws:///{region}/{id}")
}

/// The longest time until EC2 shows a new instance in every answer.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Whether EC2 may not show the instance of a machine yet, by what the machine says of its creation. The instance is at most as old as the
/// machine, and may be as young as the last creation: the creation may have been tried again for hours. A deletion overwrites the last operation,
/// and the last known state keeps the time of the launch.
pub fn may_be_shown_later(machine: &Machine, now: Timestamp) -> bool {
    let last = &machine.status.last_operation;
    let creation = last.last_update_time.as_ref().filter(|_| last.operation == OperationType::Create);
    let launched = LaunchState::of(&machine.status.last_known_state).map(|kept| kept.launched);
    let written = machine.metadata.creation_timestamp.iter().chain(creation).map(|time| time.0);
    // The clock of another host may be ahead, so a time in the future is recent.
    let is_recent =
        |made: Timestamp| !Duration::try_from(now.duration_since(made)).is_ok_and(|age| age >= VISIBILITY_TIMEOUT);
    written.chain(launched).any(is_recent)
}

/// Checks that the instance of the last launch for a machine is among the instances of the machine, in any state. `token` is the client token of that
/// launch. EC2 shows an ended instance for an hour, and an instance of an earlier launch says nothing about the last one.
///
/// # Errors
/// `Unavailable` if EC2 does not show the instance, which may have been launched.
pub fn shown_launch(token: &str, instances: &[Instance], machine: &str) -> Result<(), Status> {
    if instances.iter().any(|instance| instance.client_token == token) {
        return Ok(());
    }
    let message = format!(
        "EC2 shows no instance of machine {machine}, but one may have been launched in the last {} minutes; it is asked for again",
        VISIBILITY_TIMEOUT.as_secs() / 60
    );
    Err(Status::new(Code::Unavailable, message))
}

/// The error for a new instance that EC2 does not show. The instance has not ended, because EC2 shows ended instances for an hour.
pub fn not_shown_yet(id: &str) -> Status {
    let message = format!("EC2 does not show the new instance {id} yet; it is asked for again");
    Status::new(Code::Unavailable, message)
}

/// The error for an instance whose termination EC2 has refused.
///
/// EC2 has shown the instance before. If it does not know the instance now, not all of its servers know the instance yet: it runs on.
pub fn not_terminated(id: &str, refusal: Status) -> Status {
    if refusal.code == Code::NotFound { not_shown_yet(id) } else { refusal }
}

/// The instance of an earlier request whose client token a later request with other parameters has used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlierLaunch<'a> {
    /// EC2 shows the instance.
    Shown(&'a Instance),
    /// EC2 does not show the instance. The driver has known that for this time.
    NotShownFor(Duration),
}

/// The next step of a creation whose client token belongs to another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterMismatch<'a> {
    /// Take the instance of the earlier request.
    Take(&'a Instance),
    /// Wait until EC2 shows the instance of the earlier request.
    Wait,
    /// Use the next client token, because the instance of the earlier request has ended.
    NextToken,
}

/// Decides about a client token that belongs to another request. EC2 forgets ended instances after an hour, so an instance that stays invisible
/// has ended.
pub fn after_mismatch(earlier: EarlierLaunch<'_>) -> AfterMismatch<'_> {
    match earlier {
        EarlierLaunch::Shown(instance) if !instance.has_ended() => AfterMismatch::Take(instance),
        EarlierLaunch::NotShownFor(time) if time < VISIBILITY_TIMEOUT => AfterMismatch::Wait,
        EarlierLaunch::Shown(_) | EarlierLaunch::NotShownFor(_) => AfterMismatch::NextToken,
    }
}

/// The error if an earlier request for the machine has made an instance that EC2 does not show yet.
pub fn hidden_by_a_change(token: &str) -> Status {
    let message = format!(
        "an earlier request with client token {token} has made an instance that EC2 does not show yet, and the class, its Secret or the \
         user data has changed since; no other instance is made meanwhile"
    );
    Status::new(Code::Unavailable, message)
}

/// Checks that the credentials see the machine's instance. `made_in` is the account in which it was launched. `login` is the account of the
/// credentials, or `None` if STS has not told it: not every network has a way to STS.
///
/// # Errors
/// `FailedPrecondition` for credentials of another account. The machine would end without its instance.
pub fn check_account(made_in: &str, login: Option<&str>) -> Result<(), Status> {
    match login {
        Some(login) if login != made_in => {
            let message = format!(
                "the instance of the machine was launched in account {made_in}, the credentials are of account {login}. Write credentials of \
                 account {made_in} to the Secret, or remove the finalizer of the machine if nothing of it is left there"
            );
            Err(Status::new(Code::FailedPrecondition, message))
        }
        Some(_) | None => Ok(()),
    }
}

/// The error for a machine without an instance.
pub fn not_found() -> Status {
    Status::new(Code::NotFound, "AWS plugin is returning no VM instances backing this machine object")
}

/// The error for a machine with several instances.
pub fn too_many(instances: &[Instance]) -> Status {
    let ids: Vec<_> = instances.iter().map(|instance| instance.id.as_str()).collect();
    let message = format!(
        "AWS plugin is returning multiple VM instances backing this machine object. IDs for all backing VMs - [{}] ",
        ids.join(" ")
    );
    Status::new(Code::OutOfRange, message)
}

/// Whether the tags of an instance with the machine's provider id show that it belongs to the machine.
///
/// A user may change the name of an instance. Therefore an instance with all tags of the class belongs to the machine, whatever its name is. A user
/// may also edit the tags of a class that has machines. Therefore an instance with the machine's name and one tag of the class's clusters belongs to
/// the machine, whatever its other tags are.
///
/// # Errors
/// Why it does not belong to the machine. The instance runs, so this is no `NotFound`, which would end the machine without its instance.
pub fn named_by_id(instance: &Instance, owner: &OwnerTags, machine: &str) -> Result<(), Status> {
    let has = |key: &str| instance.has_tag(key);
    let why = match instance.name() {
        _ if owner.own(has) => return Ok(()),
        "" => format!("it has no name, and not all of the tags of the class ({owner})"),
        name if name != machine => {
            format!("its name is {name:?}, and it has not all of the tags of the class ({owner})")
        }
        _ if owner.share_a_cluster_with(has) => return Ok(()),
        _ => format!("it has no tag of the clusters of the class ({owner})"),
    };
    let id = &instance.id;
    let message = format!(
        "instance {id} runs and does not belong to the machine with its provider id: {why}. It is not ended. If it is the machine's, write \
         the tags of the class on it; if not, remove the finalizer of the machine to let the machine go without it"
    );
    Err(Status::new(Code::FailedPrecondition, message))
}

/// The identity of an instance.
pub fn identity(region: &str, instance: &Instance) -> VmIdentity {
    let ipv6 = instance.interfaces.iter().flat_map(|interface| &interface.ipv6_addresses);
    let addresses = instance.private_ip.iter().chain(ipv6);
    VmIdentity {
        provider_id: provider_id(region, &instance.id),
        node_name: instance.private_dns_name.clone(),
        addresses: addresses
            .map(|address| NodeAddress { address: address.clone(), type_: "InternalIP".to_owned() })
            .collect(),
    }
}

/// The client token of an attempt. The next attempt begins when the instance of the attempt before has ended.
pub fn token(base: &str, attempt: usize) -> String {
    if attempt == 0 { base.to_owned() } else { format!("{base}-{attempt}") }
}

/// Whether a client token belongs to an attempt with this first part.
pub fn is_token_of(base: &str, token: &str) -> bool {
    let number = |rest: &str| rest.strip_prefix('-').is_some_and(|number| number.parse::<usize>().is_ok());
    token.strip_prefix(base).is_some_and(|rest| rest.is_empty() || number(rest))
}

/// The first attempt whose client token made none of these ended instances.
pub fn next_attempt(base: &str, ended: &[Instance]) -> usize {
    let is_used = |attempt: &usize| ended.iter().any(|instance| instance.client_token == token(base, *attempt));
    (0..=ended.len()).find(|attempt| !is_used(attempt)).unwrap_or(ended.len())
}

/// The IPv6 prefixes of a network interface after the last request to assign some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The number of all prefixes of the interface.
    pub total: usize,
    /// Whether EC2 has confirmed it.
    pub is_confirmed: bool,
}

/// The settings of the class that an instance does not have yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The network interfaces that still check source and destination of packets.
    pub checking: Vec<String>,
    /// The network interfaces that need more IPv6 prefixes.
    pub prefixes: Vec<MissingPrefixes>,
    /// The network interfaces whose prefixes were asked for without an answer. They may have them already.
    pub unconfirmed: Vec<String>,
    /// Whether the class switches the checks off and the instance has no interface yet.
    pub interfaces: bool,
}

/// The IPv6 prefixes that a network interface lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPrefixes {
    /// The id of the interface.
    pub interface: String,
    /// The number of prefixes to assign.
    pub count: usize,
    /// The number of all prefixes of the interface after that.
    pub total: usize,
}

impl Missing {
    /// Compares an instance with its class. `assigned` returns what was assigned to an interface while EC2 may not show that.
    pub fn of(instance: &Instance, spec: &Spec, assigned: impl Fn(&str) -> Option<Assigned>) -> Self {
        let mut missing = Self::default();
        if spec.src_and_dst_checks_enabled == Some(false) {
            missing.interfaces = instance.interfaces.is_empty();
            let checks =
                |interface: &&Interface| !is_fabric(&interface.kind) && interface.source_dest_check.unwrap_or(true);
            missing.checking = instance.interfaces.iter().filter(checks).map(|found| found.id.clone()).collect();
        }
        for interface in &instance.interfaces {
            let wanted = wanted(spec, interface).and_then(|wanted| usize::try_from(wanted.ipv6_prefix_count?).ok());
            let shown = interface.ipv6_prefixes;
            // Additional prefixes stay, because they may be in use.
            let Some(total) = wanted.filter(|wanted| *wanted > shown) else { continue };
            let id = interface.id.clone();
            // A prefix that EC2 does not show yet must not be assigned a second time.
            match assigned(&id).filter(|assigned| assigned.total > shown) {
                Some(Assigned { is_confirmed: false, .. }) => missing.unconfirmed.push(id),
                Some(assigned) if assigned.total >= total => {}
                assigned => {
                    let present = assigned.map_or(shown, |assigned| assigned.total);
                    missing.prefixes.push(MissingPrefixes { interface: id, count: total - present, total });
                }
            }
        }
        missing
    }

    /// Whether nothing is missing.
    pub fn nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The entry of the spec with the device index of this interface. An entry without a device index has its position in the list as index.
fn wanted<'s>(spec: &'s Spec, interface: &Interface) -> Option<&'s NetworkInterface> {
    let index = interface.device_index?;
    let numbered = (0_i32..).zip(&spec.network_interfaces);
    numbered
        .map(|(at, wanted)| (wanted.device_index.unwrap_or(at), wanted))
        .find(|(at, _)| *at == index)
        .map(|(_, it)| it)
}

/// Whether the interface is an Elastic Fabric Adapter, which has no check of source and destination.
fn is_fabric(kind: &str) -> bool {
    ["efa", "efa-only"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("aws:///eu-west-1/i-1", Some(("eu-west-1", "i-1")))]
    #[case::as_cloud_controllers_write_it("aws:///eu-west-1a/i-1", Some(("eu-west-1", "i-1")))]
    #[case::a_local_zone("aws:///eu-west-1-lax-1a/i-1", Some(("eu-west-1", "i-1")))]
    #[case::another_region("aws:///us-east-1/i-1", Some(("us-east-1", "i-1")))]
    #[case::a_zone_of_another_region("aws:///us-east-1c/i-1", Some(("us-east-1", "i-1")))]
    #[case::a_local_zone_of_another_region("aws:///us-west-2-lax-1a/i-1", Some(("us-west-2", "i-1")))]
    #[case::a_region_of_another_cloud("aws:///dc-north-1c/i-1", Some(("dc-north-1c", "i-1")))]
    #[case::a_host("aws:///evil.example.com/i-1", None)]
    #[case::no_region("aws:///i-1", None)]
    #[case::no_instance("aws:///eu-west-1/", None)]
    #[case::no_id("i-1", None)]
    fn an_id_names_a_place(#[case] id: &str, #[case] expected: Option<(&str, &str)>) {
        let location = InstanceLocation::of(id).map(|location| location.with_zone_as_region("eu-west-1"));
        assert_eq!(location.map(|location| (location.region, location.id)), expected);
    }

    #[test]
    fn the_token_of_an_instance_that_has_ended_is_not_used_again() {
        let ended = |token: &str| Instance { client_token: token.to_owned(), ..Instance::default() };
        assert_eq!(next_attempt("u", &[]), 0);
        assert_eq!(next_attempt("u", &[ended("u")]), 1);
        assert_eq!(next_attempt("u", &[ended("u-1"), ended("u")]), 2);
        assert_eq!(next_attempt("u", &[ended("x")]), 0);
        assert_eq!(token("u", 2), "u-2");
    }

    #[rstest]
    #[case::the_same_account(Some("1"), None)]
    #[case::another_account(Some("2"), Some(Code::FailedPrecondition))]
    #[case::sts_does_not_answer(None, None)]
    fn the_credentials_are_of_the_account_of_the_instance(#[case] login: Option<&str>, #[case] expected: Option<Code>) {
        assert_eq!(check_account("1", login).err().map(|status| status.code), expected);
    }

    #[rstest]
    #[case::it_runs(&[("u-1", "running")], None)]
    #[case::it_has_ended(&[("u-1", "terminated")], None)]
    #[case::only_an_earlier_launch_is_shown(&[("u", "terminated")], Some(Code::Unavailable))]
    #[case::both_are_shown(&[("u", "terminated"), ("u-1", "pending")], None)]
    #[case::none_is_shown(&[], Some(Code::Unavailable))]
    fn the_last_launch_is_shown(#[case] instances: &[(&str, &str)], #[case] expected: Option<Code>) {
        let of = |(token, state): &(&str, &str)| Instance {
            client_token: (*token).to_owned(),
            state: (*state).to_owned(),
            ..Instance::default()
        };
        let instances: Vec<Instance> = instances.iter().map(of).collect();
        assert_eq!(shown_launch("u-1", &instances, "m").err().map(|status| status.code), expected);
    }

    #[test]
    fn a_03_a_token_of_another_request_leads_to_its_instance_or_to_the_next_token() {
        let in_state = |state: &str| Instance { state: state.to_owned(), ..Instance::default() };
        let [starts, runs, stopped] = ["pending", "running", "stopped"].map(in_state);
        let [ending, ended] = ["shutting-down", "terminated"].map(in_state);
        let hidden = |seconds| EarlierLaunch::NotShownFor(Duration::from_secs(seconds));
        for (earlier, expected) in [
            (EarlierLaunch::Shown(&starts), AfterMismatch::Take(&starts)),
            (EarlierLaunch::Shown(&runs), AfterMismatch::Take(&runs)),
            (EarlierLaunch::Shown(&stopped), AfterMismatch::Take(&stopped)),
            (EarlierLaunch::Shown(&ending), AfterMismatch::NextToken),
            (EarlierLaunch::Shown(&ended), AfterMismatch::NextToken),
            (hidden(0), AfterMismatch::Wait),
            (hidden(299), AfterMismatch::Wait),
            (hidden(300), AfterMismatch::NextToken),
        ] {
            assert_eq!(after_mismatch(earlier), expected, "{earlier:?}");
        }
    }

    #[test]
    fn a_18_prefixes_are_counted_by_device_index_and_never_taken_away() {
        let wants =
            |device_index, count| NetworkInterface { device_index, ipv6_prefix_count: count, ..Default::default() };
        let spec = Spec {
            network_interfaces: vec![wants(Some(1), Some(2)), wants(None, Some(9)), wants(Some(0), Some(1))],
            ..Spec::default()
        };
        let has = |id: &str, device_index, ipv6_prefixes| Interface {
            id: id.to_owned(),
            device_index: Some(device_index),
            ipv6_prefixes,
            ..Interface::default()
        };
        let instance =
            Instance { interfaces: vec![has("a", 0, 3), has("b", 1, 1), has("c", 7, 0)], ..Instance::default() };
        let missing = |total, is_confirmed| {
            let assigned = |id: &str| (id == "b").then_some(Assigned { total, is_confirmed });
            let Missing { prefixes, unconfirmed, .. } = Missing::of(&instance, &spec, assigned);
            (prefixes.into_iter().map(|missing| (missing.interface, missing.count)).collect::<Vec<_>>(), unconfirmed)
        };
        let b = || "b".to_owned();
        let one = (vec![(b(), 1)], Vec::new());
        assert_eq!(missing(0, true), one, "EC2 shows 1 of 2");
        assert_eq!(missing(1, false), one, "EC2 shows what was assigned");
        assert_eq!(missing(2, true), (Vec::new(), Vec::new()), "EC2 does not show what was assigned");
        assert_eq!(missing(2, false), (Vec::new(), vec![b()]), "nobody knows what was assigned");
    }

    #[rstest]
    #[case::with_all_tags("m", &["cluster/a", "cluster/b", "role/n"], "")]
    #[case::without_its_name("", &["cluster/a", "cluster/b", "role/n"], "")]
    #[case::without_a_new_cluster("m", &["cluster/a", "role/n"], "")]
    #[case::without_a_new_role("m", &["cluster/a", "cluster/b"], "")]
    #[case::without_a_cluster("m", &["role/n"], "it has no tag of the clusters of the class (cluster/a cluster/b role/n)")]
    #[case::without_name_and_a_tag("", &["cluster/a", "role/n"], "it has no name, and not all of the tags")]
    #[case::with_another_name("n", &["cluster/a", "cluster/b", "role/n"], "")]
    #[case::with_another_name_and_without_a_role("n", &["cluster/a", "cluster/b"], "its name is \"n\", and it has not all")]
    #[case::with_another_name_and_without_a_cluster("n", &["role/n"], "its name is \"n\", and it has not all")]
    fn an_instance_with_the_provider_id_of_a_machine(#[case] name: &str, #[case] keys: &[&str], #[case] why: &str) {
        let owner = ["cluster/a", "cluster/b", "role/n"].map(str::to_owned);
        let owner = OwnerTags::of(owner.iter(), "cluster/", "role/").unwrap();
        let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let tags = keys.iter().map(|key| tag(key, "1")).chain([tag("Name", name)]).collect();
        let instance = Instance { id: "i-1".to_owned(), tags, ..Instance::default() };
        match named_by_id(&instance, &owner, "m") {
            Ok(()) => assert_eq!(why, ""),
            Err(status) => assert!(!why.is_empty() && status.message.contains(why), "{}", status.message),
        }
    }
}
