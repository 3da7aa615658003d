//! Histories of single machines, with more events per machine than in other histories.

use super::{
    super::{
        calls::CallFault,
        history::{DroppedCalls, Edit, History, Keep, Luck, NodeEvent, Picks, Place, Provider, Setup, Step, Strategy},
    },
    Draw, Weather,
};
use machine_controllers::deployment::AvailabilityRule;

/// The stream of these draws.
const STREAM: u64 = 5;

impl History {
    /// A history of one or two machines: they are created, run and are deleted, with random faults.
    #[must_use]
    pub fn life_of_seed(seed: u64) -> Self {
        let mut draw = Draw::from_stream(seed, STREAM);
        let strategy = if draw.chance(40) {
            Strategy::InPlace { surge: 0.into(), unavailable: 1.into(), picks: Picks::Controller }
        } else {
            Strategy::Rolling { surge: 1.into(), unavailable: draw.small(2).into() }
        };
        let provider = if draw.chance(50) { Provider::MakesAnother } else { Provider::AnswersTheSame };
        let faults = draw.below(30);
        let mut first = vec![Step::Edit(Edit::Scale(1 + draw.small(2))), Step::Watch(2, 9)];
        for _ in 0..10 + draw.below(80) {
            let step = draw.moment(faults);
            first.push(step);
        }
        let rounds = vec![first, vec![Step::Edit(Edit::Scale(0))]];
        let setup = Setup { replicas: draw.small(2), strategy };
        Self { seed, setup, provider, counts: AvailabilityRule::default(), volumes: 0, rounds, without: None }
    }
}

impl Draw {
    fn moment(&mut self, faults: u32) -> Step {
        match self.below(200) {
            0..=79 => Step::Pass(self.pick(), self.fault(faults)),
            80..=99 => Step::Watch(self.small(4), 9),
            100..=115 => Step::Wait([1, 6, 61, 190, 650, 1300][usize::from(self.small(6))]),
            116..=147 => Step::Cloud(self.pick(), self.outcome(faults)),
            148..=151 => Step::Begin(self.pick(), self.small(4)),
            152..=157 => Step::GoOn(self.pick(), self.fault(faults)),
            158..=173 => Step::Node(self.pick(), self.event()),
            174..=178 => Step::Crash(self.end()),
            179 => Step::Usurped(self.end()),
            180 => Step::StalePass(self.pick()),
            181 => Step::VmVanishes(self.pick()),
            182 | 183 => Step::Silence(1 + self.small(40)),
            184 => Step::Budget(self.small(60)),
            185 => Step::UserData,
            _ => Step::Edit(self.wish()),
        }
    }

    fn fault(&mut self, percent: u32) -> Option<CallFault> {
        if self.chance(percent) {
            std::iter::repeat_with(|| self.call_fault(Weather::Foul)).flatten().next()
        } else {
            None
        }
    }

    fn outcome(&mut self, percent: u32) -> Luck {
        if !self.chance(percent) {
            return Luck::Good;
        }
        [Luck::Busy, Luck::Busy, Luck::Full, Luck::Lost, Luck::Lost, Luck::ShownLate, Luck::Stillborn]
            [usize::from(self.small(7))]
    }

    fn event(&mut self) -> NodeEvent {
        match self.below(16) {
            0..=4 => NodeEvent::Joins,
            5 | 6 => NodeEvent::JoinsNamed,
            7 | 8 => NodeEvent::Updated,
            9 => NodeEvent::UpdateFailed,
            10 | 11 => NodeEvent::Sickens,
            12 | 13 => NodeEvent::Recovers,
            14 => NodeEvent::Deleted,
            _ => NodeEvent::Supplanted,
        }
    }

    fn end(&mut self) -> DroppedCalls {
        [DroppedCalls::Never, DroppedCalls::AtOnce, DroppedCalls::Later][usize::from(self.small(3))]
    }

    fn wish(&mut self) -> Edit {
        match self.below(13) {
            0..=4 => Edit::DeleteMachine(self.pick()),
            5 => Edit::Force(self.pick()),
            6 | 7 => Edit::Class(self.small(3)),
            8 => Edit::Hot(self.small(3)),
            9 => Edit::Orphan(self.pick()),
            10 => Edit::KeepFailed(self.small(2)),
            _ => Edit::Keep(
                self.pick(),
                if self.chance(60) { Place::Machine } else { Place::Node },
                [Keep::Now, Keep::WhenFailed, Keep::No][usize::from(self.small(3))],
            ),
        }
    }
}
