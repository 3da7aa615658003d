//! Decides which instances belong to a machine and what their state means (spec/providers §3.5). Pure functions.

use std::time::Duration;

use jiff::Timestamp;
use machine_driver::{Code, NodeAddress, OwnerTags, Status, VmIdentity};

use crate::{
    actions::{Instance, Interface},
    spec::{NetworkInterface, Spec},
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

    /// The same location, with a zone of this region replaced by the region: cloud controllers write provider ids with the zone. The name of a
    /// local zone has additional words after the region.
    pub fn with_zone_as_region(self, region: &'a str) -> Self {
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

/// The longest time until EC2 shows a new instance in every answer.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Whether EC2 may not show the instance yet of a machine that was created at this time.
pub fn may_be_shown_later(made: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(made)).is_ok_and(|age| age < VISIBILITY_TIMEOUT)
}

/// The error for an instance of a new machine that EC2 does not show. The instance has not ended, because EC2 shows ended instances for an hour.
pub fn not_shown_yet(id: &str) -> Status {
    let message = format!("EC2 does not show instance {id} of the new machine yet; it is asked for again");
    Status::new(Code::Unavailable, message)
}

/// The error if an earlier request for the machine has made an instance that EC2 does not show yet.
pub fn hidden_by_a_change(token: &str) -> Status {
    let message = format!(
        "an earlier request with client token {token} has made an instance that EC2 does not show yet, and the class, its Secret or the \
         user data has changed since; no other instance is made meanwhile"
    );
    Status::new(Code::Unavailable, message)
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

/// Whether an instance that was found by its id belongs to a machine. It may have ended, because EC2 shows ended instances for an hour, and it may
/// belong to another machine.
pub fn backs(instance: &Instance, owner: &OwnerTags, machine: &str) -> bool {
    let is_named = instance.name().is_empty() || instance.name() == machine;
    !instance.has_ended() && is_named && owner.own(|key| instance.has_tag(key))
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

/// The error for an instance with the machine's provider id that belongs neither to the cluster nor to the machine.
pub fn not_ours(id: &str) -> Status {
    let message = format!(
        "instance {id} carries neither the tags of its class nor the token of its machine: it is another's and is not ended"
    );
    Status::new(Code::NotFound, message)
}

/// The first attempt whose client token made none of these ended instances.
pub fn next_attempt(base: &str, ended: &[Instance]) -> usize {
    let is_used = |attempt: &usize| ended.iter().any(|instance| instance.client_token == token(base, *attempt));
    (0..=ended.len()).find(|attempt| !is_used(attempt)).unwrap_or(ended.len())
}

/// The settings of the class that an instance does not have yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The network interfaces that still check source and destination of packets.
    pub checking: Vec<String>,
    /// The network interfaces that need more IPv6 prefixes, with their number.
    pub prefixes: Vec<(String, usize)>,
    /// Whether the class switches the checks off and the instance has no interface yet.
    pub interfaces: bool,
}

impl Missing {
    /// Compares an instance with its class.
    pub fn of(instance: &Instance, spec: &Spec) -> Self {
        let mut missing = Self::default();
        if spec.src_and_dst_checks_enabled == Some(false) {
            missing.interfaces = instance.interfaces.is_empty();
            let checks =
                |interface: &&Interface| !is_fabric(&interface.kind) && interface.source_dest_check.unwrap_or(true);
            missing.checking = instance.interfaces.iter().filter(checks).map(|found| found.id.clone()).collect();
        }
        for interface in &instance.interfaces {
            let wanted = wanted(spec, interface).and_then(|wanted| usize::try_from(wanted.ipv6_prefix_count?).ok());
            // Additional prefixes stay, because they may be in use.
            if let Some(count) =
                wanted.and_then(|wanted| wanted.checked_sub(interface.ipv6_prefixes)).filter(|n| *n > 0)
            {
                missing.prefixes.push((interface.id.clone(), count));
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
        assert_eq!(Missing::of(&instance, &spec).prefixes, [("b".to_owned(), 1)]);
    }
}
