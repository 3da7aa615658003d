//! What the instances that EC2 shows mean for a machine (spec/providers §3.5). Pure.

use std::time::Duration;

use jiff::Timestamp;
use machine_driver::{Code, NodeAddress, OwnerTags, Status, VmIdentity};

use crate::{
    actions::{Instance, Interface},
    spec::{NetworkInterface, Spec},
};

/// Where a provider id says that an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub region: &'a str,
    pub id: &'a str,
}

impl<'a> Place<'a> {
    /// The place in a provider id, `aws:///<region>/<instance>`; `None` in what is no such id.
    pub fn of(provider_id: &'a str) -> Option<Self> {
        let mut segments = provider_id.rsplit('/');
        let (id, region) = (segments.next()?, segments.next()?);
        (!id.is_empty() && crate::regions::is_region(region)).then_some(Self { region, id })
    }

    /// The same, where what stands in a region's place is a zone of this region: so cloud controllers write ids. A local zone adds
    /// words to the name of its region.
    pub fn unless_a_zone_of(self, region: &'a str) -> Self {
        let zone = self.region.strip_prefix(region).is_some_and(|rest| {
            matches!(rest.as_bytes(), [letter] if letter.is_ascii_lowercase()) || rest.starts_with('-')
        });
        if zone { Self { region, ..self } } else { self }
    }
}

/// The provider id of an instance.
pub fn provider_id(region: &str, id: &str) -> String {
    format!("aws:///{region}/{id}")
}

/// How long EC2 may take to show a new instance to each request.
pub const VISIBLE_WITHIN: Duration = Duration::from_secs(5 * 60);

/// Whether EC2 may not show the instance of a machine yet that was made at this time.
pub fn may_be_shown_later(made: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(made)).is_ok_and(|age| age < VISIBLE_WITHIN)
}

/// EC2 does not know an instance that a young machine names. One that has ended it shows for an hour.
pub fn not_shown_yet(id: &str) -> Status {
    let message = format!("EC2 does not show instance {id} of the new machine yet; it is asked for again");
    Status::new(Code::Unavailable, message)
}

/// An earlier request of a machine has made an instance that EC2 does not show.
pub fn hidden_by_a_change(token: &str) -> Status {
    let message = format!(
        "an earlier request with client token {token} has made an instance that EC2 does not show yet, and the class, its Secret or the \
         user data has changed since; no other instance is made meanwhile"
    );
    Status::new(Code::Unavailable, message)
}

/// Nothing backs a machine.
pub fn not_found() -> Status {
    Status::new(Code::NotFound, "AWS plugin is returning no VM instances backing this machine object")
}

/// More than one instance backs a machine.
pub fn too_many(instances: &[Instance]) -> Status {
    let ids: Vec<_> = instances.iter().map(|instance| instance.id.as_str()).collect();
    let message = format!(
        "AWS plugin is returning multiple VM instances backing this machine object. IDs for all backing VMs - [{}] ",
        ids.join(" ")
    );
    Status::new(Code::OutOfRange, message)
}

/// Whether an instance that was found by its id backs a machine: EC2 shows ended ones for an hour, and an id may be that of
/// another machine.
pub fn backs(instance: &Instance, owner: &OwnerTags, machine: &str) -> bool {
    let is_named = instance.name().is_empty() || instance.name() == machine;
    !instance.has_ended() && is_named && owner.own(|key| instance.has_tag(key))
}

/// Who an instance is.
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

/// The tokens of a machine's creations, in their order: the next one counts once the instance of the one before has ended.
pub fn token(base: &str, attempt: usize) -> String {
    if attempt == 0 { base.to_owned() } else { format!("{base}-{attempt}") }
}

/// Whether a token is one of those that begin so.
pub fn is_token_of(base: &str, token: &str) -> bool {
    let number = |rest: &str| rest.strip_prefix('-').is_some_and(|number| number.parse::<usize>().is_ok());
    token.strip_prefix(base).is_some_and(|rest| rest.is_empty() || number(rest))
}

/// An instance that a machine names is not the cluster's.
pub fn not_ours(id: &str) -> Status {
    let message = format!(
        "instance {id} carries neither the tags of its class nor the token of its machine: it is another's and is not ended"
    );
    Status::new(Code::NotFound, message)
}

/// The first attempt whose token did not make one of these instances, all of which have ended.
pub fn next_attempt(base: &str, ended: &[Instance]) -> usize {
    let is_used = |attempt: &usize| ended.iter().any(|instance| instance.client_token == token(base, *attempt));
    (0..=ended.len()).find(|attempt| !is_used(attempt)).unwrap_or(ended.len())
}

/// What an instance still lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Network interfaces that still check the source and destination of packets.
    pub checking: Vec<String>,
    /// Network interfaces with how many prefixes they lack.
    pub prefixes: Vec<(String, usize)>,
    /// The class forbids the checks, and there is no interface to say so to.
    pub interfaces: bool,
}

impl Lacks {
    /// What an instance lacks of what its class asks for.
    pub fn of(instance: &Instance, spec: &Spec) -> Self {
        let mut lacks = Self::default();
        if spec.src_and_dst_checks_enabled == Some(false) {
            lacks.interfaces = instance.interfaces.is_empty();
            let checks =
                |interface: &&Interface| !is_fabric(&interface.kind) && interface.source_dest_check.unwrap_or(true);
            lacks.checking = instance.interfaces.iter().filter(checks).map(|found| found.id.clone()).collect();
        }
        for interface in &instance.interfaces {
            let wanted = wanted(spec, interface).and_then(|wanted| usize::try_from(wanted.ipv6_prefix_count?).ok());
            // One with more keeps them: prefixes in use can't be taken away.
            if let Some(missing) =
                wanted.and_then(|wanted| wanted.checked_sub(interface.ipv6_prefixes)).filter(|n| *n > 0)
            {
                lacks.prefixes.push((interface.id.clone(), missing));
            }
        }
        lacks
    }

    /// Whether it lacks nothing.
    pub fn nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The spec's entry for an interface: the one of its device index, which is the place in the list where none is given.
fn wanted<'s>(spec: &'s Spec, interface: &Interface) -> Option<&'s NetworkInterface> {
    let index = interface.device_index?;
    let numbered = (0_i32..).zip(&spec.network_interfaces);
    numbered
        .map(|(at, wanted)| (wanted.device_index.unwrap_or(at), wanted))
        .find(|(at, _)| *at == index)
        .map(|(_, it)| it)
}

/// Elastic Fabric Adapters take part in no check.
fn is_fabric(kind: &str) -> bool {
    ["efa", "efa-only"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("aws:///eu-west-1/i-1", Some(("eu-west-1", "i-1")))]
    #[case::as_cloud_controllers_write("aws:///eu-west-1a/i-1", Some(("eu-west-1", "i-1")))]
    #[case::a_local_zone("aws:///eu-west-1-lax-1a/i-1", Some(("eu-west-1", "i-1")))]
    #[case::another_region("aws:///us-east-1/i-1", Some(("us-east-1", "i-1")))]
    #[case::a_host("aws:///evil.example.com/i-1", None)]
    #[case::no_region("aws:///i-1", None)]
    #[case::no_instance("aws:///eu-west-1/", None)]
    #[case::no_id("i-1", None)]
    fn an_id_names_a_place(#[case] id: &str, #[case] expected: Option<(&str, &str)>) {
        let place = Place::of(id).map(|place| place.unless_a_zone_of("eu-west-1"));
        assert_eq!(place.map(|place| (place.region, place.id)), expected);
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
        assert_eq!(Lacks::of(&instance, &spec).prefixes, [("b".to_owned(), 1)]);
    }
}
