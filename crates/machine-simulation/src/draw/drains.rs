//! Steps about drains, in some of the histories: pods with volumes; abandoned drains followed by a deletion.

use super::{
    super::history::{Edit, History, Keep, NodeEvent, Place, Step},
    Draw,
};

/// The stream of these draws.
const STREAM: u64 = 5;

impl History {
    /// The same history with steps about drains. These draws have a stream of their own.
    #[must_use]
    pub(crate) fn with_drains(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, STREAM);
        if draw.chance(12) {
            self.volumes = 1 + draw.small(2);
            draw.move_volumes(&mut self);
        }
        if draw.chance(3) {
            draw.abandon_a_drain(&mut self);
        }
        self
    }
}

impl Draw {
    /// Volumes stay attached for a while, and machines are deleted.
    fn move_volumes(&mut self, history: &mut History) {
        for steps in &mut history.rounds {
            self.scatter(steps, 5, |draw| match draw.below(10) {
                0..=3 => Step::Detaching(draw.small(30)),
                4..=6 => Step::Edit(Edit::DeleteMachine(draw.pick())),
                7 => Step::Edit(Edit::Force(draw.pick())),
                8 => Step::Budget(draw.small(180)),
                _ => Step::NewPods,
            });
        }
    }

    /// A machine is preserved, its drain fails, it recovers, gets other pods and is deleted.
    fn abandon_a_drain(&mut self, history: &mut History) {
        const MACHINES: u8 = 0;
        const NODES: u8 = 3;
        let of = self.pick();
        let mut steps = vec![
            Step::Edit(Edit::Keep(of, Place::Machine, Keep::WhenFailed)),
            Step::Watch(MACHINES, 9),
            Step::Budget(60),
            Step::Node(of, NodeEvent::FillsUp),
            Step::Watch(NODES, 9),
        ];
        self.work(&mut steps);
        steps.push(Step::Wait(700));
        self.work(&mut steps);
        steps.extend([Step::Node(of, NodeEvent::Recovers), Step::Watch(NODES, 9)]);
        self.work(&mut steps);
        steps.extend([Step::NewPods, Step::Wait(1), Step::Edit(Edit::DeleteMachine(of)), Step::Watch(MACHINES, 9)]);
        if let Some(round) = history.rounds.last_mut() {
            round.splice(0..0, steps);
        }
    }

    /// Runs passes over due jobs.
    fn work(&mut self, steps: &mut Vec<Step>) {
        for _ in 0..10 {
            steps.push(Step::Pass(self.pick(), None));
        }
    }
}
