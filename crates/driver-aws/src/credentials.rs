//! Credentials: where the Secrets of a class say to get them, the requests to that source, and a cache of the answers.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, FailureKind, Repeat, Secret,
    http::Request,
    token_file::{self, FileTrust},
};
use jiff::Timestamp;
use machine_driver::{Code, Instant, OpContext, SecretData, Status};
use serde::Deserialize;

use crate::{
    errors,
    options::{AwsOptions, OwnIdentity},
    query::Query,
    xml::{Element, Xml},
};

/// The credentials that sign requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub id: String,
    pub secret: Secret,
    pub token: Option<Secret>,
    pub expires: Option<Timestamp>,
}

impl Credentials {
    /// The failure without the secrets of these credentials, which a service may have repeated.
    pub fn redacted(&self, failure: Failure) -> Failure {
        redacted(std::iter::once(&self.secret).chain(&self.token), failure)
    }
}

/// The failure without these secrets.
fn redacted<'s>(secrets: impl Iterator<Item = &'s Secret>, mut failure: Failure) -> Failure {
    let mut data = SecretData::default();
    for (number, secret) in secrets.enumerate() {
        data.set(number.to_string(), secret.reveal().as_bytes().to_vec());
    }
    failure.status.message = data.redacted(&failure.status.message);
    failure
}

/// A source of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The Secret itself, or the environment of the process.
    Static(Credentials),
    /// STS, which gives the credentials of a role for a token.
    WebIdentity { file: PathBuf, role: String, trust: FileTrust },
    /// The agent of the container's platform.
    Container { uri: String, token_file: Option<PathBuf> },
    /// The metadata service of this VM.
    Instance { endpoint: String },
}

/// The key of a Secret with the path of a token file.
const TOKEN_FILE: &str = "workloadIdentityTokenFile";
/// Credentials are renewed this long before they expire.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The maximum number of sources in the cache.
const MAX_ENTRIES: usize = 256;
/// The version of STS's API.
pub const STS: &str = "2011-06-15";

impl Source {
    /// The source for the Secrets of a class: a role with a token, access keys, or else the identity of the process.
    ///
    /// # Errors
    /// `InvalidArgument` if one value of a pair is missing.
    pub fn of(secret: &SecretData, options: &AwsOptions) -> Result<Self, Status> {
        let missing = |what: &str| Err(Status::new(Code::InvalidArgument, what));
        if secret.get(TOKEN_FILE).is_some() {
            let Some(file) = text(secret, &[TOKEN_FILE]) else {
                return missing("Workload identity token file is required");
            };
            let Some(role) = text(secret, &["roleARN"]) else {
                return missing("Role ARN is required when workload identity is used");
            };
            return Ok(Self::WebIdentity { file: file.into(), role: role.to_owned(), trust: FileTrust::Secret });
        }
        let id = text(secret, &["providerAccessKeyId", "accessKeyID"]);
        let key = text(secret, &["providerSecretAccessKey", "secretAccessKey"]);
        match (id, key) {
            (Some(id), Some(key)) => Ok(Self::Static(Credentials {
                id: id.to_owned(),
                secret: Secret::new(key),
                token: None,
                expires: None,
            })),
            (Some(_), None) => missing("Mention atleast providerSecretAccessKey or secretAccessKey"),
            (None, Some(_)) => missing("Mention atleast providerAccessKeyId or accessKeyID"),
            (None, None) => match &options.own {
                OwnIdentity::WebIdentity { file, role } => {
                    Ok(Self::WebIdentity { file: file.clone(), role: role.clone(), trust: FileTrust::Process })
                }
                OwnIdentity::Keys { id, secret, token } => Ok(Self::Static(Credentials {
                    id: id.clone(),
                    secret: secret.clone(),
                    token: token.clone(),
                    expires: None,
                })),
                OwnIdentity::Container { uri, token_file } => {
                    Ok(Self::Container { uri: uri.clone(), token_file: token_file.clone() })
                }
                OwnIdentity::Instance { endpoint } => Ok(Self::Instance { endpoint: endpoint.clone() }),
                OwnIdentity::None => missing("Mention atleast providerAccessKeyId or accessKeyID"),
            },
        }
    }

    /// Whether the source can give new credentials.
    pub const fn is_renewable(&self) -> bool {
        !matches!(self, Self::Static(_))
    }

    /// The key of the source in caches and request budgets.
    pub fn key(&self) -> CredentialsKey {
        match self {
            Self::Static(Credentials { id, secret, .. }) => CredentialsKey::of(&["keys", id, secret.reveal()]),
            Self::WebIdentity { file, role, .. } => CredentialsKey::of(&["role", &file.to_string_lossy(), role]),
            Self::Container { uri, .. } => CredentialsKey::of(&["container", uri]),
            Self::Instance { endpoint } => CredentialsKey::of(&["instance", endpoint]),
        }
    }
}

/// The value of the first of these keys that is not blank, without the white space around it.
fn text<'s>(secret: &'s SecretData, keys: &[&str]) -> Option<&'s str> {
    let mut values = keys.iter().filter_map(|key| std::str::from_utf8(secret.get(key)?).ok());
    values.find(|value| !value.trim().is_empty()).map(str::trim)
}

/// Reads the token in a file.
fn token(file: &Path, trust: FileTrust, directories: &[PathBuf]) -> Result<Secret, Status> {
    token_file::read(file, trust, directories, TOKEN_FILE)
}

/// The credentials of all sources, until they expire.
#[derive(Default)]
pub struct CredentialsCache {
    entries: Mutex<HashMap<CredentialsKey, Slot>>,
}

/// One call renews the credentials of a source at a time. Other calls wait for it.
type Slot = Arc<tokio::sync::Mutex<Entry>>;

/// The last answers of a source.
#[derive(Default)]
struct Entry {
    credentials: Option<Credentials>,
    /// When a request for credentials last failed, and why.
    refused: Option<(Instant, Status)>,
}

/// After a source gave no credentials, it is not asked again for this time. Otherwise every machine of the class would ask it and wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The longest time for an answer of the metadata service. The service is on the same host, so it answers quickly or not at all.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

impl CredentialsCache {
    fn slot(&self, key: CredentialsKey) -> Slot {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(&key) {
            entries.clear();
        }
        Arc::clone(entries.entry(key).or_default())
    }

    /// Removes credentials that the cloud has refused. Newer credentials of the same source stay.
    pub async fn forget(&self, key: CredentialsKey, refused: &Credentials) {
        self.slot(key).lock().await.credentials.take_if(|cached| cached == refused);
    }

    /// The credentials of a source, renewed before they expire.
    ///
    /// # Errors
    /// Why the source gives no credentials.
    pub async fn credentials(
        &self,
        client: CredentialsClient<'_>,
        source: &Source,
        now: Timestamp,
    ) -> Result<Credentials, Status> {
        if let Source::Static(credentials) = source {
            return Ok(credentials.clone());
        }
        let slot = self.slot(source.key());
        let mut entry = slot.lock().await;
        let lasts = |credentials: &Credentials, ahead: Duration| {
            credentials.expires.is_none_or(|end| now.saturating_add(ahead).is_ok_and(|soon| soon < end))
        };
        if let Some(credentials) = entry.credentials.as_ref().filter(|credentials| lasts(credentials, RENEW_BEFORE)) {
            return Ok(credentials.clone());
        }
        let refused = entry.refused.take().filter(|(since, _)| since.elapsed() < RETRY_AFTER);
        let refused = match refused {
            Some(refused) => refused,
            None => match client.fetch(source).await {
                Ok(credentials) => {
                    entry.credentials = Some(credentials.clone());
                    return Ok(credentials);
                }
                Err(failure) => (Instant::now(), failure.into()),
            },
        };
        entry.refused = Some(refused.clone());
        // The old credentials are used until they expire.
        entry.credentials.clone().filter(|old| lasts(old, Duration::ZERO)).ok_or(refused.1)
    }
}

/// Requests credentials from sources.
#[derive(Clone, Copy)]
pub struct CredentialsClient<'a> {
    pub client: &'a Client,
    pub cx: &'a OpContext,
    pub options: &'a AwsOptions,
    /// The URL of STS.
    pub sts: &'a str,
}

impl CredentialsClient<'_> {
    async fn fetch(self, source: &Source) -> Result<Credentials, Failure> {
        match source {
            Source::Static(credentials) => Ok(credentials.clone()),
            Source::WebIdentity { file, role, trust } => {
                let token = token(file, *trust, &self.options.identity_directories)?;
                self.assume_role(source.key(), role, &token).await
            }
            Source::Container { uri, token_file } => {
                let token = token_file.as_deref().map(|file| token(file, FileTrust::Process, &[])).transpose()?;
                let build = || {
                    let mut request = Request::get(uri.as_str());
                    if let Some(token) = &token {
                        request = request.header("authorization", token.reveal());
                    }
                    with_body(request, Bytes::new())
                };
                self.call(source.key(), "container_credentials", build, read_document).await
            }
            Source::Instance { endpoint } => self.instance_profile(source.key(), endpoint).await,
        }
    }

    /// The credentials of a role for a token. The request is not signed.
    async fn assume_role(self, key: CredentialsKey, role: &str, token: &Secret) -> Result<Credentials, Failure> {
        let mut query = Query::new("AssumeRoleWithWebIdentity", STS);
        query.set("RoleArn", role);
        query.set("RoleSessionName", "machine-controller-manager");
        query.set("WebIdentityToken", token.reveal());
        let body = Bytes::from(query.body());
        let build = || with_body(Request::post(self.sts).header("content-type", crate::sign::FORM), body.clone());
        let read = |answer: &Answer| match errors::failure("STS", query.action(), answer) {
            Some(failure) => Err(redacted(std::iter::once(token), failure)),
            None => {
                Xml::parse(&answer.body).and_then(|xml| read_role(xml.anywhere("Credentials")?)).ok_or_else(unreadable)
            }
        };
        self.call(key, "assume_role_with_web_identity", build, read).await
    }

    /// The credentials of the instance profile, by version 2 of the metadata service: first a token, then the role, then its credentials.
    async fn instance_profile(self, key: CredentialsKey, endpoint: &str) -> Result<Credentials, Failure> {
        let endpoint = endpoint.trim_end_matches('/');
        let token = || {
            let request = Request::put(format!("{endpoint}/latest/api/token"));
            with_body(request.header("x-aws-ec2-metadata-token-ttl-seconds", "300"), Bytes::new())
        };
        let request = self.call(key, "instance_metadata", token, read_text);
        let Ok(token) = tokio::time::timeout(METADATA_TIMEOUT, request).await else {
            let message = format!(
                "the Secret has no credentials, and the process has none of its own: the metadata service of the instance, \
                 {endpoint}, does not answer; in a container it needs a hop limit of 2"
            );
            return Err(Failure::permanent(Code::Unauthenticated, message));
        };
        let token = token?;
        let path = format!("{endpoint}/latest/meta-data/iam/security-credentials/");
        let get = |url: String| with_body(Request::get(url).header("x-aws-ec2-metadata-token", &token), Bytes::new());
        let role = self.call(key, "instance_metadata", || get(path.clone()), read_text).await?;
        self.call(key, "instance_metadata", || get(format!("{path}{role}")), read_document).await
    }

    async fn call<T: Send>(
        self,
        account: CredentialsKey,
        service: &'static str,
        build: impl Fn() -> Result<Request<Bytes>, Status> + Send + Sync,
        read: impl Fn(&Answer) -> Result<T, Failure> + Send + Sync,
    ) -> Result<T, Failure> {
        let call = Call { service, what: "credentials", account, repeat: Repeat::Safe };
        self.client.call(self.cx, call, build, read).await
    }
}

fn with_body(request: cloud_client::http::request::Builder, body: Bytes) -> Result<Request<Bytes>, Status> {
    // The error of `http` does not contain the value of the header.
    let unsendable = |error: cloud_client::http::Error| {
        Status::new(Code::FailedPrecondition, format!("credentials can't be asked for: {error}"))
    };
    request.body(body).map_err(unsendable)
}

fn unreadable() -> Failure {
    Failure::permanent(Code::Internal, "the source of credentials gives an answer that can't be read")
}

fn check_status(answer: &Answer) -> Result<(), Failure> {
    match answer.status.as_u16() {
        200..300 => Ok(()),
        status @ (429 | 500..) => {
            let message = format!("the source of credentials answers with status {status}");
            Err(Failure::new(Code::Unavailable, message, FailureKind::Temporary))
        }
        status => {
            let message = format!("the process has no credentials of its own: status {status}");
            Err(Failure::permanent(Code::Unauthenticated, message))
        }
    }
}

/// Reads the first line of an answer of the metadata service. It becomes a header or a part of a path.
fn read_text(answer: &Answer) -> Result<String, Failure> {
    check_status(answer)?;
    let text = std::str::from_utf8(&answer.body).ok().and_then(|text| text.lines().next()).unwrap_or_default().trim();
    if text.is_empty() { Err(unreadable()) } else { Ok(text.to_owned()) }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    access_key_id: String,
    secret_access_key: String,
    token: String,
    expiration: Timestamp,
}

fn read_document(answer: &Answer) -> Result<Credentials, Failure> {
    check_status(answer)?;
    let read: Document = serde_json::from_slice(&answer.body).map_err(|_| unreadable())?;
    Ok(Credentials {
        id: read.access_key_id,
        secret: Secret::new(read.secret_access_key),
        token: Some(Secret::new(read.token)),
        expires: Some(read.expiration),
    })
}

fn read_role(from: Element<'_, '_>) -> Option<Credentials> {
    Some(Credentials {
        id: from.some_text("AccessKeyId")?,
        secret: Secret::new(from.some_text("SecretAccessKey")?),
        token: Some(Secret::new(from.some_text("SessionToken")?)),
        expires: Some(from.value("Expiration")?),
    })
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
