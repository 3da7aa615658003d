//! The credentials in the Secrets of a class: the key of a service account, or the configuration of a workload identity.
//!
//! Users write these JSON documents. They contain URLs, to which the driver would send tokens, and paths of files. Only the URLs of Google's own
//! services are accepted, and the driver then uses its own constants; other sources of tokens than files are refused (spec/providers §5.3,
//! decisions.md 60).

use std::path::PathBuf;

use cloud_client::{CredentialsKey, Secret};
use machine_driver::{Code, SecretData, Status};
use ring::signature::RsaKeyPair;
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde::Deserialize;

use crate::{
    names::is_project,
    options::Api,
    secret::{CREDENTIALS_CONFIG, SERVICE_ACCOUNT_KEYS},
};

/// The credentials of a class with their project.
#[derive(Clone, Debug)]
pub struct Login {
    /// The project of new instances.
    pub project: String,
    pub credentials: Credentials,
    /// The key of these credentials in caches and request budgets.
    pub account: CredentialsKey,
}

/// How a token is obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The driver signs tokens with the key of a service account.
    ServiceAccount {
        email: String,
        key_id: String,
        /// The private key (PEM).
        key: Secret,
    },
    /// Google exchanges the token of another issuer.
    ExternalAccount(ExternalAccount),
}

/// A workload identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The provider of the workload identity pool.
    pub audience: String,
    pub subject_token_type: String,
    /// The file with the token of the other issuer.
    pub file: PathBuf,
    /// The field with the token, if the file is JSON.
    pub field: Option<String>,
    /// The service account whose token is used in the end.
    pub impersonates: Option<String>,
}

/// The JSON document of a Secret.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(rename = "type")]
    kind: String,
    universe_domain: Option<String>,
    project_id: String,
    client_email: String,
    private_key_id: String,
    private_key: String,
    audience: String,
    subject_token_type: String,
    token_url: String,
    service_account_impersonation_url: Option<String>,
    credential_source: Option<CredentialSource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CredentialSource {
    file: String,
    format: Option<Format>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
    subject_token_field_name: String,
}

/// The domain of Google's public cloud.
const UNIVERSE: &str = "googleapis.com";
/// The path of the token service.
pub const TOKEN_PATH: &str = "/v1/token";
/// The parts of the path that makes the token of a service account, around its e-mail address.
pub const IMPERSONATION_PATH: (&str, &str) = ("/v1/projects/-/serviceAccounts/", ":generateAccessToken");

impl Login {
    /// Reads the credentials in the Secrets of a class.
    ///
    /// # Errors
    /// `InvalidArgument` with the key and the field that is missing or invalid, without its value.
    pub fn of(secret: &SecretData) -> Result<Self, Status> {
        let mut keys = SERVICE_ACCOUNT_KEYS.into_iter().chain([CREDENTIALS_CONFIG]);
        let Some((key, text)) = keys.find_map(|key| Some((key, filled(secret, key)?))) else {
            let message = "serviceAccountJSON, serviceaccount.json or credentialsConfig is required";
            return Err(Status::new(Code::InvalidArgument, message));
        };
        let refused = |problem: &str| Status::new(Code::InvalidArgument, format!("data[{key}]: {problem}"));
        // The error of the parser may contain a part of the document.
        let document: Document = serde_json::from_str(text).map_err(|error| {
            refused(&format!("can't be read as credentials (line {}, column {})", error.line(), error.column()))
        })?;
        if document.universe_domain.as_deref().is_some_and(|universe| universe != UNIVERSE) {
            return Err(refused("universe_domain must be googleapis.com"));
        }
        let of_secret = || filled(secret, "projectID").map(str::to_owned);
        let project = Some(document.project_id.clone()).filter(|id| !id.is_empty()).or_else(of_secret);
        let project = project.ok_or_else(|| refused("names no project_id, and the Secret has no projectID"))?;
        if !is_project(&project) {
            return Err(Status::new(Code::InvalidArgument, format!("{project:?} can't be the id of a project")));
        }
        let credentials = match document.kind.as_str() {
            "service_account" => service_account(document),
            "external_account" => external_account(document).map(Credentials::ExternalAccount),
            _ => Err("type must be service_account or external_account"),
        };
        let credentials = credentials.map_err(refused)?;
        let account = CredentialsKey::of(&[text]);
        Ok(Self { project, credentials, account })
    }
}

/// The value of a key that is not blank.
fn filled<'s>(secret: &'s SecretData, key: &str) -> Option<&'s str> {
    std::str::from_utf8(secret.get(key)?).ok().map(str::trim).filter(|text| !text.is_empty())
}

fn service_account(document: Document) -> Result<Credentials, &'static str> {
    if document.client_email.is_empty() {
        return Err("client_email is required");
    }
    if document.private_key.is_empty() {
        return Err("private_key is required");
    }
    let key = Secret::new(document.private_key);
    Ok(Credentials::ServiceAccount { email: document.client_email, key_id: document.private_key_id, key })
}

/// The key that signs tokens.
///
/// # Errors
/// What is wrong with the key.
pub fn key_pair(key: &Secret) -> Result<RsaKeyPair, &'static str> {
    let key = PrivatePkcs8KeyDer::from_pem_slice(key.reveal().as_bytes()).ok();
    let key = key.and_then(|key| RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok());
    key.ok_or("private_key is no RSA key in PKCS #8 (PEM)")
}

fn external_account(document: Document) -> Result<ExternalAccount, &'static str> {
    if document.audience.is_empty() {
        return Err("audience is required");
    }
    if document.subject_token_type.is_empty() {
        return Err("subject_token_type is required");
    }
    if !is_url_of(Api::Tokens, TOKEN_PATH, &document.token_url) {
        return Err("token_url must be https://sts.googleapis.com/v1/token");
    }
    let impersonates = match &document.service_account_impersonation_url {
        None => None,
        Some(url) => Some(impersonated(url).ok_or(
            "service_account_impersonation_url must be \
             https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/EMAIL:generateAccessToken",
        )?),
    };
    let source = document.credential_source.unwrap_or_default();
    if source.file.is_empty() {
        return Err("credential_source.file is required; other sources of tokens are not supported");
    }
    let field = match source.format {
        Some(format) if format.kind == "json" => {
            if format.subject_token_field_name.is_empty() {
                return Err("credential_source.format.subject_token_field_name is required for JSON");
            }
            Some(format.subject_token_field_name)
        }
        Some(format) if !["", "text"].contains(&format.kind.as_str()) => {
            return Err("credential_source.format.type must be text or json");
        }
        _ => None,
    };
    Ok(ExternalAccount {
        audience: document.audience,
        subject_token_type: document.subject_token_type,
        file: source.file.into(),
        field,
        impersonates,
    })
}

fn is_url_of(api: Api, path: &str, url: &str) -> bool {
    url.strip_prefix(api.endpoint()) == Some(path)
}

/// The e-mail address in the URL that makes a token of a service account. `None` for any other URL.
fn impersonated(url: &str) -> Option<String> {
    let (before, after) = IMPERSONATION_PATH;
    let email = url.strip_prefix(Api::AccountCredentials.endpoint())?.strip_prefix(before)?.strip_suffix(after)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'@');
    (!email.is_empty() && email.bytes().all(is_allowed)).then(|| email.to_owned())
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
