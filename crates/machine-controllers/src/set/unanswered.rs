//! What a set remembers of its calls about machines that got no answer. Shared with the simulation. Pure.
//!
//! Each such machine is read before anything else is decided, since the set may be deleted or want fewer machines by then. A
//! creation is remembered beyond that: a request that the API server has not seen yet may still arrive, so that the next machine
//! is made under its name.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Effect, Step};

/// The calls about machines that got no answer, by the machine's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unanswered(BTreeMap<String, Doubt>);

/// What is not known of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Whether it was made, and the API server has not been asked.
    Creation,
    /// Whether a creation of which the API server knew nothing may still arrive.
    LateCreation,
    /// Whether it is being deleted, and the API server has not been asked.
    Deletion,
}

impl Unanswered {
    /// A call got no answer.
    pub fn doubt(&mut self, machine: String, doubt: Doubt) {
        self.0.insert(machine, doubt);
    }

    /// Takes over what others were in doubt about.
    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Machines to be read before anything is decided.
    pub fn to_read(&self) -> Vec<String> {
        let unread = self.0.iter().filter(|(_, doubt)| matches!(doubt, Doubt::Creation | Doubt::Deletion));
        unread.map(|(machine, _)| machine.clone()).collect()
    }

    /// The API server has told of this machine, and the views show what it said.
    pub fn was_read(&mut self, machine: &str) {
        match self.0.get_mut(machine) {
            Some(doubt @ Doubt::Creation) => *doubt = Doubt::LateCreation,
            Some(Doubt::Deletion) => drop(self.0.remove(machine)),
            Some(Doubt::LateCreation) | None => {}
        }
    }

    /// The views show this machine: no creation of it is in doubt any more.
    pub fn is_shown(&mut self, machine: &str) {
        if matches!(self.0.get(machine), Some(Doubt::Creation | Doubt::LateCreation)) {
            self.0.remove(machine);
        }
    }

    /// These steps were carried out: what they made is there.
    pub fn carried_out(&mut self, steps: &[Step]) {
        for step in steps {
            if let Effect::CreateUnlessThere(machine) = &step.effect {
                self.is_shown(machine.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// Names under which a machine may still come to be.
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
