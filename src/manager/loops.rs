//! The loops: which changes wake which queue, and which controller works on it.
//!
//! A loop begins when this process leads, its drivers live and its views are complete.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    control::Parts,
    listeners::{Listeners, makes_due, wakes},
    stream,
    target::TargetViews,
};
use crate::settings::{AutoscalerAnnotation, Controller, Half, OldMachineSets, RolloutAvailability, RolloutSettings};
use controller_runtime::{
    gate::Gate,
    key::ObjectKey,
    queue::{Outcome, WorkQueue},
    supervisor::{Stage, Supervisor},
    tasks::TokioTasks,
};
use machine_controllers::{
    class::{self, ClassController, ClassDeps},
    deployment::{
        self, AutoscalerAnnotations, AvailabilityRule, DeploymentController, DeploymentDeps, DeploymentSettings,
        OldSets,
    },
    drain::act::Evictor,
    machine::{
        self, FreezeSwitch, MachineController, MachineDeps, TargetParts, observation::Freeze, settings::MachineSettings,
    },
    overshooting::{self, Margins, OvershootController, OvershootDeps},
    safety::{
        collector::{Collector, CollectorDeps},
        freeze::Limits,
        orphans::Guards,
        routing,
        watchman::{Watchman, WatchmanDeps},
    },
    secret::{self, SecretController, SecretDeps},
    set::{self, SetController, SetDeps},
};

type Queue = Arc<WorkQueue<ObjectKey>>;

/// How long a deployment, set, class or secret rests after a pass has begun. Short enough for a person not to notice, long
/// enough that a thousand machines becoming ready cost their set some hundred passes and not three thousand.
const REST: Duration = Duration::from_millis(100);

/// The loops that somebody besides themselves asks.
#[derive(Clone, Default)]
pub(super) struct Running {
    /// Whether they are frozen.
    pub(super) freeze: FreezeSwitch,
    /// The loop of machines, if it is on.
    pub(super) machines: Option<Arc<MachineController>>,
    /// The loop that deletes orphaned VMs, if it is on.
    pub(super) collector: Option<Arc<Collector>>,
}

/// Attaches the queues to the views and starts the loops.
pub(super) fn start(parts: &Arc<Parts>, tasks: &mut Supervisor) -> Running {
    let freeze = FreezeSwitch::doubting(Arc::clone(&parts.common.clock));
    let (running, machine_queue) = (Running { freeze: freeze.clone(), ..Running::default() }, None);
    let mut starting = Starting { parts, tasks, listeners: Listeners::default(), freeze, machine_queue, running };
    for controller in parts.common.settings.controllers.iter() {
        match controller {
            Controller::MachineDeployment => starting.deployments(),
            Controller::MachineSet => starting.sets(),
            Controller::MachineSafetyOvershooting => starting.overshooting(),
            Controller::Machine => starting.machines(),
            Controller::MachineClass => starting.classes(),
            Controller::Secret => starting.secrets(),
            Controller::MachineSafetyOrphanVms => starting.collector(),
            Controller::MachineSafetyApiServer => starting.watchman(),
            // A Node's events wake its machine; the finalizer of the Node is part of the machine's own pass.
            Controller::Node => {}
        }
    }
    starting.listeners.attach(parts);
    starting.running
}

struct Starting<'a> {
    parts: &'a Arc<Parts>,
    tasks: &'a mut Supervisor,
    listeners: Listeners,
    /// Whether the loops are frozen.
    freeze: FreezeSwitch,
    /// The queue of machines, once it is there.
    machine_queue: Option<Queue>,
    /// What has been started.
    running: Running,
}

/// How long frozen loops without a switch of their own wait before they look at it again.
const FROZEN_PAUSE: Duration = Duration::from_secs(5);

impl Starting<'_> {
    fn deployments(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::MachineDeployment);
        let views = &parts.views;
        self.listeners
            .deployments
            .push(wakes(&queue, views, |change, _| deployment::routing::deployments_of_deployment(change)));
        self.listeners.sets.push(wakes(&queue, views, deployment::routing::deployments_of_set));
        self.listeners.machines.push(wakes(&queue, views, deployment::routing::deployments_of_machine));
        self.listeners.nodes.push(wakes(&queue, views, deployment::routing::deployments_of_node));
        let controller = DeploymentController::new(DeploymentDeps {
            views: views.clone(),
            deployments: parts.rollout.deployments.clone(),
            sets: parts.rollout.sets.clone(),
            machines: parts.rollout.machines.clone(),
            nodes: parts.target.as_ref().map(|target| target.nodes.clone()),
            node_store: parts.target.as_ref().map(|target| Arc::clone(&target.node_store)),
            clock: Arc::clone(&parts.common.clock),
            gate: parts.gate.clone(),
            recorder: parts.recorder(deployment::COMPONENT),
            settings: deployment_settings(parts.common.settings.rollout),
        });
        let controller = Arc::new(controller);
        let freeze = self.freeze.clone();
        self.run(Controller::MachineDeployment, queue, move |key| {
            let controller = Arc::clone(&controller);
            unless_frozen(freeze.get(), async move { controller.reconcile(key).await })
        });
    }

    fn sets(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::MachineSet);
        let views = &parts.views;
        self.listeners.sets.push(wakes(&queue, views, |change, _| set::routing::sets_of_set(change)));
        self.listeners.machines.push(wakes(&queue, views, set::routing::sets_of_machine));
        self.listeners.nodes.push(wakes(&queue, views, set::routing::sets_of_node));
        self.listeners.classes.push(makes_due(&parts.refusals, views, set::routing::sets_of_class));
        self.listeners.classes.push(wakes(&queue, views, set::routing::sets_of_class));
        self.listeners.secrets.push(makes_due(&parts.refusals, views, set::routing::sets_of_secret));
        self.listeners.secrets.push(wakes(&queue, views, set::routing::sets_of_secret));
        let controller = SetController::new(SetDeps {
            views: views.clone(),
            machines: parts.rollout.machines.clone(),
            sets: parts.rollout.sets.clone(),
            nodes: parts.target.as_ref().map(|target| Arc::clone(&target.node_store)),
            clock: Arc::clone(&parts.common.clock),
            gate: parts.gate.clone(),
            recorder: parts.recorder(set::COMPONENT),
            name_seed: parts.common.random_source(stream::SET_NAMES)(),
        });
        let metrics = &parts.common.metrics.machine;
        let controller = controller
            .counting_stale_machines(metrics.stale_machines.clone())
            .showing_back_offs(metrics.set_back_off.clone());
        let controller = Arc::new(controller);
        let freeze = self.freeze.clone();
        self.run(Controller::MachineSet, queue, move |key| {
            let controller = Arc::clone(&controller);
            unless_frozen(freeze.get(), async move { controller.reconcile(key).await })
        });
    }

    fn overshooting(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::MachineSafetyOvershooting);
        let views = &parts.views;
        self.listeners.machines.push(wakes(&queue, views, |change, _| overshooting::routing::after_machine(change)));
        self.listeners.sets.push(wakes(&queue, views, |change, _| overshooting::routing::after_set(change)));
        self.listeners
            .deployments
            .push(wakes(&queue, views, |change, _| overshooting::routing::after_deployment(change)));
        let safety = parts.common.settings.safety;
        let controller = OvershootController::new(OvershootDeps {
            views: views.clone(),
            sets: parts.rollout.sets.clone(),
            deployments: parts.rollout.deployments.clone(),
            clock: Arc::clone(&parts.common.clock),
            recorder: parts.recorder(overshooting::COMPONENT),
            margins: Margins { up: safety.safety_up, down: safety.safety_down },
            period: safety.overshooting_period,
        });
        // The first run needs no change.
        queue.add(overshooting::routing::key_of(&parts.common.settings.namespace));
        let controller = Arc::new(controller);
        self.run(Controller::MachineSafetyOvershooting, queue, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        });
    }

    fn machines(&mut self) {
        let parts = self.parts;
        let queue = Arc::new(self.new_queue(Controller::Machine));
        self.machine_queue = Some(Arc::clone(&queue));
        let woken = Arc::clone(&queue);
        let settings = machine_settings(&parts.common.settings.machine);
        let controller = Arc::new(MachineController::new(MachineDeps {
            views: parts.views.clone(),
            machines: parts.machines.machines.clone(),
            target: parts.target.as_ref().map(|target| target_parts(target, &parts.gate, &settings)),
            drivers: parts.drivers.registry.clone(),
            wake: Arc::new(move |key| woken.add(key)),
            tasks: Arc::new(TokioTasks),
            clock: Arc::clone(&parts.common.clock),
            gate: parts.gate.clone(),
            recorder: parts.recorder(machine::COMPONENT),
            rng: Arc::new(Mutex::new(parts.common.random(stream::MACHINES))),
            freeze: self.freeze.clone(),
            settings,
            metrics: parts.common.metrics.clone(),
        }));
        self.running.machines = Some(Arc::clone(&controller));
        let listener = Arc::clone(&controller);
        self.listeners.machines.push(Box::new(move |change| listener.machine_changed(change)));
        let listener = Arc::clone(&controller);
        self.listeners.nodes.push(Box::new(move |change| listener.node_changed(change)));
        let listener = Arc::clone(&controller);
        self.listeners.classes.push(Box::new(move |change| listener.class_changed(change)));
        let listener = Arc::clone(&controller);
        self.listeners.secrets.push(Box::new(move |change| listener.secret_changed(change)));
        let listener = Arc::clone(&controller);
        self.listeners.pods.push(Box::new(move |change| listener.pod_changed(change)));
        let listener = Arc::clone(&controller);
        self.listeners.attachments.push(Box::new(move |change| listener.attachment_changed(change)));
        let last = Arc::clone(&controller);
        let pass = move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        };
        // A call to a cloud that has begun may end and be recorded.
        self.run_and_then(Controller::Machine, queue, pass, async move { last.finish().await });
    }

    fn classes(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::MachineClass);
        self.listeners.classes.push(wakes(&queue, &parts.views, |change, _| class::after_class(change)));
        self.listeners.machines.push(wakes(&queue, &parts.views, |change, _| class::after_machine(change)));
        let controller = Arc::new(ClassController::new(ClassDeps {
            views: parts.views.clone(),
            classes: parts.machines.classes.clone(),
            machines: parts.machines.machines.clone(),
            recorder: parts.recorder(machine::COMPONENT),
        }));
        self.run(Controller::MachineClass, queue, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        });
    }

    fn secrets(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::Secret);
        self.listeners.secrets.push(wakes(&queue, &parts.views, |change, _| secret::after_secret(change)));
        self.listeners.classes.push(wakes(&queue, &parts.views, |change, _| secret::after_class(change)));
        let controller = Arc::new(SecretController::new(SecretDeps {
            views: parts.views.clone(),
            secrets: parts.secrets.clone(),
            classes: parts.machines.classes.clone(),
        }));
        self.run(Controller::Secret, queue, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        });
    }

    fn collector(&mut self) {
        let parts = self.parts;
        let settings = &parts.common.settings;
        let queue = Arc::new(self.new_queue(Controller::MachineSafetyOrphanVms));
        let wake = |queue: &Queue, woken: Vec<routing::Wake>| {
            for (key, after) in woken {
                queue.add_after(key, after);
            }
        };
        let woken = Arc::clone(&queue);
        self.listeners.classes.push(Box::new(move |change| wake(&woken, routing::after_class(change))));
        let woken = Arc::clone(&queue);
        self.listeners.machines.push(Box::new(move |change| wake(&woken, routing::after_machine(change))));
        let woken = Arc::clone(&queue);
        self.listeners.nodes.push(Box::new(move |change| wake(&woken, routing::after_node(change))));
        let inventories = Arc::clone(&parts.inventories);
        let collector = Arc::new(Collector::new(CollectorDeps {
            views: parts.views.clone(),
            namespace: settings.namespace.clone(),
            machines: parts.machines.machines.clone(),
            nodes: parts.target.as_ref().map(|target| (target.nodes.clone(), Arc::clone(&target.node_store))),
            drivers: parts.drivers.registry.clone(),
            clock: Arc::clone(&parts.common.clock),
            gate: parts.gate.clone(),
            recorder: parts.recorder(machine::COMPONENT),
            metrics: parts.common.metrics.clone(),
            freeze: self.freeze.clone(),
            period: settings.safety.orphan_vms_period,
            node_patience: settings.machine.creation_timeout,
            guards: Guards::default(),
            lists: Some(Arc::new(move |class, vms| inventories.learn(class, vms))),
        }));
        self.running.collector = Some(Arc::clone(&collector));
        self.run(Controller::MachineSafetyOrphanVms, queue, move |key| {
            let collector = Arc::clone(&collector);
            async move { collector.reconcile(key).await }
        });
    }

    /// Without a target cluster there is nothing whose health could be misjudged (spec/machine-controller §9.3).
    fn watchman(&mut self) {
        let parts = self.parts;
        let Some(target) = &parts.probes.target else { return };
        let settings = &parts.common.settings;
        let queue = Arc::new(self.new_queue(Controller::MachineSafetyApiServer));
        let watchman = Arc::new(Watchman::new(WatchmanDeps {
            control: parts.probes.control.clone(),
            target: target.clone(),
            nodes: parts.target.as_ref().map(|target| Arc::clone(&target.node_store)),
            namespace: settings.namespace.clone(),
            views: parts.views.clone(),
            machines: parts.machines.machines.clone(),
            wake: self.machine_queue.clone(),
            clock: Arc::clone(&parts.common.clock),
            freeze: self.freeze.clone(),
            recorder: parts.recorder(machine::COMPONENT),
            metrics: parts.common.metrics.clone(),
            limits: Limits {
                timeout: settings.safety.api_server_check_timeout,
                period: settings.safety.api_server_check_period,
            },
        }));
        queue.add(ObjectKey::cluster_scoped(Controller::MachineSafetyApiServer.name()));
        self.run(Controller::MachineSafetyApiServer, queue, move |_| {
            let watchman = Arc::clone(&watchman);
            async move { watchman.reconcile().await }
        });
    }

    /// The queue of a loop whose pass looks at every machine of its object: a key rests between passes.
    fn queue(&self, controller: Controller) -> Queue {
        Arc::new(self.new_queue(controller).resting(REST))
    }

    fn new_queue(&self, controller: Controller) -> WorkQueue<ObjectKey> {
        let name = controller.name();
        WorkQueue::new(name, self.parts.common.metrics.queue(name))
    }

    fn run<F, Fut>(&mut self, controller: Controller, queue: Queue, pass: F)
    where
        F: Fn(ObjectKey) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.run_and_then(controller, queue, pass, async {});
    }

    /// Runs a loop, and `last` once its queue has stopped, still within the time that work has to end.
    fn run_and_then<F, Fut>(
        &mut self,
        controller: Controller,
        queue: Queue,
        pass: F,
        last: impl Future<Output = ()> + Send + 'static,
    ) where
        F: Fn(ObjectKey) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let stop = self.tasks.stop_of(Stage::Work);
        let parts = Arc::clone(self.parts);
        let workers = match controller.half() {
            Half::ControllerManager => parts.common.settings.workers.controller_manager,
            Half::MachineController => parts.common.settings.workers.machine_controller,
        };
        self.tasks.spawn(Stage::Work, controller.name(), async move {
            if stop.run_until_cancelled(parts.ready_to_work()).await.is_some() {
                tracing::info!(controller = controller.name(), workers, "working");
                let pass = Arc::new(pass);
                let whole = move |key| {
                    let (parts, pass) = (Arc::clone(&parts), Arc::clone(&pass));
                    async move { once(parts.views_are_whole(), || pass(key)).await }
                };
                queue.run(workers.get(), stop, whole).await;
                last.await;
            }
        });
    }
}

/// The pass, once this is so.
async fn once<Fut: Future<Output = Outcome>>(is_so: impl Future<Output = ()>, pass: impl FnOnce() -> Fut) -> Outcome {
    is_so.await;
    pass().await
}

/// The pass, or a pause while an API server cannot be reached: what would be decided on may be an old view.
async fn unless_frozen(freeze: Freeze, pass: impl Future<Output = Outcome>) -> Outcome {
    match freeze {
        Freeze::Frozen => Outcome::LookAgain(FROZEN_PAUSE, "frozen"),
        Freeze::Flowing => pass.await,
    }
}

fn target_parts(target: &TargetViews, gate: &Gate, settings: &MachineSettings) -> TargetParts {
    TargetParts {
        nodes: target.nodes.clone(),
        node_store: Arc::clone(&target.node_store),
        tokens: target.bootstrap_tokens.clone(),
        drain_views: Arc::new(target.clone()),
        evictor: Evictor::new(target.evictions.clone(), gate.clone(), settings.concurrent_evictions),
    }
}

pub(super) fn deployment_settings(flags: RolloutSettings) -> DeploymentSettings {
    DeploymentSettings {
        autoscaler_annotations: match flags.autoscaler_annotation {
            AutoscalerAnnotation::DuringRollout => AutoscalerAnnotations::DuringRollouts,
            AutoscalerAnnotation::Never => AutoscalerAnnotations::Never,
        },
        availability: match flags.availability {
            RolloutAvailability::VmExists => AvailabilityRule::VmExists,
            RolloutAvailability::NodeReady => AvailabilityRule::NodeReady,
        },
        old_sets: match flags.old_sets {
            OldMachineSets::Left => OldSets::Left,
            OldMachineSets::Synced => OldSets::Synced,
        },
    }
}

pub(super) fn machine_settings(flags: &crate::settings::MachineSettings) -> MachineSettings {
    MachineSettings {
        creation_timeout: flags.creation_timeout,
        health_timeout: flags.health_timeout,
        drain_timeout: flags.drain_timeout,
        preserve_timeout: flags.preserve_timeout,
        in_place_update_timeout: flags.in_place_update_timeout,
        vm_gone_check: match flags.vm_gone_check {
            crate::settings::VmGoneCheck::Off => machine::settings::VmGoneCheck::Off,
            crate::settings::VmGoneCheck::On => machine::settings::VmGoneCheck::On,
        },
        max_evict_retries: flags.max_evict_retries,
        pv_detach_timeout: flags.pv_detach_timeout,
        pv_reattach_timeout: flags.pv_reattach_timeout,
        node_conditions: flags.node_conditions.join(","),
        bootstrap_token_auth_extra_groups: flags.bootstrap_token_auth_extra_groups.clone(),
        resource_exhausted_retry: flags.resource_exhausted_retry,
        ..MachineSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_pass_begins_before_the_views_are_whole() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let begun = std::sync::atomic::AtomicBool::new(false);
        let pass = || async {
            begun.store(true, std::sync::atomic::Ordering::Relaxed);
            Outcome::Settled
        };
        let mut waits = std::pin::pin!(once(async { drop(told.await) }, pass));
        assert_eq!(futures::poll!(&mut waits), std::task::Poll::Pending);
        assert!(!begun.load(std::sync::atomic::Ordering::Relaxed));
        drop(tell);
        assert_eq!(waits.await, Outcome::Settled);
        assert!(begun.load(std::sync::atomic::Ordering::Relaxed));
    }

    #[tokio::test]
    async fn s_safe_20_nothing_is_created_or_deleted_while_an_api_server_is_silent() {
        let reached = std::sync::atomic::AtomicBool::new(false);
        let pass = || async {
            reached.store(true, std::sync::atomic::Ordering::Relaxed);
            Outcome::Settled
        };
        assert_eq!(unless_frozen(Freeze::Frozen, pass()).await, Outcome::LookAgain(FROZEN_PAUSE, "frozen"));
        assert!(!reached.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(unless_frozen(Freeze::Flowing, pass()).await, Outcome::Settled);
    }
}
