//! The options of the process: endpoints, the process's own credentials, and the directories of token files.

use std::path::PathBuf;

use cloud_client::{Secret, http::Uri};
use machine_driver::{Code, ErrorCodes, Status};

use crate::regions::Variant;

/// The options of the driver. They come from the operator of the process, never from a class or a Secret.
#[derive(Clone, Debug)]
pub struct AwsOptions {
    /// The endpoint of EC2 for all regions, in place of AWS's endpoints.
    pub ec2_endpoint: Option<String>,
    /// The endpoint of STS for all regions, in place of AWS's endpoints.
    pub sts_endpoint: Option<String>,
    /// The variant of AWS's endpoints.
    pub variant: Variant,
    /// The set of codes for failures.
    pub error_codes: ErrorCodes,
    /// The directories below which a Secret may name token files.
    pub identity_directories: Vec<PathBuf>,
    /// A file with the certificates of trusted authorities, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The credentials of the process, for classes whose Secrets have none.
    pub own: OwnIdentity,
}

/// The identity of the process itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnIdentity {
    /// A role, with a token in a file.
    WebIdentity {
        /// The token file.
        file: PathBuf,
        /// The ARN of the role.
        role: String,
    },
    /// The agent of the container's platform, for example of EKS Pod Identity.
    Container {
        /// The URI of the agent.
        uri: String,
        /// The file with the token for the agent.
        token_file: Option<PathBuf>,
    },
    /// The instance profile of the VM that the process runs on.
    Instance {
        /// The URL of the metadata service.
        endpoint: String,
    },
    /// An access key.
    Keys {
        /// The id of the key.
        id: String,
        /// The secret key.
        secret: Secret,
        /// The session token of a temporary key.
        token: Option<Secret>,
    },
    /// The process has no identity.
    None,
}

/// The URL of the metadata service of a VM.
const METADATA: &str = "http://169.254.169.254";
/// The default directory for token files.
const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";

impl Default for AwsOptions {
    fn default() -> Self {
        Self::from_environment(|_| None)
    }
}

impl AwsOptions {
    /// Reads the options from environment variables. They have the names that AWS's own clients use.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_true = |name: &str| text(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let own = if let (Some(id), Some(secret)) = (text("AWS_ACCESS_KEY_ID"), text("AWS_SECRET_ACCESS_KEY")) {
            let token = text("AWS_SESSION_TOKEN").map(Secret::new);
            OwnIdentity::Keys { id, secret: Secret::new(secret), token }
        } else if let (Some(file), Some(role)) = (text("AWS_WEB_IDENTITY_TOKEN_FILE"), text("AWS_ROLE_ARN")) {
            OwnIdentity::WebIdentity { file: file.into(), role }
        } else if let Some(uri) = text("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
            let token_file = text("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from);
            OwnIdentity::Container { uri, token_file }
        } else if is_true("AWS_EC2_METADATA_DISABLED") {
            OwnIdentity::None
        } else {
            let endpoint = text("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| METADATA.to_owned());
            OwnIdentity::Instance { endpoint }
        };
        Self {
            ec2_endpoint: text("AWS_ENDPOINT_URL_EC2").or_else(|| text("AWS_ENDPOINT_URL")),
            sts_endpoint: text("AWS_ENDPOINT_URL_STS").or_else(|| text("AWS_ENDPOINT_URL")),
            variant: Variant {
                fips: is_true("AWS_USE_FIPS_ENDPOINT"),
                dual_stack: is_true("AWS_USE_DUALSTACK_ENDPOINT"),
            },
            error_codes: ErrorCodes::Fine,
            identity_directories: vec![IDENTITY_DIRECTORY.into()],
            ca_file: text("AWS_CA_BUNDLE").map(PathBuf::from),
            own,
        }
    }
}

/// Parses the URL of an endpoint.
///
/// # Errors
/// `FailedPrecondition` if the text in the configuration is no URL.
pub fn address(endpoint: &str) -> Result<Uri, Status> {
    let address: Option<Uri> = endpoint.parse().ok();
    // URLs with a user and a password are refused, because messages contain URLs.
    let is_url = |address: &Uri| {
        matches!(address.scheme_str(), Some("http" | "https"))
            && address.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    };
    address.filter(is_url).ok_or_else(|| {
        let shown = if endpoint.contains('@') { "<redacted>" } else { endpoint };
        Status::new(Code::FailedPrecondition, format!("the endpoint {shown:?} of the configuration is no URL"))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], OwnIdentity::Instance { endpoint: METADATA.to_owned() })]
    #[case::no_metadata(&[("AWS_EC2_METADATA_DISABLED", "true")], OwnIdentity::None)]
    #[case::keys(
        &[("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t"), ("AWS_ROLE_ARN", "arn:r")],
        OwnIdentity::Keys { id: "AKID".to_owned(), secret: Secret::new("s"), token: Some(Secret::new("t")) }
    )]
    #[case::a_role_of_a_service_account(
        &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn:r"), ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://x")],
        OwnIdentity::WebIdentity { file: "/t".into(), role: "arn:r".to_owned() }
    )]
    #[case::pod_identity(
        &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials"), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/t")],
        OwnIdentity::Container { uri: "http://169.254.170.23/v1/credentials".to_owned(), token_file: Some("/t".into()) }
    )]
    fn the_process_has_an_identity(#[case] environment: &[(&str, &str)], #[case] expected: OwnIdentity) {
        let options = AwsOptions::from_environment(|name| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(options.own, expected);
    }
}
