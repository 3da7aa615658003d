//! Settings of the extension API server. Source: spec/extension-apiserver §1.5, §3.1, §3.2, §3.6, §4.4.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

/// The extension API server of views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionSettings {
    /// The views that are served (`--views`).
    pub views: ViewSelection,
    /// Whether a reader of a view needs the right to read the view's sources (`--views-check-source-rbac`).
    pub source_rights: SourceRights,
    /// Maximum age of a list of the provider's VMs (`--inventory-max-age`).
    pub inventory_max_age: Duration,
    /// Decides who a caller is.
    pub authentication: AuthenticationSettings,
    /// Decides what a caller may do.
    pub authorization: AuthorizationSettings,
    /// The audit log, if there is one (`--audit-log-path`).
    pub audit_log: Option<AuditLog>,
    /// Maximum number of requests at a time (`--max-requests-inflight`).
    pub requests_in_flight: usize,
    /// Deadline of a request (`--request-timeout`).
    pub request_timeout: Duration,
    /// Maximum number of plans that a view computes at a time (`--max-plans-inflight`).
    pub plans_at_a_time: usize,
    /// Maximum number of inventories that are requested from providers at a time (`--max-inventories-inflight`).
    pub inventories_at_a_time: usize,
}

/// The views that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewSelection {
    /// All.
    All,
    /// The views with these plural names.
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

/// Whether a reader of a view also needs the right to read the objects that the view is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRights {
    /// The reader needs it.
    Checked,
    /// The right to read the view is enough.
    NotChecked,
}

/// Settings that decide who a caller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationSettings {
    /// Another kubeconfig for token reviews and for the `ConfigMap`. `None` means the kubeconfig of the control
    /// cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Whether the `ConfigMap` `extension-apiserver-authentication` is read. Off with `--authentication-skip-lookup`.
    pub reads_config_map: bool,
    /// How long token reviews are cached.
    pub token_time_to_live: Duration,
    /// Audiences that tokens must have. Empty means the audience of the API server.
    pub audiences: Vec<String>,
    /// Certificate authorities of clients. They replace the authorities of the `ConfigMap`.
    pub client_ca: Option<PathBuf>,
    /// Front proxies. They replace the front proxies of the `ConfigMap`.
    pub front_proxy: Option<FrontProxySettings>,
    /// Whether clients and front proxies may have the same authority.
    pub shared_authority: SharedAuthority,
}

/// Front proxies as flags name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxySettings {
    /// PEM file with their certificate authorities.
    pub ca: PathBuf,
    /// Allowed common names. Empty means any.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name.
    pub user_headers: Vec<String>,
    /// Headers with the user's UID.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with further attributes of the user.
    pub extra_prefixes: Vec<String>,
}

/// Whether clients and front proxies may have the same authority when the front proxies' names are not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedAuthority {
    /// No: every client with a certificate of this authority could act as any user.
    #[default]
    Refused,
    /// Yes (`--allow-shared-front-proxy-ca`).
    Allowed,
}

/// Settings that decide what a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationSettings {
    /// Another kubeconfig for access reviews. `None` means the kubeconfig of the control cluster.
    pub kubeconfig: Option<PathBuf>,
    /// How long allowed requests are cached.
    pub allowed_time_to_live: Duration,
    /// How long refused requests are cached.
    pub refused_time_to_live: Duration,
    /// Paths that need no right.
    pub open_paths: Vec<String>,
}

/// The target of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditLog {
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}
