//! Whether two provider ids name the same instance, although different programs wrote them.
//!
//! The id of a machine comes from its driver. The id of a Node comes from the cloud's controller manager or the kubelet. Their spelling differs:
//! `aws:///eu-west-1/i-0abc` and `aws:///eu-west-1a/i-0abc`, `gce:///…` and `gce://…`, a name and a resource path at Azure. Source: decisions.md 44.

use machine_api::validation::{Holder, HolderFact};
use serde::Serialize;

/// Whether the provider ids of a machine and a Node name the same instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SameInstance {
    /// They name one instance.
    Same,
    /// They name two instances.
    Another,
    /// These ids do not show it.
    Unknown,
}

/// Part of the ids of VMs in Azure's scale sets. They end in a number that is unique only in its set.
const SCALE_SET: &str = "/virtualmachinescalesets/";

/// The answer for a provider whose ids end in the name of the instance, without regard to case: AWS, Azure, GCP, `OpenStack`, the
/// virtual cloud.
pub fn by_last_segment(machine: &str, node: &str) -> SameInstance {
    let (machine, node) = (machine.to_ascii_lowercase(), node.to_ascii_lowercase());
    let (Some(ours), Some(theirs)) = (last_segment(&machine), last_segment(&node)) else {
        return SameInstance::Unknown;
    };
    if machine == node {
        return SameInstance::Same;
    }
    if machine.contains(SCALE_SET) || node.contains(SCALE_SET) {
        return SameInstance::Unknown;
    }
    if ours == theirs { SameInstance::Same } else { SameInstance::Another }
}

/// The answer for an unknown provider: equal last segments name the same instance; other ids show nothing.
pub fn same_or_unknown(machine: &str, node: &str) -> SameInstance {
    match by_last_segment(machine, node) {
        SameInstance::Another => SameInstance::Unknown,
        answer => answer,
    }
}

/// A key that all spellings of an instance's id have in common: the last segment in lower case, or the whole text if there is none.
/// Different instances may have the same key. An empty id has no key.
pub fn instance_key(id: &str) -> Option<String> {
    (!id.is_empty()).then(|| last_segment(id).unwrap_or(id).to_ascii_lowercase())
}

/// Whether the ids of two machines name the same instance, as far as the ids show it. Admission refuses objects by this, so `Same`
/// must be certain: instances of different projects, zones or resource groups may have the same name.
pub fn of_two_machines(one: &str, other: &str) -> SameInstance {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    if one.is_empty() || other.is_empty() {
        return SameInstance::Unknown;
    }
    if one == other {
        return SameInstance::Same;
    }
    let instance = instance_key(&one);
    if instance != instance_key(&other) {
        return SameInstance::Another;
    }
    let (one, other) = (IdParts::of(&one), IdParts::of(&other));
    if one.scheme != other.scheme {
        return if one.scheme.is_some() && other.scheme.is_some() {
            SameInstance::Another
        } else {
            SameInstance::Unknown
        };
    }
    if one.place == other.place || instance.is_some_and(|instance| is_uuid(&instance)) {
        return SameInstance::Same;
    }
    match (one.scheme, one.place.as_slice(), other.place.as_slice()) {
        // An id is unique in its region. Some ids contain the region, some the zone, some neither.
        (Some("aws"), [], _) | (Some("aws"), _, []) => SameInstance::Same,
        (Some("aws"), [one], [other]) if one.starts_with(other) || other.starts_with(one) => SameInstance::Same,
        (Some("aws"), ..) => SameInstance::Another,
        // A name is unique in a project and a zone.
        (Some("gce"), one, other) if one.len() == other.len() => SameInstance::Another,
        // A name is unique in a resource group, and a location does not show the resource group.
        (Some("azure"), one, other) if one.len() == other.len() => SameInstance::Another,
        _ => SameInstance::Unknown,
    }
}

/// Whether the zones in two ids prove that they name two instances. Names of GCE are unique in a zone of a project, and a zone has one spelling. A project
/// has two, its id and its number, so that it proves nothing.
pub fn are_in_two_zones(one: &str, other: &str) -> bool {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    let zone = |id: &str| {
        let parts = IdParts::of(id);
        (parts.scheme == Some("gce") && parts.place.len() == 2).then(|| parts.place[1].to_owned())
    };
    zone(&one).zip(zone(&other)).is_some_and(|(one, other)| one != other)
}

/// The parts of an id, without empty segments.
struct IdParts<'i> {
    scheme: Option<&'i str>,
    /// All segments but the last.
    place: Vec<&'i str>,
}

impl<'i> IdParts<'i> {
    fn of(id: &'i str) -> Self {
        let (scheme, path) = id.split_once("://").map_or((None, id), |(scheme, path)| (Some(scheme), path));
        let mut place: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        place.pop();
        Self { scheme, place }
    }
}

/// Whether the text is a UUID, which is unique.
fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The machine that has the instance of an id, among these machines by names and ids. If there is none, a machine that may have the instance.
pub fn holder_among<'m>(id: &str, machines: impl Iterator<Item = (&'m str, &'m str)>) -> Option<HolderFact> {
    let facts = machines.filter_map(|(name, provider_id)| {
        let holder = || Holder { name: name.to_owned(), provider_id: provider_id.to_owned() };
        match of_two_machines(id, provider_id) {
            SameInstance::Same => Some(HolderFact::Holds(holder())),
            SameInstance::Unknown if instance_key(id) == instance_key(provider_id) => {
                Some(HolderFact::MayHold(holder()))
            }
            SameInstance::Unknown | SameInstance::Another => None,
        }
    });
    facts.min()
}

/// The last segment of an id's path; `None` when there is none.
pub fn last_segment(id: &str) -> Option<&str> {
    id.rsplit('/').next().filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{SameInstance::*, *};

    #[rstest]
    #[case::aws_writes_the_zone("aws:///eu-west-1/i-0abc", "aws:///eu-west-1a/i-0abc", Same, Same)]
    #[case::another_instance("aws:///eu-west-1/i-0abc", "aws:///eu-west-1a/i-0abd", Another, Unknown)]
    #[case::gcp_writes_two_slashes("gce:///p/eu-1b/m-1", "gce://p/eu-1b/m-1", Same, Same)]
    #[case::openstack_leaves_the_region_out("openstack:///r/0000-1", "openstack:///0000-1", Same, Same)]
    #[case::azure_writes_the_resource_in_another_case(
        "azure:///westeurope/m-1",
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/M-1",
        Same,
        Same
    )]
    #[case::numbers_in_scale_sets_say_nothing(
        "azure:///westeurope/0",
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/x/virtualMachines/0",
        Unknown,
        Unknown
    )]
    #[case::one_text_is_one_instance(
        "azure:///s/virtualMachineScaleSets/x/virtualMachines/0",
        "azure:///s/virtualMachineScaleSets/x/virtualMachines/0",
        Same,
        Same
    )]
    #[case::the_machine_has_no_id("", "aws:///eu-west-1a/i-0abc", Unknown, Unknown)]
    #[case::the_node_has_no_id_yet("aws:///eu-west-1/i-0abc", "", Unknown, Unknown)]
    #[case::neither_has_one("", "", Unknown, Unknown)]
    #[case::an_id_without_an_end("aws:///eu-west-1/", "aws:///eu-west-1/", Unknown, Unknown)]
    #[case::no_path_at_all("i-1", "x://i-1", Same, Same)]
    fn ids_name_the_same_instance(
        #[case] machine: &str,
        #[case] node: &str,
        #[case] at_a_known_provider: SameInstance,
        #[case] elsewhere: SameInstance,
    ) {
        assert_eq!(by_last_segment(machine, node), at_a_known_provider);
        assert_eq!(same_or_unknown(machine, node), elsewhere);
    }

    #[rstest]
    #[case::aws_writes_the_zone("aws:///eu-west-1a/i-1", "aws:///eu-west-1/i-1", Same)]
    #[case::aws_without_a_place("aws:///i-1", "aws:///eu-west-1/i-1", Same)]
    #[case::aws_in_another_region("aws:///us-east-1/i-1", "aws:///eu-west-1/i-1", Another)]
    #[case::another_instance("aws:///eu-west-1/i-1", "aws:///eu-west-1/i-2", Another)]
    #[case::gce_with_two_slashes("gce:///p/eu-1b/m-1", "gce://p/eu-1b/m-1", Same)]
    #[case::gce_in_another_zone("gce:///p/eu-1b/m-1", "gce:///p/eu-1c/m-1", Another)]
    #[case::gce_in_another_project("gce:///p/eu-1b/m-1", "gce:///q/eu-1b/m-1", Another)]
    #[case::gce_without_a_project("gce:///eu-1b/m-1", "gce:///p/eu-1b/m-1", Unknown)]
    #[case::azure_in_another_case("azure:///westeurope/M-1", "azure:///WestEurope/m-1", Same)]
    #[case::azure_in_another_place("azure:///westeurope/m-1", "azure:///northeurope/m-1", Another)]
    #[case::azure_resources_in_another_case(
        "azure:///subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/M-1",
        "azure:///subscriptions/s/resourcegroups/g/providers/microsoft.compute/virtualmachines/m-1",
        Same
    )]
    #[case::azure_in_another_resource_group(
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m-1",
        "azure:///subscriptions/s/resourceGroups/h/providers/Microsoft.Compute/virtualMachines/m-1",
        Another
    )]
    #[case::azure_by_place_and_by_resource(
        "azure:///westeurope/m-1",
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m-1",
        Unknown
    )]
    #[case::azure_numbers_of_two_scale_sets(
        "azure:///s/virtualMachineScaleSets/x/virtualMachines/0",
        "azure:///s/virtualMachineScaleSets/y/virtualMachines/0",
        Another
    )]
    #[case::openstack_with_a_region(
        "openstack:///5b1a04d9-5a2c-4b8c-8e7e-0c6e1a1f2b3c",
        "openstack://r1/5B1A04D9-5a2c-4b8c-8e7e-0c6e1a1f2b3c",
        Same
    )]
    #[case::openstack_with_a_name("openstack:///m-1", "openstack://r1/m-1", Unknown)]
    #[case::two_clouds("gce:///p/z/m-1", "azure:///p/z/m-1", Another)]
    #[case::two_clouds_with_one_uuid(
        "openstack:///5b1a04d9-5a2c-4b8c-8e7e-0c6e1a1f2b3c",
        "metal:///5b1a04d9-5a2c-4b8c-8e7e-0c6e1a1f2b3c",
        Another
    )]
    #[case::an_unknown_provider("x:///a/m-1", "x:///b/m-1", Unknown)]
    #[case::no_scheme("m-1", "x:///a/m-1", Unknown)]
    #[case::one_text("x:///a/", "x:///a/", Same)]
    #[case::no_id("", "", Unknown)]
    fn ids_of_two_machines_name_one_instance_for_certain(
        #[case] one: &str,
        #[case] other: &str,
        #[case] expected: SameInstance,
    ) {
        assert_eq!(of_two_machines(one, other), expected);
        assert_eq!(of_two_machines(other, one), expected);
        if expected != Another && !one.is_empty() {
            assert_eq!(instance_key(one), instance_key(other), "both stand under one key of an index");
        }
    }

    #[rstest]
    #[case::two_zones("gce:///p/z-1/m", "gce:///p/z-2/m", true)]
    #[case::two_zones_of_two_projects("gce:///p/z-1/m", "gce:///q/z-2/m", true)]
    #[case::a_project_by_its_number("gce:///p/z-1/m", "gce:///123/z-1/m", false)]
    #[case::as_a_cloud_controller_writes_it("gce:///p/z-1/m", "gce://P/Z-1/m", false)]
    #[case::a_zone_is_missing("gce:///p/z-1/m", "gce:///p/m", false)]
    #[case::of_an_organisation("gce:///example.com:p/z-1/m", "gce:///example.com:p/z-2/m", true)]
    #[case::another_cloud("aws:///r/z-1/i-1", "aws:///r/z-2/i-1", false)]
    #[case::no_id("", "gce:///p/z-1/m", false)]
    fn zones_prove_that_ids_name_two_instances(#[case] one: &str, #[case] other: &str, #[case] expected: bool) {
        assert_eq!(are_in_two_zones(one, other), expected);
        assert_eq!(are_in_two_zones(other, one), expected);
    }

    #[test]
    fn a_machine_that_has_the_instance_comes_before_one_that_may_have_it() {
        let machines = [("a", "m-1"), ("b", "x:///z/m-1"), ("c", "x:///m-1"), ("d", "x:///m-2"), ("e", "")];
        let holder_of = |id: &str| holder_among(id, machines.into_iter());
        let holder = |name: &str, id: &str| Holder { name: name.to_owned(), provider_id: id.to_owned() };
        assert_eq!(holder_of("x://m-1"), Some(HolderFact::Holds(holder("c", "x:///m-1"))));
        assert_eq!(holder_of("x:///y/m-1"), Some(HolderFact::MayHold(holder("a", "m-1"))));
        assert_eq!(holder_of("x:///m-3"), None);
    }
}
