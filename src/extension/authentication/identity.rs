//! Who somebody is.

use std::collections::BTreeMap;

/// The user of whom nothing is known.
pub const ANONYMOUS: &str = "system:anonymous";
/// Its group.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of everybody who is known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// A caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user; never empty.
    pub user: String,
    /// UID, if the authenticator knows one.
    pub uid: String,
    /// Groups, in their order.
    pub groups: Vec<String>,
    /// What else the authenticator tells, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Somebody of whom nothing is known.
    pub fn anonymous() -> Self {
        Self { user: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Whether nothing is known of the caller.
    pub fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// Whether the caller may do everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// The same, in the group of everybody who is known; an authenticator that says "unauthenticated" is believed.
    #[must_use]
    pub fn among_the_authenticated(mut self) -> Self {
        let is_said = self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if !is_said && !self.is_anonymous() {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::xa_166_no_group("system:aggregator", &[], &[AUTHENTICATED])]
    #[case::others_stay("alice", &["dev"], &["dev", AUTHENTICATED])]
    #[case::not_twice("alice", &[AUTHENTICATED], &[AUTHENTICATED])]
    #[case::unauthenticated_is_believed("alice", &[UNAUTHENTICATED], &[UNAUTHENTICATED])]
    #[case::anonymous(ANONYMOUS, &[], &[])]
    fn everybody_who_is_known_is_in_one_group(#[case] user: &str, #[case] groups: &[&str], #[case] expected: &[&str]) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let found = Identity { user: user.to_owned(), groups, ..Identity::default() }.among_the_authenticated();
        assert_eq!(found.groups, expected);
    }
}
