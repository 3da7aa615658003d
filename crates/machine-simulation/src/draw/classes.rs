//! Steps about classes and their Secrets, in some of the histories.

use super::{
    super::history::{ClassEdit, Edit, History, Step},
    Draw, Weather,
};

/// The stream of these draws.
const STREAM: u64 = 6;

impl History {
    /// The same history with users who edit classes and Secrets. These draws have a stream of their own.
    #[must_use]
    pub(crate) fn with_classes(mut self) -> Self {
        let mut draw = Draw::from_stream(self.seed, STREAM);
        if draw.chance(12) {
            for steps in &mut self.rounds {
                draw.scatter(steps, 6, |draw| Step::Classes(draw.class_edit()));
                draw.scatter(steps, 12, |draw| Step::Finalizers(draw.pick(), draw.call_fault(Weather::Foul)));
                draw.scatter(steps, 2, |draw| Step::Edit(Edit::DeleteMachine(draw.pick())));
            }
        }
        self
    }
}

impl Draw {
    fn class_edit(&mut self) -> ClassEdit {
        let number = self.small(3);
        match self.below(12) {
            0 | 1 => ClassEdit::Spec(number),
            2 => ClassEdit::Secret(number),
            3 => ClassEdit::Credentials(number),
            4 | 5 => ClassEdit::Delete(number),
            6 | 7 => ClassEdit::Remove(number),
            8 => ClassEdit::DeleteSecret(number),
            9 => ClassEdit::RemoveSecret(number),
            _ => ClassEdit::Make,
        }
    }
}
