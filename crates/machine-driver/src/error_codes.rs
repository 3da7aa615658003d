//! The set of codes for failed calls. Which code a failure has is known by each driver.

use super::{Code, Status};

/// The set of codes for failed calls (`--strict-go-error-codes`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorCodes {
    /// A code for each kind of failure.
    #[default]
    Fine,
    /// The codes of the Go drivers, which have fewer.
    AsGo,
}

impl ErrorCodes {
    /// The failure with the code of this set. `as_go` is the Go driver's code for a failure with this code.
    #[must_use]
    pub fn of(self, status: Status, as_go: fn(Code) -> Code) -> Status {
        match self {
            Self::Fine => status,
            Self::AsGo => Status { code: as_go(status.code), ..status },
        }
    }
}
