//! The span of one pass of a control loop. A pass without effects leaves no span.

use crate::{
    context::{SpanId, TraceId},
    span::{Key, Link, Outcome, SpanKind, Value},
    tracer::{OpenSpan, Place, Tracer},
};

/// What a pass has done so far, if passes are recorded.
#[derive(Debug, Default)]
pub struct PassSpan {
    open: Option<OpenSpan>,
    rules: Vec<&'static str>,
    effects: Vec<&'static str>,
    outcome: Outcome,
}

/// Adds a word that is not in the list yet.
fn add(words: &mut Vec<&'static str>, word: &'static str) {
    if !words.contains(&word) {
        words.push(word);
    }
}

impl PassSpan {
    /// A pass that begins now, in the trace of the object with this UID, whose life is the parent.
    pub fn of_life(tracer: &Tracer, name: &'static str, uid: &str) -> Self {
        if !tracer.is_on() {
            return Self::default();
        }
        let trace = TraceId::of_object(uid);
        Self::under(tracer, name, trace, Some(SpanId::of_life(trace)))
    }

    /// A pass that begins now, in the trace of the rollout that the function computes: a trace, and a revision. The function is called only
    /// if spans are recorded.
    pub fn of_rollout(tracer: &Tracer, name: &'static str, rollout: impl FnOnce() -> (TraceId, Option<i64>)) -> Self {
        if !tracer.is_on() {
            return Self::default();
        }
        let (trace, revision) = rollout();
        let mut pass = Self::under(tracer, name, trace, None);
        if let Some(revision) = revision {
            pass.open = pass.open.map(|open| open.with(Key::Revision, revision.into()));
        }
        pass
    }

    fn under(tracer: &Tracer, name: &'static str, trace: TraceId, parent: Option<SpanId>) -> Self {
        Self { open: tracer.begin(trace, parent, SpanKind::Internal, name), ..Self::default() }
    }

    /// Whether the pass is recorded.
    pub const fn is_on(&self) -> bool {
        self.open.is_some()
    }

    /// The place for calls that the pass starts.
    pub fn place(&self) -> Place {
        self.open.as_ref().map(OpenSpan::place).unwrap_or_default()
    }

    /// Notes an effect and the rule that ordered it.
    pub fn did(&mut self, rule: &'static str, effect: &'static str) {
        if self.is_on() {
            add(&mut self.rules, rule);
            add(&mut self.effects, effect);
        }
    }

    /// Notes that an effect failed.
    pub const fn failed(&mut self) {
        self.outcome = Outcome::Failed;
    }

    /// Adds a link to the life of the object with this UID.
    pub fn link(&mut self, uid: &str) {
        if let Some(open) = &mut self.open {
            open.link(Link::to_life(uid));
        }
    }

    /// Ends the pass. It is recorded if it had an effect.
    pub fn end(self, (kind, namespace, name): (&str, &str, &str)) {
        let Self { open: Some(open), rules, effects, outcome } = self else { return };
        if effects.is_empty() {
            return;
        }
        open.about(kind, namespace, name)
            .with(Key::Rules, Value::Words(rules))
            .with(Key::Effects, Value::Words(effects))
            .end(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracer::tests::recorder;

    const ABOUT: (&str, &str, &str) = ("Machine", "ns", "m");

    #[test]
    fn pk_103_only_a_pass_with_effects_leaves_a_span() {
        let (tracer, spans) = recorder();
        PassSpan::of_life(&tracer, "pass", "uid").end(ABOUT);
        assert!(spans.lock().unwrap().is_empty());
        let mut pass = PassSpan::of_life(&tracer, "pass", "uid");
        pass.did("creation/request", "CreateVm");
        pass.did("creation/request", "PatchMachineStatus");
        pass.did("creation/request", "CreateVm");
        pass.failed();
        pass.link("other");
        pass.end(ABOUT);
        let spans = spans.lock().unwrap();
        let trace = TraceId::of_object("uid");
        assert_eq!((spans[0].trace, spans[0].parent), (trace, Some(SpanId::of_life(trace))));
        assert_eq!(
            (spans[0].outcome, spans[0].links.as_slice()),
            (Outcome::Failed, [Link::to_life("other")].as_slice())
        );
        let words = |words: &[&'static str]| Value::Words(words.to_vec());
        for (key, value) in [
            (Key::Name, Value::text("m")),
            (Key::Rules, words(&["creation/request"])),
            (Key::Effects, words(&["CreateVm", "PatchMachineStatus"])),
        ] {
            assert!(spans[0].attributes.contains(&(key, value.clone())), "{key:?} {value:?}: {:?}", spans[0]);
        }
    }

    #[test]
    fn a_pass_of_a_rollout_names_the_revision() {
        let (tracer, spans) = recorder();
        let trace = TraceId::of_rollout("uid", 3);
        let mut pass = PassSpan::of_rollout(&tracer, "pass", || (trace, Some(3)));
        pass.did("rule", "CreateMachine");
        pass.end(ABOUT);
        let spans = spans.lock().unwrap();
        assert_eq!((spans[0].trace, spans[0].parent), (trace, None));
        assert!(spans[0].attributes.contains(&(Key::Revision, Value::Number(3))));
        PassSpan::of_rollout(&Tracer::off(), "pass", || unreachable!("nothing is recorded")).end(ABOUT);
    }

    #[test]
    fn a_pass_that_is_not_recorded_has_no_place() {
        let mut pass = PassSpan::of_life(&Tracer::off(), "pass", "uid");
        pass.did("rule", "effect");
        assert!(pass.place().call("CreateMachine").is_none() && pass.effects.is_empty());
    }
}
