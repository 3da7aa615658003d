//! The changes that wake the overshoot guard, in addition to its period.
//!
//! A new machine, as in the original, and a request to unfreeze, so that users need not wait for the period. Pure.

use std::time::Duration;

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use machine_api::names::annotation;

use crate::{
    snapshots::{DeploymentSnapshot, Described, MachineSnapshot, SetSnapshot},
    wakes::Wake,
};

/// Machines are often created in large numbers at once, and one run reads all of them.
const GATHER: Duration = Duration::from_millis(200);

/// The key of a namespace.
pub fn key_of(namespace: &str) -> ObjectKey {
    ObjectKey::new(namespace, "")
}

/// Wakes the guard if a machine was added.
pub fn after_machine(change: &Change<MachineSnapshot>) -> Vec<Wake> {
    match (&change.old, &change.new) {
        (None, Some(machine)) => vec![gathering(machine)],
        _ => Vec::new(),
    }
}

/// Wakes the guard if a set requests a thaw.
pub fn after_set(change: &Change<SetSnapshot>) -> Vec<Wake> {
    thaw_asked(change)
}

/// Wakes the guard if a deployment requests a thaw.
pub fn after_deployment(change: &Change<DeploymentSnapshot>) -> Vec<Wake> {
    thaw_asked(change)
}

fn thaw_asked<S: Described>(change: &Change<S>) -> Vec<Wake> {
    let asks = |object: &S| object.metadata().annotations.contains_key(annotation::UNFREEZE);
    match &change.new {
        Some(new) if asks(new) && !change.old.as_ref().is_some_and(asks) => vec![gathering(new)],
        _ => Vec::new(),
    }
}

fn gathering(object: &impl Snapshot) -> Wake {
    Wake { after: GATHER, ..Wake::now(key_of(object.namespace())) }
}
