//! The control loops, one folder each. Each loop is built as observe → decide → act.
//!
//! `observe` builds a plain value from the stores and the current time. `decide` is a pure function from that value to
//! a plan. `act` carries out the plan through the ports of `controller-runtime` and `machine-driver` and decides
//! nothing. The `routing` file of each folder says which changes wake which keys. The stores that several loops read
//! are in [`views`].

#![forbid(unsafe_code)]

use std::sync::Arc;

/// The decision of a controller: a pure function from the observation to a plan.
pub type Decision<O, P> = Arc<dyn Fn(&O) -> P + Send + Sync>;

mod changes;
pub mod checked;
pub mod class;
pub mod deletions;
pub mod deployment;
pub mod drain;
mod finalizer_patches;
pub mod fleet_metrics;
pub mod loops;
pub mod machine;
mod news;
mod outcomes;
pub mod overshooting;
pub mod refused_writes;
pub mod rollout_traces;
pub mod safety;
pub mod secret;
pub mod set;
pub mod snapshots;
#[cfg(test)]
mod testing_api;
pub mod times;
pub mod views;
pub mod wakes;
