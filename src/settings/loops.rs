//! The control loops of a process, and how one of several processes comes to run them.

use std::{collections::BTreeSet, num::NonZeroUsize, time::Duration};

use machine_api::names;

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

    /// Whether the loop has nothing to do without a target cluster.
    pub const fn needs_target(self) -> bool {
        matches!(self, Self::Node | Self::MachineSafetyApiServer)
    }
}

/// The loops of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerSet(BTreeSet<Controller>);

impl ControllerSet {
    /// Every loop.
    pub fn all() -> Self {
        Self(Controller::ALL.into())
    }

    /// No loop: the process only serves.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether the loop runs here.
    pub fn contains(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }

    /// Whether no loop runs here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The loops, in their fixed order.
    pub fn iter(&self) -> impl Iterator<Item = Controller> + '_ {
        self.0.iter().copied()
    }

    /// The halves with at least one loop, in the order in which their Leases are taken.
    pub fn halves(&self) -> Vec<Half> {
        Half::ALL.into_iter().filter(|half| self.iter().any(|controller| controller.half() == *half)).collect()
    }
}

impl FromIterator<Controller> for ControllerSet {
    fn from_iter<I: IntoIterator<Item = Controller>>(controllers: I) -> Self {
        Self(controllers.into_iter().collect())
    }
}

/// Workers per queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Of each queue of [`Half::ControllerManager`].
    pub controller_manager: NonZeroUsize,
    /// Of each queue of [`Half::MachineController`].
    pub machine_controller: NonZeroUsize,
}

/// Whether a replica that does not lead keeps its caches warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyCaches {
    /// It does: it takes over at once and can answer whatever reads.
    Warm,
    /// It does not: it needs less memory, and lists everything when it begins to lead.
    Cold,
}

/// How leadership is won and kept; lease > renew deadline > 1.2 × retry period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Name of the host, which in a pod is the pod's; the holder's name in the Leases begins with it.
    pub host_name: String,
    /// How long others wait before they take over.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Wait between two tries.
    pub retry_period: Duration,
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

    #[test]
    fn a_half_without_a_loop_takes_no_lease() {
        assert_eq!(ControllerSet::all().halves(), Half::ALL);
        assert_eq!(ControllerSet::from_iter([Controller::Secret]).halves(), [Half::MachineController]);
        assert_eq!(ControllerSet::none().halves(), []);
    }
}
