//! The operations that a driver has proved to implement, and what a later `Unimplemented` means.
//!
//! Proxies such as Envoy answer a gRPC request without a route with `Unimplemented` themselves. The controllers skip an operation that is not
//! implemented, so that such an answer would leave out an initialisation or a drain.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use machine_driver::{Code, Status};

use crate::{codes::Sender, wire::driver::Op};

/// What this process knows about an operation of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The driver implements it.
    Implemented,
    /// The driver has not shown whether it implements it.
    Unknown,
}

/// The operations that a version of the driver has answered.
#[derive(Default)]
struct Answered {
    version: String,
    operations: BTreeSet<Op>,
}

/// The operations that the present version of a driver has proved to implement.
#[derive(Default)]
pub struct ProvenOperations(Mutex<Answered>);

impl ProvenOperations {
    /// Records that this version of the driver implements an operation. Another version than before has proved nothing else yet.
    pub fn record(&self, version: &str, op: Op) {
        let mut answered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.version != version {
            *answered = Answered { version: version.to_owned(), operations: BTreeSet::new() };
        }
        answered.operations.insert(op);
    }

    /// What is known about an operation of this version of the driver.
    pub fn knowledge(&self, version: &str, op: Op) -> Knowledge {
        let answered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.version == version && answered.operations.contains(&op) {
            Knowledge::Implemented
        } else {
            Knowledge::Unknown
        }
    }
}

/// Whether a failure proves that the driver implements the operation. gRPC libraries and proxies use the other codes in failures of their own.
pub fn proves(code: Code, sender: Sender) -> bool {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Uninitialized => true,
        Code::OK
        | Code::Canceled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => sender == Sender::Driver,
        Code::Unimplemented => false,
    }
}

/// The failure of an operation for the controllers. `Unimplemented` for an implemented operation is not of the driver, and passes. Every driver must
/// implement creation and deletion, so that `Unimplemented` is an internal error for them.
pub fn judged(op: Op, knowledge: Knowledge, status: Status) -> Status {
    let name = op.as_str_name();
    match (status.code, knowledge, op) {
        (Code::Unimplemented, Knowledge::Implemented, _) => {
            let said = if status.message.is_empty() { String::new() } else { format!(": {}", status.message) };
            let message = format!(
                "{name} has the answer Unimplemented, but the driver implements it: a proxy without a route to the driver may have answered{said}"
            );
            Status { code: Code::Unavailable, message, ..status }
        }
        (Code::Unimplemented, Knowledge::Unknown, Op::Create | Op::Delete) => {
            let message = if status.message.is_empty() {
                format!(
                    "{name} has the answer Unimplemented, and every driver must implement it: a proxy without a route to the driver may have \
                     answered"
                )
            } else {
                status.message
            };
            Status { code: Code::Internal, message, ..status }
        }
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Knowledge::*, *};

    #[rstest]
    #[case::proxy(Op::Initialize, Implemented, Code::Unimplemented, Code::Unavailable)]
    #[case::proxy_in_a_deletion(Op::Delete, Implemented, Code::Unimplemented, Code::Unavailable)]
    #[case::optional(Op::Initialize, Unknown, Code::Unimplemented, Code::Unimplemented)]
    #[case::required(Op::Delete, Unknown, Code::Unimplemented, Code::Internal)]
    #[case::also_required(Op::Create, Unknown, Code::Unimplemented, Code::Internal)]
    #[case::another_code(Op::Delete, Implemented, Code::NotFound, Code::NotFound)]
    fn unimplemented_is_judged_by_what_is_known(
        #[case] op: Op,
        #[case] knowledge: Knowledge,
        #[case] code: Code,
        #[case] expected: Code,
    ) {
        let said = judged(op, knowledge, Status::new(code, "no"));
        assert_eq!(said.code, expected);
        assert!(said.message.ends_with("no"), "{}", said.message);
        let silent = judged(op, knowledge, Status::new(code, ""));
        assert_eq!(silent.message.contains("a proxy without a route"), code != expected, "{}", silent.message);
    }

    #[rstest]
    #[case::an_answer_of_a_driver(Code::NotFound, Sender::Unclear, true)]
    #[case::perhaps_of_a_proxy(Code::PermissionDenied, Sender::Unclear, false)]
    #[case::with_a_detail(Code::PermissionDenied, Sender::Driver, true)]
    #[case::the_opposite(Code::Unimplemented, Sender::Driver, false)]
    fn a_failure_proves_an_operation(#[case] code: Code, #[case] sender: Sender, #[case] expected: bool) {
        assert_eq!(proves(code, sender), expected);
    }

    #[test]
    fn an_operation_is_proven_for_one_version() {
        let proven = ProvenOperations::default();
        assert_eq!(proven.knowledge("", Op::Status), Unknown);
        proven.record("1", Op::Status);
        let known = |version: &str| [Op::Status, Op::Delete].map(|op| proven.knowledge(version, op));
        assert_eq!((known("1"), known("2")), ([Implemented, Unknown], [Unknown, Unknown]));
        proven.record("2", Op::Delete);
        assert_eq!((known("1"), known("2")), ([Unknown, Unknown], [Unknown, Implemented]));
    }
}
