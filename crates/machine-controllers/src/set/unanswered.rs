//! The memory of a set about its calls for machines that got no answer. Shared with the simulation. Pure.
//!
//! Each such machine is read before the next decision: the set may have been deleted or shrunk by then. A creation is
//! remembered longer, because the request may still arrive at the API server; the next machine is created under the
//! same name.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Effect, Step};

/// The calls about machines that got no answer, by the machine's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unanswered(BTreeMap<String, Doubt>);

/// The unknown fact about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Whether it was created; the API server has not been asked yet.
    Creation,
    /// Whether the creation will still arrive; the API server did not have the machine when asked.
    LateCreation,
    /// Whether it is being deleted; the API server has not been asked yet.
    Deletion,
}

impl Unanswered {
    /// Records a call that got no answer.
    pub fn doubt(&mut self, machine: String, doubt: Doubt) {
        self.0.insert(machine, doubt);
    }

    /// Adds the calls of another record.
    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Machines to read before the next decision.
    pub fn to_read(&self) -> Vec<String> {
        let unread = self.0.iter().filter(|(_, doubt)| matches!(doubt, Doubt::Creation | Doubt::Deletion));
        unread.map(|(machine, _)| machine.clone()).collect()
    }

    /// Records that the API server has answered about this machine and the store shows the answer.
    pub fn was_read(&mut self, machine: &str) {
        match self.0.get_mut(machine) {
            Some(doubt @ Doubt::Creation) => *doubt = Doubt::LateCreation,
            Some(Doubt::Deletion) => drop(self.0.remove(machine)),
            Some(Doubt::LateCreation) | None => {}
        }
    }

    /// Records that the store shows this machine, so its creation is certain.
    pub fn is_shown(&mut self, machine: &str) {
        if matches!(self.0.get(machine), Some(Doubt::Creation | Doubt::LateCreation)) {
            self.0.remove(machine);
        }
    }

    /// Records that these steps were carried out, so what they created exists.
    pub fn carried_out(&mut self, steps: &[Step]) {
        for step in steps {
            if let Effect::CreateUnlessThere(machine) = &step.effect {
                self.is_shown(machine.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// Names under which a machine may still be created.
    pub fn names(&self) -> BTreeSet<String> {
        let creations = self.0.iter().filter(|(_, doubt)| matches!(doubt, Doubt::Creation | Doubt::LateCreation));
        creations.map(|(machine, _)| machine.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{super::testing::machine, *};

    fn in_doubt(doubt: Doubt) -> Unanswered {
        let mut memory = Unanswered::default();
        memory.doubt("m".to_owned(), doubt);
        memory
    }

    #[rstest]
    #[case::a_creation_is_read_and_its_name_kept(Doubt::Creation, true, true, true)]
    #[case::one_that_may_be_late_keeps_its_name(Doubt::LateCreation, false, true, true)]
    #[case::a_deletion_is_read_and_over(Doubt::Deletion, true, false, false)]
    fn a_machine_is_read_before_anything_is_decided(
        #[case] doubt: Doubt,
        #[case] to_read: bool,
        #[case] named: bool,
        #[case] named_after: bool,
    ) {
        let mut memory = in_doubt(doubt);
        assert_eq!((memory.to_read().len(), memory.names().len()), (usize::from(to_read), usize::from(named)));
        memory.was_read("m");
        assert_eq!((memory.to_read().len(), memory.names().len()), (0, usize::from(named_after)));
    }

    #[rstest]
    #[case::a_creation(Doubt::Creation, true)]
    #[case::a_late_one(Doubt::LateCreation, true)]
    #[case::a_deletion_is_what_is_in_doubt_of_it(Doubt::Deletion, false)]
    fn a_machine_that_the_views_show_has_been_made(#[case] doubt: Doubt, #[case] over: bool) {
        let mut shown = in_doubt(doubt);
        shown.is_shown("other");
        assert_eq!(shown, in_doubt(doubt));
        shown.is_shown("m");
        assert_eq!(shown == Unanswered::default(), over);
        let made = Box::new(machine("m").build());
        let mut done = in_doubt(doubt);
        done.carried_out(&[Step { rule: "test", effect: Effect::CreateUnlessThere(made) }]);
        assert_eq!(done, shown);
    }
}
