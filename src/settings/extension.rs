//! What the extension API server is told. Source: spec/extension-apiserver §1.5, §3.1, §3.2, §3.6, §4.4.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

/// The extension API server of views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionSettings {
    /// Which views are served (`--views`).
    pub views: ViewSelection,
    /// Whether a reader must be allowed to read what a view is computed from (`--views-check-source-rbac`).
    pub source_rights: SourceRights,
    /// How old what is known of the provider's VMs may be (`--inventory-max-age`).
    pub inventory_max_age: Duration,
    /// Who asks.
    pub authentication: AuthenticationSettings,
    /// What they may.
    pub authorization: AuthorizationSettings,
    /// Where requests are written down, if anywhere (`--audit-log-path`).
    pub audit_log: Option<AuditLog>,
    /// Requests at a time (`--max-requests-inflight`).
    pub requests_in_flight: usize,
    /// No request takes longer (`--request-timeout`).
    pub request_timeout: Duration,
    /// Plans of a view that are computed at a time (`--max-plans-inflight`).
    pub plans_at_a_time: usize,
    /// Inventories that providers are asked for at a time (`--max-inventories-inflight`).
    pub inventories_at_a_time: usize,
}

/// Which views are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewSelection {
    /// All.
    All,
    /// Those with these plurals.
    Only(BTreeSet<String>),
}

impl ViewSelection {
    /// Whether a view is served.
    pub fn includes(&self, plural: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(chosen) => chosen.contains(plural),
        }
    }
}

/// Whether a reader of a view must also be allowed to read what it is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRights {
    /// Yes.
    Checked,
    /// The right on the view is enough.
    NotChecked,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationSettings {
    /// Another kubeconfig for reviews of tokens and for the `ConfigMap`; unset means the control cluster's.
    pub kubeconfig: Option<PathBuf>,
    /// Whether the `ConfigMap` of the API server is read.
    pub lookup: Lookup,
    /// How long reviews of tokens are remembered.
    pub token_time_to_live: Duration,
    /// Whom tokens must be meant for; empty: for the API server.
    pub audiences: Vec<String>,
    /// Authorities of clients, instead of those of the `ConfigMap`.
    pub client_ca: Option<PathBuf>,
    /// Front proxies, instead of those of the `ConfigMap`.
    pub front_proxy: Option<FrontProxySettings>,
    /// Whether one authority may stand for clients and front proxies.
    pub shared_authority: SharedAuthority,
}

/// Whether the `ConfigMap` `extension-apiserver-authentication` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It is.
    Done,
    /// It is not (`--authentication-skip-lookup`).
    Skipped,
}

/// Front proxies as flags name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxySettings {
    /// Who vouches for them, PEM.
    pub ca: PathBuf,
    /// Their names; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name.
    pub user_headers: Vec<String>,
    /// Headers with the user's UID.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Beginnings of headers with anything else.
    pub extra_prefixes: Vec<String>,
}

/// Whether one authority may stand for clients and for front proxies while any of its certificates is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedAuthority {
    /// No: whoever has any certificate of it could claim to be anybody.
    #[default]
    Refused,
    /// Yes (`--allow-shared-front-proxy-ca`).
    Allowed,
}

/// What callers may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationSettings {
    /// Another kubeconfig for reviews of access; unset means the control cluster's.
    pub kubeconfig: Option<PathBuf>,
    /// How long allowances are remembered.
    pub allowed_time_to_live: Duration,
    /// How long refusals are remembered.
    pub refused_time_to_live: Duration,
    /// Paths that nobody needs a right for.
    pub open_paths: Vec<String>,
}

/// Where the audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditLog {
    /// Standard output.
    Stdout,
    /// Behind what this file holds.
    File(PathBuf),
}
