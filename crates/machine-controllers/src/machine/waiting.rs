//! Why a machine is not where it should be: whom it waits for, since when, what ends the wait, and until when at the most.
//!
//! One condition `Progressing` in `status.machineConditions` says it (decisions.md 30), for every part of the controller in
//! the words of one type, [`Waiting`]. It is written inside status patches that happen anyway, or by
//! [`tell_when_new`] when its reason changed; a wait that only grows older costs no write. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    observation::{Observation, since},
    plan::Effect,
    status_change::{Moving, StatusChange, progressing, rfc3339},
};
use kube_values::duration::GoDuration;
use machine_api::{names::machine_condition, v1alpha1::Machine};

/// A wait, as it is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    reason: &'static str,
    on: String,
    since: Option<Timestamp>,
    seen: String,
    ended_by: String,
    limit: Option<(Timestamp, String)>,
}

impl Waiting {
    /// A wait with this reason in CamelCase; `on` completes the sentence "waiting for …".
    pub fn on(reason: &'static str, on: impl Into<String>) -> Self {
        Self { reason, on: on.into(), since: None, seen: String::new(), ended_by: String::new(), limit: None }
    }

    /// When it began.
    #[must_use]
    pub fn since(mut self, began: Timestamp) -> Self {
        self.since = Some(began);
        self
    }

    /// What is seen of it at the moment, such as the text of a provider.
    #[must_use]
    pub fn seen(mut self, what: impl Into<String>) -> Self {
        self.seen = what.into();
        self
    }

    /// What ends it; completes the sentence "ends when …".
    #[must_use]
    pub fn ended_by(mut self, what: impl Into<String>) -> Self {
        self.ended_by = what.into();
        self
    }

    /// Its last moment, and what follows then; completes the sentence "at …, …".
    #[must_use]
    pub fn at_most_until(mut self, limit: Timestamp, then: impl Into<String>) -> Self {
        self.limit = Some((limit, then.into()));
        self
    }

    /// The reason.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// The whole sentence.
    pub fn message(&self) -> String {
        let since = self.since.map(|began| format!(" since {}", rfc3339(began))).unwrap_or_default();
        let after = |lead: &str, said: &str| if said.is_empty() { String::new() } else { format!("{lead}{said}") };
        let (seen, end) = (after(": ", &self.seen), after("; ends when ", &self.ended_by));
        let limit =
            self.limit.as_ref().map(|(limit, then)| format!("; at {} {then}", rfc3339(*limit))).unwrap_or_default();
        format!("waiting for {}{since}{seen}{end}{limit}", self.on)
    }
}

/// What a sentence tells that was told by this controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told<'a> {
    /// When the wait began.
    pub since: Option<Timestamp>,
    /// Whom it is for, with what is seen of it.
    pub on: &'a str,
    /// What ends it.
    pub ended_by: Option<&'a str>,
}

impl<'a> Told<'a> {
    /// Reads a sentence of [`Waiting::message`], or one of a deletion.
    pub fn read(message: &'a str) -> Self {
        let (before, on) = message.split_once("waiting for ").unwrap_or(("", message));
        let (on, ended_by) = match on.rsplit_once("; ends when ") {
            Some((on, end)) => (on, Some(without_limit(end))),
            None => (on, None),
        };
        let since = [before, on].into_iter().find_map(|part| {
            let (_, time) = part.split_once(" since ")?;
            time.get(..RFC3339_LENGTH)?.parse().ok()
        });
        Self { since, on, ended_by }
    }

    /// What ends the wait: as the sentence says, or that of which it says first that it is waited for.
    pub fn resolved_by(&self) -> &'a str {
        self.ended_by.unwrap_or_else(|| {
            let ends = ["; ", ". ", ", which failed", ", since "].into_iter().filter_map(|end| self.on.find(end));
            ends.min().map_or(self.on, |end| &self.on[..end])
        })
    }
}

/// The text before "; at …" with a time.
fn without_limit(text: &str) -> &str {
    match text.rsplit_once("; at ") {
        Some((before, limit)) if limit.starts_with(|c: char| c.is_ascii_digit()) => before,
        _ => text,
    }
}

/// Length of a time as these sentences have it.
const RFC3339_LENGTH: usize = "2027-01-15T08:00:00Z".len();

/// The reason of the wait that the machine's status tells of, if it tells of any.
pub fn told_reason(machine: &Machine) -> Option<&str> {
    machine
        .status
        .machine_conditions
        .iter()
        .find(|condition| condition.type_ == machine_condition::PROGRESSING)
        .map(|condition| condition.reason.as_str())
}

/// Writes the wait, with an event, unless the status tells of one with this reason already.
pub fn tell_when_new(seen: &Observation, wait: &Waiting) -> Vec<Effect> {
    if told_reason(&seen.machine) == Some(wait.reason) { Vec::new() } else { tell(seen, wait) }
}

fn tell(seen: &Observation, wait: &Waiting) -> Vec<Effect> {
    vec![StatusChange::new().waits(wait).effect(seen), Effect::Warn { reason: wait.reason, message: wait.message() }]
}

/// After this long without a step forward a machine says what it waits for, even if that costs a write of its own. A
/// healthy cloud is faster, so that the plain path stays within its write budget.
pub const SAID_AFTER: Duration = Duration::from_secs(60);

/// Tells of a wait for something that usually takes no time, once it has lasted; `None` while it may still end by itself.
pub fn tell_when_lasting(seen: &Observation, began: Timestamp, wait: &Waiting) -> Result<Vec<Effect>, Duration> {
    let lasted = since(seen.now, began);
    if lasted < SAID_AFTER { Err(SAID_AFTER.saturating_sub(lasted)) } else { Ok(tell_when_new(seen, wait)) }
}

/// What a text says of lists that are refused, before the reasons.
const NO_LIST: &str = "can't be listed: ";
/// As much of the reason why a list fails is told.
const TOLD_OF_REASON: usize = 300;

/// The views of pods and attachments, which a drain or a detachment needs; they fill within moments, unless the API server
/// does not give the list. Told anew when other lists are missing than were told of, or when it becomes known why; `end`
/// tells what happens when that takes too long.
pub fn awaits_views(seen: &Observation, began: Timestamp, end: Option<(Timestamp, &str)>) -> Vec<Effect> {
    let missing = &seen.missing_views;
    let kinds: Vec<&str> = missing.iter().map(|view| view.kind).collect();
    let kinds = if kinds.is_empty() { "pods and volume attachments".to_owned() } else { kinds.join(", ") };
    let lists = format!("{kinds} of the target cluster to be listed");
    let whys: Vec<String> = missing
        .iter()
        .filter_map(|view| {
            let why: String = view.why.as_ref()?.chars().take(TOLD_OF_REASON).collect();
            Some(format!("{} {NO_LIST}{why}", view.kind))
        })
        .collect();
    let mut wait =
        Waiting::on(machine_condition::REASON_WAITING_FOR_POD_LIST, lists.clone()).since(began).seen(whys.join("; "));
    wait = wait.ended_by("the lists are complete");
    if let Some((limit, then)) = end {
        wait = wait.at_most_until(limit, then);
    }
    let is_told = progressing(&seen.machine).is_some_and(|told| {
        told.reason == wait.reason
            && told.message.contains(&format!("waiting for {lists}"))
            && (whys.is_empty() || told.message.contains(NO_LIST))
    });
    let is_lasting = since(seen.now, began) >= SAID_AFTER;
    if is_lasting && !is_told { tell(seen, &wait) } else { Vec::new() }
}

/// How soon lists are looked for again: in a moment, then more slowly.
pub fn views_wait(seen: &Observation, began: Timestamp) -> Duration {
    if since(seen.now, began) < SAID_AFTER { Duration::from_millis(500) } else { Duration::from_secs(5) }
}

/// `start` and `length` later.
pub fn after(start: Timestamp, length: Duration) -> Timestamp {
    SignedDuration::try_from(length).ok().and_then(|length| start.checked_add(length).ok()).unwrap_or(Timestamp::MAX)
}

/// When a flow of attempts goes on: the next one, and how they follow each other from there. True for as long as the
/// failure stays the same and is not written again.
pub fn attempts(next: Timestamp, every: Duration) -> String {
    format!("next attempt at {}, then every {}", rfc3339(next), GoDuration::from(every))
}

/// Whether the condition says that the machine is under way. A machine that waits for somebody is; one that stays as it is
/// until it is deleted or repaired is not.
impl StatusChange {
    /// Says whom the machine waits for.
    #[must_use]
    pub fn waits(self, wait: &Waiting) -> Self {
        self.progress(Moving::Yes, wait.reason, wait.message())
    }

    /// Says what the machine stays in, and what would end that.
    #[must_use]
    pub fn rests(self, wait: &Waiting) -> Self {
        self.progress(Moving::No, wait.reason, wait.message())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn wait() -> Waiting {
        Waiting::on("WaitingForNode", "Node n to register")
            .since(at(0))
            .seen("the VM runs")
            .ended_by("the kubelet joins")
            .at_most_until(at(1200), "the machine is declared Failed")
    }

    #[test]
    fn a_wait_tells_on_whom_since_when_until_when_and_what_ends_it() {
        assert_eq!(
            wait().message(),
            "waiting for Node n to register since 2027-01-15T08:00:00Z: the VM runs; ends when the kubelet joins; \
             at 2027-01-15T08:20:00Z the machine is declared Failed"
        );
        assert_eq!(Waiting::on("X", "help").message(), "waiting for help");
    }

    #[test]
    fn a_told_wait_can_be_read_again() {
        let message = wait().message();
        let told = Told::read(&message);
        assert_eq!((told.since, told.ended_by), (Some(at(0)), Some("the kubelet joins")));
        assert_eq!(Told::read("waiting for help"), Told { since: None, on: "help", ended_by: None });
        let deletion = Told::read("being deleted since 2027-01-15T08:00:00Z; waiting for its node to be drained");
        assert_eq!(deletion, Told { since: Some(at(0)), on: "its node to be drained", ended_by: None });
        assert_eq!(Told::read("waiting for x; ends when y; at once when z").ended_by, Some("y; at once when z"));
        assert_eq!(Told::read("waiting for x; ends when y; at once when z").resolved_by(), "y; at once when z");
        for (message, resolved_by) in [
            (
                "being deleted since 2027-01-15T08:00:00Z; waiting for its node to be drained. Drain failed due to - error \
                 while evicting pod \"ns/web.1\". Attempts go on every 5s; pods are deleted by force from \
                 2027-01-15T10:00:00Z on",
                "its node to be drained",
            ),
            ("waiting for its node to be drained, which failed: no. Attempts go on every 5s", "its node to be drained"),
            (
                "waiting for PodDisruptionBudget ns/web.v2 to allow the eviction of pod ns/web-1, since \
                 2027-01-15T08:00:10Z; asked again every 20s",
                "PodDisruptionBudget ns/web.v2 to allow the eviction of pod ns/web-1",
            ),
            ("waiting for help", "help"),
        ] {
            assert_eq!(Told::read(message).resolved_by(), resolved_by);
        }
        assert_eq!(Told::read("gone fishing since \u{1F41F}").on, "gone fishing since \u{1F41F}");
    }

    #[test]
    fn a_wait_is_written_once_with_an_event() {
        let before = seen(machine(), 5);
        let effects = tell_when_new(&before, &wait());
        let plan = super::super::plan::Plan::new("test", effects, super::super::plan::Next::Settled);
        let told = after_plan(&plan);
        assert_eq!(told_reason(&told), Some("WaitingForNode"));
        assert!(plan.effects.iter().any(|effect| matches!(effect, Effect::Warn { .. })));
        assert!(tell_when_new(&seen(told, 65), &wait()).is_empty());
    }

    fn after_plan(plan: &super::super::plan::Plan) -> Machine {
        super::super::testing::after(plan, &machine())
    }

    #[test]
    fn a_wait_that_may_end_by_itself_is_not_told_at_once() {
        assert_eq!(tell_when_lasting(&seen(machine(), 20), at(0), &wait()), Err(Duration::from_secs(40)));
        assert_eq!(tell_when_lasting(&seen(machine(), 60), at(0), &wait()).map(|effects| effects.len()), Ok(2));
    }

    #[test]
    fn attempts_say_when_they_are_made() {
        assert_eq!(attempts(at(180), 3 * MINUTE), "next attempt at 2027-01-15T08:03:00Z, then every 3m0s");
    }
}
