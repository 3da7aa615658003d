//! What makes the overshoot guard look, beside its period.
//!
//! A new machine, as in the original, and a wish to thaw: nobody should have to wait for the period. Pure.

use std::time::Duration;

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use machine_api::names::annotation;

use crate::{
    snapshots::{DeploymentSnapshot, Described, MachineSnapshot, SetSnapshot},
    wakes::Wake,
};

/// Machines come in crowds, and one run looks at all of them.
const GATHER: Duration = Duration::from_millis(200);

/// The one key of a namespace.
pub fn key_of(namespace: &str) -> ObjectKey {
    ObjectKey::new(namespace, "")
}

/// A machine was added.
pub fn after_machine(change: &Change<MachineSnapshot>) -> Vec<Wake> {
    match (&change.old, &change.new) {
        (None, Some(machine)) => vec![gathering(machine)],
        _ => Vec::new(),
    }
}

/// Somebody asks on a set for a thaw.
pub fn after_set(change: &Change<SetSnapshot>) -> Vec<Wake> {
    thaw_asked(change)
}

/// Somebody asks on a deployment for a thaw.
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
