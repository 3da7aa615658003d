//! Generates a history from its seed. Later additions are in [`more`], [`nodes`], [`drains`] and [`classes`], so that
//! older seeds still give the same histories. Histories of single machines are in [`lives`].

mod classes;
mod drains;
mod lives;
mod more;
mod nodes;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{
    calls::{CallFault, Fault},
    history::{DroppedCalls, Edit, History, Keep, Luck, NodeEvent, Picks, Place, Provider, Setup, Step, Strategy},
};

use machine_controllers::deployment::AvailabilityRule;

struct Draw(ChaCha8Rng);

impl Draw {
    /// A generator for one subject. Each subject has its own stream, so that new draws do not change the others.
    fn from_stream(seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Self(generator)
    }

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
        match self.below(100) {
            0..=12 => Strategy::Recreate,
            13..=36 => Strategy::InPlace {
                surge: self.small(3).into(),
                unavailable: self.small(3).into(),
                picks: if self.chance(70) { Picks::Controller } else { Picks::User },
            },
            _ => Strategy::Rolling { surge: self.small(4).into(), unavailable: self.small(3).into() },
        }
    }

    fn call_fault(&mut self, weather: Weather) -> Option<CallFault> {
        if weather == Weather::Fair || !self.chance(12) {
            return None;
        }
        let fault = match self.below(18) {
            0..=3 => Fault::LoseRequest,
            4..=9 => Fault::LoseAnswer,
            10..=12 => Fault::Conflict,
            13 | 14 => Fault::DieBefore,
            15 | 16 => Fault::DieAfter,
            _ => Fault::LoseLease,
        };
        Some(CallFault { call: self.small(6), fault })
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

    fn dropped_calls(&mut self) -> DroppedCalls {
        if self.chance(50) { DroppedCalls::AtOnce } else { DroppedCalls::Never }
    }

    fn edit(&mut self) -> Edit {
        match self.below(60) {
            0..=11 => Edit::Class(self.small(3)),
            12..=20 => Edit::Scale(self.small(7)),
            21..=24 => Edit::Mark(self.pick()),
            25..=27 => Edit::ScaleIn,
            28 | 29 => Edit::Pause,
            30 | 31 => Edit::Resume,
            32 | 33 => Edit::Hot(self.small(3)),
            34..=36 => Edit::Strategy(self.strategy()),
            37..=39 => Edit::DeleteMachine(self.pick()),
            40..=42 => Edit::Rollback(self.small(4)),
            43 => Edit::RollbackTo(self.small(4)),
            44..=46 => Edit::Keep(
                self.pick(),
                if self.chance(60) { Place::Machine } else { Place::Node },
                [Keep::Now, Keep::WhenFailed, Keep::No][usize::from(self.small(3))],
            ),
            47 | 48 => Edit::KeepFailed(self.small(3)),
            49 | 50 => Edit::Orphan(self.pick()),
            51 => Edit::OrphanSet(self.pick()),
            52 | 53 => Edit::Relabel(self.pick()),
            54 | 55 => Edit::Strays(self.pick(), 1 + self.small(6)),
            56 | 57 => Edit::PickNode(self.pick()),
            58 => Edit::Thaw,
            _ => Edit::DeleteDeployment,
        }
    }

    fn step(&mut self, weather: Weather) -> Step {
        match self.below(200) {
            0..=99 => Step::Pass(self.pick(), self.call_fault(weather)),
            100..=139 => Step::Watch(self.small(4), 1 + self.small(6)),
            140..=167 => Step::Cloud(self.pick(), self.luck(weather)),
            168..=181 => Step::Node(self.pick(), NodeEvent::Joins),
            // Agents of Nodes work without faults too; without an update in place they have nothing to do.
            182..=184 | 198 => Step::Node(self.pick(), NodeEvent::Updated),
            185..=187 => Step::Wait([1, 5, 30, 700][usize::from(self.small(4))]),
            199 if weather == Weather::Foul => match self.small(2) {
                0 => Step::Node(self.pick(), NodeEvent::UpdateFailed),
                _ => match self.small(180) {
                    minutes if minutes % 3 == 0 => Step::Silence(minutes),
                    minutes if minutes % 3 == 1 => Step::UserData,
                    minutes => Step::Budget(minutes),
                },
            },
            188..=191 if weather == Weather::Foul => {
                let event = [NodeEvent::Sickens, NodeEvent::Sickens, NodeEvent::Recovers, NodeEvent::Deleted];
                Step::Node(self.pick(), event[usize::from(self.small(4))])
            }
            192 if weather == Weather::Foul => Step::Crash(self.dropped_calls()),
            193 if weather == Weather::Foul => Step::Usurped(self.dropped_calls()),
            194..=196 if weather == Weather::Foul => Step::StalePass(self.pick()),
            _ => Step::Wait(1),
        }
    }
}

impl Draw {
    /// Inserts steps at random positions.
    fn scatter(&mut self, steps: &mut Vec<Step>, most: u32, step: impl Fn(&mut Self) -> Step) {
        for _ in 0..=self.below(most) {
            let place = self.below(u32::try_from(steps.len()).unwrap_or(0)) as usize;
            let step = step(self);
            steps.insert(place, step);
        }
    }

    /// The steps with some passes split into start and end.
    fn delayed(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut torn = Vec::with_capacity(steps.len() + steps.len() / 8);
        let mut open: Vec<(usize, Step)> = Vec::new();
        for step in steps {
            match step {
                Step::Pass(pick, call_fault) if self.chance(12) => {
                    torn.push(Step::Begin(pick, 0));
                    let after = usize::from(self.small(16));
                    open.push((torn.len() + after, Step::GoOn(self.pick(), call_fault)));
                }
                other => torn.push(other),
            }
            let due = |(at, _): &mut (usize, Step)| *at <= torn.len();
            let due: Vec<Step> = open.extract_if(.., due).map(|(_, step)| step).collect();
            torn.extend(due);
        }
        torn
    }
}

/// The faults that can happen in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Only watches are late.
    Fair,
    /// Everything.
    Foul,
}

impl History {
    /// The history of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self::prompt(seed).with_delays().with_more().with_nodes().with_calls_apart().with_drains().with_classes()
    }

    /// The same history; in every second one, some passes are split, so that other steps happen between decision and
    /// effects. These draws have a stream of their own, so that the rest of a history does not change.
    pub(super) fn with_delays(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, 1);
        if draw.chance(50) {
            self.rounds = self.rounds.into_iter().map(|steps| draw.delayed(steps)).collect();
        }
        self
    }

    /// The same history; half of the split passes are split between any two of their calls. These draws have a stream
    /// of their own too.
    pub(super) fn with_calls_apart(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, 4);
        for step in self.rounds.iter_mut().flatten() {
            if let Step::Begin(_, calls) = step
                && draw.chance(50)
            {
                *calls = draw.small(4);
            }
        }
        self
    }

    /// The history of a seed in which every pass runs without interruption, without the later additions.
    pub fn prompt(seed: u64) -> Self {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        let setup = Setup { replicas: draw.small(6), strategy: draw.strategy() };
        let rounds = (0..2).map(|_| {
            let weather = if draw.chance(40) { Weather::Fair } else { Weather::Foul };
            // Most rollouts get no further edits, so that the strict bounds apply to them.
            let mut steps =
                vec![Step::Edit(if draw.chance(60) { Edit::Class(1 + draw.small(2)) } else { draw.edit() })];
            let is_busy = draw.chance(50);
            for _ in 0..20 + draw.below(100) {
                let step = if is_busy && draw.chance(2) { Step::Edit(draw.edit()) } else { draw.step(weather) };
                steps.push(step);
            }
            steps
        });
        let rounds = rounds.collect();
        Self {
            seed,
            setup,
            provider: Provider::default(),
            counts: AvailabilityRule::default(),
            volumes: 0,
            rounds,
            without: None,
        }
    }
}
