//! The steps of a history, and their descriptions. Histories are generated from seeds in [`super::draw`].

use std::fmt;

use super::{calls::CallFault, guards::Guard, refusals::Refused};
use machine_controllers::deployment::AvailabilityRule;

/// The deployment at the start of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setup {
    /// The wanted number of machines.
    pub replicas: u8,
    /// The strategy of rollouts.
    pub strategy: Strategy,
}

/// The strategy of rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// A rolling update with these margins.
    Rolling {
        /// `maxSurge`.
        surge: Margin,
        /// `maxUnavailable`.
        unavailable: Margin,
    },
    /// Old machines are deleted first.
    Recreate,
    /// Machines are updated in place with these margins.
    InPlace {
        /// `maxSurge`.
        surge: Margin,
        /// `maxUnavailable`.
        unavailable: Margin,
        /// Whether the controller or a user selects the Nodes.
        picks: Picks,
    },
}

/// How far the number of machines may differ from the wanted number, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Margin {
    /// This number of machines.
    Machines(u8),
    /// This percentage of the wanted number.
    Percent(u8),
}

impl From<u8> for Margin {
    fn from(machines: u8) -> Self {
        Self::Machines(machines)
    }
}

/// The selector of the Nodes of an update in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Picks {
    /// The controller (`Auto`).
    Controller,
    /// A user (`Manual`).
    User,
}

/// The outcome of a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    /// It succeeds.
    Good,
    /// The provider is busy.
    Busy,
    /// The provider has no capacity.
    Full,
    /// It is carried out, but the answer is lost.
    Lost,
    /// It succeeds, but the created VM never joins.
    Stillborn,
    /// A creation is carried out, but the answer is lost, and the provider lists the VM only after a while.
    ShownLate,
    /// The same, but the provider lists the VM only after all waits are over.
    ShownTooLate,
}

/// The answer of a provider to a repeated creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// It returns the existing VM.
    #[default]
    AnswersTheSame,
    /// It makes another VM.
    MakesAnother,
}

/// Whether and when driver calls are carried out whose process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedCalls {
    /// They are never carried out.
    Never,
    /// They have been carried out already.
    AtOnce,
    /// They are carried out later, when another process runs.
    Later,
}

/// An event of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It joins, if it has not joined yet.
    Joins,
    /// It joins with the label that names its machine.
    JoinsNamed,
    /// Another instance has registered under its name.
    Supplanted,
    /// It becomes not ready.
    Sickens,
    /// Its disk is full: it is unhealthy, but can still move its pods.
    FillsUp,
    /// It is healthy again.
    Recovers,
    /// A user deletes it.
    Deleted,
    /// Its agent has updated it, if it was ready for that.
    Updated,
    /// Its agent failed to update it, if it was ready for that.
    UpdateFailed,
}

/// An edit by a user or the autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Changes the wanted number of machines.
    Scale(u8),
    /// Changes the class.
    Class(u8),
    /// Changes a field that is synced to existing machines.
    Hot(u8),
    /// Changes the strategy.
    Strategy(Strategy),
    /// Pauses rollouts.
    Pause,
    /// Resumes rollouts.
    Resume,
    /// Deletes a machine.
    DeleteMachine(u16),
    /// First write of the autoscaler: marks the machine.
    Mark(u16),
    /// Second write of the autoscaler: reduces the size by the number of marked machines.
    ScaleIn,
    /// Goes back to a revision with `mcm rollback`; 0 is the previous one.
    Rollback(u8),
    /// Requests the same with `spec.rollbackTo`.
    RollbackTo(u8),
    /// Writes the preservation value on a machine, or on its Node.
    Keep(u16, Place, Keep),
    /// Sets the number of Failed machines that sets may preserve automatically.
    KeepFailed(u8),
    /// Removes the owner of a machine.
    Orphan(u16),
    /// Removes the owner of a set.
    OrphanSet(u16),
    /// Changes a label that a set's selector needs, or changes it back.
    Relabel(u16),
    /// Creates this number of machines without owner, with the labels and the template of this machine.
    Strays(u16, u8),
    /// Selects a Node for its update.
    PickNode(u16),
    /// Sets the priority of a machine.
    Prioritise(u16, Priority),
    /// Changes the size of a set directly.
    ScaleSet(u16, u8),
    /// Changes the class of a set directly.
    ClassOfSet(u16, u8),
    /// Changes a label that the deployment's selector needs, or changes it back.
    RelabelSet(u16),
    /// Deletes a set.
    DeleteSet(u16),
    /// Removes the label that names the Node from a machine.
    Unlink(u16),
    /// Requests the forced deletion of a machine.
    Force(u16),
    /// Requests that the overshoot guard unfreezes the deployment.
    Thaw,
    /// Deletes the deployment.
    DeleteDeployment,
}

/// An edit of classes and their Secrets, each identified by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassEdit {
    /// Changes the `providerSpec`.
    Spec(u8),
    /// Switches user data and credentials to the other Secret.
    Secret(u8),
    /// Switches only the credentials to the other Secret.
    Credentials(u8),
    /// Deletes the class.
    Delete(u8),
    /// Deletes the class and removes its finalizer.
    Remove(u8),
    /// Deletes the Secret.
    DeleteSecret(u8),
    /// Deletes the Secret and removes its finalizer.
    RemoveSecret(u8),
    /// Creates the missing classes and Secrets.
    Make,
}

/// The priority that a user writes on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A number; the smallest is deleted first.
    Number(i8),
    /// A word: the default priority applies.
    Word,
}

/// The object that gets a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the machine.
    Machine,
    /// On its Node.
    Node,
}

/// The preservation value (`preserve`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Preserve it now.
    Now,
    /// Preserve it when it fails.
    WhenFailed,
    /// Do not preserve it.
    No,
}

/// A step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The leader runs a pass over one of the due keys.
    Pass(u16, Option<CallFault>),
    /// The leader starts a pass over one of the due keys and is held up after this number of calls.
    Begin(u16, u8),
    /// The leader continues one of the passes that are held up.
    GoOn(u16, Option<CallFault>),
    /// A process that has lost the lease continues to work.
    StalePass(u16),
    /// Some events of a watch arrive.
    Watch(u8, u8),
    /// Time passes.
    Wait(u16),
    /// A driver call ends with this outcome.
    Cloud(u16, Luck),
    /// An event of a Node.
    Node(u16, NodeEvent),
    /// A VM is gone for any reason.
    VmVanishes(u16),
    /// From now on evictions are refused for this number of minutes.
    Budget(u8),
    /// A user edits a class, or a Secret of a class.
    Classes(ClassEdit),
    /// The leader runs a pass over a class or a Secret, if one is due.
    Finalizers(u16, Option<CallFault>),
    /// A user changes the user data of all classes: from now on it needs a token, or none.
    UserData,
    /// From now on no volume detaches for this number of minutes.
    Detaching(u8),
    /// All pods are replaced on their Nodes, as by a rollout of their owner.
    NewPods,
    /// The API server of the target cluster does not answer for this number of minutes.
    Silence(u8),
    /// An edit by a user or the autoscaler.
    Edit(Edit),
    /// Something is refused for this number of hours.
    Refuse(Refused, u8),
    /// The leader dies and restarts.
    Crash(DroppedCalls),
    /// Another process takes the lease; the old leader continues without it.
    Usurped(DroppedCalls),
}

/// A history: steps in rounds. After each round everything comes to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Seed of all random values during the history.
    pub seed: u64,
    /// The deployment at the start.
    pub setup: Setup,
    /// The provider of the VMs.
    pub provider: Provider,
    /// The machines that count as available in rollouts.
    pub counts: AvailabilityRule,
    /// Number of pods with a volume.
    pub volumes: u8,
    /// The steps by round.
    pub rounds: Vec<Vec<Step>>,
    /// A guard that the controllers lack.
    pub without: Option<Guard>,
}

impl History {
    /// Whether users edit classes or Secrets.
    pub(crate) fn changes_classes(&self) -> bool {
        self.rounds.iter().flatten().any(|step| matches!(step, Step::Classes(_) | Step::Finalizers(..)))
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same history without these steps, counted over all rounds.
    #[must_use]
    pub fn without_steps(&self, steps: std::ops::Range<usize>) -> Self {
        let mut place = 0;
        let keep = |_: &Step| {
            place += 1;
            !steps.contains(&(place - 1))
        };
        let mut keep = keep;
        let rounds = self.rounds.iter().map(|round| round.iter().filter(|step| keep(step)).copied().collect());
        Self { rounds: rounds.collect(), ..*self }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} machines, {}", self.replicas, self.strategy)
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machines(machines) => write!(f, "{machines}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rolling { surge, unavailable } => {
                write!(f, "RollingUpdate with maxSurge {surge} and maxUnavailable {unavailable}")
            }
            Self::Recreate => f.write_str("Recreate"),
            Self::InPlace { surge, unavailable, picks } => {
                let who = match picks {
                    Picks::Controller => "Auto",
                    Picks::User => "Manual",
                };
                write!(f, "InPlaceUpdate ({who}) with maxSurge {surge} and maxUnavailable {unavailable}")
            }
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scale(replicas) => write!(f, "a user wants {replicas} machines"),
            Self::Class(class) => write!(f, "a user wants machines of class {class}"),
            Self::Hot(number) => write!(f, "a user changes the node template to {number}"),
            Self::Strategy(strategy) => write!(f, "a user wants {strategy}"),
            Self::Pause => f.write_str("a user pauses the deployment"),
            Self::Resume => f.write_str("a user resumes the deployment"),
            Self::DeleteMachine(_) => f.write_str("a user deletes a machine"),
            Self::Mark(_) => f.write_str("the autoscaler names a machine"),
            Self::ScaleIn => f.write_str("the autoscaler scales in"),
            Self::Rollback(revision) => write!(f, "a user goes back to revision {revision} with mcm rollback"),
            Self::RollbackTo(revision) => write!(f, "a user asks for revision {revision} with spec.rollbackTo"),
            Self::Keep(_, place, keep) => write!(f, "a user says on a {place:?} whether it is to be kept: {keep:?}"),
            Self::KeepFailed(most) => write!(f, "a user lets sets keep {most} Failed machines"),
            Self::Orphan(_) => f.write_str("a user takes the owner off a machine"),
            Self::OrphanSet(_) => f.write_str("a user takes the owner off a set"),
            Self::Relabel(_) => f.write_str("a user changes a label that a set looks for"),
            Self::Strays(_, count) => write!(f, "a user makes {count} machines without owner"),
            Self::PickNode(_) => f.write_str("a user picks a Node for its update"),
            Self::Prioritise(_, Priority::Number(number)) => write!(f, "a user gives a machine the priority {number}"),
            Self::ScaleSet(_, replicas) => write!(f, "a user wants {replicas} machines of a set"),
            Self::ClassOfSet(_, class) => write!(f, "a user wants machines of class {class} in a set"),
            Self::RelabelSet(_) => f.write_str("a user changes a label that the deployment looks for"),
            Self::DeleteSet(_) => f.write_str("a user deletes a set"),
            Self::Prioritise(_, Priority::Word) => f.write_str("a user gives a machine a priority that is no number"),
            Self::Force(_) => f.write_str("a user asks for a deletion by force"),
            Self::Unlink(_) => f.write_str("a user takes the label with its Node off a machine"),
            Self::Thaw => f.write_str("a user asks for a thaw"),
            Self::DeleteDeployment => f.write_str("a user deletes the deployment"),
        }
    }
}
