//! Makes the controllers of this process and gives each a queue and workers. [`machine_controllers::loops`] says what wakes a loop.
//!
//! A loop begins when this process leads, its drivers have begun and its views are complete.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tracing::Instrument;

use super::{control::Parts, listeners::Listeners, stream, target::TargetViews};
use crate::settings::{Controller, Half};
use controller_runtime::{
    events::Recorder,
    gate::Gate,
    key::ObjectKey,
    queue::{Outcome, WorkQueue},
    supervisor::{Stage, Supervisor},
    tasks::TokioTasks,
};
use machine_api::kind::Kind;
use machine_controllers::{
    class::{ClassController, ClassDeps},
    deletions::Deletions,
    deployment::{self, DeploymentController, DeploymentDeps},
    drain::act::Evictor,
    loops::Loop,
    machine::{self, FreezeSwitch, MachineController, MachineDeps, TargetParts, settings::MachineSettings},
    overshooting::{self, OvershootController, OvershootDeps},
    safety::{
        api_server_monitor::{ApiServerMonitor, ApiServerMonitorDeps},
        collector::{Collector, CollectorDeps},
        orphans::Guards,
    },
    secret::{SecretController, SecretDeps},
    set::{self, SetController, SetDeps},
};

/// The keys that a loop has to process.
pub(super) type Queue = Arc<WorkQueue<ObjectKey>>;

/// The parts of the loops that computed views read.
#[derive(Clone, Default)]
pub(super) struct Running {
    /// Whether the loops are frozen.
    pub(super) freeze: FreezeSwitch,
    /// The controller of machines, if it is on.
    pub(super) machines: Option<Arc<MachineController>>,
    /// The controller that deletes orphaned VMs, if it is on.
    pub(super) collector: Option<Arc<Collector>>,
}

/// Attaches the queues to the views and starts the loops.
pub(super) fn start(parts: &Arc<Parts>, tasks: &mut Supervisor) -> Running {
    let freeze = FreezeSwitch::doubting(Arc::clone(&parts.common.clock));
    let (running, machine_queue) = (Running { freeze: freeze.clone(), ..Running::default() }, None);
    let mut starter = LoopStarter { parts, tasks, listeners: Listeners::default(), freeze, machine_queue, running };
    for controller in parts.common.settings.controllers.iter() {
        match controller {
            Controller::MachineDeployment => starter.deployments(),
            Controller::MachineSet => starter.sets(),
            Controller::MachineSafetyOvershooting => starter.overshooting(),
            Controller::Machine => starter.machines(),
            Controller::MachineClass => starter.classes(),
            Controller::Secret => starter.secrets(),
            Controller::MachineSafetyOrphanVms => starter.collector(),
            Controller::MachineSafetyApiServer => starter.api_server_monitor(),
            // Events of a Node wake its machine, and the machine's pass handles the finalizer of the Node.
            Controller::Node => {}
        }
    }
    starter.listeners.attach(parts);
    starter.running
}

struct LoopStarter<'a> {
    parts: &'a Arc<Parts>,
    tasks: &'a mut Supervisor,
    listeners: Listeners,
    /// Whether the loops are frozen.
    freeze: FreezeSwitch,
    /// The queue of machines, once it is made.
    machine_queue: Option<Queue>,
    /// The parts that have been started.
    running: Running,
}

impl LoopStarter<'_> {
    fn deployments(&mut self) {
        let parts = self.parts;
        let views = &parts.views;
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
            settings: parts.common.settings.rollout,
        });
        let controller = controller.traced_by(parts.common.tracer.clone());
        self.run(Loop::deployments(&Arc::new(controller), &self.freeze));
    }

    fn sets(&mut self) {
        let parts = self.parts;
        let views = &parts.views;
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
        let deletions = Deletions::new(metrics.deletions.clone(), &parts.common.settings.namespace);
        let (seen, leadership) = (deletions.clone(), parts.leadership.clone());
        // Every replica sees a deletion, and the leader counts it.
        self.listeners.see_machines(move |change| {
            if leadership.is_leading() {
                seen.see(change);
            }
        });
        let controller = controller
            .announcing_deletions(deletions)
            .counting_stale_machines(metrics.stale_machines.clone())
            .showing_back_offs(metrics.set_back_off.clone())
            .traced_by(parts.common.tracer.clone());
        self.run(Loop::sets(&Arc::new(controller), &self.freeze));
    }

    fn overshooting(&mut self) {
        let parts = self.parts;
        let views = &parts.views;
        let safety = parts.common.settings.safety;
        let controller = OvershootController::new(OvershootDeps {
            views: views.clone(),
            sets: parts.rollout.sets.clone(),
            deployments: parts.rollout.deployments.clone(),
            clock: Arc::clone(&parts.common.clock),
            recorder: parts.recorder(overshooting::COMPONENT),
            margins: safety.margins,
            period: safety.overshooting_period,
        });
        let run = Loop::overshooting(&Arc::new(controller), &parts.common.settings.namespace);
        self.run(run);
    }

    fn machines(&mut self) {
        let parts = self.parts;
        let queue = self.queue(Controller::Machine, Duration::ZERO);
        self.machine_queue = Some(Arc::clone(&queue));
        let woken = Arc::clone(&queue);
        let settings = parts.common.settings.machine.clone();
        let controller = MachineController::new(MachineDeps {
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
        });
        let controller = Arc::new(controller.traced_by(parts.common.tracer.clone()));
        self.running.machines = Some(Arc::clone(&controller));
        let run = Loop::machines(&controller);
        // A cloud call that has begun may still end after the queue has stopped. Its answer is recorded.
        self.run_in(queue, run, async move { controller.finish().await });
    }

    fn classes(&mut self) {
        let parts = self.parts;
        let controller = Arc::new(ClassController::new(ClassDeps {
            views: parts.views.clone(),
            classes: parts.machines.classes.clone(),
            machines: parts.machines.machines.clone(),
            recorder: parts.recorder(machine::COMPONENT),
        }));
        self.run(Loop::classes(&controller));
    }

    fn secrets(&mut self) {
        let parts = self.parts;
        let controller = Arc::new(SecretController::new(SecretDeps {
            views: parts.views.clone(),
            secrets: parts.secrets.clone(),
            classes: parts.machines.classes.clone(),
        }));
        self.run(Loop::secrets(&controller));
    }

    fn collector(&mut self) {
        let parts = self.parts;
        let settings = &parts.common.settings;
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
            unmanaged_node_age: settings.machine.creation_timeout,
            guards: Guards::default(),
            lists: Some(Arc::new(move |class, vms| inventories.learn(class, vms))),
        }));
        self.running.collector = Some(Arc::clone(&collector));
        self.run(Loop::orphans(&collector));
    }

    /// Without a target cluster there are no Nodes, so the health of a machine can't be misjudged (spec/machine-controller §9.3).
    fn api_server_monitor(&mut self) {
        let parts = self.parts;
        let Some(target) = &parts.probes.target else { return };
        let settings = &parts.common.settings;
        let monitor = Arc::new(ApiServerMonitor::new(ApiServerMonitorDeps {
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
            limits: settings.safety.api_servers,
        }));
        self.run(Loop::api_servers(&monitor));
    }

    fn queue(&self, controller: Controller, rest: Duration) -> Queue {
        let name = controller.name();
        Arc::new(WorkQueue::new(name, self.parts.common.metrics.queue(name)).resting(rest))
    }

    fn run(&mut self, run: Loop) {
        let queue = self.queue(run.controller, run.rest);
        self.run_in(queue, run, async {});
    }

    /// Runs a loop, and runs `last` after its queue has stopped. Both must end within the time that the process has for its work.
    fn run_in(&mut self, queue: Queue, run: Loop, last: impl Future<Output = ()> + Send + 'static) {
        let controller = run.controller;
        self.listeners.wake(&run, &queue, self.parts);
        if let Some(first) = run.first.clone() {
            queue.add(first);
        }
        let stop = self.tasks.stop_of(Stage::Work);
        let parts = Arc::clone(self.parts);
        let workers = match controller.half() {
            Half::ControllerManager => parts.common.settings.workers.controller_manager,
            Half::MachineController => parts.common.settings.workers.machine_controller,
        };
        self.tasks.spawn(Stage::Work, controller.name(), async move {
            if stop.run_until_cancelled(parts.ready_to_work()).await.is_some() {
                tracing::info!(controller = controller.name(), count = workers, "working");
                let pass = move |key: ObjectKey| {
                    let (parts, run, span) = (Arc::clone(&parts), run.clone(), pass_span(controller, &key));
                    async move { pass_once(parts.views_are_whole(), || run.pass(key)).await }.instrument(span)
                };
                queue.run(workers.get(), stop, pass).await;
                last.await;
            }
        });
    }
}

/// The span around a pass: every line that is logged in it names the object and the pass.
fn pass_span(controller: Controller, key: &ObjectKey) -> tracing::Span {
    static PASSES: AtomicU64 = AtomicU64::new(0);
    tracing::info_span!(
        "pass",
        controller = controller.name(),
        kind = controller.kind().map(Kind::as_str),
        namespace = key.namespace,
        name = key.name,
        pass = PASSES.fetch_add(1, Ordering::Relaxed)
    )
}

/// Runs the pass once the condition holds.
async fn pass_once<Fut: Future<Output = Outcome>>(
    condition: impl Future<Output = ()>,
    pass: impl FnOnce() -> Fut,
) -> Outcome {
    condition.await;
    pass().await
}

fn target_parts(target: &TargetViews, gate: &Gate, settings: &MachineSettings) -> TargetParts {
    TargetParts {
        nodes: target.nodes.clone(),
        node_store: Arc::clone(&target.node_store),
        tokens: target.bootstrap_tokens.clone(),
        drain_views: Arc::new(target.clone()),
        evictor: Evictor::new(target.evictions.clone(), gate.clone(), settings.concurrent_evictions),
        recorder: Recorder::new(machine::COMPONENT, target.notes.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_pass_begins_before_the_views_are_whole() {
        let (views_are_whole, wait_whole) = tokio::sync::oneshot::channel::<()>();
        let begun = std::sync::atomic::AtomicBool::new(false);
        let pass = || async {
            begun.store(true, std::sync::atomic::Ordering::Relaxed);
            Outcome::Settled
        };
        let mut waits = std::pin::pin!(pass_once(async { drop(wait_whole.await) }, pass));
        assert_eq!(futures::poll!(&mut waits), std::task::Poll::Pending);
        assert!(!begun.load(std::sync::atomic::Ordering::Relaxed));
        drop(views_are_whole);
        assert_eq!(waits.await, Outcome::Settled);
        assert!(begun.load(std::sync::atomic::Ordering::Relaxed));
    }
}
