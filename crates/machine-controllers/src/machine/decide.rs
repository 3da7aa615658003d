//! The decision about one machine: the first rule that has something to do decides.
//!
//! Pure. Source: spec/machine-controller §3.1. The result of an in-place update is marked on the Node before the machine's
//! phase changes: a client that sees the new phase sees the mark, too.

use super::{
    creation::creation,
    deletion::deletion,
    health::{frozen::frozen, health, timeout::timeouts, vm_gone::vm_gone},
    in_place::{in_place_drain, in_place_marks},
    node::{capacity, identity::node_identity, lost_link::lost_link, metadata},
    observation::{NodeSource, NodeStep, NodeView, Observation},
    plan::{Effect, Next, Plan, RuleResult, sooner, waits::Wait},
    preservation::preservation,
};
use machine_api::{names::machine_reason, v1alpha1::MachinePhase};

/// Decides the next step of a machine.
pub fn decide(seen: &Observation) -> Plan {
    if seen.machine.is_deleting() {
        return deletion(seen);
    }
    let rules: [fn(&Observation) -> RuleResult; 13] = [
        own_finalizer,
        frozen,
        lost_link,
        node_was_deleted,
        in_place_marks,
        health,
        node_identity,
        vm_gone,
        timeouts,
        dress_node,
        in_place_drain,
        preservation,
        creation,
    ];
    let mut wake: Option<std::time::Duration> = None;
    for rule in rules {
        match rule(seen) {
            RuleResult::Act(mut plan) => {
                // A rule that waits must not delay an earlier deadline of another rule.
                if let (Next::LookAgain(after, _), Some(earlier)) = (&mut plan.next, wake) {
                    *after = earlier.min(*after);
                }
                return plan;
            }
            RuleResult::Pass(at) => wake = sooner(wake, at),
        }
    }
    let next = wake.map_or(Next::Settled, |after| Next::LookAgain(after, Wait::Deadline));
    Plan::wait("nothing-to-do", next)
}

/// The finalizer comes first: without it the machine could vanish and leave its VM behind.
fn own_finalizer(seen: &Observation) -> RuleResult {
    if seen.has_finalizer() {
        return RuleResult::NOTHING;
    }
    RuleResult::act("claim-finalizer", vec![Effect::AddMachineFinalizer], Next::Again)
}

/// A deleted Node takes its machine with it (spec §2.3, MC-026, MC-027). A Node that is missing in the store is no proof of
/// a deletion: the API server is asked first (decisions.md 45).
fn node_was_deleted(seen: &Observation) -> RuleResult {
    let goes = match &seen.node {
        NodeView::Ours(node) => node.is_deleting(),
        NodeView::Vanished if *seen.phase() == MachinePhase::Unset => false,
        NodeView::Vanished => match seen.node_source {
            NodeSource::View => {
                return RuleResult::act("look-for-vanished-node", vec![Effect::RereadNode], Next::Again);
            }
            NodeSource::Live => true,
        },
        NodeView::NoTarget
        | NodeView::NotLinked { .. }
        | NodeView::Absent
        | NodeView::Foreign { .. }
        | NodeView::Contested { .. } => false,
    };
    if goes {
        RuleResult::act("node-was-deleted", vec![Effect::DeleteMachine], Next::Again)
    } else {
        RuleResult::NOTHING
    }
}

/// Finalizer, machine name, template, last applied values and capacity of the Node (spec §8). A failed write is retried and
/// does not stop the rules that follow.
fn dress_node(seen: &Observation) -> RuleResult {
    let NodeView::Ours(node) = &seen.node else { return RuleResult::NOTHING };
    if *seen.phase() == MachinePhase::Unset {
        return RuleResult::NOTHING;
    }
    if seen.step_failures.at(NodeStep::Metadata).is_some() {
        return RuleResult::Pass(Some(std::time::Duration::from_secs(5)));
    }
    let wanted = metadata::wanted(seen.name(), seen.machine.node_template(), node);
    let capacity =
        seen.class.virtual_capacity.as_ref().map(|wanted| capacity::change(wanted, node)).unwrap_or_default();
    let mut effects = Vec::new();
    if !capacity.resources.is_empty() {
        effects.push(Effect::MirrorCapacity(capacity.resources));
    }
    let mut dress = wanted.dress;
    dress.annotations.extend(capacity.memory);
    if !dress.is_empty() {
        effects.push(Effect::Dress { step: NodeStep::Metadata, dress: Box::new(dress) });
    }
    if !wanted.last_applied_is_readable {
        effects.push(Effect::Warn {
            reason: machine_reason::LAST_APPLIED_UNREADABLE,
            message: format!(
                "the memory of the last template on Node {} can't be read and is written anew; labels, annotations and taints \
                 that were removed from the template meanwhile stay on the Node",
                seen.node_label()
            ),
        });
    }
    if effects.is_empty() { RuleResult::NOTHING } else { RuleResult::act("dress-node", effects, Next::Again) }
}
