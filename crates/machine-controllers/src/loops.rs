//! The control loops: what each is called, which changes wake it, and what a pass over a key is.
//!
//! This is the one table. A manager gives each loop a queue, and a simulation plays the same loops with the rules of the queue.
//! How controllers are made, and what is behind their ports, is theirs.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    class::{self, ClassController},
    deployment::{DeploymentController, routing as of_deployments},
    machine::{FreezeSwitch, MachineController, observation::Freeze},
    overshooting::{OvershootController, routing as of_overshooting},
    safety::{collector::Collector, routing as of_orphans, watchman::Watchman},
    secret::{self, SecretController},
    set::{SetController, routing as of_sets},
    wakes::{Wakes, route},
};
use controller_runtime::{key::ObjectKey, queue::Outcome};
use machine_api::{kind::Kind, names};

/// One control loop, by the name of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Rollouts of `MachineDeployments`.
    MachineDeployment,
    /// Replicas of `MachineSets`.
    MachineSet,
    /// Freezes sets that hold too many machines.
    MachineSafetyOvershooting,
    /// Life of a Machine.
    Machine,
    /// What a Node's events mean for its Machine.
    Node,
    /// Finalizer of a `MachineClass`.
    MachineClass,
    /// Finalizer of a Secret that a class names.
    Secret,
    /// Collects VMs without a Machine.
    MachineSafetyOrphanVms,
    /// Freezes the machine loops while an API server is unreachable.
    MachineSafetyApiServer,
}

/// The half of the Go original that a loop comes from; each half has its own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// Deployments and sets.
    ControllerManager,
    /// Machines, classes and secrets.
    MachineController,
}

impl Half {
    /// Both, in the order in which their Leases are taken.
    pub const ALL: [Self; 2] = [Self::ControllerManager, Self::MachineController];

    /// Name of the Lease.
    pub const fn lease_name(self) -> &'static str {
        match self {
            Self::ControllerManager => names::LEASE_CONTROLLER_MANAGER,
            Self::MachineController => names::LEASE_MACHINE_CONTROLLER,
        }
    }

    /// Name of the Go program; that of its Lease.
    pub const fn program(self) -> &'static str {
        self.lease_name()
    }

    /// Port on which the Go program tells its health and metrics.
    pub const fn port(self) -> u16 {
        match self {
            Self::ControllerManager => 10258,
            Self::MachineController => 10259,
        }
    }
}

impl Controller {
    /// All loops there are.
    pub const ALL: [Self; 9] = [
        Self::MachineDeployment,
        Self::MachineSet,
        Self::MachineSafetyOvershooting,
        Self::Machine,
        Self::Node,
        Self::MachineClass,
        Self::Secret,
        Self::MachineSafetyOrphanVms,
        Self::MachineSafetyApiServer,
    ];

    /// The name that `--controllers` knows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machinedeployment",
            Self::MachineSet => "machineset",
            Self::MachineSafetyOvershooting => "machinesafetyovershooting",
            Self::Machine => "machine",
            Self::Node => "node",
            Self::MachineClass => "machineclass",
            Self::Secret => "secret",
            Self::MachineSafetyOrphanVms => "machinesafetyorphanvms",
            Self::MachineSafetyApiServer => "machinesafetyapiserver",
        }
    }

    /// The loop of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|controller| controller.name() == name)
    }

    /// The half it belongs to.
    pub const fn half(self) -> Half {
        match self {
            Self::MachineDeployment | Self::MachineSet | Self::MachineSafetyOvershooting => Half::ControllerManager,
            Self::Machine
            | Self::Node
            | Self::MachineClass
            | Self::Secret
            | Self::MachineSafetyOrphanVms
            | Self::MachineSafetyApiServer => Half::MachineController,
        }
    }

    /// The kind of object that a key of the loop names, where it is one of ours that others write to.
    pub const fn kind(self) -> Option<Kind> {
        match self {
            Self::MachineDeployment => Some(Kind::MachineDeployment),
            Self::MachineSet => Some(Kind::MachineSet),
            Self::Machine => Some(Kind::Machine),
            Self::MachineClass => Some(Kind::MachineClass),
            Self::MachineSafetyOvershooting
            | Self::Node
            | Self::Secret
            | Self::MachineSafetyOrphanVms
            | Self::MachineSafetyApiServer => None,
        }
    }

    /// Whether the loop has nothing to do without a target cluster.
    pub const fn needs_target(self) -> bool {
        matches!(self, Self::Node | Self::MachineSafetyApiServer)
    }
}

/// A pass that has begun.
pub type Pass = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// How long a deployment, set, class or secret rests after a pass has begun. Short enough for a person not to notice, long
/// enough that a thousand machines becoming ready cost their set some hundred passes and not three thousand.
const REST: Duration = Duration::from_millis(100);

/// How long frozen loops without a switch of their own wait before they look at it again.
const FROZEN_PAUSE: Duration = Duration::from_secs(5);

/// One control loop.
#[derive(Clone)]
pub struct Loop {
    /// Which it is.
    pub controller: Controller,
    /// What wakes it.
    pub wakes: Wakes,
    /// How long a key rests between passes; those of a loop whose pass looks at every machine of its object do.
    pub rest: Duration,
    /// A key that is looked at without any change.
    pub first: Option<ObjectKey>,
    pass: Arc<dyn Fn(ObjectKey) -> Pass + Send + Sync>,
}

impl Loop {
    fn new<Fut>(controller: Controller, wakes: Wakes, pass: impl Fn(ObjectKey) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let pass = Arc::new(move |key| Box::pin(pass(key)) as Pass);
        Self { controller, wakes, rest: Duration::ZERO, first: None, pass }
    }

    fn resting(self) -> Self {
        Self { rest: REST, ..self }
    }

    /// A pass over this key.
    pub fn pass(&self, key: ObjectKey) -> Pass {
        (self.pass)(key)
    }

    /// Rollouts.
    pub fn deployments(controller: &Arc<DeploymentController>, freeze: &FreezeSwitch) -> Self {
        let wakes = Wakes {
            deployments: route(|change, _| of_deployments::deployments_of_deployment(change)),
            sets: route(of_deployments::deployments_of_set),
            machines: route(of_deployments::deployments_of_machine),
            nodes: route(of_deployments::deployments_of_node),
            ..Wakes::default()
        };
        let (controller, freeze) = (Arc::clone(controller), freeze.clone());
        Self::new(Controller::MachineDeployment, wakes, move |key| {
            let controller = Arc::clone(&controller);
            unless_frozen(freeze.get(), async move { controller.reconcile(key).await })
        })
        .resting()
    }

    /// Replicas.
    pub fn sets(controller: &Arc<SetController>, freeze: &FreezeSwitch) -> Self {
        let wakes = Wakes {
            sets: route(|change, _| of_sets::sets_of_set(change)),
            machines: route(of_sets::sets_of_machine),
            nodes: route(of_sets::sets_of_node),
            classes: route(of_sets::sets_of_class),
            secrets: route(of_sets::sets_of_secret),
            ..Wakes::default()
        };
        let (controller, freeze) = (Arc::clone(controller), freeze.clone());
        Self::new(Controller::MachineSet, wakes, move |key| {
            let controller = Arc::clone(&controller);
            unless_frozen(freeze.get(), async move { controller.reconcile(key).await })
        })
        .resting()
    }

    /// The guard against too many machines in this namespace. Its first run needs no change.
    pub fn overshooting(controller: &Arc<OvershootController>, namespace: &str) -> Self {
        let wakes = Wakes {
            machines: route(|change, _| of_overshooting::after_machine(change)),
            sets: route(|change, _| of_overshooting::after_set(change)),
            deployments: route(|change, _| of_overshooting::after_deployment(change)),
            ..Wakes::default()
        };
        let controller = Arc::clone(controller);
        let run = Self::new(Controller::MachineSafetyOvershooting, wakes, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        });
        Self { first: Some(of_overshooting::key_of(namespace)), ..run.resting() }
    }

    /// The life of machines.
    pub fn machines(controller: &Arc<MachineController>) -> Self {
        let wakes = controller.wakes();
        let controller = Arc::clone(controller);
        Self::new(Controller::Machine, wakes, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })
    }

    /// Finalizers of classes.
    pub fn classes(controller: &Arc<ClassController>) -> Self {
        let wakes = Wakes {
            classes: route(|change, _| class::after_class(change)),
            machines: route(|change, _| class::after_machine(change)),
            ..Wakes::default()
        };
        let controller = Arc::clone(controller);
        Self::new(Controller::MachineClass, wakes, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })
        .resting()
    }

    /// Finalizers of Secrets.
    pub fn secrets(controller: &Arc<SecretController>) -> Self {
        let wakes = Wakes {
            secrets: route(|change, _| secret::after_secret(change)),
            classes: route(|change, _| secret::after_class(change)),
            ..Wakes::default()
        };
        let controller = Arc::clone(controller);
        Self::new(Controller::Secret, wakes, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })
        .resting()
    }

    /// VMs and Nodes that are nobody's.
    pub fn orphans(collector: &Arc<Collector>) -> Self {
        let wakes = Wakes {
            classes: route(|change, _| of_orphans::after_class(change)),
            machines: route(|change, _| of_orphans::after_machine(change)),
            nodes: route(|change, _| of_orphans::after_node(change)),
            ..Wakes::default()
        };
        let collector = Arc::clone(collector);
        Self::new(Controller::MachineSafetyOrphanVms, wakes, move |key| {
            let collector = Arc::clone(&collector);
            async move { collector.reconcile(key).await }
        })
    }

    /// The watch over the API servers. Nothing wakes it but time.
    pub fn api_servers(watchman: &Arc<Watchman>) -> Self {
        let watchman = Arc::clone(watchman);
        let run = Self::new(Controller::MachineSafetyApiServer, Wakes::default(), move |_| {
            let watchman = Arc::clone(&watchman);
            async move { watchman.reconcile().await }
        });
        Self { first: Some(ObjectKey::cluster_scoped(Controller::MachineSafetyApiServer.name())), ..run }
    }
}

/// The pass, or a pause while an API server cannot be reached: what would be decided on may be an old view.
async fn unless_frozen(freeze: Freeze, pass: impl Future<Output = Outcome>) -> Outcome {
    match freeze {
        Freeze::Frozen => Outcome::LookAgain(FROZEN_PAUSE, "frozen"),
        Freeze::Flowing => pass.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_is_found_by_its_name() {
        for controller in Controller::ALL {
            assert_eq!(Controller::named(controller.name()), Some(controller));
        }
        assert_eq!(Controller::named("deployment"), None);
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
