//! The actions of EC2 that the driver uses: writes their requests and reads their answers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use machine_driver::OwnerTags;

use crate::{
    credentials::STS,
    query::Query,
    xml::{Element, Xml},
};

/// The version of EC2's API.
const VERSION: &str = "2016-11-15";
/// The number of instances on a page. It is half of what EC2 allows, because an instance with all its tags and interfaces may take 25 KiB, and
/// the size of an answer is limited.
const PAGE: u16 = 500;

/// An empty request.
pub fn query(action: &'static str) -> Query {
    Query::new(action, VERSION)
}

/// Asks STS for the account of the credentials.
pub fn get_caller_identity() -> Query {
    Query::new("GetCallerIdentity", STS)
}

/// Reads the id of the account in the answer of `GetCallerIdentity`.
pub fn read_account(xml: &Xml<'_>) -> Option<String> {
    xml.root().child("GetCallerIdentityResult")?.some_text("Account")
}

/// Asks for an image.
pub fn describe_images(image: &str) -> Query {
    let mut query = query("DescribeImages");
    query.values("ImageId", [image]);
    query
}

/// The error code with which EC2 answers a `DryRun` request that it would carry out.
pub const DRY_RUN: &str = "DryRunOperation";

/// Asks for subnets.
pub fn describe_subnets<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("DescribeSubnets");
    query.values("SubnetId", ids);
    query
}

/// Asks for security groups.
pub fn describe_security_groups<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("DescribeSecurityGroups");
    query.values("GroupId", ids);
    query
}

/// Asks for a key pair.
pub fn describe_key_pair(name: &str) -> Query {
    let mut query = query("DescribeKeyPairs");
    query.values("KeyName", [name]);
    query
}

/// The network and the zone of a subnet or a security group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    pub vpc: String,
    /// The availability zone. Empty for a security group, which belongs to no zone.
    pub zone: String,
}

/// Reads the answer of `DescribeSubnets` or `DescribeSecurityGroups`, by ids. `None` for an answer without that list.
pub fn read_networks(xml: &Xml<'_>, list: &str, id: &str) -> Option<BTreeMap<String, Network>> {
    let root = xml.root();
    root.child(list)?;
    let network = |item: Element<'_, '_>| Network {
        vpc: item.text("vpcId").to_owned(),
        zone: item.text("availabilityZone").to_owned(),
    };
    Some(root.items(list).map(|item| (item.text(id).to_owned(), network(item))).collect())
}

/// Selects instances.
#[derive(Clone, Copy, Debug)]
pub enum InstanceQuery<'a> {
    /// The instance with this id, in any state.
    Id(&'a str),
    /// The instances with the name of a machine, of any owner: a user may have edited the tags of the class.
    Named { machine: &'a str, states: States },
    /// The instance that a request with this client token has made, in any state.
    Token(&'a str),
    /// The live instances of an owner.
    Owned(&'a OwnerTags),
}

impl InstanceQuery<'_> {
    /// Whether an instance is selected. The driver checks this again after the filters of the request: some services with the API of EC2 apply
    /// only one of two filters with the same name, and could return instances of another cluster.
    pub fn matches(self, instance: &Instance) -> bool {
        match self {
            Self::Id(id) => instance.id == id,
            Self::Named { machine, .. } => instance.name() == machine,
            Self::Token(token) => instance.client_token == token,
            Self::Owned(owner) => owner.own(|key| instance.has_tag(key)),
        }
    }
}

/// The states of the instances that are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// Instances that run or may run again.
    Live,
    /// All instances that EC2 still shows.
    Any,
}

/// Asks for one page of the selected instances.
pub fn describe_instances(selection: InstanceQuery<'_>, page: Option<&str>) -> Query {
    let mut query = query("DescribeInstances");
    let live = ("instance-state-name", LIVE.to_vec());
    let filters = match selection {
        InstanceQuery::Id(id) => {
            // EC2 accepts no page size together with ids.
            query.values("InstanceId", [id]);
            return query;
        }
        InstanceQuery::Named { machine, states: States::Live } => vec![("tag:Name", vec![machine]), live],
        InstanceQuery::Named { machine, states: States::Any } => vec![("tag:Name", vec![machine])],
        InstanceQuery::Token(token) => vec![("client-token", vec![token])],
        InstanceQuery::Owned(owner) => owner.keys().map(|key| ("tag-key", vec![key])).chain([live]).collect(),
    };
    query.list("Filter", filters, |query, (name, values)| {
        query.set("Name", name);
        query.values("Value", values);
    });
    query.set("MaxResults", PAGE);
    query.set_some("NextToken", page);
    query
}

/// Terminates instances.
pub fn terminate_instances<'a>(ids: impl IntoIterator<Item = &'a str>) -> Query {
    let mut query = query("TerminateInstances");
    query.values("InstanceId", ids);
    query
}

/// Switches off the check of source and destination, so that the interface forwards packets of other addresses.
pub fn disable_source_dest_check(interface: &str) -> Query {
    let mut query = query("ModifyNetworkInterfaceAttribute");
    query.set("NetworkInterfaceId", interface);
    query.nested("SourceDestCheck", |query| query.set("Value", false));
    query
}

/// Assigns more IPv6 prefixes to a network interface.
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
    /// The client token of the request that made the instance.
    pub client_token: String,
    pub launched: Option<Timestamp>,
    /// The id of the account that the instance belongs to.
    pub account: Option<String>,
    pub tags: Vec<(String, String)>,
    pub interfaces: Vec<Interface>,
    pub state_reason: Option<(String, String)>,
}

/// A network interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub id: String,
    pub kind: String,
    /// Whether source and destination of packets are checked. `None` means that they are.
    pub source_dest_check: Option<bool>,
    pub device_index: Option<i32>,
    pub ipv6_prefixes: usize,
    pub ipv6_addresses: Vec<String>,
}

impl Instance {
    /// Reads an instance of a reservation, which names the account.
    fn of_reservation(reservation: Element<'_, '_>) -> impl Iterator<Item = Self> {
        let account = reservation.some_text("ownerId");
        reservation.items("instancesSet").map(move |instance| Self { account: account.clone(), ..Self::read(instance) })
    }

    fn read(from: Element<'_, '_>) -> Self {
        let reason = from.child("stateReason");
        Self {
            id: from.text("instanceId").to_owned(),
            state: from.child("instanceState").map(|state| state.text("name").to_owned()).unwrap_or_default(),
            private_dns_name: from.text("privateDnsName").to_owned(),
            private_ip: from.some_text("privateIpAddress"),
            client_token: from.text("clientToken").to_owned(),
            launched: from.value("launchTime"),
            account: None,
            tags: from.items("tagSet").map(|tag| (tag.text("key").to_owned(), tag.text("value").to_owned())).collect(),
            interfaces: from.items("networkInterfaceSet").map(Interface::read).collect(),
            state_reason: reason.map(|reason| (reason.text("code").to_owned(), reason.text("message").to_owned())),
        }
    }

    /// Whether the instance is terminated or is being terminated.
    pub fn has_ended(&self) -> bool {
        ["shutting-down", "terminated"].contains(&self.state.as_str())
    }

    /// Whether the instance has a tag with this key.
    pub fn has_tag(&self, key: &str) -> bool {
        self.tags.iter().any(|(tag, _)| tag == key)
    }

    /// The name of the machine in the tag `Name`. Empty without that tag.
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
    /// The name of the root device, if the image has one.
    pub root_device: Option<String>,
}

/// Reads the first image in the answer of `DescribeImages`. `None` for an empty list.
pub fn read_image(xml: &Xml<'_>) -> Option<Image> {
    let image = xml.root().items("imagesSet").next()?;
    Some(Image { root_device: image.some_text("rootDeviceName") })
}

/// Reads the instance in the answer of `RunInstances`. `None` if there is none.
pub fn read_launched(xml: &Xml<'_>) -> Option<Instance> {
    Instance::of_reservation(xml.root()).next()
}

/// A page of the answer of `DescribeInstances`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub instances: Vec<Instance>,
    pub next: Option<String>,
}

/// Reads a page of `DescribeInstances`. `None` for an answer without a list.
pub fn read_page(xml: &Xml<'_>) -> Option<Page> {
    let root = xml.root();
    // An answer without a list must not be read as an empty list.
    root.child("reservationSet")?;
    let instances = root.items("reservationSet").flat_map(Instance::of_reservation).collect();
    Some(Page { instances, next: root.some_text("nextToken") })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CLUSTER: &str = "kubernetes.io/cluster/c";
    const ROLE: &str = "kubernetes.io/role/node";

    #[rstest]
    #[case::ours(&[CLUSTER, ROLE], "m", true, true)]
    #[case::of_another_machine(&[CLUSTER, ROLE], "n", true, false)]
    #[case::of_another_cluster(&[ROLE], "m", false, true)]
    #[case::of_another_role(&[CLUSTER], "m", false, true)]
    fn a_04_tags_are_checked_in_addition_to_the_filters_of_the_service(
        #[case] keys: &[&str],
        #[case] name: &str,
        #[case] is_owned: bool,
        #[case] is_named: bool,
    ) {
        let tags = [CLUSTER, ROLE].map(str::to_owned);
        let owner = OwnerTags::of(tags.iter(), "/cluster/", "/role/").unwrap();
        let mut tags = vec![("Name".to_owned(), name.to_owned())];
        tags.extend(keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())));
        let instance = Instance { tags, ..Instance::default() };
        assert_eq!(InstanceQuery::Owned(&owner).matches(&instance), is_owned);
        assert_eq!(InstanceQuery::Named { machine: "m", states: States::Live }.matches(&instance), is_named);
    }

    #[test]
    fn an_instance_with_another_id_or_token_is_not_selected() {
        let instance = Instance { id: "i-1".to_owned(), client_token: "uid-1".to_owned(), ..Instance::default() };
        assert!(InstanceQuery::Id("i-1").matches(&instance) && !InstanceQuery::Id("i-2").matches(&instance));
        assert!(InstanceQuery::Token("uid-1").matches(&instance) && !InstanceQuery::Token("uid").matches(&instance));
    }
}
