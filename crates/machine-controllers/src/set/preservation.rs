//! Whether a Failed machine may be deleted, or is preserved for examination.
//!
//! Source: spec/deployment-and-set §6.7, first table. This file only reads the preservation; other folders annotate
//! machines and start its clock.

use jiff::Timestamp;
use serde::Serialize;

use crate::snapshots::MachineSnapshot;
use machine_api::names::annotation;

/// The preservation value on the Node of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum NodePreserve {
    /// The machine names no Node, or there is no target cluster.
    NoNode,
    /// The machine names a Node that does not exist.
    NodeMissing,
    /// The value on the Node; empty if absent.
    Value(String),
}

/// Whether a Failed machine may be deleted.
pub fn may_terminate(machine: &MachineSnapshot, node: &NodePreserve, now: Timestamp) -> bool {
    if let Some(until) = machine.preserve_expiry_time() {
        return until <= now;
    }
    let on_node = match node {
        NodePreserve::NodeMissing => return true,
        NodePreserve::NoNode => "",
        NodePreserve::Value(value) => value.as_str(),
    };
    let last_applied = machine.annotation(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE).unwrap_or_default();
    let effective = if on_node.is_empty() && last_applied.is_empty() {
        machine.annotation(annotation::PRESERVE).unwrap_or_default()
    } else {
        on_node
    };
    !matches!(effective, "now" | "when-failed" | "auto-preserved")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::Machine;

    fn kept(value: &str) -> Building<Machine> {
        failed("m").annotation(annotation::PRESERVE, value)
    }

    fn node(value: &str) -> NodePreserve {
        NodePreserve::Value(value.to_owned())
    }

    #[rstest]
    #[case::s_pres_01_time_left(failed("m").preserved_until(3600), node(""), false)]
    #[case::s_pres_02_machine_says_false(kept("false"), node(""), true)]
    #[case::s_pres_03_node_says_false(failed("m"), node("false"), true)]
    #[case::s_pres_04_machine_says_now_no_node(kept("now"), NodePreserve::NoNode, false)]
    #[case::s_pres_05_node_says_now(failed("m"), node("now"), false)]
    #[case::s_pres_06_machine_says_when_failed(kept("when-failed"), node(""), false)]
    #[case::s_pres_07_node_says_when_failed(failed("m"), node("when-failed"), false)]
    #[case::s_pres_08_time_is_over(failed("m").preserved_until(-1), node("now"), true)]
    #[case::s_pres_10_node_missing(kept("now"), NodePreserve::NodeMissing, true)]
    #[case::a_value_removed_from_the_node_beats_the_machine(
        kept("now").annotation(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE, "now"), node(""), true)]
    #[case::nothing_said(failed("m"), node(""), true)]
    fn a_failed_machine_may_go(#[case] machine: Building<Machine>, #[case] node: NodePreserve, #[case] expected: bool) {
        assert_eq!(may_terminate(&machine.snapshot(), &node, now()), expected);
    }
}
