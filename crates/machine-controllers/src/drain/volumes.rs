//! The place of a volume: still on the node, free, or attached elsewhere.
//!
//! Source: spec/machine-controller §7.6, §7.9. Volumes are compared by the provider's handle, exactly. The names of
//! in-tree volumes contain the handle between characters that are neither letters nor digits (M-44).

use serde::Serialize;

use super::observe::DrainViews;
use crate::snapshots::{AttachmentSnapshot, NodeSnapshot};
use controller_runtime::key::ObjectKey;

/// The place of a tracked volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VolumePlace {
    /// Whether it is attached to this node.
    pub here: bool,
    /// Whether it is attached to another node.
    pub elsewhere: bool,
    /// Whether a pod that is not on this node uses it.
    pub wanted: bool,
}

/// The place of the volume of this PV.
pub fn place_of(
    pv: &str,
    ids: &[String],
    node_name: &str,
    node: Option<&NodeSnapshot>,
    attachments: &[AttachmentSnapshot],
    claims: &[ObjectKey],
    views: &dyn DrainViews,
) -> VolumePlace {
    let on_node = node
        .map(NodeSnapshot::attached_volumes)
        .unwrap_or_default()
        .iter()
        .any(|attached| ids.iter().any(|id| names_volume(&attached.name, id)));
    let holds_pv = |attachment: &&AttachmentSnapshot| attachment.is_attached() && attachment.volume_name() == Some(pv);
    let attached = || attachments.iter().filter(holds_pv);
    // The Node's list drops a volume before it is detached; its attachment exists until then.
    let here = on_node || attached().any(|attachment| attachment.node_name() == node_name);
    let elsewhere = attached().any(|attachment| attachment.node_name() != node_name);
    let wanted = claims
        .iter()
        .flat_map(|claim| views.pods_using(claim))
        .any(|pod| !pod.is_deleting() && pod.node_name() != Some(node_name));
    VolumePlace { here, elsewhere, wanted }
}

/// Whether an entry of `status.volumesAttached` is the volume with this handle: it equals the handle, or ends with it
/// after a character that is neither letter nor digit.
fn names_volume(attached: &str, id: &str) -> bool {
    if id.is_empty() {
        return false;
    }
    attached == id
        || attached
            .strip_suffix(id)
            .and_then(|before| before.chars().next_back())
            .is_some_and(|separator| !separator.is_alphanumeric() && separator != '-')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::csi("kubernetes.io/csi/ebs.csi.aws.com^vol-1", "vol-1", true)]
    #[case::mc_218_a_longer_handle("kubernetes.io/csi/ebs.csi.aws.com^vol-12", "vol-1", false)]
    #[case::mc_218_a_handle_that_ends_alike("kubernetes.io/csi/x^my-vol-1", "vol-1", false)]
    #[case::in_tree("kubernetes.io/aws-ebs/aws://eu-1a/vol-1", "vol-1", true)]
    #[case::the_handle_itself("vol-1", "vol-1", true)]
    #[case::no_handle("kubernetes.io/csi/x^", "", false)]
    fn an_attached_name_means_a_volume(#[case] attached: &str, #[case] id: &str, #[case] means: bool) {
        assert_eq!(names_volume(attached, id), means);
    }
}
