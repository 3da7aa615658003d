//! The properties of a world at rest: as many machines as wanted, each with one VM and one Node.
//!
//! [`nodes`] checks that nothing is left on Nodes, and [`conditions`] checks the conditions.

mod conditions;
mod nodes;

use std::sync::Arc;

use super::{
    api::{Api, Kind},
    classes::{is_class_used, is_kept, is_of_classes, is_secret_used},
    cloud::{Cloud, machine_of},
    facts::{annotation_of, is_of_new_set, is_terminating, label_of},
    volumes,
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::{annotation, finalizer, label, preserve_value},
    v1alpha1::{Machine, MachineDeployment, MachinePhase, MachineSet},
};
use machine_controllers::{deployment::template_equality::is_equal, snapshots::NodeSnapshot};

/// The differences between the world and its specification.
#[derive(Debug, Default)]
struct Differences(Vec<String>);

impl Differences {
    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(text());
        }
    }
}

/// The differences between the world and its specification. Empty if there is no difference.
pub fn differences(api: &Api, cloud: &Cloud) -> Vec<String> {
    let mut found = Differences::default();
    let wanted = api.deployments.values().next().map_or(0, |deployment| deployment.spec.replicas);
    let staying = api.machines.values().filter(|machine| !is_terminating(machine)).count();
    found.expect(i32::try_from(staying) == Ok(wanted), || format!("{staying} machines stay, {wanted} are wanted"));
    for (name, machine) in &api.machines {
        look_at_machine(&mut found, (api, cloud), name, machine);
        conditions::of_machine(&mut found, name, machine);
    }
    for (id, vm) in &cloud.vms {
        found.expect(api.machines.contains_key(&vm.owner), || format!("VM {id} has no machine"));
    }
    for (name, node) in &api.nodes {
        // A Node that joined unobserved while its VM was being deleted never had our finalizer; the node lifecycle
        // controller deletes it.
        let is_ours = node.metadata.finalizers.iter().flatten().any(|one| one == finalizer::NODE);
        let machine = api.machines.get(machine_of(name));
        found.expect(!is_ours || machine.is_some(), || format!("node {name} has no machine"));
        if let Some(machine) = machine.filter(|_| is_ours) {
            nodes::look_at(&mut found, name, &NodeSnapshot::of(Arc::clone(node)), machine);
        }
    }
    for (name, attachment) in &api.attachments {
        let is_settled = attachment.metadata.deletion_timestamp.is_none() && volumes::is_attached(attachment);
        let is_used = volumes::user_on(api, attachment).is_some() && api.nodes.contains_key(&attachment.spec.node_name);
        found.expect(is_settled && is_used, || format!("attachment {name} is left"));
    }
    for (name, class) in &api.classes {
        look_at_kept(&mut found, name, &**class, is_class_used(api, name));
    }
    for (name, secret) in api.secrets.iter().filter(|(_, secret)| is_of_classes(secret)) {
        let is_used = is_secret_used(api, name);
        look_at_kept(&mut found, name, &**secret, is_used);
        found.expect(is_used || !is_kept(&**secret), || format!("Secret {name} has our finalizer for nobody"));
    }
    for (name, set) in &api.sets {
        found.expect(!api.deployments.is_empty(), || format!("set {name} has no deployment"));
        look_at_set(&mut found, api, name, set);
        conditions::of_set(&mut found, name, set);
    }
    for (name, deployment) in &api.deployments {
        look_at_deployment(&mut found, name, deployment);
        conditions::of_deployment(&mut found, name, deployment);
    }
    found.0
}

/// An object in use must have our finalizer. A deleted object that is not in use must be gone.
fn look_at_kept<K: Kind>(found: &mut Differences, name: &str, object: &K, is_used: bool) {
    found.expect(!is_used || is_kept(object), || format!("{} {name} is in use without our finalizer", K::NAME));
    let stays = is_used || object.meta().deletion_timestamp.is_none();
    found.expect(stays, || format!("{} {name} still ends", K::NAME));
}

fn look_at_machine(found: &mut Differences, (api, cloud): (&Api, &Cloud), name: &str, machine: &Machine) {
    let current = &machine.status.current_status;
    found
        .expect(!is_terminating(machine), || format!("machine {name} still ends: {:?}", machine.status.last_operation));
    found.expect(current.phase == MachinePhase::Running, || format!("machine {name} is {:?}", current.phase));
    found.expect(is_of_new_set(api, machine), || format!("machine {name} is of an old template"));
    let vms: Vec<&str> = cloud.of_machine(name).map(|vm| vm.provider_id.as_str()).collect();
    let own = machine.spec.provider_id.as_str();
    found.expect(vms.contains(&own), || format!("machine {name} names VM {own:?} and not {vms:?}"));
    found.expect(vms.len() < 2, || format!("machine {name} has several VMs for ever: {vms:?}"));
    let linked = label_of(machine, label::NODE);
    let is_linked = cloud.vms.get(own).is_none_or(|vm| linked == Some(vm.node.as_str()));
    found.expect(is_linked, || format!("machine {name} is linked to {linked:?} and not to its Node"));
    let is_marked = label_of(machine, label::UPDATE_RESULT).is_some();
    found.expect(!is_marked, || format!("machine {name} was handed over and its label was left"));
    let is_kept = annotation_of(machine, annotation::PRESERVE) == Some(preserve_value::AUTO_PRESERVED);
    found.expect(!is_kept, || format!("machine {name} runs and is kept because it had failed"));
}

fn look_at_set(found: &mut Differences, api: &Api, name: &str, set: &MachineSet) {
    let meta = &set.metadata;
    found.expect(meta.deletion_timestamp.is_none(), || format!("set {name} still ends"));
    let replicas = set.spec.replicas;
    let status = &set.status;
    let told = [status.replicas, status.ready_replicas, status.available_replicas, status.fully_labeled_replicas];
    found.expect(told == [replicas; 4], || format!("set {name} tells {told:?} and not {replicas}"));
    let generations = (status.observed_generation, meta.generation.unwrap_or_default());
    found.expect(generations.0 == generations.1, || format!("set {name} has seen {generations:?}"));
    let trouble =
        (status.preserved_failed_replicas, status.auto_preserve_failed_machine_count, status.failed_machines.len());
    found.expect(trouble == (0, 0, 0), || format!("set {name} tells of failures: {trouble:?}"));
    let has_label = |key: &str| meta.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    found.expect(!has_label(label::FREEZE), || format!("set {name} is frozen"));
    if is_new(api, set) {
        found.expect(!has_label(label::SCALE_UP_DISABLED), || format!("new set {name} must not grow"));
        let tainted = meta.annotations.as_ref().and_then(|all| all.get(annotation::PREFER_NO_SCHEDULE));
        found.expect(tainted.is_none(), || format!("new set {name} has tainted Nodes, it says"));
    }
}

/// Whether the set has machines because of the deployment's present template.
fn is_new(api: &Api, set: &MachineSet) -> bool {
    set.spec.replicas > 0
        && api.deployments.values().any(|deployment| is_equal(&set.spec.template, &deployment.spec.template))
}

fn look_at_deployment(found: &mut Differences, name: &str, deployment: &MachineDeployment) {
    let (meta, spec, status) = (&deployment.metadata, &deployment.spec, &deployment.status);
    found.expect(meta.deletion_timestamp.is_none(), || format!("deployment {name} still ends"));
    let told = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
    found.expect(told == [spec.replicas; 4], || format!("deployment {name} tells {told:?} and not {}", spec.replicas));
    let generations = (status.observed_generation, meta.generation.unwrap_or_default());
    found.expect(generations.0 == generations.1, || format!("deployment {name} has seen {generations:?}"));
    let trouble = (status.unavailable_replicas, status.preserved_failed_replicas, status.failed_machines.len());
    found.expect(trouble == (0, 0, 0), || format!("deployment {name} tells of failures: {trouble:?}"));
    let is_frozen = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(label::FREEZE));
    found.expect(!is_frozen, || format!("deployment {name} is frozen"));
    let asks_to_thaw = meta.annotations.as_ref().is_some_and(|all| all.contains_key(annotation::UNFREEZE));
    found.expect(!asks_to_thaw, || format!("deployment {name} is still asked to thaw"));
    found.expect(spec.rollback_to.is_none(), || format!("deployment {name} is still asked to go back"));
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
