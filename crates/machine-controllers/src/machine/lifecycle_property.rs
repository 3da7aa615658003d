//! Properties of a machine's life, checked on random histories of events, failures, stale views and restarts at every effect
//! (spec/machine-controller §15.5): 20,000 in `cargo test`, 100,000 in `.ci/run`.
//!
//! Never a second VM, no VM that outlives its machine, no VM or Node of a living machine deleted, nothing let go before the
//! driver has said so, no pass in circles and no state that nothing leads on from. That each guard is needed is shown by
//! taking it away ([`Sabotage`]): then a history goes wrong. `MCM_HISTORIES` sets the number, `MCM_LIFECYCLE_SEED` replays
//! one history and prints it.

use std::sync::Arc;

use kube::ResourceExt;
use rstest::rstest;

use super::{
    lifecycle_world::World,
    observation::{Answer, Freeze, NodeSource, NodeView, Observation},
    plan::{Effect, Next, Plan},
    settings::HealthTimeout,
    telling::told_reason,
    testing::at,
};
use machine_api::{
    names::{finalizer, machine_condition, stage_text},
    v1alpha1::MachinePhase,
};
use machine_driver::{Code, DeletedVm, Status};

/// A guard that is taken away, by changing what a decision sees or what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None is.
    Nothing,
    /// The last look at the machine before its first VM is made (§4.12).
    LastLook,
    /// No step of a deletion while a call is under way (§2.5, §4.1).
    DeletionWaitsForCalls,
    /// Our finalizer before everything else (§3.1).
    FinalizerFirst,
    /// Only OK and `NotFound` mean that a VM is gone (§6.6).
    DeletionIsConfirmed,
    /// An error of `GetMachineStatus` is no absence (§4.3).
    ErrorsAreNoAbsence,
    /// The driver is asked for a VM before one is made (§4.3, lost replies).
    AskFirst,
    /// A Failed machine of a set makes no VM (M-11).
    FailedMakesNothing,
    /// A Node is only touched when it is the machine's (M-07).
    TakeAnyNode,
    /// Cordon before the first eviction (§7.7).
    CordonFirst,
    /// Status writes name single fields (M-12).
    FieldsOnly,
    /// A deletion needs a deletionTimestamp (M-65).
    DeletionTimestamp,
    /// No driver call while frozen (§3.3).
    Freeze,
    /// A Node that was never seen was not deleted (§2.3, §5.2).
    AbsentIsNotDeleted,
    /// A failed call of a deletion is tried again (§6.6).
    TryAgain,
    /// The Node is read once more before its machine is given up (§9.3: no verdict on an old view).
    LookAtNodeAgain,
    /// The Node is looked for once more before its machine is let go (§6.7).
    LookForNode,
    /// Who waits says why (decisions.md 30).
    SaysWhy,
    /// A VM that was taken over has its whole time to join (M-13).
    AdoptionClock,
    /// An initialisation that failed is repeated (M-14).
    InitialisationIsRepeated,
    /// An unhealthy machine is given up in the end (§5.4, M-17).
    HealthTimeout,
    /// So is one whose Node never comes (§4.7).
    CreationTimeout,
}

impl Sabotage {
    /// What a decision sees without the guard.
    pub fn of_observation(self, mut seen: Observation) -> Observation {
        let is_deleting = seen.machine.metadata.deletion_timestamp.is_some();
        match self {
            Self::DeletionWaitsForCalls if is_deleting => seen.flow.in_flight = None,
            Self::FinalizerFirst if !seen.has_finalizer() => {
                Arc::make_mut(&mut seen.machine).finalizers_mut().push(finalizer::MACHINE.to_owned());
            }
            Self::DeletionIsConfirmed => {
                if let Some(Answer::Deleted(answer)) = &mut seen.flow.answer {
                    *answer = Ok(DeletedVm::default());
                }
            }
            Self::ErrorsAreNoAbsence => {
                if let Some(Answer::Status(Err(status))) = &mut seen.flow.answer {
                    status.code = Code::NotFound;
                }
            }
            Self::AskFirst if !is_deleting && seen.flow.answer.is_none() && seen.flow.in_flight.is_none() => {
                seen.flow.answer = Some(Answer::Status(Err(Status::new(Code::NotFound, "nobody asked"))));
            }
            Self::FailedMakesNothing => {
                let machine = Arc::make_mut(&mut seen.machine);
                machine.metadata.owner_references = None;
                machine.metadata.generation = Some(seen.now.as_second());
            }
            Self::CordonFirst => {
                if let NodeView::Ours(node) = &mut seen.node {
                    Arc::make_mut(node).spec.get_or_insert_default().unschedulable = Some(true);
                }
            }
            Self::DeletionTimestamp if matches!(seen.phase(), MachinePhase::Running | MachinePhase::Terminating) => {
                let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
                Arc::make_mut(&mut seen.machine).metadata.deletion_timestamp = Some(now);
            }
            Self::Freeze => seen.freeze = Freeze::Flowing,
            Self::LookAtNodeAgain if !is_deleting => seen.node_source = NodeSource::Live,
            Self::LookForNode if is_deleting => seen.node_source = NodeSource::Live,
            Self::AdoptionClock => {
                let adopted = machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM;
                for condition in &mut Arc::make_mut(&mut seen.machine).status.machine_conditions {
                    if condition.reason == adopted {
                        machine_condition::REASON_WAITING_FOR_NODE.clone_into(&mut condition.reason);
                    }
                }
            }
            Self::InitialisationIsRepeated
                if seen.machine.status.last_operation.description.contains(stage_text::INITIALIZE_VM) =>
            {
                Arc::make_mut(&mut seen.machine).status.last_operation.description.clear();
            }
            Self::HealthTimeout => seen.limits.health = HealthTimeout::Never,
            Self::AbsentIsNotDeleted if seen.node == NodeView::Absent => seen.node = NodeView::Vanished,
            _ => {}
        }
        seen
    }

    /// What a decision says without the guard.
    pub fn of_plan(self, mut plan: Plan) -> Plan {
        match self {
            Self::LastLook => plan.effects.retain(|effect| *effect != Effect::RereadMachine),
            Self::FieldsOnly => {
                for effect in &mut plan.effects {
                    if let Effect::WriteStatus { change, .. } = effect {
                        **change = change.clone().preservation_ends();
                    }
                }
            }
            Self::SaysWhy => {
                for effect in &mut plan.effects {
                    if let Effect::WriteStatus { change, .. } = effect {
                        change.standing = None;
                        change.doubt = None;
                    }
                }
            }
            Self::CreationTimeout if matches!(plan.rule, "creation-timeout" | "last-look-at-node") => {
                plan.effects.clear();
                plan.next = Next::Settled;
            }
            Self::TryAgain if matches!(plan.rule, "driver-failed-in-deletion" | "deletion-paused") => {
                plan.next = Next::Settled;
            }
            _ => {}
        }
        plan
    }
}

/// One history: things happen while everything may fail, then all heals; the machine must come to rest, and end when it is
/// deleted.
fn history(seed: u64, sabotage: Sabotage, trace: bool) -> Result<u64, String> {
    let mut world = World::new(seed, sabotage);
    world.trace = trace;
    let happenings = 4 + seed % 37;
    for _ in 0..happenings {
        world.next();
        checked(&world)?;
    }
    world.heal();
    world.settle();
    checked(&world)?;
    at_rest(&mut world)?;
    world.delete_machine();
    world.settle();
    checked(&world)?;
    if let Some(machine) = world.machine() {
        return Err(format!("a deleted machine does not end: {:?}", machine.status.last_operation.description));
    }
    match (world.vms(), world.node_left()) {
        (0, None) => Ok(world.passes),
        (0, Some(how)) => Err(how.to_owned()),
        _ => Err("a VM is left over".to_owned()),
    }
}

fn checked(world: &World) -> Result<(), String> {
    world.violation.clone().map_or(Ok(()), Err)
}

/// A machine that is left in peace runs, or says why not; and looking at it again writes nothing.
fn at_rest(world: &mut World) -> Result<(), String> {
    let Some(machine) = world.machine() else { return Ok(()) };
    let phase = machine.status.current_status.phase.clone();
    if machine.metadata.deletion_timestamp.is_some() {
        return Err(format!("a deletion stops at {:?}", machine.status.last_operation.description));
    }
    let says_why = told_reason(machine).is_some();
    match phase {
        MachinePhase::Running => {}
        MachinePhase::Failed if says_why => {}
        other => return Err(format!("the machine rests in {other:?}, told: {says_why}")),
    }
    let before = world.writes;
    world.look();
    if world.writes == before { Ok(()) } else { Err("a pass without news writes".to_owned()) }
}

/// Runs histories on all cores; the smallest seed that went wrong and what went wrong.
fn histories(count: u64, sabotage: Sabotage) -> Option<(u64, String)> {
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get() as u64);
    let worker = |first: u64| {
        (first..count)
            .step_by(usize::try_from(threads).unwrap_or(1))
            .find_map(|seed| history(seed, sabotage, false).err().map(|violation| (seed, violation)))
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || worker(first))).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).min_by_key(|(seed, _)| *seed)
    })
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn mc_284_no_history_loses_a_vm_or_a_finalizer_or_ends_nowhere() {
    if let Some(seed) = number_of("MCM_LIFECYCLE_SEED") {
        history(seed, Sabotage::Nothing, true).unwrap();
        return;
    }
    let count = number_of("MCM_HISTORIES").unwrap_or(20_000);
    if let Some((seed, violation)) = histories(count, Sabotage::Nothing) {
        panic!("{violation}; replay with MCM_LIFECYCLE_SEED={seed}");
    }
}

#[rstest]
#[case(Sabotage::LastLook, "a VM is made for a machine that is being deleted")]
#[case(Sabotage::DeletionWaitsForCalls, "is under way")]
#[case(Sabotage::FinalizerFirst, "the machine is gone and its VM is not")]
#[case(Sabotage::DeletionIsConfirmed, "let go before the driver has said")]
#[case(Sabotage::ErrorsAreNoAbsence, "a second VM was made")]
#[case(Sabotage::AskFirst, "a second VM was made")]
#[case(Sabotage::FailedMakesNothing, "a Failed machine that a set replaces makes a VM")]
#[case(Sabotage::TakeAnyNode, "a Node of somebody else is touched")]
#[case(Sabotage::CordonFirst, "pods are evicted from a node that takes new ones")]
#[case(Sabotage::FieldsOnly, "a write of something else ended a preservation")]
#[case(Sabotage::DeletionTimestamp, "the VM of a living machine is deleted")]
#[case(Sabotage::Freeze, "a driver is called while frozen")]
#[case(Sabotage::AbsentIsNotDeleted, "a machine is deleted whose Node nobody deleted")]
#[case(Sabotage::TryAgain, "a deletion stops")]
#[case(Sabotage::LookAtNodeAgain, "a healthy machine is given up")]
#[case(Sabotage::LookForNode, "is left behind")]
#[case(Sabotage::SaysWhy, "does not say why")]
#[case(Sabotage::AdoptionClock, "taken over is given up before its time")]
#[case(Sabotage::InitialisationIsRepeated, "an initialisation that failed is not repeated")]
#[case(Sabotage::HealthTimeout, "the machine rests in Unknown")]
#[case(Sabotage::CreationTimeout, "the machine rests in Pending")]
fn without_a_guard_a_history_goes_wrong(#[case] sabotage: Sabotage, #[case] expected: &str) {
    let mut others = Vec::new();
    let violations = (0..20_000).filter_map(|seed| history(seed, sabotage, false).err()).take(20);
    let found =
        violations.inspect(|violation| others.push(violation.clone())).any(|violation| violation.contains(expected));
    assert!(found, "{sabotage:?}: {others:?}");
}

#[test]
fn a_sabotage_changes_what_it_names_and_nothing_else() {
    let plan = Plan::new(
        "x",
        vec![
            Effect::RereadMachine,
            super::status_change::StatusChange::new().effect(&super::testing::seen(super::testing::running(), 0)),
        ],
        Next::Again,
    );
    assert_eq!(Sabotage::Nothing.of_plan(plan.clone()), plan);
    assert_eq!(Sabotage::LastLook.of_plan(plan).effects.len(), 1);
}
