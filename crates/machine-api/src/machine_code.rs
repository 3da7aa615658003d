//! Machine codes 0..=17: the results of the calls of a driver.
//!
//! The names of the codes are stored in `lastOperation.errorCode`, and the numbers are label values of metrics. The codes 0..=16 are the codes of
//! gRPC. The code 17, `Uninitialized`, is an addition of this project. The controllers decide what follows from a code
//! (`controllers/machine/retry.rs`). Source: spec/providers §1.3.

use std::fmt;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal),+ $(,)?) => {
        /// The result of a driver call. The controllers decide by the code, not by the text of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum Code { $($(#[doc = $doc])+ $name = $number),+ }

        impl Code {
            /// All codes by number.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The name stored in `lastOperation.errorCode`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// The number, which is the label value in metrics.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// What it means, in a sentence or more.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }

            /// The code with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

codes! {
    /// The call succeeded.
    OK = 0,
    /// The caller cancelled the call.
    Canceled = 1,
    /// The result is unknown.
    Unknown = 2,
    /// The class or the machine is invalid.
    InvalidArgument = 3,
    /// The call took too long. It may still take effect.
    DeadlineExceeded = 4,
    /// The VM does not exist.
    NotFound = 5,
    /// A VM exists that belongs to something else.
    AlreadyExists = 6,
    /// The credentials don't allow the call.
    PermissionDenied = 7,
    /// A quota or the capacity is exhausted. cluster-autoscaler reads this code.
    ResourceExhausted = 8,
    /// A precondition is not met.
    FailedPrecondition = 9,
    /// A concurrent operation caused a conflict.
    Aborted = 10,
    /// Several VMs were found for one machine.
    OutOfRange = 11,
    /// The driver does not support the call.
    Unimplemented = 12,
    /// The driver or the provider has a defect.
    Internal = 13,
    /// The provider is temporarily unavailable.
    Unavailable = 14,
    /// Data is lost and can't be restored.
    DataLoss = 15,
    /// The credentials are invalid.
    Unauthenticated = 16,
    /// The VM exists but is not initialised.
    Uninitialized = 17,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_name_and_carries_its_place_as_number() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(usize::from(code.number()), number);
            assert_eq!(Code::from_name(code.as_str()), Some(*code));
        }
    }
}
