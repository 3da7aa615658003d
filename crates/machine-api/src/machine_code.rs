//! Machine codes 0..=17: what a provider's answer means.
//!
//! They are vocabulary, not I/O: their names are stored in `lastOperation.errorCode`, their numbers are label values of
//! metrics. Codes 0..=16 are gRPC's; 17 `Uninitialized` is this project's own. What the controllers do about a code is
//! theirs (`controllers/machine/retry.rs`). Source: spec/providers §1.3.

use std::fmt;

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $number:literal),+ $(,)?) => {
        /// What a driver's answer means; each code is a decision of the core, none is only a text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum Code { $($(#[$meta])* $name = $number),+ }

        impl Code {
            /// All codes by number.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The name stored in `lastOperation.errorCode`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// The number, as metrics carry it.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The code of this name, if there is one.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

codes! {
    /// It worked.
    OK = 0,
    /// The caller gave up.
    Canceled = 1,
    /// Nobody knows what happened.
    Unknown = 2,
    /// The class or machine is wrong.
    InvalidArgument = 3,
    /// It took too long; it may still happen.
    DeadlineExceeded = 4,
    /// There is no such VM.
    NotFound = 5,
    /// There is one already that is not ours.
    AlreadyExists = 6,
    /// The credentials may not do this.
    PermissionDenied = 7,
    /// Quota or capacity is used up; cluster-autoscaler keys on this one.
    ResourceExhausted = 8,
    /// Something else must be put right first.
    FailedPrecondition = 9,
    /// A concurrent operation got in the way.
    Aborted = 10,
    /// More VMs than one were found for a machine.
    OutOfRange = 11,
    /// The driver has no such operation.
    Unimplemented = 12,
    /// The driver or provider broke.
    Internal = 13,
    /// The provider cannot be reached at present.
    Unavailable = 14,
    /// Data is lost for good.
    DataLoss = 15,
    /// The credentials are refused.
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
