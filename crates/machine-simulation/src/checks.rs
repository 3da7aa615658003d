//! The properties that must hold after every step (decisions.md 39).
//!
//! The bounds follow from all specifications since the last rest. Losses that the controllers do not cause (failures,
//! deletions by users, lost Nodes) lower the minimum by the number of lost machines. The properties of a single machine
//! are in [`lives`].

pub(crate) mod lives;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    api::Api,
    cloud::machine_of,
    contents::Decided,
    ends::{Drained, is_given_up_by_force},
    facts::{
        MARKED, available, count, is_available, is_being_updated, is_marked, is_of_new_set, is_ours, is_terminating,
        is_updating, label_of, node_of, old_ones_stay, orphan_sets, orphans, priority, stays, unowned,
    },
    margins::{Margins, margins},
    played::target::pods_on,
    refusals::Costs,
    trace::Trace,
};
use controller_runtime::{
    key::Target,
    snapshot::{Snapshot, Whole},
    store::Store,
};
use kube::ResourceExt;
use machine_api::{
    names::{DEFAULT_MACHINE_PRIORITY, annotation, label, update_result},
    v1alpha1::{Machine, MachineDeployment, MachinePhase, controller_of},
};
use machine_controllers::{
    deployment::{self, observe::DeploymentObservation},
    machine::{
        self,
        observation::{Call, Observation},
    },
    set::{
        observe::SetObservation,
        plan::{Effect, Plan, Step},
        preservation::{NodePreserve, may_terminate},
        replicas::may_not_grow,
    },
    snapshots::{MachineSnapshot, NodeSnapshot, PodSnapshot},
    views::{BY_NAME_LABEL, ControlViews, qualified},
};

/// A violated property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property; the same text for every history that violates it.
    pub rule: &'static str,
    /// The details.
    pub text: String,
}

/// Checks a history.
#[derive(Debug, Default)]
pub struct Checks {
    /// The first violation.
    pub violation: Option<Violation>,
    /// Whether the process of the running pass holds the lease.
    pub leads: bool,
    /// Whether the target cluster does not answer.
    pub silent: bool,
    /// Whether the running pass has just started; a pass that was held up may have decided earlier.
    pub begun: bool,
    /// Maximum number of machines that are not being deleted.
    most: i32,
    /// Machines that users have requested from sets, in addition to the machines of the deployment.
    asked_of_sets: i32,
    /// Minimum number of available machines.
    least: i32,
    /// Number of machines that became unavailable for causes other than the controllers.
    taken: i32,
    available: BTreeSet<String>,
    deleted_by_us: BTreeSet<String>,
    /// The rules by which sets last decided to delete machines.
    ordered: BTreeMap<String, &'static str>,
    /// Machines without a deployment.
    orphans: BTreeSet<String>,
    /// Machines that were adopted since the last rest, by themselves or with their sets.
    adopted: BTreeSet<String>,
    /// Sets without a deployment.
    orphan_sets: BTreeSet<String>,
    /// Sets that were adopted since the last rest, with the number of machines that each lacked.
    adopted_sets: BTreeMap<String, i32>,
    /// Available machines of sets that have lost their deployment or are being deleted.
    unowned: BTreeSet<String>,
    /// Sets that users have scaled since the last rest.
    scaled: BTreeSet<String>,
    /// Machines whose Nodes a user has selected for an update.
    picked_by_user: BTreeSet<String>,
    /// Machines whose priorities users have changed since the last rest. A set may have observed the earlier priority.
    prioritised: BTreeSet<String>,
    /// The number of writes at the last check.
    checked: u64,
    /// The edits of users since the last rest.
    edits: Edits,
    /// The records of single machines.
    lives: lives::Lives,
    checking: Checking,
    /// The inputs of decided creations.
    pub(super) decided: Decided,
    /// Nodes that were drained.
    pub(super) drained: Drained,
    /// The costs of objects while something is refused.
    pub(super) costs: Costs,
}

/// Whether a history is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Checking {
    /// The history is checked.
    #[default]
    On,
    /// The history runs without checks.
    Off,
}

/// The edit of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// The class in the template.
    Template,
    /// Anything else.
    Other,
}

/// The edits of users, as far as they matter for allowed deletions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Edits {
    /// No edit.
    #[default]
    None,
    /// One edit of the template.
    OneTemplate,
    /// Several edits, or an edit of something else.
    Others,
}

impl Checks {
    /// No checks: a forecast shows what happens, good or bad.
    pub fn none() -> Self {
        Self { leads: true, checking: Checking::Off, ..Self::default() }
    }

    /// Records a violation; only the first counts.
    pub fn violated(&mut self, rule: &'static str, text: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { rule, text: text() });
        }
    }

    /// Checks before an effect is carried out.
    pub fn acts(&mut self) {
        if !self.leads {
            self.violated("an effect without leadership", || "a process without the lease wrote".to_owned());
        }
    }

    /// Everything is at rest: starts new bounds.
    pub fn at_rest(&mut self, api: &Api) {
        (self.most, self.least, self.taken, self.edits) = (0, i32::MAX, 0, Edits::None);
        self.asked_of_sets = 0;
        self.checked = api.changes;
        self.adopted.clear();
        self.adopted_sets.clear();
        self.deleted_by_us.clear();
        self.picked_by_user.clear();
        self.prioritised.clear();
        self.scaled.clear();
        self.available = available(api);
        self.orphans = orphans(api);
        self.orphan_sets = orphan_sets(api);
        self.unowned = unowned(api);
        for deployment in api.deployments.values() {
            self.allow(deployment);
        }
    }

    /// Records that a user has changed the deployment.
    pub fn edited(&mut self, api: &Api, edited: Edited) {
        self.edits = match (self.edits, edited) {
            (Edits::None, Edited::Template) => Edits::OneTemplate,
            _ => Edits::Others,
        };
        for deployment in api.deployments.values() {
            self.allow(deployment);
        }
        if api.deployments.is_empty() {
            self.least = 0;
        }
    }

    fn allow(&mut self, deployment: &MachineDeployment) {
        let Margins { most, least } = margins(deployment);
        self.most = self.most.max(most);
        self.least = self.least.min(least);
    }

    /// Records that a user has selected the Node of this machine for an update; the controllers are not responsible for
    /// the consequences.
    pub fn picked_by_user(&mut self, machine: String) {
        self.picked_by_user.insert(machine);
    }

    /// Records that a user changes the priority of this machine.
    pub fn prioritised_by_user(&mut self, machine: String) {
        self.prioritised.insert(machine);
    }

    /// Records that a user is about to change the size of a set by this number. The number of machines may grow, or the
    /// number of available machines may fall, by the same number. In a paused deployment, other sets shrink when one
    /// set grows: proportional scaling, as in Kubernetes, does not consider availability.
    pub fn set_is_scaled(&mut self, api: &Api, name: &str, by: i32) {
        self.scaled.insert(name.to_owned());
        self.asked_of_sets = self.asked_of_sets.saturating_add(by.max(0));
        let is_paused = api.deployments.values().any(|deployment| deployment.spec.paused);
        self.taken += if is_paused { by.abs() } else { (-by).max(0) };
    }

    /// Records that a user is about to delete a set with its machines.
    pub fn set_ends(&mut self, api: &Api, name: &str) {
        let is_of_it = |machine: &&Arc<Machine>| controller_of(&machine.metadata).is_some_and(|set| set.name == name);
        let available = api.machines.values().filter(is_of_it).filter(|machine| is_available(machine)).count();
        self.taken += count(available);
    }

    /// Checks a decision about a deployment.
    pub fn deployment_decides(
        &mut self,
        seen: &DeploymentObservation,
        plan: &deployment::plan::Plan,
        trace: &mut Trace,
    ) {
        trace.say(|| {
            let rules: Vec<&str> = plan.steps.iter().map(|step| step.rule).collect();
            format!("    decides {rules:?}")
        });
        let makes = |step: &deployment::plan::Step| matches!(step.effect, deployment::plan::Effect::CreateSet(_));
        if seen.deployment.is_paused() && plan.steps.iter().any(makes) {
            self.violated("a paused deployment begins a rollout", String::new);
        }
        let early =
            plan.steps.iter().find_map(|step| set_with_scaler_time(&step.effect).filter(|set| is_larger(seen, set)));
        if let Some(set) = early {
            self.violated("a set is told when it was scaled before it is told to what size", || set.key.to_string());
        }
    }

    /// Checks a decision about a machine; `views` and `pods` are the stores of its process.
    pub fn machine_decides(
        &mut self,
        seen: &Observation,
        plan: &machine::plan::Plan,
        (views, pods): (&ControlViews, &Store<PodSnapshot>),
        (api, trace): (&Api, &mut Trace),
    ) {
        trace.say(|| format!("    decides {:?}", plan.rule));
        self.creation_is_decided(seen, plan);
        if self.checking == Checking::Off {
            return;
        }
        if self.silent && self.leads && (gives_up(plan) || makes_vm(plan)) {
            self.violated("a machine is made or given up while nobody sees the Nodes", || {
                format!("{:?} by {:?}", seen.machine.name(), plan.rule)
            });
        }
        if gives_up(plan) {
            let group = seen.machine.label(label::NAME);
            let namespace = seen.machine.namespace();
            let siblings = group.map(|name| views.machines.by_index(BY_NAME_LABEL, &qualified(namespace, name)));
            let is_other = |one: &&MachineSnapshot| one.uid() != seen.machine.uid() && is_being_replaced(one);
            if let Some(other) = siblings.iter().flatten().find(is_other) {
                self.violated("a machine is given up while another one of its group is being replaced", || {
                    format!("{:?} beside {:?}", seen.machine.name(), other.name())
                });
            }
        }
        self.node_is_drained(seen, plan);
        // If a Node can't be marked, the drain ends with its time limit.
        let is_drained = plan.rule == "drained" && seen.step_failures.is_empty() && !is_given_up_by_force(seen);
        // If the Node was replaced, the process may not have observed the new Node yet.
        let is_known =
            |node: &&NodeSnapshot| api.nodes.get(node.name()).is_some_and(|there| Snapshot::uid(there) == node.uid());
        if is_drained && let Some(node) = seen.node.ours().filter(is_known) {
            let name = node.name();
            let is_there = |pod: &&PodSnapshot| {
                api.pods.get(pod.name()).is_some_and(|there| {
                    there.metadata.uid.as_deref() == Some(pod.uid()) && there.metadata.deletion_timestamp.is_none()
                })
            };
            if let Some(pod) = pods_on(pods, name).iter().find(is_there) {
                self.violated("a Node counts as drained with a pod that nobody has asked to go", || {
                    format!("{} on {name}", pod.name())
                });
            }
        }
    }

    /// Checks that the deployment may select the Node of a machine for an update. Selections by users are their own
    /// decision.
    pub fn picked(&mut self, api: &Api, node: &str) {
        if !api.machines.get(machine_of(node)).is_some_and(|machine| is_available(machine)) {
            // The machine is already unavailable.
            return;
        }
        let is_up = |name: &&String| {
            self.picked_by_user.contains(*name) || !node_of(api, name).is_some_and(|node| is_being_updated(node))
        };
        let left = count(available(api).iter().filter(is_up).count());
        if left + self.taken < self.least {
            let (least, taken) = (self.least, self.taken);
            self.violated("too few machines are available through an update of our choice", || {
                format!("{left} besides those being updated; {least} must be, {taken} were taken by the weather")
            });
        }
    }

    /// Checks a decision about a set.
    pub fn set_decides(&mut self, seen: &SetObservation, plan: &Plan, trace: &mut Trace) {
        trace.say(|| {
            let rules: Vec<&str> = plan.steps.iter().map(|step| step.rule).collect();
            format!("    decides {rules:?}")
        });
        for step in &plan.steps {
            if let Effect::DeleteMachine { machine, .. } = &step.effect {
                self.ordered.insert(machine.key.name.clone(), step.rule);
            }
        }
        if self.silent && self.begun && self.leads && !plan.steps.is_empty() {
            self.violated("a set acts while nobody sees the Nodes", || format!("{:?}", seen.set.name()));
        }
        let goes = |machine: &Machine| deleted_by(plan, machine).is_some();
        if seen.set.is_deleting() || self.checking == Checking::Off {
            return;
        }
        let makes = |step: &Step| matches!(step.effect, Effect::CreateMachine(_) | Effect::CreateUnlessThere(_));
        if may_not_grow(&seen.set) && plan.steps.iter().any(makes) {
            self.violated("a set makes machines that must not grow", || format!("{:?}", seen.set.name()));
        }
        let claimed: Vec<_> = seen.claimed().iter().map(|machine| Arc::clone(machine.whole_object())).collect();
        let healthy = || claimed.iter().filter(|machine| is_available(machine));
        // A preserved machine is deleted last, marked or not (spec/deployment-and-set §6.4).
        let is_kept = |machine: &Machine| machine.status.current_status.preserve_expiry_time.is_some();
        let spared = healthy().find(|machine| is_marked(machine) && !is_kept(machine) && !goes(machine));
        // A user may have given a machine an even lower priority.
        let dies = healthy().find(|machine| !is_marked(machine) && priority(machine) >= MARKED && goes(machine));
        if let (Some(spared), Some(dies)) = (spared, dies) {
            self.violated("an unmarked healthy machine dies while a marked one lives", || {
                format!("{:?} dies, {:?} lives", dies.name(), spared.name())
            });
        }
        self.priorities_hold(&claimed, plan);
    }

    /// Checks that surplus machines of the lowest priority are deleted first, except preserved machines and those just
    /// handed over (spec/deployment-and-set §6.4).
    fn priorities_hold(&mut self, claimed: &[Arc<Machine>], plan: &Plan) {
        let is_plain = |machine: &&Arc<Machine>| {
            !is_terminating(machine)
                && machine.status.current_status.preserve_expiry_time.is_none()
                && label_of(machine, label::UPDATE_RESULT) != Some(update_result::SUCCESSFUL)
        };
        let plain = || claimed.iter().filter(is_plain);
        let dies = plain().filter(|machine| deleted_by(plan, machine) == Some("replicas/surplus"));
        let lives = plain().filter(|machine| deleted_by(plan, machine).is_none());
        let (Some(dies), Some(lives)) = (dies.max_by_key(|one| priority(one)), lives.min_by_key(|one| priority(one)))
        else {
            return;
        };
        if priority(dies) > priority(lives) {
            self.violated("a machine goes before one of a lower priority", || {
                format!("{:?} dies, {:?} lives", dies.metadata.name, lives.metadata.name)
            });
        }
    }

    /// Records that a machine is deleted with its set.
    pub fn ordered_with_its_set(&mut self, machine: &str) {
        self.ordered.insert(machine.to_owned(), "deletion/set");
    }

    /// Checks after a set has tried to delete a machine. `before` is the machine before that, `node` is its Node in the
    /// store of the process.
    pub fn set_deleted(
        &mut self,
        (api, now): (&Api, Timestamp),
        (before, node): (Option<&Machine>, &NodePreserve),
        trace: &mut Trace,
    ) {
        if self.checking == Checking::Off {
            return;
        }
        let Some(before) = before else { return };
        let name = before.metadata.name.clone().unwrap_or_default();
        let rule = self.ordered.get(&name).copied().unwrap_or_default();
        let is_gone = api.machines.get(&name).is_none_or(|machine| is_terminating(machine));
        if is_gone
            && rule == "replicas/failed"
            && !is_terminating(before)
            && !may_terminate(&before.clone().into(), node, now)
        {
            self.violated("a machine is replaced that somebody keeps", || name.clone());
        }
        if !is_available(before) {
            return;
        }
        if api.machines.get(&name).is_some_and(|machine| is_available(machine)) {
            // The deletion failed.
            return;
        }
        if is_marked(before) || self.is_wanted_gone(api, before, rule) {
            // The scaler has named the machine, or a user wants it deleted, so it may be deleted even if too few
            // machines are left. This does not allow any other deletion.
            if count(available(api).len()) + self.taken < self.least {
                self.taken += 1;
            }
            self.deleted_by_us.insert(name);
            return;
        }
        self.deleted_by_us.insert(name.clone());
        let left = count(available(api).len());
        let taken = self.taken + self.kept_strays(api);
        trace.say(|| format!("      {left} machines are available now, {} must be, {taken} were taken", self.least));
        if left + taken < self.least {
            let least = self.least;
            self.violated("too few machines are available through a deletion of ours", || {
                format!(
                    "{left} after the deletion of {name} by {rule}; {least} must be, {taken} were taken by the weather"
                )
            });
        }
        if self.edits == Edits::OneTemplate && self.taken == 0 && is_of_new_set(api, before) && old_ones_stay(api) {
            self.violated("a healthy new machine is deleted while old ones stay", || format!("{name} by {rule}"));
        }
    }

    /// Whether a machine is deleted because of users. They may have deleted its set, made its set larger than the
    /// deployment wants, or given another machine a higher priority. In the last two cases, the other machines stay
    /// even if they are unavailable (spec/deployment-and-set §6.4).
    fn is_wanted_gone(&self, api: &Api, machine: &Machine, rule: &str) -> bool {
        let set = controller_of(&machine.metadata);
        let name = set.map(|set| set.name.as_str()).unwrap_or_default();
        let is_too_large = self.scaled.contains(name) || !(self.adopted.is_empty() && self.adopted_sets.is_empty());
        let has_its_place = |other: &Arc<Machine>| {
            let is_before = priority(other) > priority(machine) || self.prioritised.contains(&other.name_any());
            controller_of(&other.metadata) == set && !is_terminating(other) && is_before
        };
        let goes_first = || priority(machine) < DEFAULT_MACHINE_PRIORITY || api.machines.values().any(has_its_place);
        let stays_for_it = |other: &Arc<Machine>| has_its_place(other) && !is_available(other);
        rule == "deletion/set" || (is_too_large && goes_first()) || api.machines.values().any(stays_for_it)
    }

    /// The number of unavailable machines that a user has created for a set and preserves. They are deleted last, so
    /// for each of them a healthy machine is deleted instead.
    fn kept_strays(&self, api: &Api) -> i32 {
        let adopted = self.adopted.iter().filter_map(|name| api.machines.get(name));
        let is_kept = |machine: &Machine| machine.status.current_status.preserve_expiry_time.is_some();
        count(adopted.filter(|machine| is_ours(api, machine) && is_kept(machine) && !is_available(machine)).count())
    }

    /// Records sets that are adopted by a deployment. They bring their machines with them, and create their missing
    /// machines.
    fn see_adopted_sets(&mut self, api: &Api) {
        let orphan_sets = orphan_sets(api);
        for name in self.orphan_sets.difference(&orphan_sets) {
            let Some(set) = api.sets.get(name) else { continue };
            let is_of_it = |machine: &&Arc<Machine>| {
                !is_terminating(machine) && controller_of(&machine.metadata).is_some_and(|owner| owner.name == *name)
            };
            let lacks = set.spec.replicas - count(api.machines.values().filter(is_of_it).count());
            *self.adopted_sets.entry(name.clone()).or_default() += lacks.max(0);
        }
        self.orphan_sets = orphan_sets;
    }

    /// Checks after every step.
    pub fn after_step(&mut self, api: &Api) {
        if self.checked == api.changes {
            return;
        }
        self.checked = api.changes;
        let now = available(api);
        for name in self.available.difference(&now) {
            let is_our_update = !self.picked_by_user.contains(name) && api.machines.get(name).is_some_and(is_updating);
            if !is_our_update && !self.deleted_by_us.contains(name) {
                self.taken += 1;
            }
        }
        // A deployment may not have observed yet that it has lost a set. Then it still counts a machine of this set
        // that becomes available.
        let unowned = unowned(api);
        let lost = unowned.difference(&self.unowned).filter(|name| !self.available.contains(*name));
        self.taken += count(lost.count());
        self.unowned = unowned;
        self.available = now;
        let orphans = orphans(api);
        let adopted = self.orphans.difference(&orphans).filter(|name| stays(api, name));
        self.adopted.extend(adopted.cloned());
        self.orphans = orphans;
        self.see_adopted_sets(api);
        let staying = count(api.machines.values().filter(|machine| is_ours(api, machine)).count());
        let adopted = count(self.adopted.len()) + self.adopted_sets.values().sum::<i32>();
        let most = self.most.saturating_add(self.asked_of_sets).saturating_add(adopted);
        if staying > most {
            self.violated("there are too many machines", || format!("{staying} stay, at most {most} may"));
        }
    }
}

/// The rule by which a set deletes a machine now.
fn deleted_by(plan: &Plan, machine: &Machine) -> Option<&'static str> {
    plan.steps.iter().find_map(|step| match &step.effect {
        Effect::DeleteMachine { machine: target, .. } if Some(&target.uid) == machine.metadata.uid.as_ref() => {
            Some(step.rule)
        }
        _ => None,
    })
}

/// Whether a plan sets an unhealthy machine to Failed.
fn gives_up(plan: &machine::plan::Plan) -> bool {
    ["health-timeout", "vm-is-gone"].contains(&plan.rule) && !plan.effects.is_empty()
}

/// Whether a plan creates a VM.
pub(super) fn makes_vm(plan: &machine::plan::Plan) -> bool {
    plan.effects.contains(&machine::plan::Effect::Start(Call::Create))
}

/// Whether a machine keeps others of its group from becoming Failed (spec/machine-controller §5.4).
fn is_being_replaced(machine: &MachineSnapshot) -> bool {
    let phase = machine.phase();
    let is_settled = matches!(phase, MachinePhase::Running | MachinePhase::Unknown);
    *phase == MachinePhase::Terminating || (!is_settled && machine.preserve_expiry_time().is_none())
}

/// The set to which this effect writes the time of the last scaling by the scaler.
fn set_with_scaler_time(effect: &deployment::plan::Effect) -> Option<Target> {
    match effect {
        deployment::plan::Effect::SyncSet { set, wanted } => {
            let before = set.annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER);
            let told = wanted.annotations().get(annotation::LAST_REPLICA_CHANGE_BY_SCALER);
            (told.is_some() && told.map(String::as_str) != before).then(|| set.target())
        }
        _ => None,
    }
}

/// Whether a set was last sized for a larger deployment, or is larger than the whole deployment should be. If such a
/// set got the scaler's time before its new size, it would replace the machines that the scaler named, and then delete
/// the same number of machines that the scaler did not name.
fn is_larger(seen: &DeploymentObservation, set: &Target) -> bool {
    let replicas = seen.deployment.replicas();
    let all = seen.sets.iter().filter(|seen| seen.set.uid() == set.uid);
    all.map(|seen| &seen.set).any(|set| {
        let known = set.annotation(annotation::DESIRED_REPLICAS);
        let sized_for = known.and_then(|known| known.parse().ok()).unwrap_or(set.replicas());
        set.replicas() > 0 && sized_for.max(set.replicas()) > replicas
    })
}
