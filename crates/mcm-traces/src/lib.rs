//! The traces of the manager: identifiers, spans, and the handles with which other crates record spans.
//!
//! A machine lives for days and outlives leaders, so no span stays open between passes. Identifiers follow from objects: the UID of a machine is the
//! identifier of its trace, and every process computes the same identifiers. A span contains names, numbers and words of this program, and never a
//! text of a driver, of an API server or of a user, because such a text could contain a secret.
//!
//! Here are values and pure functions. `src/observability/traces` in the binary's package makes the protocol buffers, and `src/manager/traces.rs`
//! sends them. Source: spec/packaging §7.2.

#![forbid(unsafe_code)]

mod context;
mod pass;
mod review;
mod span;
mod tracer;

pub use context::{SpanId, TraceId, TraceParent};
pub use pass::PassSpan;
pub use review::{Sampled, is_sampled};
pub use span::{Key, Link, MOST_LINKS, Outcome, Span, SpanKind, Value};
pub use tracer::{OpenSpan, Place, Tracer};
