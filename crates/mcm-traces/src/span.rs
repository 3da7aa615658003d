//! A finished span. All of its parts are bounded, so that a queue of spans has a bounded size.

use std::borrow::Cow;

use jiff::Timestamp;

use crate::context::{SpanId, TraceId};

/// The most links of a span. More are counted only.
pub const MOST_LINKS: usize = 128;
/// The longest text of an attribute, in bytes. Names of Kubernetes have at most 253.
const LONGEST_TEXT: usize = 256;

/// On which side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Neither.
    Internal,
    /// It answers a call of another process.
    Server,
    /// It calls another process.
    Client,
}

/// The result of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing failed.
    #[default]
    Fine,
    /// Something failed.
    Failed,
}

/// The keys of attributes: a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The kind of the object.
    Kind,
    /// Its namespace.
    Namespace,
    /// Its name.
    Name,
    /// The rules that decided, without repetition.
    Rules,
    /// The effects of a pass, without repetition.
    Effects,
    /// The state that ended a stage.
    EndedBy,
    /// The revision of a rollout.
    Revision,
    /// The provider of the class.
    Provider,
    /// The code of a driver's refusal, by its name.
    Code,
    /// The HTTP status of an answer.
    HttpStatus,
}

impl Key {
    /// All keys.
    pub const ALL: [Self; 10] = [
        Self::Kind,
        Self::Namespace,
        Self::Name,
        Self::Rules,
        Self::Effects,
        Self::EndedBy,
        Self::Revision,
        Self::Provider,
        Self::Code,
        Self::HttpStatus,
    ];

    /// The key in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kind => "mcm.kind",
            Self::Namespace => "k8s.namespace.name",
            Self::Name => "mcm.name",
            Self::Rules => "mcm.rules",
            Self::Effects => "mcm.effects",
            Self::EndedBy => "mcm.ended_by",
            Self::Revision => "mcm.revision",
            Self::Provider => "mcm.provider",
            Self::Code => "mcm.code",
            Self::HttpStatus => "http.response.status_code",
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Words of this program.
    Words(Vec<&'static str>),
}

impl Value {
    /// A text, cut at a limit.
    pub fn text(text: &str) -> Self {
        let mut end = text.len().min(LONGEST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self::Text(text.get(..end).unwrap_or_default().to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A span in another trace that has to do with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
}

impl Link {
    /// The life of the object with this UID.
    pub fn to_life(uid: &str) -> Self {
        let trace = TraceId::of_object(uid);
        Self { trace, span: SpanId::of_life(trace) }
    }
}

/// A finished span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its identifier.
    pub id: SpanId,
    /// The span that it belongs to.
    pub parent: Option<SpanId>,
    /// What happened, one of few names.
    pub name: Cow<'static, str>,
    /// The side of the call.
    pub kind: SpanKind,
    /// When it began.
    pub start: Timestamp,
    /// When it ended. Not before it began.
    pub end: Timestamp,
    /// Details.
    pub attributes: Vec<(Key, Value)>,
    /// Other spans, at most [`MOST_LINKS`].
    pub links: Vec<Link>,
    /// The number of links that were left out.
    pub dropped_links: u32,
    /// The result.
    pub outcome: Outcome,
}

impl Span {
    /// A span without details. An end before the start counts as the start.
    pub fn new(
        trace: TraceId,
        id: SpanId,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        (start, end): (Timestamp, Timestamp),
    ) -> Self {
        Self {
            trace,
            id,
            parent,
            name: name.into(),
            kind: SpanKind::Internal,
            start,
            end: end.max(start),
            attributes: Vec::new(),
            links: Vec::new(),
            dropped_links: 0,
            outcome: Outcome::Fine,
        }
    }

    /// The same span with an attribute.
    #[must_use]
    pub fn with(mut self, key: Key, value: Value) -> Self {
        self.attributes.push((key, value));
        self
    }

    /// The same span, about an object.
    #[must_use]
    pub fn about(self, kind: &str, namespace: &str, name: &str) -> Self {
        self.with(Key::Kind, Value::text(kind))
            .with(Key::Namespace, Value::text(namespace))
            .with(Key::Name, Value::text(name))
    }

    /// Adds a link, or counts it if there are enough.
    pub fn link(&mut self, link: Link) {
        if self.links.len() < MOST_LINKS {
            self.links.push(link);
        } else {
            self.dropped_links = self.dropped_links.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span {
        let trace = TraceId::of_number(1);
        let at = |second| Timestamp::from_second(second).unwrap();
        Span::new(trace, SpanId::of_number(1), None, "pass", (at(5), at(3)))
    }

    #[test]
    fn a_span_does_not_end_before_it_began() {
        assert_eq!(span().end, span().start);
    }

    #[test]
    fn pk_104_a_span_has_a_bounded_size() {
        let mut span = span().about("Machine", &"n".repeat(10_000), &"ä".repeat(1000));
        for number in 0..1000_u32 {
            span.link(Link::to_life(&number.to_string()));
        }
        assert_eq!((span.links.len(), span.dropped_links), (MOST_LINKS, 1000 - 128));
        for (_, value) in &span.attributes {
            assert!(matches!(value, Value::Text(text) if text.len() <= LONGEST_TEXT));
        }
    }

    #[test]
    fn keys_are_different() {
        let mut keys = Key::ALL.map(Key::as_str);
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
    }
}
