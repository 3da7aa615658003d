//! Builds the observation of a machine from the stores and from memory. Makes no API call and decides nothing.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use super::{
    creation::user_data::wants,
    health::conditions_changed,
    memory::{Memory, Pass},
    node::{
        lost_link::candidate,
        ownership::{Owner, instance_of, owner_in},
        replacement::replacement_in,
    },
    observation::{
        AttachmentView, ClassView, CreationGuarantee, DrainState, Freeze, Inputs, LastGood, Namesake, NodeIdentity,
        NodeView, OBSERVATION_VERSION, Observation, SecretView, Sibling, Silence, TargetCluster, VmCheck,
        ailments::{Ailments, Freshness},
        class_state::class_state,
        force_deletion,
        shared_instance::vm_owner_in,
    },
    settings::{HealthTimeout, Limits, MachineSettings},
};
use crate::{
    drain::observe::{DrainViews, MissingView},
    snapshots::{MachineSnapshot, NodeSnapshot},
    times::since,
    views::{BY_NAME_LABEL, ControlViews, qualified},
};
use controller_runtime::{clock::Reading, key::ObjectKey, snapshot::Snapshot, store::Store};
use machine_api::{
    names::label,
    v1alpha1::{MachineClass, MachinePhase, SecretReference},
};
use machine_driver::{Registry, SameInstance, SecretData};

/// The source of an observation.
pub struct Sources<'a> {
    /// The control cluster.
    pub views: &'a ControlViews,
    /// The target cluster.
    pub target: Option<TargetSources<'a>>,
    /// The drivers.
    pub drivers: &'a Registry,
    /// The settings.
    pub settings: &'a MachineSettings,
    /// Whether the machine is frozen.
    pub freeze: Freeze,
    /// The API server that does not answer.
    pub silence: Silence,
    /// Whether the class and its Secrets are remembered as the last driver call used them.
    pub last_good: LastGood,
    /// Whether the removal of the machine's Node was seen.
    pub node_vanished: bool,
}

/// The sources of an observation in the target cluster.
#[derive(Clone, Copy)]
pub struct TargetSources<'a> {
    /// The store of Nodes.
    pub nodes: &'a Store<NodeSnapshot>,
    /// The views that drains need.
    pub drains: &'a dyn DrainViews,
    /// Whether an observation starts drain views that are not kept yet: `true` for a pass, `false` for an outlook.
    pub starts_drain_views: bool,
}

/// The Secrets of a class.
pub struct ClassSecrets {
    /// Their data, merged.
    pub data: SecretData,
    /// Whether the class names any Secret.
    pub any_named: bool,
    /// Names and versions.
    pub versions: Vec<(String, Option<String>)>,
    /// The missing Secrets.
    pub missing: Vec<String>,
}

/// The observation of this machine. [`Memory::keep`] keeps the times that it notes first.
pub fn observe(
    sources: &Sources<'_>,
    machine: MachineSnapshot,
    memory: &Memory,
    pass: &Pass,
    reading: Reading,
) -> Observation {
    let now = reading.now;
    let limits = sources.settings.limits_of(&machine);
    let class = class_of(sources.views, &machine);
    let secrets = secrets_of(&sources.views.secrets, &machine, class.as_deref());
    let node = node_view(sources, &machine, memory);
    let vm_check = vm_check(&machine, memory.vm_check);
    let attachments = attachments(sources, &machine);
    Observation {
        version: OBSERVATION_VERSION,
        now,
        steady: reading.steady,
        step: reading.step,
        clock: reading.trouble(),
        first_seen: memory.first_seen,
        first_seen_deleting: first_seen_deleting(&machine, memory.first_seen_deleting, now),
        freeze: if reading.trouble().is_some() { Freeze::Frozen } else { sources.freeze },
        silence: sources.silence,
        target: if sources.target.is_some() { TargetCluster::Present } else { TargetCluster::None },
        class: ClassView {
            state: class_state(machine.class_ref(), class.as_deref()),
            virtual_capacity: class.as_ref().map(|class| {
                class.node_template.as_ref().map(|template| template.virtual_capacity.clone()).unwrap_or_default()
            }),
            creation: class
                .as_ref()
                .and_then(|class| sources.drivers.driver_for(&class.provider).ok())
                .filter(|driver| !driver.info().capabilities.create_is_idempotent)
                .map_or(CreationGuarantee::Idempotent, |_| CreationGuarantee::RecordIntent),
            last_good: sources.last_good,
        },
        inputs: inputs_of(&machine, class.as_deref(), secrets.versions),
        secrets: if secrets.missing.is_empty() {
            SecretView::Present(wants(secrets.any_named.then_some(&secrets.data)))
        } else {
            SecretView::Missing(secrets.missing)
        },
        missing_views: missing_views(sources, attachments.as_deref(), pass),
        attachments,
        siblings: siblings(sources.views, &machine, &limits, vm_check, now),
        limits,
        node_identity: node_identity(sources, &machine, &node),
        ailments: ailments(&node, freshness_of_nodes(sources, reading), &memory.ailments, reading.steady),
        conditions_differ_since: conditions_differ_since(
            &machine,
            &node,
            memory.conditions_differ_since,
            reading.steady,
        ),
        vm_owner: vm_owner_in(&machine, sources.views, &same_instance(sources)),
        replacement: replacement_in(&machine, sources.views),
        creation_unknown_since: memory.creation_unknown_since,
        node,
        flow: memory.flow.clone(),
        pause: memory.pause.clone(),
        stated: memory.stated.clone(),
        drain: pass.drain_of(&machine),
        permit: pass.permit,
        node_source: pass.node_source,
        step_failures: pass.step_failures.clone(),
        vm_check,
        machine,
    }
}

/// The class that a machine names.
pub fn class_of(views: &ControlViews, machine: &MachineSnapshot) -> Option<Arc<MachineClass>> {
    let namespace = machine.namespace();
    views.classes.get(&ObjectKey::new(namespace, machine.class_ref().name.clone()))
}

/// The inputs of a driver call for the machine.
pub fn inputs_of(
    machine: &MachineSnapshot,
    class: Option<&MachineClass>,
    secrets: Vec<(String, Option<String>)>,
) -> Inputs {
    Inputs {
        machine: machine.generation(),
        class: class.map(|class| (class.uid().unwrap_or_default(), class.metadata.generation)),
        secrets,
        force: force_deletion(machine),
    }
}

/// The Secrets that a class names. A key of `credentialsSecretRef` replaces the same key of `secretRef`.
pub fn secrets_of(
    secrets: &Store<Arc<Secret>>,
    machine: &MachineSnapshot,
    class: Option<&MachineClass>,
) -> ClassSecrets {
    let mut found =
        ClassSecrets { data: SecretData::default(), any_named: false, versions: Vec::new(), missing: Vec::new() };
    let Some(class) = class else { return found };
    let own = machine.namespace();
    let mut data_of = |reference: &Option<SecretReference>| {
        let Some(reference) = reference else { return BTreeMap::new() };
        let namespace = if reference.namespace.is_empty() { own } else { &reference.namespace };
        let key = ObjectKey::new(namespace, reference.name.clone());
        found.any_named = true;
        let secret = secrets.get(&key);
        found
            .versions
            .push((key.to_string(), secret.as_ref().and_then(|secret| secret.resource_version()).map(str::to_owned)));
        if secret.is_none() {
            found.missing.push(key.to_string());
        }
        secret.and_then(|secret| secret.data.clone()).unwrap_or_default()
    };
    let base = data_of(&class.secret_ref);
    let over = data_of(&class.credentials_secret_ref);
    found.data = SecretData::merged(base, over);
    found
}

fn node_view(sources: &Sources<'_>, machine: &MachineSnapshot, memory: &Memory) -> NodeView {
    let Some(target) = sources.target else { return NodeView::NoTarget };
    let name = machine.labels().get(label::NODE).map(String::as_str).unwrap_or_default();
    if name.is_empty() {
        return not_linked(sources, target.nodes, machine, memory);
    }
    match target.nodes.get(&ObjectKey::cluster_scoped(name)) {
        None if sources.node_vanished => NodeView::Vanished,
        None => NodeView::Absent,
        Some(node) => owned_view(owner_in(machine, &node, sources.views, &same_instance(sources)), node),
    }
}

/// Compares instances by the drivers of the machines' classes.
fn same_instance(sources: &Sources<'_>) -> impl Fn(&MachineSnapshot, &str) -> SameInstance {
    |machine, id| instance_of(machine, id, sources.views, sources.drivers)
}

/// The view of an existing Node whose owner is known.
fn owned_view(owner: Owner, node: NodeSnapshot) -> NodeView {
    match owner {
        Owner::Ours => NodeView::Ours(node),
        Owner::Foreign(why) => NodeView::Foreign { name: node.name().to_owned(), why },
        Owner::Contested(why) => NodeView::Contested { name: node.name().to_owned(), why },
    }
}

/// Whether the driver can compare the Node's instance with the machine's.
fn node_identity(sources: &Sources<'_>, machine: &MachineSnapshot, node: &NodeView) -> NodeIdentity {
    let Some(id) = node.ours().map(NodeSnapshot::provider_id) else { return NodeIdentity::Told };
    let can_be_compared = !id.is_empty() && !machine.provider_id().is_empty();
    if can_be_compared && instance_of(machine, id, sources.views, sources.drivers) == SameInstance::Unknown {
        NodeIdentity::Unknown { node: id.to_owned() }
    } else {
        NodeIdentity::Told
    }
}

fn not_linked(
    sources: &Sources<'_>,
    nodes: &Store<NodeSnapshot>,
    machine: &MachineSnapshot,
    memory: &Memory,
) -> NodeView {
    let candidate =
        candidate(machine, nodes, sources.views, &same_instance(sources)).map(|node| node.name().to_owned());
    let namesake = memory.flow.vm.as_ref().filter(|vm| !vm.identity.node_name.is_empty()).and_then(|vm| {
        let node = nodes.get(&ObjectKey::cluster_scoped(&vm.identity.node_name))?;
        let made = machine.with_provider_id(&vm.identity.provider_id);
        Some(Namesake {
            instance: instance_of(&made, node.provider_id(), sources.views, sources.drivers),
            created: node.created(),
        })
    });
    NodeView::NotLinked { candidate, namesake }
}

/// When this process first saw the machine being deleted.
pub(super) fn first_seen_deleting(
    machine: &MachineSnapshot,
    before: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    if machine.is_deleting() { before.or(Some(now)) } else { before }
}

/// The faults of a machine's Node, continued from the earlier ones.
pub(super) fn ailments(node: &NodeView, freshness: Freshness, before: &Ailments, steady: Timestamp) -> Ailments {
    node.ours().map(|node| Ailments::of(node, freshness, before, steady)).unwrap_or_default()
}

fn freshness_of_nodes(sources: &Sources<'_>, reading: Reading) -> Freshness {
    let stored = sources.target.map_or(Freshness::Current, |target| Freshness::of_store(target.nodes));
    stored.under(sources.freeze, sources.silence, reading.trouble())
}

/// The driver's answer about the VM counts only while the machine is unhealthy.
pub(super) fn vm_check(machine: &MachineSnapshot, before: VmCheck) -> VmCheck {
    if *machine.phase() == MachinePhase::Unknown { before } else { VmCheck::NotAsked }
}

/// The time since which the Node of a machine that has not joined has conditions that are not stored yet.
pub(super) fn conditions_differ_since(
    machine: &MachineSnapshot,
    node: &NodeView,
    before: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let status = machine.status();
    let joining = matches!(status.current_status.phase, MachinePhase::Pending | MachinePhase::CrashLoopBackOff);
    let differs = joining && node.ours().is_some_and(|node| conditions_changed(&status.conditions, node.conditions()));
    differs.then(|| before.unwrap_or(now))
}

fn attachments(sources: &Sources<'_>, machine: &MachineSnapshot) -> Option<Vec<AttachmentView>> {
    let target = sources.target.filter(|_| machine.is_deleting())?;
    let name = machine.node_name();
    let is_known = || if target.starts_drain_views { target.drains.ready() } else { target.drains.complete() };
    if name.is_empty() || !is_known() {
        return None;
    }
    let all = target.drains.attachments_on(name);
    let views = all
        .iter()
        .map(|attachment| AttachmentView {
            name: attachment.name().to_owned(),
            uid: attachment.uid().to_owned(),
            deleting: attachment.is_deleting(),
        })
        .collect();
    Some(views)
}

/// The lists that a drain or a detachment waits for.
fn missing_views(sources: &Sources<'_>, attachments: Option<&[AttachmentView]>, pass: &Pass) -> Vec<MissingView> {
    let awaits = pass.drain == DrainState::Warming || attachments.is_none();
    sources.target.filter(|_| awaits).map(|target| target.drains.missing()).unwrap_or_default()
}

/// The machine's group, but only when its health timeout may have passed: a group can be large.
fn siblings(
    views: &ControlViews,
    machine: &MachineSnapshot,
    limits: &Limits,
    vm: VmCheck,
    now: Timestamp,
) -> Option<Vec<Sibling>> {
    let HealthTimeout::After(limit) = limits.health else { return None };
    let current = &machine.status().current_status;
    let timed = matches!(
        current.phase,
        MachinePhase::Unknown | MachinePhase::InPlaceUpdateSuccessful | MachinePhase::InPlaceUpdateFailed
    );
    let began = current.last_update_time.as_ref().map(|began| began.0)?;
    if !timed || (since(now, began) <= limit && vm != VmCheck::Gone) {
        return None;
    }
    let Some(group) = machine.labels().get(label::NAME).filter(|name| !name.is_empty()) else {
        return Some(Vec::new());
    };
    let all = views.machines.by_index(BY_NAME_LABEL, &qualified(machine.namespace(), group));
    Some(
        all.iter()
            .filter(|sibling| sibling.uid() != machine.uid())
            .map(|sibling| Sibling {
                name: sibling.name().to_owned(),
                phase: sibling.phase().as_str().to_owned(),
                preserved: sibling.preserve_expiry_time().is_some(),
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::testing::*, *};
    use machine_api::v1alpha1::{OperationState, OperationType};

    fn secret(name: &str, data: &[(&str, &str)]) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.namespace = Some("ns".to_owned());
        let data =
            data.iter().map(|(key, value)| ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec())));
        secret.data = Some(data.collect());
        secret
    }

    #[test]
    fn mc_044_the_credentials_beat_the_secret_key_by_key() {
        let store = Store::new(Vec::new());
        store.apply(secret("a", &[("x", "1"), ("y", "1")]));
        store.apply(secret("b", &[("y", "2")]));
        let class: MachineClass =
            serde_json::from_value(json!({ "secretRef": { "name": "a" }, "credentialsSecretRef": { "name": "b" } }))
                .unwrap();
        let found = secrets_of(&store, &machine().into(), Some(&class));
        assert_eq!((found.data.get("x"), found.data.get("y")), (Some(b"1".as_slice()), Some(b"2".as_slice())));
        assert!(found.missing.is_empty());
    }

    fn member(name: &str, group: &str, phase: MachinePhase) -> MachineSnapshot {
        let mut machine = in_phase(phase, 0, OperationType::HealthCheck, OperationState::Processing);
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.uid = Some(name.to_owned());
        machine.labels_mut().insert(label::NAME.to_owned(), group.to_owned());
        machine.into()
    }

    #[test]
    fn mc_117_machines_of_another_deployment_are_no_siblings() {
        let views = ControlViews::default();
        let sick = member("sick", "one", MachinePhase::Unknown);
        views.machines.apply(sick.to_object());
        views.machines.apply(member("other", "two", MachinePhase::Pending).to_object());
        views.machines.apply(member("sibling", "one", MachinePhase::Running).to_object());
        let limits = MachineSettings::default().limits_of(&sick);
        let names = |machine: &MachineSnapshot| {
            let found = siblings(&views, machine, &limits, VmCheck::NotAsked, at(601));
            found.map(|found| found.into_iter().map(|sibling| sibling.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&sick), Some(vec!["sibling".to_owned()]));
        assert_eq!(
            names(&member("sibling", "one", MachinePhase::Running)),
            None,
            "nobody asks about a healthy machine"
        );
    }
}
