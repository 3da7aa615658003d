//! Guards of the controllers that can be removed (`mcm simulate --without`), to show that histories then fail.
//!
//! The decisions do not change. Without a guard, the information that it needs is hidden from the decision, or the code
//! around the decision skips it. Guards of a single machine are in [`machines`].

pub(crate) mod machines;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

use super::facts::{annotation_of, is_failed, is_terminating};
use controller_runtime::snapshot::Whole;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube_values::int_or_percent::{IntOrPercent, Rounding};
use machine_api::{
    names::{annotation, label},
    v1alpha1::{Machine, MachinePhase},
};
use machine_controllers::{
    deployment::observe::DeploymentObservation, set::observe::SetObservation, snapshots::NodeSnapshot,
};

macro_rules! guards {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal;)+) => {
        /// Something that keeps the controllers from doing harm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Guard {
            $($(#[$doc])+ $variant,)+
        }

        impl Guard {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The guard's name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

guards! {
    /// Every effect asks the gate whether the process is the leader.
    Leadership = "leadership";
    /// A new leader observes the effects of its predecessor. Without this guard, the stores of a standby may be very
    /// old.
    CatchUp = "catch-up";
    /// Answers to our own writes go into the stores at once.
    OwnWrites = "own-writes";
    /// Creations without an answer are looked up before another machine or set is created, and so are sets, machines
    /// and Nodes that a deployment wrote without an answer.
    Unanswered = "unanswered";
    /// A machine whose deletion got no answer is read again before the next decision.
    Unread = "unread";
    /// Writes name the version of the object on which they were decided.
    Versions = "versions";
    /// A set first deletes the machines that the scaler has marked.
    Marks = "marks";
    /// A set deletes machines of a lower priority first.
    Priorities = "priorities";
    /// A set first deletes useless machines.
    Ranking = "ranking";
    /// A frozen set creates no machines, and neither does a set whose machines are being handed over.
    Freeze = "freeze";
    /// A Failed machine that must be preserved is not replaced.
    Preservation = "preservation";
    /// A machine that was just handed over is not deleted.
    HandedOver = "handed-over";
    /// No more machines are unavailable than `maxUnavailable` allows.
    MaxUnavailable = "max-unavailable";
    /// No more machines are created than `maxSurge` allows.
    MaxSurge = "max-surge";
    /// Percentages of `maxUnavailable` are rounded down.
    Rounding = "rounding";
    /// A machine counts as available in a rollout only after its VM exists.
    Availability = "availability";
    /// A Node that is being updated counts as unavailable.
    Selection = "selection";
    /// At a provider where a repeated creation makes another VM, the intent is stored before each creation.
    Intent = "intent";
    /// VMs without a machine are collected.
    Orphans = "orphans";
    /// A VM whose machine may be about to get it is not an orphan.
    Claims = "claims";
    /// A VM is created with the class and the Secrets on which its creation was decided.
    Inputs = "inputs";
    /// A class that is gone is forgotten.
    Classes = "classes";
    /// Before our finalizer is removed from a class or a Secret, the API server is asked for its users.
    Users = "users";
    /// A bootstrap token of another machine is not used.
    Tokens = "tokens";
    /// An unhealthy machine waits while another one of its group is being replaced, also after its update in place.
    Siblings = "siblings";
    /// Only the API server, not the stores, can confirm that a VM has no machine.
    Confirmation = "confirmation";
    /// A refusal that differs only in the name of the new object counts as the same refusal.
    Quotes = "quotes";
    /// A refused write is not sent again before its pause is over.
    Refusals = "refusals";
    /// A rollout undoes its changes of Nodes.
    Cleaning = "cleaning";
    /// A paused deployment starts no rollout.
    Pause = "pause";
    /// While an API server does not answer, there are no health decisions, no creations and no collection.
    Silence = "silence";
    /// A drain waits until the volumes of its pods are detached.
    Volumes = "volumes";
    /// A drain that its flow has abandoned is forgotten. No other flow or Node continues with its list of pods.
    AbandonedDrain = "abandoned-drain";
    /// A rolling update considers the earlier sizes on which its sets may still act.
    Settling = "settling";
    /// The machine is read once more before its first VM is created (spec/machine-controller §4.12).
    LastLook = "last-look";
    /// No step of a deletion runs during a driver call (§2.5, §4.1).
    Calls = "calls";
    /// Our finalizer is added to the machine before any other effect (§3.1).
    Finalizer = "finalizer";
    /// Only OK and `NotFound` mean that a VM is gone (§6.6).
    Answers = "answers";
    /// An error of `GetMachineStatus` does not mean that the VM is absent (§4.3).
    Errors = "errors";
    /// The driver is asked for an existing VM before a VM is created (§4.3).
    Question = "question";
    /// A Failed machine of a set creates no VM (M-11).
    Failure = "failure";
    /// A Node is changed only if it belongs to the machine (M-07).
    Ownership = "ownership";
    /// The Node is cordoned before the first eviction (§7.7).
    Cordon = "cordon";
    /// Status writes contain single fields (M-12).
    Fields = "fields";
    /// A deletion needs a deletionTimestamp (M-65).
    DeletionTimestamp = "deletion-timestamp";
    /// No driver is called while the controller is frozen (§3.3).
    Frozen = "frozen";
    /// A Node that was never observed does not count as deleted (§2.3, §5.2).
    Absence = "absence";
    /// A failed step of a deletion is repeated (§6.6).
    Repetition = "repetition";
    /// The Node is read once more before its machine becomes Failed (§9.3).
    NodeLook = "node-look";
    /// The Node is looked up once more before the finalizer of its machine is removed (§6.7).
    LastNode = "last-node";
    /// A machine that waits reports the reason in its condition (decisions.md 30).
    Reasons = "reasons";
    /// A VM that was adopted has its whole time to join (M-13).
    Adoption = "adoption";
    /// A failed initialisation is repeated (M-14).
    Initialisation = "initialisation";
    /// An unhealthy machine becomes Failed at some point (§5.4, M-17).
    HealthTimeout = "health-timeout";
    /// A machine whose Node never joins becomes Failed (§4.7).
    CreationTimeout = "creation-timeout";
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Guard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|guard| guard.name() == text).copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|guard| guard.name()).collect();
            format!("no guard has this name; there are {}", names.join(", "))
        })
    }
}

/// The observation for the decision about a set, without this guard.
pub fn set_without(guard: Option<Guard>, seen: &SetObservation) -> Cow<'_, SetObservation> {
    let each = |change: fn(&mut Machine)| {
        let mut blind = seen.clone();
        for machine in &mut blind.machines {
            edit(machine, change);
        }
        Cow::Owned(blind)
    };
    match guard {
        Some(Guard::Marks) => each(|machine| {
            forget_annotation(machine, annotation::MACHINE_PRIORITY);
            forget_annotation(machine, annotation::MARKED_FOR_DELETION_TIME);
        }),
        Some(Guard::Priorities) => each(|machine| {
            // The marks of the scaler are a guard of their own.
            if annotation_of(machine, annotation::MARKED_FOR_DELETION_TIME).is_none() {
                forget_annotation(machine, annotation::MACHINE_PRIORITY);
            }
        }),
        Some(Guard::Ranking) => each(hide_phase),
        Some(Guard::Preservation) => each(|machine| {
            forget_annotation(machine, annotation::PRESERVE);
            machine.status.current_status.preserve_expiry_time = None;
        }),
        Some(Guard::Unanswered) => Cow::Owned(SetObservation { unanswered: BTreeSet::new(), ..seen.clone() }),
        Some(Guard::HandedOver) => each(|machine| forget_label(machine, label::UPDATE_RESULT)),
        Some(Guard::Freeze) => {
            let mut blind = seen.clone();
            edit(&mut blind.set, |set| {
                let labels = set.metadata.labels.get_or_insert_default();
                labels.remove(label::FREEZE);
                labels.remove(label::SCALE_UP_DISABLED);
            });
            Cow::Owned(blind)
        }
        _ => Cow::Borrowed(seen),
    }
}

/// The observation for the decision about the status of a set, without this guard.
pub fn set_status_without(guard: Option<Guard>, seen: &SetObservation) -> Cow<'_, SetObservation> {
    if guard != Some(Guard::Quotes) {
        return Cow::Borrowed(seen);
    }
    let mut blind = seen.clone();
    edit(&mut blind.set, |set| set.status.conditions.iter_mut().for_each(|condition| condition.message.clear()));
    Cow::Owned(blind)
}

/// The observation for the decision about a deployment, without this guard.
pub fn deployment_without(guard: Option<Guard>, seen: &DeploymentObservation) -> Cow<'_, DeploymentObservation> {
    let mut blind = match guard {
        Some(
            Guard::MaxUnavailable
            | Guard::MaxSurge
            | Guard::Rounding
            | Guard::Availability
            | Guard::Selection
            | Guard::Pause
            | Guard::Settling,
        ) => seen.clone(),
        _ => return Cow::Borrowed(seen),
    };
    match guard {
        Some(Guard::Availability) => {
            for machine in blind.sets.iter_mut().flat_map(|set| &mut set.machines) {
                edit(machine, hide_phase);
            }
        }
        Some(Guard::Selection) => {
            // The Node neither counts as unavailable nor can be selected again.
            let is_picked = |node: &&mut NodeSnapshot| node.label(label::SELECTED_FOR_UPDATE).is_some();
            for node in blind.nodes.iter_mut().flat_map(BTreeMap::values_mut).filter(is_picked) {
                edit(node, |node| {
                    for key in [label::SELECTED_FOR_UPDATE, label::CANDIDATE_FOR_UPDATE] {
                        node.labels_mut().remove(key);
                    }
                });
            }
        }
        Some(Guard::Settling) => blind.unsettled.clear(),
        Some(Guard::Pause) => edit(&mut blind.deployment, |deployment| deployment.spec.paused = false),
        _ => edit(&mut blind.deployment, |deployment| {
            let spec = &mut deployment.spec;
            let (strategy, replicas) = (&mut spec.strategy, spec.replicas);
            let is_surge = guard == Some(Guard::MaxSurge);
            let widen = |limit: &mut Option<IntOrString>| {
                if guard == Some(Guard::Rounding) { rounded_up(limit, replicas) } else { one_more(limit, replicas) }
            };
            if let Some(limits) = &mut strategy.rolling_update {
                widen(if is_surge { &mut limits.max_surge } else { &mut limits.max_unavailable });
            }
            if let Some(limits) = &mut strategy.in_place_update {
                widen(if is_surge { &mut limits.max_surge } else { &mut limits.max_unavailable });
            }
        }),
    }
    Cow::Owned(blind)
}

/// Changes the observation of an object.
fn edit<S: Whole<Object: Clone>>(seen: &mut S, change: impl FnOnce(&mut S::Object)) {
    let mut object = S::Object::clone(seen.whole_object());
    change(&mut object);
    *seen = S::of(Arc::new(object));
}

/// Whether a step of a deployment undoes a change of a Node.
pub fn cleans(rule: &str) -> bool {
    ["taint/new", "rollback/untaint", "autoscaler/enable"].contains(&rule)
}

fn one_more(limit: &mut Option<IntOrString>, replicas: i32) {
    rounded_up(limit, replicas);
    if let Some(IntOrString::Int(limit)) = limit {
        *limit += 1;
    }
}

/// Rounds percentages up to the next number of machines.
fn rounded_up(limit: &mut Option<IntOrString>, replicas: i32) {
    let number = limit.as_ref().and_then(|limit| IntOrPercent::try_from(limit).ok());
    if let Some(share @ IntOrPercent::Percent(_)) = number {
        *limit = Some(IntOrString::Int(share.resolve(replicas, Rounding::Up)));
    }
}

/// Hides the phase of a machine, unless the machine will be replaced.
fn hide_phase(machine: &mut Machine) {
    if !is_terminating(machine) && !is_failed(machine) {
        machine.status.current_status.phase = MachinePhase::Running;
    }
}

fn forget_annotation(machine: &mut Machine, key: &str) {
    if let Some(annotations) = &mut machine.metadata.annotations {
        annotations.remove(key);
    }
}

fn forget_label(machine: &mut Machine, key: &str) {
    if let Some(labels) = &mut machine.metadata.labels {
        labels.remove(key);
    }
}
