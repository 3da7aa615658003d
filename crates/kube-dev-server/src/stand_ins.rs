//! The names of the built-in controllers, each of which can be switched off. They are implemented in [`super::helpers`].

/// A controller of Kubernetes that the server runs itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandIn {
    /// Deletes objects whose owners are deleted.
    GarbageCollection,
    /// Deletes the contents of namespaces that are being deleted.
    Namespaces,
    /// Counts the allowed disruptions of `PodDisruptionBudgets`.
    Budgets,
    /// Taints Nodes that are not ready, and deletes the pods of deleted Nodes.
    Nodes,
    /// Copies the rules of selected roles into aggregated roles.
    AggregatedRoles,
    /// Fills Secrets for tokens of service accounts.
    AccountTokens,
    /// Creates the service account `default` in every namespace.
    DefaultAccounts,
    /// Deletes events an hour after their last write.
    EventTtl,
}

impl StandIn {
    /// All controllers with their names in flags.
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
