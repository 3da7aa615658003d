//! Credentials: which source a class's Secrets name, what it answers, and how long that is kept.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cloud_client::{Answer, Bytes, Call, Client, CredentialsKey, Failure, FailureKind, Repeat, Secret, http::Request};
use jiff::Timestamp;
use machine_driver::{Code, Instant, OpContext, SecretData, Status};
use serde::Deserialize;

use crate::{
    errors,
    options::{AwsOptions, OwnIdentity},
    query::Query,
    xml::{Element, Xml},
};

/// What a request is signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub id: String,
    pub secret: Secret,
    pub token: Option<Secret>,
    pub expires: Option<Timestamp>,
}

/// Where credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// They stand in the Secret.
    Static(Credentials),
    /// STS gives them to a role for a token.
    WebIdentity { file: PathBuf, role: String, trust: FileTrust },
    /// The agent of the container's platform gives them.
    Container { uri: String, token_file: Option<PathBuf> },
    /// The metadata service of this VM gives them.
    Instance { endpoint: String },
}

/// Who named a token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileTrust {
    /// The configuration of the process.
    Process,
    /// A Secret: only files in the directories for tokens are read.
    Secret,
}

/// Never below it: the token of the process's own account at the API server is there.
const API_SERVER_TOKENS: &str = "/var/run/secrets/kubernetes.io/";
/// Credentials are renewed so long before their end.
const AHEAD: Duration = Duration::from_secs(5 * 60);
/// So many credentials are kept.
const MOST_KEPT: usize = 256;
/// Token files are short.
const LONGEST_TOKEN: u64 = 64 * 1024;
const STS: &str = "2011-06-15";

impl Source {
    /// Where the credentials of a class come from: a role for a token, keys, or the identity of the process.
    ///
    /// # Errors
    /// `InvalidArgument` for half of a pair.
    pub fn of(secret: &SecretData, options: &AwsOptions) -> Result<Self, Status> {
        let missing = |what: &str| Err(Status::new(Code::InvalidArgument, what));
        if secret.get("workloadIdentityTokenFile").is_some() {
            let Some(file) = text(secret, &["workloadIdentityTokenFile"]) else {
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

    /// Whether it may give others than before.
    pub const fn is_renewable(&self) -> bool {
        !matches!(self, Self::Static(_))
    }

    /// What stands for the source in caches and budgets.
    pub fn key(&self) -> CredentialsKey {
        match self {
            Self::Static(Credentials { id, secret, .. }) => CredentialsKey::of(&["keys", id, secret.reveal()]),
            Self::WebIdentity { file, role, .. } => CredentialsKey::of(&["role", &file.to_string_lossy(), role]),
            Self::Container { uri, .. } => CredentialsKey::of(&["container", uri]),
            Self::Instance { endpoint } => CredentialsKey::of(&["instance", endpoint]),
        }
    }
}

/// The first of these keys that says something, without the white space around it.
fn text<'s>(secret: &'s SecretData, keys: &[&str]) -> Option<&'s str> {
    let mut values = keys.iter().filter_map(|key| std::str::from_utf8(secret.get(key)?).ok());
    values.find(|value| !value.trim().is_empty()).map(str::trim)
}

/// The token in a file.
///
/// # Errors
/// `InvalidArgument` for a file that a Secret must not name, `FailedPrecondition` for one that can't be read.
fn token(file: &Path, trust: FileTrust, directories: &[PathBuf]) -> Result<Secret, Status> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::new(Code::FailedPrecondition, format!("token file {}: {error}", file.display()))
    };
    // Where links lead counts, also for the directories: /var/run is one itself.
    let real = if trust == FileTrust::Process { Ok(file.to_owned()) } else { permitted(file, directories) }?;
    let length = fs::metadata(&real).map_err(|error| unreadable(&error))?;
    if !length.is_file() || length.len() > LONGEST_TOKEN {
        return Err(unreadable(&"it holds no token"));
    }
    let token = fs::read_to_string(&real).map_err(|error| unreadable(&error))?;
    if token.trim().is_empty() { Err(unreadable(&"it is empty")) } else { Ok(Secret::new(token.trim())) }
}

/// The file that a Secret names, without links, if Secrets may name it. Nothing is told of files elsewhere, not even that they are
/// there.
fn permitted(file: &Path, directories: &[PathBuf]) -> Result<PathBuf, Status> {
    let real = fs::canonicalize(file).ok().filter(|real| {
        let is_below =
            |directory: &Path| fs::canonicalize(directory).is_ok_and(|directory| real.starts_with(directory));
        directories.iter().any(|directory| is_below(directory)) && !is_below(Path::new(API_SERVER_TOKENS))
    });
    real.ok_or_else(|| {
        let message = format!("workloadIdentityTokenFile: {} is no file in a directory for tokens", file.display());
        Status::new(Code::InvalidArgument, message)
    })
}

/// Credentials that were given, until they expire.
#[derive(Default)]
pub struct Wallet {
    kept: Mutex<HashMap<CredentialsKey, Slot>>,
}

/// One renewal at a time; others wait for it.
type Slot = Arc<tokio::sync::Mutex<Kept>>;

/// What has come of asking a source.
#[derive(Default)]
struct Kept {
    credentials: Option<Credentials>,
    /// When it last gave none, and why.
    refused: Option<(Instant, Status)>,
}

/// A source that gives no credentials is not asked again for so long: all machines of a class wait for the answer.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The metadata service is on the same host: it answers at once or not at all.
const METADATA_PATIENCE: Duration = Duration::from_secs(2);

impl Wallet {
    fn slot(&self, key: CredentialsKey) -> Slot {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT && !kept.contains_key(&key) {
            kept.clear();
        }
        Arc::clone(kept.entry(key).or_default())
    }

    /// The cloud does not accept these any more. Others that were given meanwhile stay.
    pub async fn forget(&self, key: CredentialsKey, refused: &Credentials) {
        self.slot(key).lock().await.credentials.take_if(|kept| kept == refused);
    }

    /// The credentials of a source, renewed in time.
    ///
    /// # Errors
    /// Why the source gives none.
    pub async fn credentials(&self, giver: Giver<'_>, source: &Source, now: Timestamp) -> Result<Credentials, Status> {
        if let Source::Static(credentials) = source {
            return Ok(credentials.clone());
        }
        let slot = self.slot(source.key());
        let mut kept = slot.lock().await;
        let lasts = |credentials: &Credentials, ahead: Duration| {
            credentials.expires.is_none_or(|end| now.saturating_add(ahead).is_ok_and(|soon| soon < end))
        };
        if let Some(credentials) = kept.credentials.as_ref().filter(|credentials| lasts(credentials, AHEAD)) {
            return Ok(credentials.clone());
        }
        let refused = kept.refused.take().filter(|(since, _)| since.elapsed() < REFUSED_FOR);
        let refused = match refused {
            Some(refused) => refused,
            None => match giver.given(source).await {
                Ok(credentials) => {
                    kept.credentials = Some(credentials.clone());
                    return Ok(credentials);
                }
                Err(failure) => (Instant::now(), failure.into()),
            },
        };
        kept.refused = Some(refused.clone());
        // The old ones last a little longer.
        kept.credentials.clone().filter(|old| lasts(old, Duration::ZERO)).ok_or(refused.1)
    }
}

/// Asks sources for credentials.
#[derive(Clone, Copy)]
pub struct Giver<'a> {
    pub client: &'a Client,
    pub cx: &'a OpContext,
    pub options: &'a AwsOptions,
    /// The URL of STS.
    pub sts: &'a str,
}

impl Giver<'_> {
    async fn given(self, source: &Source) -> Result<Credentials, Failure> {
        match source {
            Source::Static(credentials) => Ok(credentials.clone()),
            Source::WebIdentity { file, role, trust } => {
                let token = token(file, *trust, &self.options.identity_directories)?;
                self.assumed(source.key(), role, &token).await
            }
            Source::Container { uri, token_file } => {
                let token = token_file.as_deref().map(|file| token(file, FileTrust::Process, &[])).transpose()?;
                let build = || {
                    let mut request = Request::get(uri.as_str());
                    if let Some(token) = &token {
                        request = request.header("authorization", token.reveal());
                    }
                    built(request, Bytes::new())
                };
                self.ask(source.key(), "container_credentials", build, read_document).await
            }
            Source::Instance { endpoint } => self.of_instance(source.key(), endpoint).await,
        }
    }

    /// A role for a token; the request is not signed.
    async fn assumed(self, key: CredentialsKey, role: &str, token: &Secret) -> Result<Credentials, Failure> {
        let mut query = Query::new("AssumeRoleWithWebIdentity", STS);
        query.set("RoleArn", role);
        query.set("RoleSessionName", "machine-controller-manager");
        query.set("WebIdentityToken", token.reveal());
        let body = Bytes::from(query.body());
        let build = || built(Request::post(self.sts).header("content-type", crate::sign::FORM), body.clone());
        let read = |answer: &Answer| match errors::failure("STS", query.action(), answer) {
            Some(failure) => Err(failure),
            None => Xml::parse(&answer.body).and_then(|xml| read_role(xml.anywhere("Credentials")?)).ok_or_else(unread),
        };
        self.ask(key, "assume_role_with_web_identity", build, read).await
    }

    /// Version 2 of the metadata service: first a token, then the role, then its credentials.
    async fn of_instance(self, key: CredentialsKey, endpoint: &str) -> Result<Credentials, Failure> {
        let endpoint = endpoint.trim_end_matches('/');
        let token = || {
            let request = Request::put(format!("{endpoint}/latest/api/token"));
            built(request.header("x-aws-ec2-metadata-token-ttl-seconds", "300"), Bytes::new())
        };
        let asked = self.ask(key, "instance_metadata", token, read_text);
        let Ok(token) = tokio::time::timeout(METADATA_PATIENCE, asked).await else {
            let message = format!(
                "the Secret has no credentials, and the process has none of its own: the metadata service of the instance, \
                 {endpoint}, does not answer; in a container it needs a hop limit of 2"
            );
            return Err(Failure::permanent(Code::Unauthenticated, message));
        };
        let token = token?;
        let path = format!("{endpoint}/latest/meta-data/iam/security-credentials/");
        let get = |url: String| built(Request::get(url).header("x-aws-ec2-metadata-token", &token), Bytes::new());
        let role = self.ask(key, "instance_metadata", || get(path.clone()), read_text).await?;
        self.ask(key, "instance_metadata", || get(format!("{path}{role}")), read_document).await
    }

    async fn ask<T: Send>(
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

fn built(request: cloud_client::http::request::Builder, body: Bytes) -> Result<Request<Bytes>, Status> {
    // The error of `http` does not repeat the value.
    let unsendable = |error: cloud_client::http::Error| {
        Status::new(Code::FailedPrecondition, format!("credentials can't be asked for: {error}"))
    };
    request.body(body).map_err(unsendable)
}

fn unread() -> Failure {
    Failure::permanent(Code::Internal, "the source of credentials gives an answer that can't be read")
}

fn refused(answer: &Answer) -> Result<(), Failure> {
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

/// One line of the metadata service, which becomes a header or a part of a path.
fn read_text(answer: &Answer) -> Result<String, Failure> {
    refused(answer)?;
    let text = std::str::from_utf8(&answer.body).ok().and_then(|text| text.lines().next()).unwrap_or_default().trim();
    if text.is_empty() { Err(unread()) } else { Ok(text.to_owned()) }
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
    refused(answer)?;
    let read: Document = serde_json::from_slice(&answer.body).map_err(|_| unread())?;
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
