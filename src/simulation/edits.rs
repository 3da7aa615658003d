//! What users and the autoscaler write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, ObjectMeta},
    util::intstr::IntOrString,
};

use super::{
    api::Api,
    checks::Checks,
    history::{Edit, Setup, Strategy},
};
use crate::{
    api::{
        names::{MACHINE_CLASS_KIND, annotation, label},
        v1alpha1::{Labels, Machine, MachineDeployment, MachineDeploymentStrategy, RollingUpdate, StrategyType},
    },
    controllers::set::counts::is_terminating,
};

const NAME: &str = "md";

/// The deployment of a history.
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
    spec.strategy = strategy(setup.strategy);
    spec.revision_history_limit = Some(1);
    deployment
}

fn class(number: u8) -> String {
    format!("class-{number}")
}

fn strategy(strategy: Strategy) -> MachineDeploymentStrategy {
    match strategy {
        Strategy::Rolling { surge, unavailable } => MachineDeploymentStrategy {
            strategy_type: StrategyType::RollingUpdate,
            rolling_update: Some(RollingUpdate {
                max_surge: Some(IntOrString::Int(surge.into())),
                max_unavailable: Some(IntOrString::Int(unavailable.into())),
            }),
            in_place_update: None,
        },
        Strategy::Recreate => {
            MachineDeploymentStrategy { strategy_type: StrategyType::Recreate, ..MachineDeploymentStrategy::default() }
        }
    }
}

/// Writes; whether anything was there to be written.
pub fn apply(api: &mut Api, edit: Edit, now: Timestamp) -> bool {
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
        Edit::DeleteMachine(pick) => {
            let names: Vec<String> = api.machines.keys().cloned().collect();
            if let Some(name) = names.get(usize::from(pick) % names.len().max(1)) {
                // It is there: it was just looked up.
                let _ = api.delete::<Machine>(name, None, now);
            }
        }
        Edit::Mark(pick) => mark(api, pick, now),
        Edit::ScaleIn => scale_in(api, now),
        Edit::DeleteDeployment => {
            // There may be none any more.
            let _ = api.delete::<MachineDeployment>(NAME, None, now);
        }
    }
    api.changes != changes
}

fn change(api: &mut Api, change: impl FnOnce(&mut MachineDeployment)) {
    api.edit::<MachineDeployment>(NAME, change);
}

/// The first write of the autoscaler: names a machine, and when.
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

/// The second write: as many fewer machines as were named, and when.
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

/// Times in annotations have whole seconds.
fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// After a storm nothing stays paused.
pub fn resume(api: &mut Api, checks: &mut Checks) {
    let changes = api.changes;
    change(api, |deployment| deployment.spec.paused = false);
    if api.changes != changes {
        checks.edited(api, false);
    }
}
