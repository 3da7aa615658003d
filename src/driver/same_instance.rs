//! Whether two provider ids name the same instance, although two programs wrote them.
//!
//! The id of a machine comes from its driver, that of a Node from the cloud's controller manager or the kubelet, and they
//! differ in spelling: `aws:///eu-west-1/i-0abc` and `aws:///eu-west-1a/i-0abc`, `gce:///…` and `gce://…`, a name and a
//! resource path at Azure. Source: decisions.md 44.

use serde::Serialize;

/// What a driver says of a machine's provider id and a Node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SameInstance {
    /// They name one instance.
    Same,
    /// They name two.
    Another,
    /// Nobody can tell from these ids.
    Unknown,
}

/// Part of the ids of VMs in Azure's scale sets, which end in a number that says nothing outside its set.
const SCALE_SET: &str = "/virtualmachinescalesets/";

/// The answer of a provider whose ids end in what names the instance, case ignored: AWS, Azure, GCP, `OpenStack`, the
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

/// The answer for a provider whose ids nobody here knows: equal last segments name one instance, all else says nothing.
pub fn unless_they_differ(machine: &str, node: &str) -> SameInstance {
    match by_last_segment(machine, node) {
        SameInstance::Another => SameInstance::Unknown,
        told => told,
    }
}

/// What ids of one instance have in common however they are spelled: the last segment in lower case, or the whole text of one that has
/// none. Two instances may have it in common, too.
pub fn instance_key(id: &str) -> String {
    last_segment(id).unwrap_or(id).to_ascii_lowercase()
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
        assert_eq!(unless_they_differ(machine, node), elsewhere);
    }
}
