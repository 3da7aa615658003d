//! The loop `machinesafetyorphanvms`: asks providers and the API server, and carries out the plans of [`orphans`] and
//! [`unmanaged`].
//!
//! Each class and each Node is a key of its own, so that a slow or failing provider delays only its own classes.
//! Source: spec/machine-controller §9.1, §9.2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream};
use kube::ResourceExt;

use super::{
    orphans::{self, Claim, Deletion, Guards, Instances, Suspicion, claim},
    patches,
    unmanaged::{self, LiveAnswer},
};
use crate::{
    Decision,
    machine::{FreezeSwitch, observation::Freeze, secrets_of},
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::{BY_NAMESPACE, BY_NODE, ControlViews},
};
use controller_runtime::{
    clock::{SharedClock, WATCHED_AFTER_STEP},
    error::ApiError,
    events::{EventNote, Recorder},
    gate::{Destruction, Gate},
    key::ObjectKey,
    lock,
    objects::{Objects, Part},
    queue::Outcome,
    snapshot::Snapshot,
    store::Store,
};
use machine_api::{
    names::{label, machine_reason},
    v1alpha1::{Machine, MachineClass},
};
use machine_driver::{Code, Driver, ListRequest, MachineRequest, OpContext, SecretData, Status, answered};
use mcm_metrics::{DeletionReason, Metrics, OfClass};

/// Deadlines of a provider's list, and of the deletion of one VM.
const LIST_DEADLINE: Duration = Duration::from_secs(2 * 60);
const DELETE_DEADLINE: Duration = Duration::from_secs(5 * 60);
/// Maximum pause of a class while deletions are suspended.
const FROZEN_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Maximum number of concurrent reads of machines from the API server.
const READS_AT_ONCE: usize = 10;
/// A shorter period would be a hot loop (M-31).
pub const LEAST_PERIOD: Duration = Duration::from_secs(10);

/// Called with every list of VMs that a provider returns for a class, so that other code need not ask again. Must not
/// block.
pub type ListListener = Arc<dyn Fn(&MachineClass, &[machine_driver::ListedVm]) + Send + Sync>;

/// The store of Nodes.
pub type NodeStore = Arc<Store<NodeSnapshot>>;

/// The dependencies of the collector.
pub struct CollectorDeps {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// Namespace of the machine objects.
    pub namespace: String,
    /// Machines, read.
    pub machines: Objects<MachineSnapshot>,
    /// Nodes, read and written, and their store. `None` without a target cluster.
    pub nodes: Option<(Objects<NodeSnapshot>, NodeStore)>,
    /// The drivers of this process.
    pub drivers: machine_driver::Registry,
    /// The clock.
    pub clock: SharedClock,
    /// Allows or stops destructive effects.
    pub gate: Gate,
    /// Writes events.
    pub recorder: Recorder,
    /// The metrics.
    pub metrics: Metrics,
    /// Whether deletions are suspended.
    pub freeze: FreezeSwitch,
    /// Pause between two passes over a class.
    pub period: Duration,
    /// The age up to which a Node may have no machine.
    pub unmanaged_node_age: Duration,
    /// The limits of deletions.
    pub guards: Guards,
    /// Called with every list of VMs.
    pub lists: Option<ListListener>,
}

/// Deletes VMs without a machine, and releases Nodes without a machine.
pub struct Collector {
    deps: CollectorDeps,
    /// The suspicion of each suspected VM, by class and provider id.
    suspects: Mutex<BTreeMap<ObjectKey, BTreeMap<String, Suspicion>>>,
    decision: Decision<orphans::Observation, orphans::Plan>,
    /// VMs that are being deleted. Two classes may list the same VM.
    under_way: Mutex<BTreeSet<String>>,
}

/// The label values under which deleted VMs of a namespace are counted.
fn orphans_of(namespace: &str) -> mcm_metrics::Deletion<'_> {
    mcm_metrics::Deletion { namespace, reason: DeletionReason::Orphan }
}

impl Collector {
    /// A collector; it does nothing until its queue runs [`Self::reconcile`].
    pub fn new(deps: CollectorDeps) -> Self {
        let decision = Arc::new(orphans::decide);
        deps.metrics.machine.deletions.add(&orphans_of(&deps.namespace), 0);
        Self { deps, suspects: Mutex::default(), decision, under_way: Mutex::default() }
    }

    /// The same collector with another decision function. The simulation passes one that lacks a guard.
    #[must_use]
    pub fn deciding_by(mut self, decision: Decision<orphans::Observation, orphans::Plan>) -> Self {
        self.decision = decision;
        self
    }

    /// One pass over a class or a Node.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        if key.namespace.is_empty() { self.reconcile_node(key).await } else { self.reconcile_class(key).await }
    }

    async fn reconcile_class(&self, key: ObjectKey) -> Outcome {
        let period = self.deps.period.max(LEAST_PERIOD);
        let Some(class) = self.deps.views.classes.get(&key) else {
            lock(&self.suspects).remove(&key);
            return Outcome::Settled;
        };
        if self.freeze() == Freeze::Frozen {
            return Outcome::LookAgain(period.min(FROZEN_PAUSE), "frozen");
        }
        let (driver, secret) = match access_to(&class, &self.deps.drivers, &self.deps.views) {
            Ok(access) => access,
            Err(why) => {
                tracing::debug!(class = %key, error = why, "VMs of the class are not looked at");
                return Outcome::LookAgain(period, "the class can't be used");
            }
        };
        let listed = match self.deps.gate.call(list(&*driver, &class, &secret, LIST_DEADLINE)).await {
            Err(_stopping) => return Outcome::Settled,
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => {
                tracing::warn!(
                    class = %key, %error,
                    "the provider's list of VMs failed; nothing is concluded from that"
                );
                return Outcome::LookAgain(period.min(Duration::from_secs(60)), "the list failed");
            }
        };
        if let Some(listener) = &self.deps.lists {
            listener(&class, &listed);
        }
        let vms = self.with_claims(&key, listed).await;
        let plan = (self.decision)(&orphans::Observation {
            version: orphans::OBSERVATION_VERSION,
            now: self.deps.clock.now(),
            vms,
            suspects: self.suspects_of(&key),
            guards: self.deps.guards,
        });
        let found = plan.suspects.len();
        lock(&self.suspects).insert(key, plan.suspects);
        let failed = self.delete(&class, found, plan.deletions, &driver, &secret).await;
        let retry = failed.then_some(self.deps.guards.retry_after);
        let next = [Some(period), plan.next, retry].into_iter().flatten().min().unwrap_or(period);
        Outcome::LookAgain(next.max(LEAST_PERIOD), "the next look at the provider")
    }

    /// Whether deletions are suspended. After a step of the clock nothing is collected until all ages have been
    /// observed for a while (decisions.md 46).
    fn freeze(&self) -> Freeze {
        let step = self.deps.freeze.reading().and_then(|reading| reading.step);
        if step.is_some_and(|step| step.watched < WATCHED_AFTER_STEP) { Freeze::Frozen } else { self.deps.freeze.get() }
    }

    /// The limits of deletions.
    pub fn guards(&self) -> Guards {
        self.deps.guards
    }

    /// The suspicion of each suspected VM of a class, by provider id.
    pub fn suspects_of(&self, class: &ObjectKey) -> BTreeMap<String, Suspicion> {
        lock(&self.suspects).get(class).cloned().unwrap_or_default()
    }

    /// The listed VMs with the claims of their machines. The stores can only clear a VM of suspicion; only the API
    /// server can confirm that it is an orphan.
    async fn with_claims(&self, class: &ObjectKey, listed: Vec<machine_driver::ListedVm>) -> Vec<orphans::ListedVm> {
        let views = &self.deps.views;
        let machines = views.machines.by_index(BY_NAMESPACE, &class.namespace);
        let held: Instances = machines.iter().map(MachineSnapshot::provider_id).collect();
        let on_list: Instances = listed.iter().map(|vm| vm.provider_id.as_str()).collect();
        let of_store = |vm: machine_driver::ListedVm| {
            let machine = views.machines.get(&ObjectKey::new(class.namespace.clone(), vm.machine_name.clone()));
            let claim = orphans::claim_in_stores(&vm, &held, machine.as_ref()).on_list_of(&on_list, &vm.provider_id);
            if let Some(doubt) = claim.doubt(machine.as_ref()) {
                tracing::warn!(
                    %class, vm = vm.provider_id, name = vm.machine_name, error = doubt,
                    "a VM on the provider's list is kept"
                );
            }
            orphans::ListedVm { provider_id: vm.provider_id, machine: vm.machine_name, created: vm.created, claim }
        };
        let mut vms: Vec<orphans::ListedVm> = listed.into_iter().map(of_store).collect();
        let suspects = self.suspects_of(class);
        let asked: BTreeSet<String> =
            orphans::to_be_confirmed(&vms, &suspects, &self.deps.guards).into_iter().collect();
        let reads: Vec<(String, ObjectKey)> = vms
            .iter()
            .filter(|vm| asked.contains(&vm.provider_id))
            .map(|vm| (vm.provider_id.clone(), ObjectKey::new(class.namespace.clone(), vm.machine.clone())))
            .collect();
        let machines = self.deps.machines.clone();
        let mut answers: BTreeMap<String, Claim> = stream::iter(reads)
            .map(move |(id, key)| ask(machines.clone(), id, key))
            .buffer_unordered(READS_AT_ONCE)
            .collect()
            .await;
        for vm in &mut vms {
            if vm.claim.is_orphaned() {
                let claim = answers.remove(&vm.provider_id).unwrap_or(Claim::Unknown);
                vm.claim = claim.on_list_of(&on_list, &vm.provider_id);
            }
        }
        vms
    }

    /// Deletes VMs; returns whether one of them still exists.
    async fn delete(
        &self,
        class: &Arc<MachineClass>,
        found: usize,
        deletions: Vec<Deletion>,
        driver: &Arc<dyn Driver>,
        secret: &SecretData,
    ) -> bool {
        let mine: Vec<Deletion> = {
            let mut under_way = lock(&self.under_way);
            deletions.into_iter().filter(|deletion| under_way.insert(deletion.provider_id.clone())).collect()
        };
        if mine.is_empty() {
            return false;
        }
        let names: Vec<String> =
            mine.iter().map(|deletion| format!("{} ({})", deletion.provider_id, deletion.machine)).collect();
        let note =
            format!("{found} VM(s) have no machine; {} of them are deleted now: {}", mine.len(), names.join(", "));
        self.deps.recorder.note(class, EventNote::warning(machine_reason::ORPHAN_VMS_FOUND, note));
        let mut calls = Vec::new();
        for deletion in &mine {
            calls.push(self.delete_one(class, deletion, driver, secret));
        }
        let ended = join_all(calls).await;
        let key = ObjectKey::of(&**class);
        let mut failed = false;
        for (deletion, ended) in mine.iter().zip(ended) {
            lock(&self.under_way).remove(&deletion.provider_id);
            match ended {
                Ok(()) => {
                    if let Some(suspects) = lock(&self.suspects).get_mut(&key) {
                        suspects.remove(&deletion.provider_id);
                    }
                    let metrics = &self.deps.metrics.machine;
                    metrics.orphan_vms_deleted.inc(&OfClass { class: &key.name });
                    metrics.deletions.inc(&orphans_of(&key.namespace));
                    tracing::info!(class = %key, vm = deletion.provider_id, "a VM without a machine is deleted");
                }
                Err(error) => {
                    failed = true;
                    if let Some(suspects) = lock(&self.suspects).get_mut(&key) {
                        suspects.insert(deletion.provider_id.clone(), Suspicion::DeletionFailed(self.deps.clock.now()));
                    }
                    tracing::warn!(
                        class = %key, vm = deletion.provider_id, error,
                        "a VM without a machine could not be deleted"
                    );
                }
            }
        }
        failed
    }

    async fn delete_one(
        &self,
        class: &Arc<MachineClass>,
        deletion: &Deletion,
        driver: &Arc<dyn Driver>,
        secret: &SecretData,
    ) -> Result<(), String> {
        self.deps.gate.may_call().map_err(|error| error.to_string())?;
        self.deps
            .gate
            .permit(Destruction::Vm, deletion.rule, &deletion.provider_id)
            .map_err(|error| error.to_string())?;
        let request = MachineRequest {
            machine: Arc::new(synthetic(class, &deletion.machine, &deletion.provider_id)),
            class: Arc::clone(class),
            secret: secret.clone(),
        };
        let cx = OpContext::within(DELETE_DEADLINE);
        let ended = answered(DELETE_DEADLINE, driver.delete_machine(&cx, request));
        match self.deps.gate.call(ended).await.map_err(|error| error.to_string())? {
            Ok(_) => Ok(()),
            Err(status) if status.code == Code::NotFound => Ok(()),
            Err(status) => Err(status.to_string()),
        }
    }

    async fn reconcile_node(&self, key: ObjectKey) -> Outcome {
        let Some((nodes, store)) = &self.deps.nodes else { return Outcome::Settled };
        let Some(node) = store.get(&key) else { return Outcome::Settled };
        let machines = self.deps.views.machines.by_index(BY_NODE, &key.name);
        let mut seen = unmanaged::Observation {
            freeze: self.freeze(),
            machines: machines.iter().map(|machine| machine.name().to_owned()).collect(),
            ..unmanaged::Observation::of(&node, self.deps.clock.now(), self.deps.unmanaged_node_age)
        };
        let mut plan = unmanaged::decide(&seen);
        if plan == unmanaged::Plan::Ask {
            let selector = format!("{}={}", label::NODE, key.name);
            seen.live = match self.deps.machines.any_with_label(&self.deps.namespace, &selector).await {
                Ok(true) => LiveAnswer::SomeMachine,
                Ok(false) => LiveAnswer::NoMachine,
                Err(error) => return Outcome::Retry(format!("machines of node {key}: {error}")),
            };
            plan = unmanaged::decide(&seen);
        }
        let patch = match plan {
            unmanaged::Plan::Keep | unmanaged::Plan::Ask => return Outcome::Settled,
            unmanaged::Plan::LookAgain(wait) => return Outcome::LookAgain(wait, "a node without a machine"),
            unmanaged::Plan::Contested => {
                self.report_contest(&key, &machines);
                return Outcome::Settled;
            }
            unmanaged::Plan::Release => patches::release(&node),
            unmanaged::Plan::Unmark => patches::unmark(&node),
        };
        tracing::info!(node = %key, operation = ?plan, "who manages the node has changed");
        match nodes.patch(&node.target(), Part::Main, patch).await {
            Ok(_) | Err(ApiError::NotFound(_) | ApiError::NotLeading(_)) => Outcome::Settled,
            Err(error) => {
                // The next attempt decides on the present version.
                let reread = nodes.get(&key).await.err().map(|error| format!("; it can't be read again: {error}"));
                Outcome::after(&error, format!("node {key}: {error}{}", reread.unwrap_or_default()))
            }
        }
    }

    fn report_contest(&self, node: &ObjectKey, machines: &[MachineSnapshot]) {
        let names: Vec<String> = machines.iter().map(|machine| machine.name().to_owned()).collect();
        let note = format!(
            "{} machines have node {node} on their label: {}; the one whose instance the node's providerID names keeps it, or \
             where ids don't tell, the one that the node's own label names; delete the others",
            names.len(),
            names.join(", ")
        );
        for machine in machines {
            self.deps.recorder.note(machine, EventNote::warning(machine_reason::NODE_CONTESTED, note.clone()));
        }
    }
}

/// The driver, class and Secret with which a provider is asked for all VMs of a class.
///
/// # Errors
/// The reason why the class can't be used.
pub fn access_to(
    class: &MachineClass,
    drivers: &machine_driver::Registry,
    views: &ControlViews,
) -> Result<(Arc<dyn Driver>, SecretData), String> {
    let driver = drivers.driver_for(&class.provider).map_err(|status| status.to_string())?;
    let secrets = secrets_of(&views.secrets, &synthetic(class, "", "").into(), Some(class));
    if secrets.missing.is_empty() {
        Ok((Arc::clone(driver), secrets.data))
    } else {
        Err(format!("Secret {} is missing", secrets.missing.join(" and ")))
    }
}

/// Asks the API server for the machine of a VM.
async fn ask(machines: Objects<MachineSnapshot>, provider_id: String, key: ObjectKey) -> (String, Claim) {
    let answer = match machines.get(&key).await {
        Ok(machine) => claim(&provider_id, machine.as_ref()),
        Err(error) => {
            tracing::warn!(
                kind = "Machine", namespace = key.namespace, name = key.name, %error,
                "cannot tell whether the machine of a VM exists"
            );
            Claim::Unknown
        }
    };
    (provider_id, answer)
}

/// A machine object for the driver that deletes a VM without a machine (spec/providers §1.2).
fn synthetic(class: &MachineClass, name: &str, provider_id: &str) -> Machine {
    let mut machine = Machine::default();
    machine.metadata.name = Some(name.to_owned());
    machine.metadata.namespace = class.namespace();
    provider_id.clone_into(&mut machine.spec.provider_id);
    machine
}

/// Lists the VMs of a class at the provider.
///
/// # Errors
/// The driver's error, or `DeadlineExceeded`.
pub async fn list(
    driver: &dyn Driver,
    class: &Arc<MachineClass>,
    secret: &SecretData,
    deadline: Duration,
) -> Result<Vec<machine_driver::ListedVm>, Status> {
    let cx = OpContext::within(deadline);
    let request = ListRequest { class: Arc::clone(class), secret: secret.clone() };
    answered(deadline, driver.list_machines(&cx, request)).await
}

#[cfg(test)]
mod tests;
