//! Edits of the deployment by users and the autoscaler. Edits of other objects are in [`super::tampering`].

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, ObjectMeta},
    util::intstr::IntOrString,
};

use super::{
    api::Api,
    checks::{Checks, Edited},
    facts::is_terminating,
    history::{Edit, Margin, Picks, Setup, Strategy},
    tampering,
};
use controller_runtime::snapshot::Snapshot;
use kube_values::{duration::GoDuration, selector::Labels};
use machine_api::{
    names::{MACHINE_CLASS_KIND, annotation, label},
    v1alpha1::{
        InPlaceUpdate, MachineDeployment, MachineDeploymentStrategy, OrchestrationType, RollbackConfig, RollingUpdate,
        StrategyType,
    },
};
use machine_controllers::{
    deployment::{
        patches,
        plan::Effect,
        rollback::{Found, RollbackTarget, find, rolled_back_to},
    },
    snapshots::{DeploymentSnapshot, SetSnapshot},
};

const NAME: &str = "md";
/// How long a Failed machine is preserved.
const PRESERVE_SECONDS: u32 = 3600;

/// The deployment at the start of a history.
pub fn deployment(setup: Setup) -> MachineDeployment {
    let labels: Labels = [("name", NAME)].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    debug_assert_eq!(label::NAME, "name");
    let mut deployment = MachineDeployment {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), namespace: Some("ns".to_owned()), ..ObjectMeta::default() },
        ..MachineDeployment::default()
    };
    let spec = &mut deployment.spec;
    spec.replicas = i32::from(setup.replicas);
    spec.selector = Some(LabelSelector { match_labels: Some(labels.clone()), match_expressions: None });
    spec.template.metadata.labels = Some(labels);
    MACHINE_CLASS_KIND.clone_into(&mut spec.template.spec.class.kind);
    spec.template.spec.class.name = class(0);
    let configuration = &mut spec.template.spec.configuration;
    configuration.machine_preserve_timeout = Some(GoDuration::from_secs(PRESERVE_SECONDS.into()));
    spec.strategy = strategy(setup.strategy);
    spec.revision_history_limit = Some(1);
    deployment
}

/// The classes that users choose.
pub const CLASSES: [&str; 3] = ["class-0", "class-1", "class-2"];

/// The name of a class.
pub(super) fn class(number: u8) -> String {
    CLASSES[usize::from(number) % CLASSES.len()].to_owned()
}

fn margin(margin: Margin) -> IntOrString {
    match margin {
        Margin::Machines(machines) => IntOrString::Int(machines.into()),
        Margin::Percent(percent) => IntOrString::String(format!("{percent}%")),
    }
}

fn strategy(strategy: Strategy) -> MachineDeploymentStrategy {
    match strategy {
        Strategy::Rolling { surge, unavailable } => MachineDeploymentStrategy {
            strategy_type: StrategyType::RollingUpdate,
            rolling_update: Some(RollingUpdate {
                max_surge: Some(margin(surge)),
                max_unavailable: Some(margin(unavailable)),
            }),
            in_place_update: None,
        },
        Strategy::Recreate => {
            MachineDeploymentStrategy { strategy_type: StrategyType::Recreate, ..MachineDeploymentStrategy::default() }
        }
        Strategy::InPlace { surge, unavailable, picks } => MachineDeploymentStrategy {
            strategy_type: StrategyType::InPlaceUpdate,
            rolling_update: None,
            in_place_update: Some(InPlaceUpdate {
                max_surge: Some(margin(surge)),
                max_unavailable: Some(margin(unavailable)),
                orchestration_type: match picks {
                    Picks::Controller => OrchestrationType::Auto,
                    Picks::User => OrchestrationType::Manual,
                },
            }),
        },
    }
}

/// Applies an edit; returns whether there was anything to edit.
pub fn apply(api: &mut Api, checks: &mut Checks, edit: Edit, now: Timestamp) -> bool {
    let changes = api.changes;
    match edit {
        Edit::Scale(replicas) => change(api, |d| d.spec.replicas = replicas.into()),
        Edit::Class(number) => change(api, |d| d.spec.template.spec.class.name = class(number)),
        Edit::Hot(number) => change(api, |d| {
            let labels = d.spec.template.spec.node_template.metadata.labels.get_or_insert_default();
            labels.insert("hot".to_owned(), number.to_string());
        }),
        Edit::Strategy(wanted) => change(api, |d| d.spec.strategy = strategy(wanted)),
        Edit::Pause => change(api, |d| d.spec.paused = true),
        Edit::Resume => change(api, |d| d.spec.paused = false),
        Edit::Mark(pick) => mark(api, pick, now),
        Edit::ScaleIn => scale_in(api, now),
        Edit::Rollback(revision) => roll_back(api, revision),
        Edit::RollbackTo(revision) => {
            change(api, |d| d.spec.rollback_to = Some(RollbackConfig { revision: revision.into() }));
        }
        Edit::KeepFailed(most) => change(api, |d| d.spec.auto_preserve_failed_machine_max = most.into()),
        Edit::Thaw => change(api, |d| {
            d.metadata.annotations.get_or_insert_default().insert(annotation::UNFREEZE.to_owned(), "True".to_owned());
        }),
        Edit::DeleteDeployment => {
            // The deployment may be gone already.
            let _ = api.delete::<MachineDeployment>(NAME, None, None, now);
        }
        Edit::DeleteMachine(_)
        | Edit::Keep(..)
        | Edit::Orphan(_)
        | Edit::OrphanSet(_)
        | Edit::Relabel(_)
        | Edit::Strays(..)
        | Edit::PickNode(_)
        | Edit::Prioritise(..)
        | Edit::ScaleSet(..)
        | Edit::ClassOfSet(..)
        | Edit::RelabelSet(_)
        | Edit::DeleteSet(_)
        | Edit::Force(_)
        | Edit::Unlink(_) => tampering::apply(api, checks, edit, now),
    }
    api.changes != changes
}

fn change(api: &mut Api, change: impl FnOnce(&mut MachineDeployment)) {
    api.edit::<MachineDeployment>(NAME, change);
}

/// The first write of the autoscaler: names a machine, with the time.
fn mark(api: &mut Api, pick: u16, now: Timestamp) {
    let names: Vec<String> =
        api.machines.iter().filter(|(_, machine)| !is_terminating(machine)).map(|(name, _)| name.clone()).collect();
    let Some(name) = names.get(usize::from(pick) % names.len().max(1)) else { return };
    change(api, |deployment| {
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        let list = annotations.entry(annotation::TRIGGER_DELETION.to_owned()).or_default();
        if list.contains(name.as_str()) {
            return;
        }
        let comma = if list.is_empty() { "" } else { "," };
        *list = format!("{list}{comma}{name}~{}", seconds(now));
    });
}

/// The second write of the autoscaler: reduces the size by the number of named machines, with the time.
fn scale_in(api: &mut Api, now: Timestamp) {
    change(api, |deployment| {
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        let named = annotations.get(annotation::TRIGGER_DELETION).map_or(0, |list| list.split(',').count());
        if named == 0 {
            return;
        }
        let fewer = deployment.spec.replicas - i32::try_from(named).unwrap_or(i32::MAX);
        deployment.spec.replicas = fewer.max(0);
        annotations.insert(annotation::LAST_REPLICA_CHANGE_BY_SCALER.to_owned(), seconds(now));
    });
}

/// Does the same as `mcm rollback`: with its selection and its patch.
fn roll_back(api: &mut Api, revision: u8) {
    let Some(deployment) = api.get::<MachineDeployment>(NAME).map(DeploymentSnapshot::from) else { return };
    let sets: Vec<SetSnapshot> = api.sets.values().cloned().map(SetSnapshot::from).collect();
    let is_own = |set: &&SetSnapshot| set.controller().is_some_and(|owner| owner.uid == deployment.uid());
    let sets: Vec<&SetSnapshot> = sets.iter().filter(is_own).collect();
    if let Found::Set { set, .. } = find(&deployment, &sets, RollbackTarget::from(i64::from(revision))) {
        let effect = Effect::RollBack(Box::new(rolled_back_to(&deployment, set)));
        let Some((part, patch)) = patches::of_deployment(&effect, &deployment) else { return };
        // No other client writes in between.
        let _ = api.patch::<MachineDeployment>(&deployment.key(), part, &patch);
    }
}

/// Times in annotations have whole seconds.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Resumes a paused deployment after the random steps.
pub fn resume(api: &mut Api, checks: &mut Checks) {
    let changes = api.changes;
    change(api, |deployment| deployment.spec.paused = false);
    if api.changes != changes {
        checks.edited(api, Edited::Other);
    }
}
