//! The status of a failed driver call.
//!
//! Source: spec/providers §1.4. The codes are in [`machine_api::machine_code`].

use std::fmt;

use super::{Code, VmIdentity};

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Status {
    /// The code of the failure.
    pub code: Code,
    /// The message of the provider, without secrets.
    pub message: String,
    /// State to store although the call failed.
    pub last_known_state: Option<String>,
    /// The identity of the VM, if it is known although the call failed. Set with `Uninitialized`.
    pub partial: Option<Box<VmIdentity>>,
}

impl Status {
    /// A failure with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), last_known_state: None, partial: None }
    }

    /// Adds what is known of the VM.
    #[must_use]
    pub fn with_partial(mut self, partial: VmIdentity) -> Self {
        self.partial = Some(Box::new(partial));
        self
    }
}

impl fmt::Display for Status {
    /// The text that reaches users in `lastOperation.description`. Go tooling parses it by counting square brackets, so unmatched
    /// ones in the message are printed as round ones.
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
}
