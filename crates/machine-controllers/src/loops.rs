//! The control loops: their names, the changes that wake them, and the pass over a key.
//!
//! This is the only table of loops. The manager gives each loop a queue; the simulation runs the same loops with the
//! rules of that queue. The manager and the simulation make the controllers and the implementations of their ports
//! themselves.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    class::{self, ClassController},
    deployment::{DeploymentController, routing as of_deployments},
    machine::{FreezeSwitch, MachineController, observation::Freeze},
    overshooting::{OvershootController, routing as of_overshooting},
    safety::{api_server_monitor::ApiServerMonitor, collector::Collector, routing as of_orphans},
    secret::{self, SecretController},
    set::{SetController, routing as of_sets},
    wakes::{Wakes, route},
};
use controller_runtime::{key::ObjectKey, queue::Outcome};
use machine_api::{kind::Kind, names};

/// One control loop, named after its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Rollouts of `MachineDeployments`.
    MachineDeployment,
    /// Replicas of `MachineSets`.
    MachineSet,
    /// Freezes sets that have too many machines.
    MachineSafetyOvershooting,
    /// The life cycle of a Machine.
    Machine,
    /// Changes of a Node that matter to its Machine.
    Node,
    /// Finalizer of a `MachineClass`.
    MachineClass,
    /// Finalizer of a Secret that a class refers to.
    Secret,
    /// Collects VMs without a Machine.
    MachineSafetyOrphanVms,
    /// Freezes the machine loops while an API server is unreachable.
    MachineSafetyApiServer,
}

/// The program of the Go original that a loop comes from. Each of the two programs has its own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// Deployments and sets.
    ControllerManager,
    /// Machines, classes and Secrets.
    MachineController,
}

impl Half {
    /// Both halves, in the order in which their Leases are acquired.
    pub const ALL: [Self; 2] = [Self::ControllerManager, Self::MachineController];

    /// Name of the Lease.
    pub const fn lease_name(self) -> &'static str {
        match self {
            Self::ControllerManager => names::LEASE_CONTROLLER_MANAGER,
            Self::MachineController => names::LEASE_MACHINE_CONTROLLER,
        }
    }

    /// Name of the Go program; its Lease has the same name.
    pub const fn program(self) -> &'static str {
        self.lease_name()
    }

    /// Port on which the Go program serves health and metrics.
    pub const fn port(self) -> u16 {
        match self {
            Self::ControllerManager => 10258,
            Self::MachineController => 10259,
        }
    }
}

impl Controller {
    /// All loops.
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

    /// The name in the `--controllers` flag.
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

    /// The loop with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|controller| controller.name() == name)
    }

    /// The half that the loop belongs to.
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

    /// The kind of the objects that the keys of the loop name. `None` if the key names no object of our API, or if no
    /// one else writes to that object.
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

/// A pass that has started.
pub type Pass = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Time between the starts of two passes over the same deployment, set, class or Secret. Short enough that no user
/// notices. Long enough that a set runs about a hundred passes, not three thousand, while a thousand machines become
/// ready.
const REST: Duration = Duration::from_millis(100);

/// Time until a frozen loop looks at its object again, if the loop has no freeze handling of its own.
const FROZEN_PAUSE: Duration = Duration::from_secs(5);

/// One control loop.
#[derive(Clone)]
pub struct Loop {
    /// The controller.
    pub controller: Controller,
    /// The changes that wake the loop.
    pub wakes: Wakes,
    /// Time between two passes over the same key. Not zero for loops whose pass reads all machines of the object.
    pub rest: Duration,
    /// A key that is queued at the start, without any change.
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

    /// Starts a pass over this key.
    pub fn pass(&self, key: ObjectKey) -> Pass {
        (self.pass)(key)
    }

    /// The loop that carries out rollouts.
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

    /// The loop that keeps the replicas of sets.
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

    /// The guard against too many machines in this namespace. It runs once at the start without any change.
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

    /// The loop for the life cycle of machines.
    pub fn machines(controller: &Arc<MachineController>) -> Self {
        let wakes = controller.wakes();
        let controller = Arc::clone(controller);
        Self::new(Controller::Machine, wakes, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })
    }

    /// The loop for the finalizers of classes.
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

    /// The loop for the finalizers of Secrets.
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

    /// The collector of VMs and Nodes without a Machine.
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

    /// The check whether the API servers can be reached. Only time wakes it.
    pub fn api_servers(monitor: &Arc<ApiServerMonitor>) -> Self {
        let monitor = Arc::clone(monitor);
        let run = Self::new(Controller::MachineSafetyApiServer, Wakes::default(), move |_| {
            let monitor = Arc::clone(&monitor);
            async move { monitor.reconcile().await }
        });
        Self { first: Some(ObjectKey::cluster_scoped(Controller::MachineSafetyApiServer.name())), ..run }
    }
}

/// Runs the pass, or pauses while an API server cannot be reached: a decision would be based on outdated stores.
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
