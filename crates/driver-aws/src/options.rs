//! What the process says of EC2: endpoints, credentials of its own, directories of token files.

use std::path::PathBuf;

use cloud_client::{Secret, http::Uri};
use machine_driver::{Code, Status};

use crate::{errors::ErrorCodes, regions::Variant};

/// Settings of the driver. They come from whoever runs the process, never from a class or a Secret.
#[derive(Clone, Debug)]
pub struct AwsOptions {
    /// The endpoint of EC2 in place of those of the regions.
    pub ec2_endpoint: Option<String>,
    /// The endpoint of STS in place of those of the regions.
    pub sts_endpoint: Option<String>,
    /// Which form of the regions' endpoints.
    pub variant: Variant,
    /// How fine codes are.
    pub error_codes: ErrorCodes,
    /// Token files that Secrets name are read below these directories only.
    pub identity_directories: Vec<PathBuf>,
    /// Certificates of authorities that are trusted in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Credentials of the process, for classes whose Secrets bring none.
    pub own: OwnIdentity,
}

/// The identity of the process itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnIdentity {
    /// A role, proven by a token in a file.
    WebIdentity {
        /// The file.
        file: PathBuf,
        /// The ARN of the role.
        role: String,
    },
    /// The agent of the container's platform, such as that of EKS Pod Identity.
    Container {
        /// Whom to ask.
        uri: String,
        /// The file with the token for it.
        token_file: Option<PathBuf>,
    },
    /// The instance profile of the VM that the process runs on.
    Instance {
        /// The metadata service.
        endpoint: String,
    },
    /// Keys.
    Keys {
        /// The id.
        id: String,
        /// The secret key.
        secret: Secret,
        /// The token that belongs to keys which end.
        token: Option<Secret>,
    },
    /// None.
    None,
}

/// The metadata service of a VM.
const METADATA: &str = "http://169.254.169.254";
/// Where token files may be.
const IDENTITY_DIRECTORY: &str = "/var/run/secrets/";

impl Default for AwsOptions {
    fn default() -> Self {
        Self::from_environment(|_| None)
    }
}

impl AwsOptions {
    /// What the environment of the process says, by the names that AWS's own clients know.
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

/// An endpoint as an address.
///
/// # Errors
/// `FailedPrecondition` when the configuration names none.
pub fn address(endpoint: &str) -> Result<Uri, Status> {
    let address: Option<Uri> = endpoint.parse().ok();
    // A login would be told in messages.
    let is_good = |authority: &str| !authority.contains('@');
    let is_url = |address: &Uri| {
        matches!(address.scheme_str(), Some("http" | "https"))
            && address.authority().is_some_and(|authority| is_good(authority.as_str()))
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
