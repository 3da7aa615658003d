//! Traces for a collector of OpenTelemetry: the form of spans in the protocol, and what follows from the answer of a collector.
//!
//! The values are in the crate `mcm-traces`, and `manager/traces.rs` sends. The protocol is OTLP over HTTP with protocol buffers. The crates
//! of OpenTelemetry are not used: their spans are open in the memory of a process until they end, and ours are made from stored objects after
//! they have ended. Source: spec/packaging §7.2.

pub mod delivery;
pub mod otlp;

pub use delivery::{Batch, Delivery, Refusal, after};
