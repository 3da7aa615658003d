//! The actions of ECS and STS that the driver uses: their parameters, and the parts of their answers that it reads.
//!
//! All parameters are in the URL of a `POST /`, as Alibaba Cloud's own client sends them. Answers are JSON.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer};

use crate::query::Query;

/// The version of the API of ECS.
pub const ECS_VERSION: &str = "2014-05-26";
/// The version of the API of STS.
pub const STS_VERSION: &str = "2015-04-01";
/// The number of instances on a page. ECS allows no more.
const PAGE: usize = 100;

/// The error code with which ECS answers a request with `DryRun` that it would carry out.
pub const DRY_RUN: &str = "DryRunOperation";

/// Selects instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceQuery<'a> {
    /// The instance with this id.
    Id(&'a str),
    /// The instances with the name of a machine, of any owner: a user may have edited the tags of the class.
    Named(&'a str),
    /// The instances with these tags.
    Tagged(&'a BTreeMap<String, String>),
}

impl InstanceQuery<'_> {
    /// Whether an instance is selected. It is checked again after the filters of the request, because ECS reads an asterisk in a name as a pattern.
    pub fn matches(self, instance: &Instance) -> bool {
        match self {
            Self::Id(id) => instance.id == id,
            Self::Named(name) => instance.name == name,
            Self::Tagged(tags) => tags.keys().all(|key| instance.has_tag(key)),
        }
    }
}

/// Asks for one page of the selected instances.
pub fn describe_instances(region: &str, selection: InstanceQuery<'_>, page: Option<&str>) -> Query {
    let mut query = Query::new("DescribeInstances", ECS_VERSION);
    query.set("RegionId", region);
    match selection {
        InstanceQuery::Id(id) => query.set("InstanceIds", serde_json::json!([id])),
        InstanceQuery::Named(name) => query.set("InstanceName", name),
        InstanceQuery::Tagged(tags) => tagged(&mut query, tags),
    }
    query.set("MaxResults", PAGE);
    query.set_text("NextToken", page.unwrap_or_default());
    query
}

/// Tags as parameters: `Tag.1.Key`, `Tag.1.Value` and so on.
pub fn tagged(query: &mut Query, tags: &BTreeMap<String, String>) {
    for (number, (key, value)) in (1_usize..).zip(tags) {
        query.set(&format!("Tag.{number}.Key"), key);
        query.set(&format!("Tag.{number}.Value"), value);
    }
}

/// Deletes an instance, also while it runs. The host of the request names the region.
pub fn delete_instance(id: &str) -> Query {
    let mut query = Query::new("DeleteInstance", ECS_VERSION);
    query.set("InstanceId", id);
    query.set("Force", true);
    query
}

/// Asks STS for the account of the credentials. The request needs no right.
pub fn get_caller_identity() -> Query {
    Query::new("GetCallerIdentity", STS_VERSION)
}

/// The answer of `RunInstances`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Launched {
    #[serde(deserialize_with = "or_default")]
    pub instance_id_sets: InstanceIdSets,
}

/// The ids of the new instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InstanceIdSets {
    #[serde(deserialize_with = "or_default")]
    pub instance_id_set: Vec<String>,
}

/// A page of the answer of `DescribeInstances`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Page {
    /// An answer without a list is no empty list, so that the field is required.
    pub instances: Instances,
    #[serde(default, deserialize_with = "or_default")]
    pub next_token: String,
}

/// The instances of a page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Instances {
    pub instance: Vec<Instance>,
}

/// The answer of `DeleteInstance`. It only has the id of the request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Deleted {
    pub request_id: String,
}

/// The answer of `GetCallerIdentity`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Caller {
    pub account_id: String,
}

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Instance {
    #[serde(rename = "InstanceId")]
    pub id: String,
    #[serde(rename = "InstanceName", deserialize_with = "or_default")]
    pub name: String,
    /// `Pending`, `Starting`, `Running`, `Stopping` or `Stopped`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    /// When the instance was created, such as `2017-12-10T04:04Z`.
    #[serde(deserialize_with = "or_default")]
    pub creation_time: String,
    #[serde(deserialize_with = "or_default")]
    pub deletion_protection: bool,
    #[serde(deserialize_with = "or_default")]
    tags: Tags,
    #[serde(deserialize_with = "or_default")]
    vpc_attributes: VpcAttributes,
    #[serde(deserialize_with = "or_default")]
    public_ip_address: Addresses,
    #[serde(deserialize_with = "or_default")]
    eip_address: ElasticAddress,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tags {
    #[serde(deserialize_with = "or_default")]
    tag: Vec<Tag>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tag {
    #[serde(deserialize_with = "or_default")]
    tag_key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct VpcAttributes {
    #[serde(deserialize_with = "or_default")]
    private_ip_address: Addresses,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Addresses {
    #[serde(deserialize_with = "or_default")]
    ip_address: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ElasticAddress {
    #[serde(deserialize_with = "or_default")]
    ip_address: String,
}

impl Instance {
    /// Whether the instance has a tag with this key.
    pub fn has_tag(&self, key: &str) -> bool {
        self.tags.tag.iter().any(|tag| tag.tag_key == key)
    }

    /// The latest time at which the instance may have been created: ECS leaves the seconds out.
    pub fn created(&self) -> Option<Timestamp> {
        let time = self.creation_time.as_str();
        match time.strip_suffix('Z').filter(|time| time.matches(':').count() == 1) {
            None => time.parse().ok(),
            Some(minute) => {
                let begins: Timestamp = format!("{minute}:00Z").parse().ok()?;
                begins.checked_add(SignedDuration::from_secs(59)).ok()
            }
        }
    }

    /// The addresses in its network.
    pub fn private_addresses(&self) -> impl Iterator<Item = &str> {
        self.vpc_attributes.private_ip_address.ip_address.iter().map(String::as_str)
    }

    /// The addresses of the internet.
    pub fn public_addresses(&self) -> impl Iterator<Item = &str> {
        let elastic = Some(&self.eip_address.ip_address).filter(|address| !address.is_empty());
        self.public_ip_address.ip_address.iter().chain(elastic).map(String::as_str)
    }
}

/// Reads `null` as an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

#[cfg(test)]
pub mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// An instance with these tags, as ECS writes it.
    pub fn instance(id: &str, name: &str, status: &str, tags: &[&str]) -> Instance {
        let tags: Vec<_> = tags.iter().map(|key| json!({"TagKey": key, "TagValue": "1"})).collect();
        let written = json!({"InstanceId": id, "InstanceName": name, "Status": status, "Tags": {"Tag": tags}});
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn an_instance_is_read_as_ecs_writes_it() {
        let written = json!({
            "InstanceId": "i-1", "InstanceName": "m-1", "Status": "Running", "CreationTime": "2017-12-10T04:04Z", "ImageId": "m-x",
            "Tags": {"Tag": [{"TagKey": "kubernetes.io/cluster/c", "TagValue": "1"}]}, "DeletionProtection": null,
            "VpcAttributes": {"PrivateIpAddress": {"IpAddress": ["10.0.0.2"]}, "NatIpAddress": ""},
            "PublicIpAddress": {"IpAddress": ["203.0.113.2"]}, "EipAddress": {"IpAddress": "203.0.113.3", "AllocationId": ""},
        });
        let read: Instance = serde_json::from_value(written).unwrap();
        assert_eq!((read.id.as_str(), read.name.as_str(), read.status.as_str()), ("i-1", "m-1", "Running"));
        assert!(read.has_tag("kubernetes.io/cluster/c") && !read.has_tag("kubernetes.io/cluster/"));
        assert_eq!(read.private_addresses().collect::<Vec<_>>(), ["10.0.0.2"]);
        assert_eq!(read.public_addresses().collect::<Vec<_>>(), ["203.0.113.2", "203.0.113.3"]);
        let empty: Instance =
            serde_json::from_value(json!({"InstanceName": null, "EipAddress": {"IpAddress": ""}})).unwrap();
        assert_eq!(empty, Instance::default());
        assert_eq!(empty.public_addresses().count(), 0);
    }

    #[rstest]
    #[case::without_seconds("2017-12-10T04:04Z", Some("2017-12-10T04:04:59Z"))]
    #[case::with_seconds("2017-12-10T04:04:05Z", Some("2017-12-10T04:04:05Z"))]
    #[case::none("", None)]
    #[case::no_time("yesterday", None)]
    #[case::nonsense(":Z", None)]
    fn the_time_of_a_creation_is_the_latest_possible(#[case] written: &str, #[case] expected: Option<&str>) {
        let instance = Instance { creation_time: written.to_owned(), ..Instance::default() };
        assert_eq!(instance.created(), expected.map(|time| time.parse().unwrap()));
    }

    #[rstest]
    #[case::no_list(json!({"RequestId": "r"}))]
    #[case::an_empty_object(json!({"Instances": {}}))]
    #[case::no_object(json!({"Instances": null}))]
    #[case::a_list(json!([]))]
    fn y14_an_answer_without_a_list_is_no_empty_list(#[case] answer: serde_json::Value) {
        assert!(serde_json::from_value::<Page>(answer).is_err());
    }

    #[test]
    fn a_page_may_have_no_token() {
        let list = json!({"Instance": []});
        let without = json!({"Instances": list});
        for page in
            [without, json!({"Instances": list, "NextToken": null}), json!({"Instances": list, "NextToken": ""})]
        {
            let read: Page = serde_json::from_value(page).unwrap();
            assert!(read.instances.instance.is_empty() && read.next_token.is_empty());
        }
    }

    #[test]
    fn selections_are_checked_in_addition_to_the_filters_of_the_service() {
        let found = instance("i-1", "m-1", "Running", &["a"]);
        assert!(InstanceQuery::Id("i-1").matches(&found) && !InstanceQuery::Id("i-2").matches(&found));
        assert!(InstanceQuery::Named("m-1").matches(&found) && !InstanceQuery::Named("m").matches(&found));
        let tags = |key: &str| BTreeMap::from([(key.to_owned(), "1".to_owned())]);
        assert!(
            InstanceQuery::Tagged(&tags("a")).matches(&found) && !InstanceQuery::Tagged(&tags("b")).matches(&found)
        );
    }

    #[test]
    fn a_list_is_asked_for_by_id_by_name_or_by_tags() {
        let text = |selection, page| describe_instances("cn-x", selection, page).encoded();
        assert_eq!(text(InstanceQuery::Id("i-1"), None), "InstanceIds=%5B%22i-1%22%5D&MaxResults=100&RegionId=cn-x");
        assert_eq!(text(InstanceQuery::Named("m"), None), "InstanceName=m&MaxResults=100&RegionId=cn-x");
        let tags = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())]);
        assert_eq!(
            text(InstanceQuery::Tagged(&tags), Some("t")),
            "MaxResults=100&NextToken=t&RegionId=cn-x&Tag.1.Key=a&Tag.1.Value=1&Tag.2.Key=b&Tag.2.Value="
        );
        assert_eq!(delete_instance("i-1").encoded(), "Force=true&InstanceId=i-1");
    }
}
