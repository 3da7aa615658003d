//! The versions of Kubernetes that this program works with, and the version of an API server. Pure functions.
//!
//! Source: spec/packaging §8.2. `docs/versioning.md` has the same ranges, and says which versions were tested.

use std::fmt;

use super::error::ApiError;

/// The minor versions of Kubernetes 1 that a cluster with a certain role may have. It is displayed as `1.31 to 1.37`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// The oldest version that works, by best effort up to `from`.
    pub best_effort_from: u32,
    /// The oldest supported version.
    pub from: u32,
    /// The newest supported version.
    pub to: u32,
}

/// The versions of a cluster with the machine objects.
pub const CONTROL: Supported = Supported { best_effort_from: 30, from: 31, to: 37 };
/// The versions of a cluster with the Nodes.
pub const TARGET: Supported = Supported { best_effort_from: 28, from: 28, to: 37 };

/// From this version on, API servers have `ValidatingAdmissionPolicies` without a feature gate.
pub const POLICIES_FROM: u32 = 30;

/// What a supported API server of this version lacks, with the consequence.
pub fn lacking(minor: u32) -> Option<&'static str> {
    (minor < POLICIES_FROM).then_some(
        "it has no ValidatingAdmissionPolicies, so that nothing limits the manager's rights on Secrets to bootstrap tokens",
    )
}

/// How far a version is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is supported.
    Full,
    /// It is older than the supported versions, and usually works.
    BestEffort,
    /// It is too old.
    TooOld,
    /// It is newer than the supported versions.
    TooNew,
}

impl Supported {
    /// How far a minor version is supported.
    pub const fn judge(self, minor: u32) -> Support {
        if minor < self.best_effort_from {
            Support::TooOld
        } else if minor < self.from {
            Support::BestEffort
        } else if minor > self.to {
            Support::TooNew
        } else {
            Support::Full
        }
    }
}

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{} to 1.{}", self.from, self.to)
    }
}

/// The minor version in an answer of `/version`. Some providers append a plus.
///
/// # Errors
/// When it is no number.
pub fn minor_of(minor: &str) -> Result<u32, ApiError> {
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| ApiError::Unreadable(format!("minor version {minor:?} is no number")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::before_all(29, Support::TooOld)]
    #[case::by_best_effort(30, Support::BestEffort)]
    #[case::the_oldest(31, Support::Full)]
    #[case::the_newest(37, Support::Full)]
    #[case::after_all(38, Support::TooNew)]
    fn a_version_is_judged(#[case] minor: u32, #[case] expected: Support) {
        assert_eq!(CONTROL.judge(minor), expected);
    }

    #[rstest]
    #[case::plain("36", Some(36))]
    #[case::with_a_plus("27+", Some(27))]
    #[case::no_number("", None)]
    fn a_minor_version_is_read(#[case] text: &str, #[case] expected: Option<u32>) {
        assert_eq!(minor_of(text).ok(), expected);
    }
}
