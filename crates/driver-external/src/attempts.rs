//! Counts the attempts at each operation. All attempts at one operation on one machine share a request id, until the operation succeeds.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use machine_driver::Machine;

use crate::wire::driver::Op;

/// The maximum number of operations that are counted. Beyond this number all counts begin at 1 again, as they do after a restart of this
/// process.
const MAX_OPERATIONS: usize = 16_384;

/// The operations that have not succeeded yet, by request id, with the number of attempts.
#[derive(Default)]
pub struct Attempts(Mutex<BTreeMap<String, u32>>);

impl Attempts {
    /// Counts an attempt that begins now and returns its number. The first attempt has number 1.
    pub fn begin(&self, id: &str) -> u32 {
        let mut attempts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if attempts.len() >= MAX_OPERATIONS && !attempts.contains_key(id) {
            attempts.clear();
        }
        let attempt = attempts.entry(id.to_owned()).or_default();
        *attempt = attempt.saturating_add(1);
        *attempt
    }

    /// Forgets an operation that has succeeded.
    pub fn succeeded(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// The request id: the UID of the machine and the name of the operation. For a VM without a machine object, namespace, name and
/// provider id stand in place of the UID.
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
        for number in 0..2 * MAX_OPERATIONS {
            attempts.begin(&number.to_string());
        }
        assert!(attempts.0.lock().unwrap().len() <= MAX_OPERATIONS);
    }
}
