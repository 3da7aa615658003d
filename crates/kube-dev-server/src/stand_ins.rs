//! The controllers that the server stands in for, each of which can be left out. What they do is in [`super::helpers`].

/// A controller that the server stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandIn {
    /// Objects whose owners are gone go too.
    GarbageCollection,
    /// Namespaces that are deleted are emptied.
    Namespaces,
    /// What budgets allow is counted.
    Budgets,
    /// Nodes that are not ready are tainted, and pods of Nodes that are gone go too.
    Nodes,
    /// Aggregated roles get the rules of those they select.
    AggregatedRoles,
    /// Secrets for tokens of service accounts are filled.
    AccountTokens,
    /// Every namespace has the service account `default`.
    DefaultAccounts,
    /// Events that nobody has written for an hour are forgotten.
    EventTtl,
}

impl StandIn {
    /// All of them, by the names that flags use.
    pub const NAMED: [(&'static str, Self); 8] = [
        ("garbage-collection", Self::GarbageCollection),
        ("namespaces", Self::Namespaces),
        ("budgets", Self::Budgets),
        ("nodes", Self::Nodes),
        ("aggregated-roles", Self::AggregatedRoles),
        ("account-tokens", Self::AccountTokens),
        ("default-accounts", Self::DefaultAccounts),
        ("event-ttl", Self::EventTtl),
    ];
}
