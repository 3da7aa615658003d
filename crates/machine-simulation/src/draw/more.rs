//! Later additions, each in some of the histories: margins in percent, priorities, edits of sets, refusals, providers
//! that make another VM when a creation is repeated, and VMs that are listed late.

use super::{
    super::{
        calls::{CallFault, Fault},
        history::{DroppedCalls, Edit, History, Luck, Margin, Priority, Provider, Step, Strategy},
        refusals::Refused,
    },
    Draw,
};

/// The stream of these draws.
const STREAM: u64 = 2;

impl History {
    /// The same history with these additions. These draws have a stream of their own.
    #[must_use]
    pub(crate) fn with_more(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, STREAM);
        if draw.chance(25) {
            draw.percentages(&mut self);
        }
        if draw.chance(25) {
            self.provider = Provider::MakesAnother;
        }
        let hides = draw.chance(30);
        let refuses = draw.chance(25);
        for step in self.rounds.iter_mut().flatten() {
            draw.change(step, hides, refuses);
        }
        if draw.chance(30) {
            draw.meddle(&mut self);
        }
        if draw.chance(4) {
            draw.refuse_for_hours(&mut self);
        }
        self
    }
}

impl Draw {
    fn percent(&mut self) -> Margin {
        Margin::Percent([0, 1, 25, 34, 50, 100][usize::from(self.small(6))])
    }

    /// Turns all margins, or one of two, into percentages.
    fn percentages(&mut self, history: &mut History) {
        self.in_percent(&mut history.setup.strategy);
        for step in history.rounds.iter_mut().flatten() {
            if let Step::Edit(Edit::Strategy(strategy)) = step {
                self.in_percent(strategy);
            }
        }
    }

    fn in_percent(&mut self, strategy: &mut Strategy) {
        if let Strategy::Rolling { surge, unavailable } | Strategy::InPlace { surge, unavailable, .. } = strategy {
            for margin in [surge, unavailable] {
                if self.chance(75) {
                    *margin = self.percent();
                }
            }
        }
    }

    /// Replaces a fault by a worse one.
    fn change(&mut self, step: &mut Step, hides: bool, refuses: bool) {
        match step {
            Step::Cloud(_, luck @ Luck::Lost) if hides => {
                *luck = if self.chance(80) { Luck::ShownLate } else { Luck::ShownTooLate };
            }
            Step::Crash(dropped @ DroppedCalls::AtOnce) | Step::Usurped(dropped @ DroppedCalls::AtOnce) if hides => {
                *dropped = DroppedCalls::Later;
            }
            Step::Pass(_, Some(CallFault { fault, .. })) | Step::GoOn(_, Some(CallFault { fault, .. })) if refuses => {
                if matches!(fault, Fault::LoseRequest | Fault::Conflict) {
                    *fault = Fault::Refused;
                }
            }
            _ => {}
        }
    }

    /// Inserts some edits of machines and sets.
    fn meddle(&mut self, history: &mut History) {
        for steps in &mut history.rounds {
            for _ in 0..self.below(5) {
                let place = self.below(u32::try_from(steps.len()).unwrap_or(0)) as usize;
                steps.insert(place, Step::Edit(self.edit_elsewhere()));
            }
        }
    }

    fn edit_elsewhere(&mut self) -> Edit {
        match self.below(16) {
            0..=6 => Edit::Prioritise(
                self.pick(),
                match self.below(6) {
                    0 => Priority::Number(-1),
                    1 => Priority::Number(0),
                    2 => Priority::Number(1),
                    3 => Priority::Number(2),
                    4 => Priority::Number(7),
                    _ => Priority::Word,
                },
            ),
            7..=9 => Edit::ScaleSet(self.pick(), self.small(7)),
            10 | 11 => Edit::ClassOfSet(self.pick(), self.small(3)),
            12 | 13 => Edit::RelabelSet(self.pick()),
            14 => Edit::DeleteSet(self.pick()),
            _ => Edit::Pause,
        }
    }

    /// Inserts a refusal that lasts for hours, most often at the start of a rollout or of growth.
    fn refuse_for_hours(&mut self, history: &mut History) {
        let refused = match self.below(8) {
            0..=3 => Refused::Machines,
            4 => Refused::Sets,
            5 => Refused::NodePatches,
            _ => Refused::MachinePatches,
        };
        let hours = 1 + self.small(3);
        if let Some(steps) = history.rounds.first_mut() {
            let place = self.below(u32::try_from(steps.len()).unwrap_or(0)) as usize;
            let begin = if self.chance(50) { Edit::Scale(6) } else { Edit::Class(1 + self.small(2)) };
            steps.splice(place..place, [Step::Edit(begin), Step::Refuse(refused, hours)]);
        }
    }
}
