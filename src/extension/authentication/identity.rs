//! Identities of callers.

use std::collections::BTreeMap;

/// User name of a caller without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of callers without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of all callers with accepted credentials.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group whose members may do everything.
pub const MASTERS: &str = "system:masters";

/// A caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user; never empty.
    pub user: String,
    /// UID; empty if the authenticator knows none.
    pub uid: String,
    /// Groups, in the order of the authenticator.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// The identity of a caller without credentials.
    pub fn anonymous() -> Self {
        Self { user: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Whether the caller has sent no credentials.
    pub fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// Whether the caller may do everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// The same identity with the group of all authenticated callers. An authenticator that gives the unauthenticated group is
    /// believed.
    #[must_use]
    pub fn among_the_authenticated(mut self) -> Self {
        let is_given = self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if !is_given && !self.is_anonymous() {
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
    fn all_authenticated_callers_are_in_one_group(
        #[case] user: &str,
        #[case] groups: &[&str],
        #[case] expected: &[&str],
    ) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let found = Identity { user: user.to_owned(), groups, ..Identity::default() }.among_the_authenticated();
        assert_eq!(found.groups, expected);
    }
}
