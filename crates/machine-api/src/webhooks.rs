//! The webhooks of the manager: their paths, and how an API server reaches them.
//!
//! All uses are made from this table: the routing of the server, the webhook configurations, the definitions with their conversion, and the labels of
//! metrics. Source: spec/api-and-admission §9, §10.

use serde_json::{Value, json};

/// The port of the Service of the webhooks.
pub const SERVICE_PORT: u16 = 443;

/// A webhook that answers admission reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// Fills in defaults.
    Mutate,
    /// Validates objects of the four kinds.
    Validate,
    /// Warns about status writes. It is not installed by default.
    ValidateStatus,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 3] = [Self::Mutate, Self::Validate, Self::ValidateStatus];
}

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Webhook {
    /// Answers admission reviews.
    Admission(Endpoint),
    /// Answers conversion reviews.
    Convert,
}

impl Webhook {
    /// All webhooks.
    pub const ALL: [Self; 4] = [
        Self::Admission(Endpoint::Mutate),
        Self::Admission(Endpoint::Validate),
        Self::Admission(Endpoint::ValidateStatus),
        Self::Convert,
    ];

    /// The path on the TLS listener.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Admission(Endpoint::Mutate) => "/mutate",
            Self::Admission(Endpoint::Validate) => "/validate",
            Self::Admission(Endpoint::ValidateStatus) => "/validate-status",
            Self::Convert => "/convert",
        }
    }

    /// The name in metrics: the path without its slash.
    pub fn name(self) -> &'static str {
        self.path().trim_start_matches('/')
    }

    /// The webhook at a path.
    pub fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|webhook| webhook.path() == path)
    }
}

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// Through a Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// At a base URL, such as `https://127.0.0.1:9443`, for API servers that reach no Services.
    Url(String),
}

impl Client {
    /// The `clientConfig` of a webhook, without the CA bundle. The process that serves the webhook writes the bundle.
    pub fn config(&self, webhook: Webhook) -> Value {
        match self {
            Self::Service { namespace, name } => json!({
                "service": { "namespace": namespace, "name": name, "path": webhook.path(), "port": SERVICE_PORT }
            }),
            Self::Url(base) => json!({ "url": format!("{}{}", base.trim_end_matches('/'), webhook.path()) }),
        }
    }
}
