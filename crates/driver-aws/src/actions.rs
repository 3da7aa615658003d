//! The actions of EC2 that the driver asks for: their requests, and what it reads of their answers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use machine_driver::OwnerTags;

use crate::{
    query::Query,
    xml::{Element, Xml},
};

/// The version of EC2's API.
const VERSION: &str = "2016-11-15";
/// Instances on a page: half of what EC2 allows. One with all its tags and interfaces may take 25 KiB, and a page must fit into an
/// answer.
const PAGE: u16 = 500;

/// An empty request.
pub fn query(action: &'static str) -> Query {
    Query::new(action, VERSION)
}

/// An image.
pub fn describe_images(image: &str) -> Query {
    let mut query = query("DescribeImages");
    query.values("ImageId", [image]);
    query
}

/// The answer to a request as `DryRun` that would have been carried out.
pub const DRY_RUN: &str = "DryRunOperation";

/// Subnets.
pub fn describe_subnets<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("DescribeSubnets");
    query.values("SubnetId", ids);
    query
}

/// Security groups.
pub fn describe_security_groups<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("DescribeSecurityGroups");
    query.values("GroupId", ids);
    query
}

/// A key pair.
pub fn describe_key_pair(name: &str) -> Query {
    let mut query = query("DescribeKeyPairs");
    query.values("KeyName", [name]);
    query
}

/// Where a subnet or a security group is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub vpc: String,
    /// Empty for a group, which is in all zones.
    pub zone: String,
}

/// The answer of `DescribeSubnets` or `DescribeSecurityGroups`, by ids; `None` when it is another answer.
pub fn read_networks(xml: &Xml<'_>, list: &str, id: &str) -> Option<BTreeMap<String, Network>> {
    let root = xml.root();
    root.child(list)?;
    let network = |item: Element<'_, '_>| Network {
        vpc: item.text("vpcId").to_owned(),
        zone: item.text("availabilityZone").to_owned(),
    };
    Some(root.items(list).map(|item| (item.text(id).to_owned(), network(item))).collect())
}

/// Which instances are looked for.
#[derive(Clone, Copy, Debug)]
pub enum Look<'a> {
    /// By their id, in any state.
    Id(&'a str),
    /// Those of an owner: of one machine or of all, live ones or all that EC2 still knows.
    Tags { owner: &'a OwnerTags, machine: Option<&'a str>, states: States },
}

impl Look<'_> {
    /// Whether an instance is one that is looked for. The filters of the request are not relied on alone: some services that speak EC2's
    /// protocol keep one of two filters of a name, and an instance of another cluster would be taken for ours.
    pub fn wants(self, instance: &Instance) -> bool {
        match self {
            Self::Id(id) => instance.id == id,
            Self::Tags { owner, machine, .. } => {
                let is_of_machine = machine.is_none_or(|machine| instance.name() == machine);
                is_of_machine && owner.own(|key| instance.has_tag(key))
            }
        }
    }
}

/// In which states instances are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// Those that run or may run again.
    Live,
    /// All.
    Any,
}

/// One page of the instances that are looked for.
pub fn describe_instances(look: Look<'_>, page: Option<&str>) -> Query {
    let mut query = query("DescribeInstances");
    match look {
        // EC2 takes no page size along with ids.
        Look::Id(id) => query.values("InstanceId", [id]),
        Look::Tags { owner, machine, states } => {
            let mut filters = Vec::new();
            filters.extend(machine.map(|name| ("tag:Name", vec![name])));
            filters.extend(owner.keys().map(|key| ("tag-key", vec![key])));
            if states == States::Live {
                filters.push(("instance-state-name", LIVE.to_vec()));
            }
            query.list("Filter", filters, |query, (name, values)| {
                query.set("Name", name);
                query.values("Value", values);
            });
            query.set("MaxResults", PAGE);
            query.set_some("NextToken", page);
        }
    }
    query
}

/// Instances come to an end.
pub fn terminate_instances<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("TerminateInstances");
    query.values("InstanceId", ids);
    query
}

/// A network interface passes packets on that are not its own.
pub fn disable_source_dest_check(interface: &str) -> Query {
    let mut query = query("ModifyNetworkInterfaceAttribute");
    query.set("NetworkInterfaceId", interface);
    query.nested("SourceDestCheck", |query| query.set("Value", false));
    query
}

/// A network interface gets more IPv6 prefixes.
pub fn assign_ipv6_prefixes(interface: &str, count: usize) -> Query {
    let mut query = query("AssignIpv6Addresses");
    query.set("NetworkInterfaceId", interface);
    query.set("Ipv6PrefixCount", count);
    query
}

/// The states of instances that run or may run again.
const LIVE: [&str; 4] = ["pending", "running", "stopping", "stopped"];

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub id: String,
    pub state: String,
    pub private_dns_name: String,
    pub private_ip: Option<String>,
    /// The token of the request that made it.
    pub client_token: String,
    pub launched: Option<Timestamp>,
    pub tags: Vec<(String, String)>,
    pub interfaces: Vec<Interface>,
    pub state_reason: Option<(String, String)>,
}

/// A network interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub id: String,
    pub kind: String,
    /// Absent means that packets are checked.
    pub source_dest_check: Option<bool>,
    pub device_index: Option<i32>,
    pub ipv6_prefixes: usize,
    pub ipv6_addresses: Vec<String>,
}

impl Instance {
    fn read(from: Element<'_, '_>) -> Self {
        let reason = from.child("stateReason");
        Self {
            id: from.text("instanceId").to_owned(),
            state: from.child("instanceState").map(|state| state.text("name").to_owned()).unwrap_or_default(),
            private_dns_name: from.text("privateDnsName").to_owned(),
            private_ip: from.some_text("privateIpAddress"),
            client_token: from.text("clientToken").to_owned(),
            launched: from.value("launchTime"),
            tags: from.items("tagSet").map(|tag| (tag.text("key").to_owned(), tag.text("value").to_owned())).collect(),
            interfaces: from.items("networkInterfaceSet").map(Interface::read).collect(),
            state_reason: reason.map(|reason| (reason.text("code").to_owned(), reason.text("message").to_owned())),
        }
    }

    /// Whether it has come to its end.
    pub fn has_ended(&self) -> bool {
        ["shutting-down", "terminated"].contains(&self.state.as_str())
    }

    /// Whether it has a tag with this key.
    pub fn has_tag(&self, key: &str) -> bool {
        self.tags.iter().any(|(tag, _)| tag == key)
    }

    /// The machine that it was made for; empty when nobody knows.
    pub fn name(&self) -> &str {
        self.tags.iter().find(|(key, _)| key == "Name").map_or("", |(_, value)| value)
    }
}

impl Interface {
    fn read(from: Element<'_, '_>) -> Self {
        Self {
            id: from.text("networkInterfaceId").to_owned(),
            kind: from.text("interfaceType").to_owned(),
            source_dest_check: from.value("sourceDestCheck"),
            device_index: from.child("attachment").and_then(|attachment| attachment.value("deviceIndex")),
            ipv6_prefixes: from.items("ipv6PrefixSet").count(),
            ipv6_addresses: from.items("ipv6AddressesSet").filter_map(|ip| ip.some_text("ipv6Address")).collect(),
        }
    }
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The name of its root device, if it has one.
    pub root_device: Option<String>,
}

/// The answer of `DescribeImages`: the first image, or `None` when there is none.
pub fn read_image(xml: &Xml<'_>) -> Option<Image> {
    let image = xml.root().items("imagesSet").next()?;
    Some(Image { root_device: image.some_text("rootDeviceName") })
}

/// The answer of `RunInstances`; `None` without an instance.
pub fn read_launched(xml: &Xml<'_>) -> Option<Instance> {
    xml.root().items("instancesSet").next().map(Instance::read)
}

/// A page of `DescribeInstances`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub instances: Vec<Instance>,
    pub next: Option<String>,
}

/// The answer of `DescribeInstances`; `None` when it is another answer.
pub fn read_page(xml: &Xml<'_>) -> Option<Page> {
    let root = xml.root();
    // A list that is cut off must not be taken for an empty one.
    root.child("reservationSet")?;
    let instances = root.items("reservationSet").flat_map(|reservation| reservation.items("instancesSet"));
    Some(Page { instances: instances.map(Instance::read).collect(), next: root.some_text("nextToken") })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CLUSTER: &str = "kubernetes.io/cluster/c";
    const ROLE: &str = "kubernetes.io/role/node";

    #[rstest]
    #[case::ours(&[CLUSTER, ROLE], "m", true)]
    #[case::of_another_machine(&[CLUSTER, ROLE], "n", false)]
    #[case::of_another_cluster(&[ROLE], "m", false)]
    #[case::of_another_role(&[CLUSTER], "m", false)]
    fn a_04_tags_are_looked_at_whatever_the_service_has_filtered(
        #[case] keys: &[&str],
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        let tags = [CLUSTER, ROLE].map(str::to_owned);
        let owner = OwnerTags::of(tags.iter(), "/cluster/", "/role/").unwrap();
        let mut tags = vec![("Name".to_owned(), name.to_owned())];
        tags.extend(keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())));
        let instance = Instance { tags, ..Instance::default() };
        let look = |machine| Look::Tags { owner: &owner, machine, states: States::Live };
        assert_eq!(look(Some("m")).wants(&instance), expected);
        assert_eq!(look(None).wants(&instance), keys.len() == 2);
    }

    #[test]
    fn an_instance_that_was_not_asked_for_is_not_wanted() {
        let instance = |id: &str| Instance { id: id.to_owned(), ..Instance::default() };
        assert!(Look::Id("i-1").wants(&instance("i-1")));
        assert!(!Look::Id("i-1").wants(&instance("i-2")));
    }
}
