//! The messages and services of `proto/`, as they are generated (`tests/protocol.rs`). Requests contain Secrets, so their `Debug`
//! output leaves the Secrets out.

use std::fmt;

/// `machine.driver.v1`: the contract between the manager and a driver.
#[allow(missing_docs, clippy::pedantic, clippy::allow_attributes)]
pub mod driver {
    include!("generated/machine.driver.v1.rs");
}

/// `grpc.health.v1`: the health service, which reports whether a server serves.
#[allow(missing_docs, clippy::pedantic, clippy::allow_attributes)]
pub mod health {
    include!("generated/grpc.health.v1.rs");
}

/// `google.rpc`: the message that contains the details of a failure.
#[allow(missing_docs, clippy::pedantic, clippy::allow_attributes)]
pub mod rpc {
    include!("generated/google.rpc.rs");
}

impl fmt::Debug for driver::MachineRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineRequest")
            .field("request_id", &self.request_id)
            .field("attempt", &self.attempt)
            .field("secret_keys", &self.secret.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for driver::ListMachinesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListMachinesRequest").field("secret_keys", &self.secret.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for driver::ValidateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValidateRequest").field("secret_keys", &self.secret.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::driver::{ListMachinesRequest, MachineRequest, ValidateRequest};

    #[test]
    fn no_request_prints_a_secret() {
        let secret = || [("token".to_owned(), b"hunter2".to_vec())].into_iter().collect();
        let printed = [
            format!("{:?}", MachineRequest { secret: secret(), ..MachineRequest::default() }),
            format!("{:?}", ListMachinesRequest { secret: secret(), ..ListMachinesRequest::default() }),
            format!("{:?}", ValidateRequest { secret: secret(), ..ValidateRequest::default() }),
        ];
        let bytes = format!("{:?}", b"hunter2");
        for text in printed {
            assert!(!text.contains("hunter2") && !text.contains(bytes.trim_matches(['[', ']'])), "{text}");
        }
    }
}
