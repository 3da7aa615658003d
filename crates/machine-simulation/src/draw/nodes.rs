//! Steps about Nodes, each in some of the histories: machines that lose the label that names their Node; rollouts with
//! strict availability.

use super::{
    super::history::{Edit, History, Step},
    Draw,
};
use machine_controllers::deployment::AvailabilityRule;

/// The random stream of these draws.
const STREAM: u64 = 3;

impl History {
    /// The same history with steps about Nodes. These draws use their own random stream.
    #[must_use]
    pub(crate) fn with_nodes(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, STREAM);
        if draw.chance(15) {
            draw.unlink(&mut self);
        }
        if draw.chance(15) {
            self.counts = AvailabilityRule::NodeReady;
        }
        self
    }
}

impl Draw {
    /// Some machines lose the label that names their Node.
    fn unlink(&mut self, history: &mut History) {
        for steps in &mut history.rounds {
            for _ in 0..=self.below(3) {
                let place = self.below(u32::try_from(steps.len()).unwrap_or(0)) as usize;
                steps.insert(place, Step::Edit(Edit::Unlink(self.pick())));
            }
        }
    }
}
