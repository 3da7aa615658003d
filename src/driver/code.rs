//! Machine codes 0..=17 and the status a failing driver call answers.
//!
//! Source: spec/providers §1.3, §1.4. Codes 0..=16 are gRPC's; 17 `Uninitialized` is this project's own.

use std::fmt;

use super::VmIdentity;

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

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Status {
    /// What it means.
    pub code: Code,
    /// What the provider said. Never contains a secret.
    pub message: String,
    /// State to remember in spite of the failure.
    pub last_known_state: Option<String>,
    /// What is known of the VM although the call failed; `Uninitialized` brings it.
    pub partial: Option<Box<VmIdentity>>,
}

impl Status {
    /// A failure with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), last_known_state: None, partial: None }
    }

    /// The same failure, with what is known of the VM.
    #[must_use]
    pub fn with_partial(mut self, partial: VmIdentity) -> Self {
        self.partial = Some(Box::new(partial));
        self
    }
}

impl fmt::Display for Status {
    /// The text that reaches users in `lastOperation.description`; Go tooling parses it by counting brackets, so
    /// brackets of the message that have no partner are printed as round ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine codes error: code = [{}] message = [{}]", self.code, balanced(&self.message))
    }
}

impl std::error::Error for Status {}

fn balanced(message: &str) -> String {
    let mut chars: Vec<char> = message.chars().collect();
    let mut open = Vec::new();
    for (position, c) in message.chars().enumerate() {
        match c {
            '[' => open.push(position),
            ']' if open.pop().is_none() => chars[position] = ')',
            _ => {}
        }
    }
    for position in open {
        chars[position] = '(';
    }
    chars.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::c08_an_unmatched_closing_bracket("no ] here", "no ) here")]
    #[case::an_unmatched_opening_bracket("a [ b", "a ( b")]
    #[case::pairs_stay("ids [1 [2]]", "ids [1 [2]]")]
    fn brackets_of_a_message_are_balanced(#[case] message: &str, #[case] printed: &str) {
        assert_eq!(
            Status::new(Code::Internal, message).to_string(),
            format!("machine codes error: code = [Internal] message = [{printed}]")
        );
    }

    #[test]
    fn every_code_is_found_by_its_name_and_carries_its_place_as_number() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(usize::from(code.number()), number);
            assert_eq!(Code::from_name(code.as_str()), Some(*code));
        }
    }
}
