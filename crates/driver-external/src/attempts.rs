//! Which attempt at an operation a call is: the same machine and operation have the same id until the operation succeeds.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use machine_driver::Machine;

use crate::wire::driver::Op;

/// So many operations are remembered; beyond, all begin at 1 again, which a driver must cope with after a restart, too.
const MOST: usize = 16_384;

/// Operations that have not succeeded yet, with the number of attempts at them.
#[derive(Default)]
pub struct Attempts(Mutex<BTreeMap<String, u32>>);

impl Attempts {
    /// The number of the attempt that begins now; 1 is the first.
    pub fn begin(&self, id: &str) -> u32 {
        let mut attempts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if attempts.len() >= MOST && !attempts.contains_key(id) {
            attempts.clear();
        }
        let attempt = attempts.entry(id.to_owned()).or_default();
        *attempt = attempt.saturating_add(1);
        *attempt
    }

    /// The operation has succeeded.
    pub fn succeeded(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// The id of an operation on a machine: its UID, or for a VM without a machine its place, and the operation.
pub fn request_id(machine: &Machine, op: Op) -> String {
    let subject = machine.metadata.uid.clone().filter(|uid| !uid.is_empty()).unwrap_or_else(|| {
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{name}/{}", machine.spec.provider_id)
    });
    format!("{subject}-{}", op.as_str_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e04_attempts_are_counted_until_one_succeeds() {
        let mut machine = Machine::default();
        machine.metadata.uid = Some("u1".to_owned());
        let (create, delete) = (request_id(&machine, Op::Create), request_id(&machine, Op::Delete));
        assert_eq!(create, "u1-CREATE");
        let attempts = Attempts::default();
        assert_eq!([attempts.begin(&create), attempts.begin(&create), attempts.begin(&delete)], [1, 2, 1]);
        attempts.succeeded(&create);
        assert_eq!(attempts.begin(&create), 1);
    }

    #[test]
    fn operations_that_never_succeed_do_not_fill_the_memory() {
        let attempts = Attempts::default();
        for number in 0..2 * MOST {
            attempts.begin(&number.to_string());
        }
        assert!(attempts.0.lock().unwrap().len() <= MOST);
    }
}
