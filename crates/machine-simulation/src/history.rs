//! What happens in a history, and in words. How it is drawn from a seed is in [`super::draw`].

use std::fmt;

use super::{calls::Misfortune, guards::Guard, refusals::Refused};
use machine_controllers::deployment::AvailabilityRule;

/// The deployment that a history begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setup {
    /// Wanted machines.
    pub replicas: u8,
    /// How machines are replaced.
    pub strategy: Strategy,
}

/// How machines are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// With so many more and so many fewer.
    Rolling {
        /// `maxSurge`.
        surge: Margin,
        /// `maxUnavailable`.
        unavailable: Margin,
    },
    /// Old ones first.
    Recreate,
    /// They are kept and updated, with so many more and so many fewer meanwhile.
    InPlace {
        /// `maxSurge`.
        surge: Margin,
        /// `maxUnavailable`.
        unavailable: Margin,
        /// Who says which Node is next.
        picks: Picks,
    },
}

/// How far a rollout may stray from the wanted number, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Margin {
    /// By so many machines.
    Machines(u8),
    /// By so many hundredths of the wanted number.
    Percent(u8),
}

impl From<u8> for Margin {
    fn from(machines: u8) -> Self {
        Self::Machines(machines)
    }
}

/// Who picks the Nodes of an update in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Picks {
    /// The controller (`Auto`).
    Controller,
    /// A user (`Manual`).
    User,
}

/// What happens to a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    /// It succeeds.
    Good,
    /// The provider is busy.
    Busy,
    /// The provider has no capacity.
    Full,
    /// It is done, but the answer is lost.
    Lost,
    /// It succeeds, but a VM that it made will never join.
    Stillborn,
    /// A creation is done, but the answer is lost, and the provider does not tell of the VM before a while has passed.
    ShownLate,
    /// The same, and the while is longer than anybody waits.
    ShownTooLate,
}

/// What a provider makes of a creation that is repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// It answers with the VM that is there.
    #[default]
    AnswersTheSame,
    /// It makes another VM.
    MakesAnother,
}

/// What becomes of driver calls whose process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// They never happen.
    Never,
    /// They have happened by then.
    AtOnce,
    /// They happen while another process works already.
    Later,
}

/// What happens to a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It joins, if it has not yet.
    Joins,
    /// It joins with the label that names its machine.
    JoinsNamed,
    /// Something else has registered under its name.
    Supplanted,
    /// It is not ready any more.
    Sickens,
    /// Its disk is full: it is unhealthy, and still moves its pods.
    FillsUp,
    /// It is well again.
    Recovers,
    /// Somebody deletes it.
    Deleted,
    /// Its agent has updated it, if it was ready for that.
    Updated,
    /// Its agent has failed to, if it was ready for that.
    UpdateFailed,
}

/// What a user, or the autoscaler, does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Wants another number of machines.
    Scale(u8),
    /// Wants machines of another class.
    Class(u8),
    /// Changes what is synced to existing machines.
    Hot(u8),
    /// Changes how machines are replaced.
    Strategy(Strategy),
    /// Stops rollouts.
    Pause,
    /// Lets them go on.
    Resume,
    /// Deletes a machine.
    DeleteMachine(u16),
    /// First write of the autoscaler: the machine is to go.
    Mark(u16),
    /// Second write of the autoscaler: so many fewer as are marked.
    ScaleIn,
    /// Goes back to a revision with `mcm rollback`; 0 is the previous one.
    Rollback(u8),
    /// Asks the controller for that, with `spec.rollbackTo`.
    RollbackTo(u8),
    /// Says on a machine, or on its Node, whether it is to be kept.
    Keep(u16, Place, Keep),
    /// Lets sets keep so many Failed machines of their own accord.
    KeepFailed(u8),
    /// Takes the owner off a machine.
    Orphan(u16),
    /// Takes the owner off a set.
    OrphanSet(u16),
    /// Changes a label by which a set finds a machine, or changes it back.
    Relabel(u16),
    /// Makes so many machines without owner, of the same labels and template as this one.
    Strays(u16, u8),
    /// Picks a Node for its update.
    PickNode(u16),
    /// Gives a machine a place in the order of deletion.
    Prioritise(u16, Priority),
    /// Changes the size of a set, past its deployment.
    ScaleSet(u16, u8),
    /// Wants machines of another class in a set, past its deployment.
    ClassOfSet(u16, u8),
    /// Changes a label by which the deployment finds a set, or changes it back.
    RelabelSet(u16),
    /// Deletes a set.
    DeleteSet(u16),
    /// Takes the label with its Node off a machine.
    Unlink(u16),
    /// Asks for the deletion of a machine by force.
    Force(u16),
    /// Asks the overshoot guard to thaw the deployment.
    Thaw,
    /// Deletes the deployment.
    DeleteDeployment,
}

/// What a user writes on classes and their Secrets, each named by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassEdit {
    /// Changes what the driver is told.
    Spec(u8),
    /// Names the other Secret for user data and credentials.
    Secret(u8),
    /// Names the other Secret for credentials alone.
    Credentials(u8),
    /// Deletes the class.
    Delete(u8),
    /// Deletes the class and takes its finalizer off.
    Remove(u8),
    /// Deletes the Secret.
    DeleteSecret(u8),
    /// Deletes the Secret and takes its finalizer off.
    RemoveSecret(u8),
    /// Makes the classes and Secrets that are missing.
    Make,
}

/// What a user writes as the priority of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A number; smaller goes first.
    Number(i8),
    /// A word: the priority is the default one.
    Word,
}

/// Where something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the machine.
    Machine,
    /// On its Node.
    Node,
}

/// Whether a machine is to be kept (`preserve`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As it is now.
    Now,
    /// Once it has failed.
    WhenFailed,
    /// Not.
    No,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The leader works on one of the keys that are due.
    Pass(u16, Option<Misfortune>),
    /// The leader works on one of the keys that are due and is held up after so many calls.
    Begin(u16, u8),
    /// It goes on with one of those.
    GoOn(u16, Option<Misfortune>),
    /// A process that has lost the lease works on, too.
    StalePass(u16),
    /// Some events of a watch arrive.
    Watch(u8, u8),
    /// Time passes.
    Wait(u16),
    /// A driver call ends.
    Cloud(u16, Luck),
    /// Something happens to a Node.
    Node(u16, NodeEvent),
    /// A VM is gone, whoever has deleted it.
    VmVanishes(u16),
    /// From now on evictions are refused for so many minutes.
    Budget(u8),
    /// A user writes on a class or on a Secret that classes name.
    Classes(ClassEdit),
    /// The leader looks at a class or a Secret, if one is due.
    Finalizers(u16, Option<Misfortune>),
    /// A user changes the user data of all classes: it needs a token from now on, or none.
    UserData,
    /// From now on no volume is detached for so many minutes.
    Detaching(u8),
    /// The pods are replaced where they are, as a rollout of their owner does it.
    NewPods,
    /// The API server of the target cluster answers nothing for so many minutes.
    Silence(u8),
    /// A user does something.
    Edit(Edit),
    /// For so many hours something is refused.
    Refuse(Refused, u8),
    /// The leader dies and comes back.
    Crash(Unheard),
    /// Another process takes the lease; the leader goes on without it.
    Usurped(Unheard),
}

/// What happens, in rounds between which everything comes to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Seed of all that is drawn on the way.
    pub seed: u64,
    /// How it begins.
    pub setup: Setup,
    /// What makes the VMs.
    pub provider: Provider,
    /// Which machines rollouts count on.
    pub counts: AvailabilityRule,
    /// Pods that have a volume each.
    pub volumes: u8,
    /// What happens.
    pub rounds: Vec<Vec<Step>>,
    /// A guard that the controllers lack.
    pub without: Option<Guard>,
}

impl History {
    /// Whether users write on classes or Secrets.
    pub(crate) fn changes_classes(&self) -> bool {
        self.rounds.iter().flatten().any(|step| matches!(step, Step::Classes(_) | Step::Finalizers(..)))
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Whether nothing happens.
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
