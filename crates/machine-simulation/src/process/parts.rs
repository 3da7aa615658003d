//! Makes the controllers of a process: as in production, except for what is behind their ports.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{ProcessConfig, Woken, lock};
use crate::{
    api::Kind,
    guards::{
        Guard, cleans, deployment_without,
        machines::{planned_without, seen_without},
        set_status_without, set_without,
    },
    played::{
        Caller, Played, PlayedClock, Stage,
        cloud::{PlayedDriver, UnderWay},
        target::{PlayedEvictions, PlayedPods},
    },
};
use controller_runtime::{
    clock::SharedClock,
    events::{Pending, Recorder},
    gate::Gate,
    objects::Objects,
    refusals::Refusals,
    snapshot::Whole,
    store::Store,
    tasks::SharedTasks,
};
use machine_controllers::{
    Decision,
    class::{ClassController, ClassDeps},
    deployment::{self, DeploymentController, DeploymentDeps, observe::DeploymentObservation},
    drain::{Remembered, act::Evictor},
    loops::Controller,
    machine::{self, FreezeSwitch, MachineController, MachineDeps, TargetParts, observation::Observation},
    overshooting::{self, Margins, OvershootController, OvershootDeps},
    safety::{
        collector::{Collector, CollectorDeps},
        orphans::{self, Claim, Guards},
    },
    secret::{SecretController, SecretDeps},
    set::{self, SetController, SetDecisions, SetDeps, observe::SetObservation},
    snapshots::{AttachmentSnapshot, NodeSnapshot, PodSnapshot},
    views::ControlViews,
};
use machine_driver::{Driver, Registry};
use mcm_metrics::Metrics;

/// The defaults of the flags.
const MARGINS: Margins = Margins { up: 2, down: 1 };
/// The default of the flag.
const GUARD_PERIOD: Duration = Duration::from_secs(60);
/// The default of the flag.
const COLLECTOR_PERIOD: Duration = Duration::from_secs(15 * 60);

/// The parts from which controllers are made.
pub(super) struct Parts<'a> {
    pub(super) stage: Stage,
    pub(super) freeze: FreezeSwitch,
    pub(super) lost: CancellationToken,
    pub(super) gate: Gate,
    pub(super) refusals: Refusals,
    pub(super) clock: &'a Arc<PlayedClock>,
    pub(super) views: &'a ControlViews,
    pub(super) nodes: &'a Arc<Store<NodeSnapshot>>,
    pub(super) pods: &'a Arc<Store<PodSnapshot>>,
    pub(super) attachments: &'a Arc<Store<AttachmentSnapshot>>,
    pub(super) calls: &'a UnderWay,
    pub(super) tasks: SharedTasks,
    pub(super) woken: &'a Woken,
    pub(super) notes: mpsc::Sender<Pending>,
    pub(super) config: &'a ProcessConfig,
}

impl Parts<'_> {
    fn lacks(&self, guard: Guard) -> bool {
        self.config.without == Some(guard)
    }

    /// The gate of the controllers.
    fn gate(&self) -> Gate {
        if self.lacks(Guard::Leadership) { Gate::open_until(CancellationToken::new()) } else { self.gate.clone() }
    }

    fn clock(&self) -> SharedClock {
        Arc::clone(self.clock) as SharedClock
    }

    /// The context of the calls of a loop.
    fn caller(&self, of: Controller) -> Caller {
        Caller {
            stage: self.stage.clone(),
            of,
            gate: self.gate.clone(),
            lost: self.lost.clone(),
            nodes: Arc::clone(self.nodes),
        }
    }

    /// The port for objects of a kind, for a loop.
    fn objects<S: Whole<Object: Kind>>(&self, of: Controller, store: &Arc<Store<S>>) -> Objects<S> {
        let caller = self.caller(of);
        let sees_own_writes = !self.lacks(Guard::OwnWrites);
        let api = Arc::new(Played::new(&caller, store));
        let objects = Objects::over(api, self.gate(), sees_own_writes.then(|| Arc::clone(store)));
        if self.lacks(Guard::Refusals) { objects } else { objects.with_refusals(&self.refusals) }
    }

    pub(super) fn deployments(&self) -> DeploymentController {
        let views = self.views;
        DeploymentController::new(DeploymentDeps {
            views: views.clone(),
            deployments: self.objects(Controller::MachineDeployment, &views.deployments),
            sets: self.objects(Controller::MachineDeployment, &views.sets),
            machines: self.objects(Controller::MachineDeployment, &views.machines),
            nodes: Some(self.objects(Controller::MachineDeployment, self.nodes)),
            node_store: Some(Arc::clone(self.nodes)),
            clock: self.clock(),
            gate: self.gate(),
            recorder: Recorder::new(deployment::COMPONENT, self.notes.clone()),
            settings: self.config.rollouts,
        })
        .deciding_by(self.deciding_on_deployments())
    }

    fn deciding_on_deployments(&self) -> Decision<DeploymentObservation, deployment::plan::Plan> {
        let (stage, without) = (self.stage.clone(), self.config.without);
        Arc::new(move |seen| {
            let mut plan = deployment::decide::decide(&deployment_without(without, seen));
            if without == Some(Guard::Cleaning) {
                plan.steps.retain(|step| !cleans(step.rule));
            }
            #[cfg(test)]
            crate::both_ways::ordered("deployment", plan.steps.iter().map(|step| &step.effect));
            stage.with(|lent| lent.checks.deployment_decides(seen, &plan, &mut lent.trace));
            plan
        })
    }

    pub(super) fn sets(&self, name_seed: u64) -> SetController {
        let views = self.views;
        SetController::new(SetDeps {
            views: views.clone(),
            machines: self.objects(Controller::MachineSet, &views.machines),
            sets: self.objects(Controller::MachineSet, &views.sets),
            nodes: Some(Arc::clone(self.nodes)),
            clock: self.clock(),
            gate: self.gate(),
            recorder: Recorder::new(set::COMPONENT, self.notes.clone()),
            name_seed,
        })
        .deciding_by(self.deciding_on_sets())
    }

    fn deciding_on_sets(&self) -> SetDecisions {
        let (stage, without) = (self.stage.clone(), self.config.without);
        let set = move |seen: &SetObservation| {
            let plan = set::decide::decide(&set_without(without, seen));
            #[cfg(test)]
            crate::both_ways::ordered("set", plan.steps.iter().map(|step| &step.effect));
            stage.with(|lent| lent.checks.set_decides(seen, &plan, &mut lent.trace));
            plan
        };
        let status = move |seen: &SetObservation| set::status::decide_status(&set_status_without(without, seen));
        SetDecisions { set: Arc::new(set), status: Arc::new(status) }
    }

    pub(super) fn guard(&self) -> OvershootController {
        let views = self.views;
        OvershootController::new(OvershootDeps {
            views: views.clone(),
            sets: self.objects(Controller::MachineSafetyOvershooting, &views.sets),
            deployments: self.objects(Controller::MachineSafetyOvershooting, &views.deployments),
            clock: self.clock(),
            recorder: Recorder::new(overshooting::COMPONENT, self.notes.clone()),
            margins: MARGINS,
            period: GUARD_PERIOD,
        })
    }

    pub(super) fn machines(&self, seed: u64) -> MachineController {
        let gate = self.gate();
        let woken = Arc::clone(self.woken);
        // Tokens are read directly, without a store.
        let no_view = Arc::new(Store::<Arc<Secret>>::new(Vec::new()));
        let target = TargetParts {
            nodes: self.objects(Controller::Machine, self.nodes),
            node_store: Arc::clone(self.nodes),
            tokens: Objects::over(
                Arc::new(Played::new(&self.caller(Controller::Machine), &no_view)),
                self.gate(),
                None,
            ),
            drain_views: Arc::new(PlayedPods {
                pods: Arc::clone(self.pods),
                attachments: Arc::clone(self.attachments),
                without: self.config.without,
            }),
            evictor: self.evictor(),
            recorder: Recorder::new(machine::COMPONENT, self.notes.clone()),
        };
        let controller = MachineController::new(MachineDeps {
            views: self.views.clone(),
            machines: self.objects(Controller::Machine, &self.views.machines),
            target: Some(target),
            drivers: self.drivers(),
            wake: Arc::new(move |key| {
                lock(&woken).insert(key);
            }),
            tasks: Arc::clone(&self.tasks),
            clock: self.clock(),
            gate,
            recorder: Recorder::new(machine::COMPONENT, self.notes.clone()),
            rng: Arc::new(Mutex::new(ChaCha20Rng::seed_from_u64(seed))),
            freeze: self.freeze.clone(),
            settings: self.config.machines.clone(),
            metrics: metrics(),
        })
        .deciding_by(self.deciding_on_machines());
        if !self.lacks(Guard::AbandonedDrain) {
            return controller;
        }
        controller.remembering_drains_by(|_, _| Remembered::Continued)
    }

    pub(super) fn classes(&self) -> ClassController {
        ClassController::new(ClassDeps {
            views: self.views.clone(),
            classes: self.objects(Controller::MachineClass, &self.views.classes),
            machines: self.objects(Controller::MachineClass, &self.views.machines),
            recorder: Recorder::new(machine::COMPONENT, self.notes.clone()),
        })
    }

    pub(super) fn secrets(&self) -> SecretController {
        SecretController::new(SecretDeps {
            views: self.views.clone(),
            secrets: self.objects(Controller::Secret, &self.views.secrets),
            classes: self.objects(Controller::Secret, &self.views.classes),
        })
    }

    pub(super) fn collector(&self) -> Collector {
        Collector::new(CollectorDeps {
            views: self.views.clone(),
            namespace: "ns".to_owned(),
            machines: self.objects(Controller::MachineSafetyOrphanVms, &self.views.machines),
            nodes: Some((self.objects(Controller::MachineSafetyOrphanVms, self.nodes), Arc::clone(self.nodes))),
            drivers: self.drivers(),
            clock: self.clock(),
            gate: self.gate(),
            recorder: Recorder::new(machine::COMPONENT, self.notes.clone()),
            metrics: metrics(),
            freeze: self.freeze.clone(),
            period: COLLECTOR_PERIOD,
            unmanaged_node_age: self.config.machines.creation_timeout,
            guards: Guards::default(),
            lists: None,
        })
        .deciding_by(self.deciding_on_orphans())
    }

    fn deciding_on_orphans(&self) -> Decision<orphans::Observation, orphans::Plan> {
        let (stage, without) = (self.stage.clone(), self.config.without);
        Arc::new(move |seen| {
            let mut seen = seen.clone();
            if without == Some(Guard::Claims) {
                for vm in seen.vms.iter_mut().filter(|vm| vm.claim == Claim::InCreation) {
                    vm.claim = Claim::Nobody;
                }
            }
            let plan = orphans::decide(&seen);
            if !plan.deletions.is_empty() {
                stage.with(|lent| lent.trace.say(|| format!("    the collector deletes {:?}", plan.deletions)));
            }
            plan
        })
    }

    fn evictor(&self) -> Evictor {
        let caller = self.caller(Controller::Machine);
        let pods = Arc::new(Played::new(&caller, self.pods));
        let attachments = Arc::new(Played::new(&caller, self.attachments));
        Evictor::over(
            Arc::new(PlayedEvictions(caller)),
            Objects::over(pods, self.gate(), None),
            Objects::over(attachments, self.gate(), None),
            self.gate(),
            self.config.machines.concurrent_evictions,
        )
    }

    fn drivers(&self) -> Registry {
        let (stage, clock) = (self.stage.clone(), Arc::clone(self.clock));
        let driver = PlayedDriver::new(stage, self.calls.clone(), clock, self.config.creation);
        let mut drivers = Registry::new();
        drivers.register(&(Arc::new(driver) as Arc<dyn Driver>));
        drivers
    }

    fn deciding_on_machines(&self) -> Decision<Observation, machine::plan::Plan> {
        let (stage, without) = (self.stage.clone(), self.config.without);
        let (views, pods, nodes) = (self.views.clone(), Arc::clone(self.pods), Arc::clone(self.nodes));
        Arc::new(move |seen| {
            let mut plan = machine::decide::decide(&seen_without(without, seen, &nodes));
            planned_without(without, &mut plan);
            #[cfg(test)]
            crate::both_ways::ordered("machine", &plan.effects);
            stage.with(|lent| {
                lent.checks.machine_decides(seen, &plan, (&views, &pods), (&lent.api, &mut lent.trace));
                lent.checks.life_goes_on(seen, &plan, &lent.api);
            });
            plan
        })
    }
}

/// The metrics of all processes. No code reads them.
fn metrics() -> Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    let new = || Metrics::new(Arc::new(|| Duration::ZERO)).expect("the names of the catalogue differ");
    METRICS.get_or_init(new).clone()
}
