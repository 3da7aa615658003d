//! Guards of the controllers that can be taken away (`mcm simulate --without`), to see that histories then go wrong.
//!
//! The decisions stay as they are; what a guard rests on is hidden from them, or not done around them. Guards in the life of one
//! machine are in [`machines`].

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
    /// Every effect asks the gate whether the process leads.
    Leadership = "leadership";
    /// A process that begins to lead sees what its predecessor did; without it the views of a standby may be as old as the
    /// storm.
    CatchUp = "catch-up";
    /// Answers of our own writes go into the views at once.
    OwnWrites = "own-writes";
    /// What became of a creation that got no answer is asked before another machine or set is made; so it is of sets, machines
    /// and Nodes that a deployment wrote on without an answer.
    Unanswered = "unanswered";
    /// A machine whose deletion got no answer is read again before anything is decided.
    Unread = "unread";
    /// Writes say which version of the object they were decided on.
    Versions = "versions";
    /// A set deletes first what the scaler has marked.
    Marks = "marks";
    /// A set deletes machines of a lower priority first.
    Priorities = "priorities";
    /// A set deletes first what is of no use.
    Ranking = "ranking";
    /// A frozen set makes no machines, nor one whose machines are being handed over.
    Freeze = "freeze";
    /// A Failed machine that is to be kept is not replaced.
    Preservation = "preservation";
    /// A machine that was just handed over is not deleted.
    HandedOver = "handed-over";
    /// No more machines are missing than `maxUnavailable` allows.
    MaxUnavailable = "max-unavailable";
    /// No more machines are made than `maxSurge` allows.
    MaxSurge = "max-surge";
    /// Percentages of `maxUnavailable` are rounded down.
    Rounding = "rounding";
    /// A rollout counts on no machine before its VM is there.
    Availability = "availability";
    /// A Node that is being updated counts as missing.
    Selection = "selection";
    /// At a provider that makes another VM when it is asked again, the intent is stored before each creation.
    Intent = "intent";
    /// VMs that are nobody's are collected.
    Orphans = "orphans";
    /// A VM whose machine may be about to get it is no orphan.
    Claims = "claims";
    /// A VM is made of the class and the Secrets that its creation was decided on.
    Inputs = "inputs";
    /// A class that is gone is forgotten.
    Classes = "classes";
    /// Before our finalizer is taken off a class or a Secret, the API server is asked who uses it.
    Users = "users";
    /// A bootstrap token that is another machine's is not taken.
    Tokens = "tokens";
    /// An unhealthy machine waits while another one of its group is being replaced, after its update in place as well.
    Siblings = "siblings";
    /// That a VM is nobody's is asked of the API server, whatever the views show.
    Confirmation = "confirmation";
    /// A refusal that quotes another name is no other refusal.
    Quotes = "quotes";
    /// What was refused is not sent again before its pause is over.
    Refusals = "refusals";
    /// A rollout takes back what it has done to Nodes.
    Cleaning = "cleaning";
    /// A paused deployment begins no rollout.
    Pause = "pause";
    /// While an API server is silent no verdict is given, nothing is made and nothing collected.
    Silence = "silence";
    /// A drain waits until the volumes of its pods are detached.
    Volumes = "volumes";
    /// A drain that its flow has abandoned is forgotten: no other flow, and no other Node, goes on with its list of pods.
    AbandonedDrain = "abandoned-drain";
    /// A rolling update minds which sizes its sets may still act on.
    Settling = "settling";
    /// The machine is read once more before its first VM is made (spec/machine-controller §4.12).
    LastLook = "last-look";
    /// No step of a deletion is taken while a driver call is under way (§2.5, §4.1).
    Calls = "calls";
    /// Our finalizer is on the machine before anything else is done (§3.1).
    Finalizer = "finalizer";
    /// Only OK and `NotFound` mean that a VM is gone (§6.6).
    Answers = "answers";
    /// An error of `GetMachineStatus` is no absence (§4.3).
    Errors = "errors";
    /// The driver is asked for a VM before a VM is made (§4.3).
    Question = "question";
    /// A Failed machine of a set makes no VM (M-11).
    Failure = "failure";
    /// A Node is only touched when it is the machine's (M-07).
    Ownership = "ownership";
    /// The Node is cordoned before the first eviction (§7.7).
    Cordon = "cordon";
    /// Status writes name single fields (M-12).
    Fields = "fields";
    /// A deletion needs a deletionTimestamp (M-65).
    DeletionTimestamp = "deletion-timestamp";
    /// No driver is called while the controller is frozen (§3.3).
    Frozen = "frozen";
    /// A Node that was never seen was not deleted (§2.3, §5.2).
    Absence = "absence";
    /// A failed step of a deletion is tried again (§6.6).
    Repetition = "repetition";
    /// The Node is read once more before its machine is given up (§9.3).
    NodeLook = "node-look";
    /// The Node is looked for once more before its machine is let go (§6.7).
    LastNode = "last-node";
    /// A machine that waits says why (decisions.md 30).
    Reasons = "reasons";
    /// A VM that was taken over has its whole time to join (M-13).
    Adoption = "adoption";
    /// An initialisation that failed is repeated (M-14).
    Initialisation = "initialisation";
    /// An unhealthy machine is given up in the end (§5.4, M-17).
    HealthTimeout = "health-timeout";
    /// A machine whose Node never comes is given up (§4.7).
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

/// What the decision about a set sees without this guard.
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
            // The scaler's marks are a guard of their own.
            if annotation_of(machine, annotation::MARKED_FOR_DELETION_TIME).is_none() {
                forget_annotation(machine, annotation::MACHINE_PRIORITY);
            }
        }),
        Some(Guard::Ranking) => each(all_alike),
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

/// What the decision about the status of a set sees without this guard.
pub fn told_without(guard: Option<Guard>, seen: &SetObservation) -> Cow<'_, SetObservation> {
    if guard != Some(Guard::Quotes) {
        return Cow::Borrowed(seen);
    }
    let mut blind = seen.clone();
    edit(&mut blind.set, |set| set.status.conditions.iter_mut().for_each(|condition| condition.message.clear()));
    Cow::Owned(blind)
}

/// What the decision about a deployment sees without this guard.
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
                edit(machine, all_alike);
            }
        }
        Some(Guard::Selection) => {
            // Neither counted as missing nor to be picked once more.
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

/// Changes what is seen of an object.
fn edit<S: Whole<Object: Clone>>(seen: &mut S, change: impl FnOnce(&mut S::Object)) {
    let mut object = S::Object::clone(seen.whole_object());
    change(&mut object);
    *seen = S::of(Arc::new(object));
}

/// Whether a step of a deployment takes back what a rollout has done to a Node.
pub fn cleans(rule: &str) -> bool {
    ["taint/new", "rollback/untaint", "autoscaler/enable"].contains(&rule)
}

fn one_more(limit: &mut Option<IntOrString>, replicas: i32) {
    rounded_up(limit, replicas);
    if let Some(IntOrString::Int(limit)) = limit {
        *limit += 1;
    }
}

/// Percentages become the next larger number of machines.
fn rounded_up(limit: &mut Option<IntOrString>, replicas: i32) {
    let number = limit.as_ref().and_then(|limit| IntOrPercent::try_from(limit).ok());
    if let Some(share @ IntOrPercent::Percent(_)) = number {
        *limit = Some(IntOrString::Int(share.resolve(replicas, Rounding::Up)));
    }
}

/// A machine whose phase tells nothing, unless it is to be replaced.
fn all_alike(machine: &mut Machine) {
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
