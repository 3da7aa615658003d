//! What happens in a history, drawn from its seed, and in words.

use std::fmt;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::calls::{Fault, Misfortune};

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
        surge: u8,
        /// `maxUnavailable`.
        unavailable: u8,
    },
    /// Old ones first.
    Recreate,
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
}

/// What happens to a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It joins, if it has not yet.
    Joins,
    /// It is not ready any more.
    Sickens,
    /// It is ready again.
    Recovers,
    /// Somebody deletes it.
    Deleted,
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
    /// Deletes the deployment.
    DeleteDeployment,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The leader works on one of the keys that are due.
    Pass(u16, Option<Misfortune>),
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
    /// A user does something.
    Edit(Edit),
    /// The leader dies and comes back. Whether its driver calls under way have happened.
    Crash(bool),
    /// Another process takes the lease; the leader goes on without it.
    Usurped(bool),
}

/// What happens, in rounds between which everything comes to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Seed of all that is drawn on the way.
    pub seed: u64,
    /// How it begins.
    pub setup: Setup,
    /// What happens.
    pub rounds: Vec<Vec<Step>>,
}

struct Draw(ChaCha8Rng);

impl Draw {
    fn below(&mut self, end: u32) -> u32 {
        self.0.next_u32() % end.max(1)
    }

    fn small(&mut self, end: u32) -> u8 {
        u8::try_from(self.below(end)).unwrap_or(0)
    }

    fn pick(&mut self) -> u16 {
        u16::try_from(self.below(1 << 16)).unwrap_or(0)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    fn strategy(&mut self) -> Strategy {
        if self.chance(15) {
            Strategy::Recreate
        } else {
            Strategy::Rolling { surge: self.small(4), unavailable: self.small(3) }
        }
    }

    fn misfortune(&mut self, weather: Weather) -> Option<Misfortune> {
        if weather == Weather::Fair || !self.chance(12) {
            return None;
        }
        let fault = match self.below(8) {
            0 | 1 => Fault::LoseRequest,
            2..=4 => Fault::LoseAnswer,
            5 => Fault::Conflict,
            6 => Fault::DieBefore,
            _ => Fault::DieAfter,
        };
        Some(Misfortune { call: self.small(6), fault })
    }

    fn luck(&mut self, weather: Weather) -> Luck {
        match (weather, self.below(20)) {
            (Weather::Fair, _) => Luck::Good,
            (_, 0) => Luck::Busy,
            (_, 1) => Luck::Full,
            (_, 2) => Luck::Lost,
            (_, 3) => Luck::Stillborn,
            _ => Luck::Good,
        }
    }

    fn edit(&mut self) -> Edit {
        match self.below(40) {
            0..=11 => Edit::Class(self.small(3)),
            12..=20 => Edit::Scale(self.small(7)),
            21..=24 => Edit::Mark(self.pick()),
            25..=27 => Edit::ScaleIn,
            28 | 29 => Edit::Pause,
            30 | 31 => Edit::Resume,
            32 | 33 => Edit::Hot(self.small(3)),
            34 | 35 => Edit::Strategy(self.strategy()),
            36..=38 => Edit::DeleteMachine(self.pick()),
            _ => Edit::DeleteDeployment,
        }
    }

    fn step(&mut self, weather: Weather) -> Step {
        match self.below(200) {
            0..=99 => Step::Pass(self.pick(), self.misfortune(weather)),
            100..=139 => Step::Watch(self.small(4), 1 + self.small(6)),
            140..=167 => Step::Cloud(self.pick(), self.luck(weather)),
            168..=184 => Step::Node(self.pick(), NodeEvent::Joins),
            185..=187 => Step::Wait([1, 5, 30, 700][usize::from(self.small(4))]),
            188..=191 if weather == Weather::Foul => {
                let event = [NodeEvent::Sickens, NodeEvent::Sickens, NodeEvent::Recovers, NodeEvent::Deleted];
                Step::Node(self.pick(), event[usize::from(self.small(4))])
            }
            192 if weather == Weather::Foul => Step::Crash(self.chance(50)),
            193 if weather == Weather::Foul => Step::Usurped(self.chance(50)),
            194..=196 if weather == Weather::Foul => Step::StalePass(self.pick()),
            197..=199 => Step::Edit(self.edit()),
            _ => Step::Wait(1),
        }
    }
}

/// What may go wrong in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Only views lag.
    Fair,
    /// Everything.
    Foul,
}

impl History {
    /// The history of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        let setup = Setup { replicas: draw.small(6), strategy: draw.strategy() };
        let rounds = (0..2).map(|_| {
            let weather = if draw.chance(40) { Weather::Fair } else { Weather::Foul };
            // Most rollouts are left alone, so that the strict bounds hold for them.
            let mut steps =
                vec![Step::Edit(if draw.chance(60) { Edit::Class(1 + draw.small(2)) } else { draw.edit() })];
            let is_busy = draw.chance(50);
            for _ in 0..20 + draw.below(100) {
                let step = draw.step(weather);
                if is_busy || !matches!(step, Step::Edit(_)) {
                    steps.push(step);
                }
            }
            steps
        });
        let rounds = rounds.collect();
        Self { seed, setup, rounds }
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
    pub fn without(&self, steps: std::ops::Range<usize>) -> Self {
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

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rolling { surge, unavailable } => {
                write!(f, "RollingUpdate with maxSurge {surge} and maxUnavailable {unavailable}")
            }
            Self::Recreate => f.write_str("Recreate"),
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
            Self::DeleteDeployment => f.write_str("a user deletes the deployment"),
        }
    }
}
