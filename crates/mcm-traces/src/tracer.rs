//! The handle with which the program records spans.
//!
//! A tracer that is off costs a test of a pointer: it reads no clock and makes no span.

use std::{borrow::Cow, fmt, sync::Arc};

use jiff::Timestamp;

use crate::{
    context::{SpanId, TraceId, TraceParent},
    span::{Key, Link, Outcome, Span, SpanKind, Value},
};

/// Takes finished spans. It must return at once.
type Take = Box<dyn Fn(Span) + Send + Sync>;
/// The time of day.
type Now = Box<dyn Fn() -> Timestamp + Send + Sync>;
/// A random number.
type Draw = Box<dyn Fn() -> u64 + Send + Sync>;

struct Recording {
    take: Take,
    now: Now,
    draw: Draw,
}

/// Records spans, or nothing. Cheap to clone; all clones record at the same place.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Recording>>);

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

impl Tracer {
    /// A tracer that records nothing.
    pub const fn off() -> Self {
        Self(None)
    }

    /// A tracer that passes spans to `take`, which must return at once. `now` is the time of day, and `draw` a source of random numbers.
    pub fn new(
        take: impl Fn(Span) + Send + Sync + 'static,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        draw: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(Recording { take: Box::new(take), now: Box::new(now), draw: Box::new(draw) })))
    }

    /// Whether spans are recorded.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records the span that the function makes. The function is called only if spans are recorded.
    pub fn record(&self, span: impl FnOnce() -> Option<Span>) {
        if let Some(recording) = &self.0
            && let Some(span) = span()
        {
            (recording.take)(span);
        }
    }

    /// A random number, or 0 if nothing is recorded.
    pub fn draw(&self) -> u64 {
        self.0.as_ref().map(|recording| (recording.draw)()).unwrap_or_default()
    }

    /// A new trace with a random identifier.
    pub fn new_trace(&self) -> TraceId {
        TraceId::of_number((u128::from(self.draw()) << 64) | u128::from(self.draw()))
    }

    /// Begins a span now. `None` if nothing is recorded.
    pub fn begin(
        &self,
        trace: TraceId,
        parent: Option<SpanId>,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
    ) -> Option<OpenSpan> {
        let recording = self.0.as_ref()?;
        let (start, name) = ((recording.now)(), name.into());
        let id = SpanId::derived(trace, parent, &name, start);
        let span = Span { kind, ..Span::new(trace, id, parent, name, (start, start)) };
        Some(OpenSpan { recording: Arc::clone(recording), span })
    }
}

/// A span that has begun. It is recorded when [`OpenSpan::end`] is called, and forgotten when it is dropped.
pub struct OpenSpan {
    recording: Arc<Recording>,
    span: Span,
}

impl fmt::Debug for OpenSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span.fmt(f)
    }
}

impl OpenSpan {
    /// Sets an attribute.
    #[must_use]
    pub fn with(mut self, key: Key, value: Value) -> Self {
        self.span.attributes.push((key, value));
        self
    }

    /// Says which object the span is about.
    #[must_use]
    pub fn about(mut self, kind: &str, namespace: &str, name: &str) -> Self {
        self.span = self.span.about(kind, namespace, name);
        self
    }

    /// Adds a link.
    pub fn link(&mut self, link: Link) {
        self.span.link(link);
    }

    /// What another process continues.
    pub const fn parent_of_others(&self) -> TraceParent {
        TraceParent { trace: self.span.trace, span: self.span.id, is_sampled: true }
    }

    /// The place in the trace under which children of this span are recorded.
    pub fn place(&self) -> Place {
        let recording = Tracer(Some(Arc::clone(&self.recording)));
        Place(Some((recording, self.span.trace, self.span.id)))
    }

    /// Ends the span now and records it.
    pub fn end(mut self, outcome: Outcome) {
        self.span.end = (self.recording.now)().max(self.span.start);
        self.span.outcome = outcome;
        (self.recording.take)(self.span);
    }
}

/// A place in a trace under which spans are recorded, or no place.
#[derive(Clone, Debug, Default)]
pub struct Place(Option<(Tracer, TraceId, SpanId)>);

impl Place {
    /// No place: nothing is recorded.
    pub const fn nowhere() -> Self {
        Self(None)
    }

    /// Begins the span of a call to another process. `None` if nothing is recorded.
    pub fn call(&self, name: &'static str) -> Option<OpenSpan> {
        let (tracer, trace, parent) = self.0.as_ref()?;
        tracer.begin(*trace, Some(*parent), SpanKind::Client, name)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicI64, Ordering},
    };

    use super::*;

    /// A tracer whose clock advances by a second at each reading, and what it records.
    pub(crate) fn recorder() -> (Tracer, Arc<Mutex<Vec<Span>>>) {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let (taken, second) = (Arc::clone(&spans), AtomicI64::new(0));
        let now = move || Timestamp::from_second(second.fetch_add(1, Ordering::Relaxed)).unwrap();
        (Tracer::new(move |span| taken.lock().unwrap().push(span), now, || 4), spans)
    }

    #[test]
    fn a_call_is_a_child_of_the_place() {
        let (tracer, spans) = recorder();
        let trace = TraceId::of_object("uid");
        let pass = tracer.begin(trace, None, SpanKind::Internal, "pass").unwrap();
        let (place, id) = (pass.place(), pass.parent_of_others().span);
        pass.end(Outcome::Fine);
        // A call may end after its pass.
        let call = place.call("CreateMachine").unwrap().with(Key::Code, Value::text("Internal"));
        let handed_on = call.parent_of_others();
        call.end(Outcome::Failed);
        let spans = spans.lock().unwrap();
        let call = &spans[1];
        assert_eq!((call.trace, call.parent, call.kind), (trace, Some(id), SpanKind::Client));
        assert_eq!((handed_on.trace, handed_on.span, handed_on.is_sampled), (trace, call.id, true));
        assert_eq!((call.start.as_second(), call.end.as_second(), call.outcome), (2, 3, Outcome::Failed));
    }

    #[test]
    fn a_span_that_is_dropped_is_not_recorded() {
        let (tracer, spans) = recorder();
        drop(tracer.begin(TraceId::of_number(1), None, SpanKind::Internal, "pass"));
        assert!(spans.lock().unwrap().is_empty());
    }

    #[test]
    fn pk_104_a_tracer_that_is_off_does_nothing() {
        let tracer = Tracer::off();
        tracer.record(|| unreachable!("no span is made"));
        assert!(tracer.begin(TraceId::of_number(1), None, SpanKind::Internal, "pass").is_none());
        assert!(Place::nowhere().call("CreateMachine").is_none());
        assert_eq!((tracer.draw(), tracer.is_on()), (0, false));
    }
}
