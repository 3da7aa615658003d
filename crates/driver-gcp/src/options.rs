//! The options of the process for GCE: the endpoint, and the directories of token files.

use std::path::PathBuf;

use cloud_client::http::Uri;
use machine_driver::{Code, ErrorCodes, Status};

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcpOptions {
    /// The URL that replaces the endpoints of Compute Engine, of the token service and of service account credentials.
    pub endpoint: Option<String>,
    /// The directories below which a Secret may name token files.
    pub identity_directories: Vec<PathBuf>,
    /// The set of codes for failures.
    pub codes: ErrorCodes,
}

/// The default directory for token files.
const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";

impl Default for GcpOptions {
    fn default() -> Self {
        Self { endpoint: None, identity_directories: vec![IDENTITY_DIRECTORY.into()], codes: ErrorCodes::default() }
    }
}

/// A Google API that the driver sends requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Compute Engine.
    Compute,
    /// The service that exchanges tokens.
    Tokens,
    /// The service that makes tokens of service accounts.
    AccountCredentials,
}

impl Api {
    /// The endpoint of the service, without a slash at its end.
    pub const fn endpoint(self) -> &'static str {
        match self {
            Self::Compute => "https://compute.googleapis.com",
            Self::Tokens => "https://sts.googleapis.com",
            Self::AccountCredentials => "https://iamcredentials.googleapis.com",
        }
    }
}

impl GcpOptions {
    /// The URL of a path of a service. The caller has checked all parts of the path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the endpoint in the configuration is no URL.
    pub fn url(&self, api: Api, path: &str) -> Result<Uri, Status> {
        let endpoint = self.endpoint.as_deref().map_or(api.endpoint(), |endpoint| endpoint.trim_end_matches('/'));
        format!("{endpoint}{path}").parse().map_err(|_| {
            Status::new(Code::FailedPrecondition, "the endpoint of the configuration for GCP is no URL".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_endpoint_replaces_those_of_all_services() {
        let url = |options: &GcpOptions, api| options.url(api, "/v1/x?y=z").map(|url| url.to_string());
        let real = GcpOptions::default();
        assert_eq!(url(&real, Api::Compute).unwrap(), "https://compute.googleapis.com/v1/x?y=z");
        assert_eq!(url(&real, Api::AccountCredentials).unwrap(), "https://iamcredentials.googleapis.com/v1/x?y=z");
        let other = GcpOptions { endpoint: Some("http://127.0.0.1:1/".to_owned()), ..real };
        for api in [Api::Compute, Api::Tokens, Api::AccountCredentials] {
            assert_eq!(url(&other, api).unwrap(), "http://127.0.0.1:1/v1/x?y=z");
        }
    }
}
