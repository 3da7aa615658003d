//! The standing of a machine: whether it makes progress, what it waits for, since when, what ends the wait, and the latest
//! end of the wait.
//!
//! One condition `Progressing` in `status.machineConditions` shows it (decisions.md 30). All parts of the controller
//! describe it with one type, [`Standing`]. Texts are only made from this type and never read back: this process keeps a
//! wait as a value; of a wait that another process wrote, it knows only the sentence. [`super::plan::reporting`] decides
//! whether a standing is worth a write. Pure.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use crate::times::rfc3339;
use kube_values::duration::GoDuration;

/// The standing of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Standing {
    /// It makes progress, and waits.
    Waits(Waiting),
    /// It stays in its state until something is corrected.
    Rests(Waiting),
    /// It is in its intended state, and waits for nothing.
    Settled {
        /// Reason in CamelCase.
        reason: &'static str,
        /// A description of the state.
        text: Cow<'static, str>,
    },
}

impl Standing {
    /// The status of the condition: whether the machine makes progress.
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Waits(_) => "True",
            Self::Rests(_) | Self::Settled { .. } => "False",
        }
    }

    /// The reason of the condition.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Waits(wait) | Self::Rests(wait) => wait.reason,
            Self::Settled { reason, .. } => reason,
        }
    }

    /// The condition's message.
    pub fn message(&self) -> String {
        match self {
            Self::Waits(wait) | Self::Rests(wait) => wait.message(),
            Self::Settled { text, .. } => text.clone().into_owned(),
        }
    }

    /// The wait, if the machine waits.
    pub const fn wait(&self) -> Option<&Waiting> {
        match self {
            Self::Waits(wait) | Self::Rests(wait) => Some(wait),
            Self::Settled { .. } => None,
        }
    }

    /// Whether both are the same wait, with any text: they have the same reason and the same object, and both or none of
    /// them has a cause.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let on = |standing: &Self| standing.wait().map(|wait| (wait.on.clone(), wait.seen.is_empty()));
        (self.status(), self.reason(), on(self)) == (other.status(), other.reason(), on(other))
    }
}

/// The standing that this process has written last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stated {
    /// The standing.
    pub standing: Standing,
    /// When it was written, in steady time.
    pub at: Timestamp,
}

/// A wait, as it is shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    reason: &'static str,
    course: Course,
    on: String,
    since: Option<Timestamp>,
    seen: String,
    ended_by: String,
    limit: Option<(Timestamp, String)>,
}

/// Another process that the machine is in while it waits: its deletion or its preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Course {
    /// Nothing else.
    Plain,
    /// It is being deleted, since then.
    Deletion(Option<Timestamp>),
    /// It is preserved.
    Preservation {
        /// Until when; absent when the time has not begun.
        until: Option<Timestamp>,
        /// Since when.
        since: Timestamp,
    },
}

impl Course {
    /// The words before the wait.
    fn words(self) -> String {
        let until = |end: Option<Timestamp>| end.map(|end| format!(" until {}", rfc3339(end))).unwrap_or_default();
        match self {
            Self::Plain => String::new(),
            Self::Deletion(None) => "being deleted; ".to_owned(),
            Self::Deletion(Some(began)) => format!("being deleted since {}; ", rfc3339(began)),
            Self::Preservation { until: end, since } => {
                format!("preserved{}, since {}; ", until(end), rfc3339(since))
            }
        }
    }

    /// When it began.
    const fn since(self) -> Option<Timestamp> {
        match self {
            Self::Plain => None,
            Self::Deletion(began) => began,
            Self::Preservation { since, .. } => Some(since),
        }
    }
}

impl Waiting {
    /// A wait with this reason in CamelCase; `on` completes the sentence "waiting for …".
    pub fn on(reason: &'static str, on: impl Into<String>) -> Self {
        Self {
            reason,
            course: Course::Plain,
            on: on.into(),
            since: None,
            seen: String::new(),
            ended_by: String::new(),
            limit: None,
        }
    }

    /// Sets what else happens to the machine.
    #[must_use]
    pub fn in_course_of(mut self, course: Course) -> Self {
        self.course = course;
        self
    }

    /// The object that the machine waits for.
    pub fn object(&self) -> &str {
        &self.on
    }

    /// The same wait for something else.
    #[must_use]
    pub fn for_object(mut self, on: impl Into<String>) -> Self {
        self.on = on.into();
        self
    }

    /// Sets when the wait began.
    #[must_use]
    pub fn since(mut self, began: Timestamp) -> Self {
        self.since = Some(began);
        self
    }

    /// Sets what is seen of the wait at the moment, such as the text of a provider. A full stop at the end is removed, since
    /// the sentence goes on.
    #[must_use]
    pub fn seen(mut self, what: impl AsRef<str>) -> Self {
        what.as_ref().trim_end_matches(['.', ' ']).clone_into(&mut self.seen);
        self
    }

    /// Sets what ends the wait; completes the sentence "ends when …".
    #[must_use]
    pub fn ended_by(mut self, what: impl Into<String>) -> Self {
        self.ended_by = what.into();
        self
    }

    /// Sets the latest end of the wait, and what follows then; completes the sentence "at …, …".
    #[must_use]
    pub fn at_most_until(mut self, limit: Timestamp, then: impl Into<String>) -> Self {
        self.limit = Some((limit, then.into()));
        self
    }

    /// The reason.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// When the wait began; if that is unknown, when the deletion or the preservation of the machine began.
    pub fn began(&self) -> Option<Timestamp> {
        self.since.or(self.course.since())
    }

    /// The event that ends the wait. If it is not set, the object that the machine waits for.
    pub fn resolved_by(&self) -> &str {
        if self.ended_by.is_empty() { &self.on } else { &self.ended_by }
    }

    /// The whole sentence.
    pub fn message(&self) -> String {
        let since = self.since.map(|began| format!(" since {}", rfc3339(began))).unwrap_or_default();
        let after = |lead: &str, said: &str| if said.is_empty() { String::new() } else { format!("{lead}{said}") };
        let (seen, end) = (after(": ", &self.seen), after("; ends when ", &self.ended_by));
        let limit =
            self.limit.as_ref().map(|(limit, then)| format!("; at {} {then}", rfc3339(*limit))).unwrap_or_default();
        format!("{}waiting for {}{since}{seen}{end}{limit}", self.course.words(), self.on)
    }
}

/// The times of repeated attempts: the next one, and the period after it. The text stays true for as long as the failure
/// stays the same and is not written again.
pub fn attempts(next: Timestamp, every: Duration) -> String {
    format!("next attempt at {}, then every {}", rfc3339(next), GoDuration::from(every))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{super::testing::*, *};

    fn wait() -> Waiting {
        Waiting::on("WaitingForNode", "Node n to register")
            .since(at(0))
            .seen("the VM runs.")
            .ended_by("the kubelet joins")
            .at_most_until(at(1200), "the machine is declared Failed")
    }

    #[rstest]
    #[case::alone(
        wait(),
        "waiting for Node n to register since 2027-01-15T08:00:00Z: the VM runs; ends when the kubelet joins; at \
         2027-01-15T08:20:00Z the machine is declared Failed"
    )]
    #[case::in_few_words(Waiting::on("X", "help"), "waiting for help")]
    #[case::in_a_deletion(
        Waiting::on("X", "help").in_course_of(Course::Deletion(Some(at(0)))),
        "being deleted since 2027-01-15T08:00:00Z; waiting for help"
    )]
    #[case::in_a_deletion_of_which_nobody_knows_when_it_began(
        Waiting::on("X", "help").in_course_of(Course::Deletion(None)),
        "being deleted; waiting for help"
    )]
    #[case::while_preserved(
        Waiting::on("X", "help").in_course_of(Course::Preservation { until: Some(at(60)), since: at(0) }),
        "preserved until 2027-01-15T08:01:00Z, since 2027-01-15T08:00:00Z; waiting for help"
    )]
    #[case::before_the_time_begins(
        Waiting::on("X", "help").in_course_of(Course::Preservation { until: None, since: at(0) }),
        "preserved, since 2027-01-15T08:00:00Z; waiting for help"
    )]
    fn a_wait_reports_object_start_limit_and_end(#[case] wait: Waiting, #[case] message: &str) {
        assert_eq!(wait.message(), message);
    }

    #[test]
    fn a_wait_contains_its_start_and_its_end() {
        assert_eq!((wait().began(), wait().resolved_by()), (Some(at(0)), "the kubelet joins"));
        let deletion = Waiting::on("X", "help").in_course_of(Course::Deletion(Some(at(5))));
        assert_eq!((deletion.began(), deletion.resolved_by()), (Some(at(5)), "help"));
    }

    #[rstest]
    #[case::only_its_words_differ(wait().seen("the VM is up").since(at(5)), true)]
    #[case::another_object(Waiting { on: "Node m to register".to_owned(), ..wait() }, false)]
    #[case::another_reason(Waiting { reason: "WaitingForVM", ..wait() }, false)]
    #[case::it_is_not_known_why_any_longer(wait().seen(""), false)]
    fn waits_are_the_same(#[case] other: Waiting, #[case] expected: bool) {
        assert_eq!(Standing::Waits(wait()).is_same_as(&Standing::Waits(other.clone())), expected);
        assert!(!Standing::Waits(wait()).is_same_as(&Standing::Rests(other)), "one moves, the other does not");
    }

    #[test]
    fn attempts_say_when_they_are_made() {
        assert_eq!(attempts(at(180), 3 * MINUTE), "next attempt at 2027-01-15T08:03:00Z, then every 3m0s");
    }
}
