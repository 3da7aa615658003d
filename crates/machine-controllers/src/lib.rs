//! The control loops, one room each, every one built as observe → decide → act.
//!
//! `observe` builds a plain value from the stores, the current time included; `decide` is a pure function from that value
//! to a plan; `act` carries the plan out through the ports of `controller-runtime` and `machine-driver` and decides nothing. What wakes a key is in each
//! room's `routing`. The views that several rooms read are in [`views`].

#![forbid(unsafe_code)]

use std::sync::Arc;

/// A decision as a controller is given it: a pure function from what is observed to a plan.
pub type Decision<O, P> = Arc<dyn Fn(&O) -> P + Send + Sync>;

mod changes;
pub mod checked;
pub mod class;
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
pub mod safety;
pub mod secret;
pub mod set;
pub mod snapshots;
#[cfg(test)]
mod testing_api;
pub mod times;
pub mod views;
pub mod wakes;
