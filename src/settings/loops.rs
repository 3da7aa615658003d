//! Settings of control loops and of leader election.

use std::{collections::BTreeSet, num::NonZeroUsize, time::Duration};

pub use machine_controllers::loops::{Controller, Half};

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

impl ControllerSet {
    /// The loops that no process runs while this one leads: it holds the Lease of their half without running them.
    pub fn left_out(&self) -> Vec<Controller> {
        let halves = self.halves();
        let of_halves = Controller::ALL.into_iter().filter(|controller| halves.contains(&controller.half()));
        of_halves.filter(|controller| !self.contains(*controller)).collect()
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
    /// The caches are filled. The replica takes over at once, and serves views before that.
    Warm,
    /// The caches are empty. The replica needs less memory, and lists all objects when it begins to lead.
    Cold,
}

/// Times of leader election; lease > renew deadline > 1.2 × retry period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Name of the host; in a pod the name of the pod. The holder's name in the Leases begins with it.
    pub host_name: String,
    /// How long other replicas wait before they take over.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Pause between two tries.
    pub retry_period: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_without_a_loop_takes_no_lease() {
        assert_eq!(ControllerSet::all().halves(), Half::ALL);
        assert_eq!(ControllerSet::from_iter([Controller::Secret]).halves(), [Half::MachineController]);
        assert_eq!(ControllerSet::none().halves(), []);
    }

    #[test]
    fn the_lease_of_a_half_keeps_other_processes_from_loops_that_are_left_out() {
        let half = |half: Half| Controller::ALL.into_iter().filter(move |controller| controller.half() == half);
        for whole in [ControllerSet::all(), ControllerSet::none(), half(Half::MachineController).collect()] {
            assert_eq!(whole.left_out(), []);
        }
        let rollouts = ControllerSet::from_iter([Controller::MachineDeployment, Controller::MachineSet]);
        assert_eq!(rollouts.left_out(), [Controller::MachineSafetyOvershooting]);
    }
}
