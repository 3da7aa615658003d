//! The tokens that authorize requests, from Microsoft Entra, for an application with a secret or with the token of another issuer.
//!
//! Source: OAuth 2.0 client credentials flow of the Microsoft identity platform, with a secret or with a federated credential.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, FailureKind, Repeat, Secret,
    http::{Request, header},
    token_file::{self, FileTrust},
};
use machine_driver::{Code, Instant, OpContext, SecretData, Status, Timestamp};
use serde_json::Value;

use crate::{
    api::{self, Cloud},
    errors,
    login::{Login, Proof},
    options::AzureOptions,
    secret::TOKEN_FILE,
};

/// A token for requests to Azure Resource Manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub value: Secret,
    expires: Timestamp,
}

impl Token {
    /// The failure without the token, which a service may have repeated.
    pub fn redacted(&self, failure: Failure) -> Failure {
        redacted(&self.value, failure)
    }
}

/// Tokens are renewed this long before they expire.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The lifetime of a token whose answer names none.
const DEFAULT_LIFETIME: u64 = 600;
/// The longest lifetime that is believed: Entra issues tokens for at most a day.
const LONGEST_LIFETIME: u64 = 24 * 3600;
/// After a refusal, Entra is not asked again for this time. Otherwise every machine of the class would ask it and wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The codes of refusals.
const REFUSALS: [Code; 3] = [Code::Unauthenticated, Code::PermissionDenied, Code::InvalidArgument];
/// The maximum number of accounts in the cache.
const MAX_ENTRIES: usize = 256;
/// What the request is, for messages.
const WHAT: &str = "getting a token";
/// The kind of proof that is a token of another issuer.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The tokens of all accounts, until they expire.
#[derive(Default)]
pub struct Tokens {
    entries: Mutex<HashMap<CredentialsKey, Slot>>,
}

/// One call gets a token for an account at a time. Other calls of the account wait for it.
type Slot = Arc<tokio::sync::Mutex<Entry>>;

#[derive(Default)]
struct Entry {
    token: Option<Token>,
    /// When Entra last refused a token, and why.
    refused: Option<(Instant, Status)>,
}

impl Tokens {
    fn slot(&self, account: CredentialsKey) -> Slot {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(&account) {
            entries.clear();
        }
        Arc::clone(entries.entry(account).or_default())
    }

    /// Removes a token that Azure has refused. A newer token of the account stays.
    pub async fn forget(&self, source: TokenSource<'_>, refused: &Token) {
        self.slot(source.key()).lock().await.token.take_if(|cached| cached == refused);
    }

    /// A valid token, renewed before it expires.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn token(&self, source: TokenSource<'_>, now: Timestamp) -> Result<Token, Status> {
        let slot = self.slot(source.key());
        let mut entry = slot.lock().await;
        let lasts = |token: &Token, ahead: Duration| now.saturating_add(ahead).is_ok_and(|soon| soon < token.expires);
        if let Some(token) = entry.token.as_ref().filter(|token| lasts(token, RENEW_BEFORE)) {
            return Ok(token.clone());
        }
        let refused = match entry.refused.take().filter(|(since, _)| since.elapsed() < RETRY_AFTER) {
            Some(refused) => refused,
            None => match source.fetch(now).await {
                Ok(token) => {
                    entry.token = Some(token.clone());
                    return Ok(token);
                }
                Err(failure) => (Instant::now(), Status::from(failure)),
            },
        };
        // Another failure, such as the end of this call's time, says nothing about other calls.
        if REFUSALS.contains(&refused.1.code) {
            entry.refused = Some(refused.clone());
        }
        // The old token is used until it expires.
        entry.token.clone().filter(|old| lasts(old, Duration::ZERO)).ok_or(refused.1)
    }
}

/// Requests the token of one account in one cloud.
#[derive(Clone, Copy)]
pub struct TokenSource<'a> {
    pub client: &'a Client,
    pub cx: &'a OpContext,
    pub options: &'a AzureOptions,
    pub login: &'a Login,
    pub cloud: Cloud,
}

impl TokenSource<'_> {
    fn key(self) -> CredentialsKey {
        self.login.account.with(self.cloud.resource_manager())
    }

    async fn fetch(self, now: Timestamp) -> Result<Token, Failure> {
        let (secret, body) = self.form()?;
        let url = self.options.login_url(self.cloud, &api::token(&self.login.tenant))?;
        let build = || {
            Request::post(url.clone())
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .header(header::ACCEPT, "application/json")
                .body(body.clone())
                .map_err(|_| Status::new(Code::Internal, "the request for a token can't be sent"))
        };
        let read = |answer: &Answer| {
            if !answer.status.is_success() {
                return Err(redacted(&secret, refusal(answer)));
            }
            token(answer, now)
                .ok_or_else(|| Failure::permanent(Code::Internal, format!("{WHAT}: the answer can't be read")))
        };
        // A second token does no harm.
        let call = Call { service: "token", what: WHAT, account: self.login.account, repeat: Repeat::Safe };
        self.client.call(self.cx, call, build, read).await
    }

    /// The secret of the request, and its body.
    fn form(self) -> Result<(Secret, Bytes), Status> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials")
            .append_pair("client_id", &self.login.client)
            .append_pair("scope", &self.cloud.scope());
        let secret = match &self.login.proof {
            Proof::ClientSecret(secret) => {
                form.append_pair("client_secret", secret.reveal());
                secret.clone()
            }
            Proof::TokenFile(file) => {
                let directories = &self.options.identity_directories;
                let token = token_file::read(file, FileTrust::Secret, directories, TOKEN_FILE)?;
                form.append_pair("client_assertion_type", ASSERTION_TYPE)
                    .append_pair("client_assertion", token.reveal());
                token
            }
        };
        Ok((secret, Bytes::from(form.finish())))
    }
}

/// The token in an answer. Some services write the lifetime as a text.
fn token(answer: &Answer, now: Timestamp) -> Option<Token> {
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    let value = body["access_token"].as_str().filter(|token| !token.is_empty())?;
    let lifetime = &body["expires_in"];
    let lifetime = lifetime.as_u64().or_else(|| lifetime.as_str()?.parse().ok()).unwrap_or(DEFAULT_LIFETIME);
    let expires = now.saturating_add(Duration::from_secs(lifetime.min(LONGEST_LIFETIME))).ok()?;
    Some(Token { value: Secret::new(value), expires })
}

/// The errors of Entra have the form of OAuth (RFC 6749).
fn refusal(answer: &Answer) -> Failure {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let status = answer.status.as_u16();
    let Some(error) = body["error"].as_str() else { return errors::failure(WHAT, answer) };
    // The rest of the description are ids of the request, each in its own line or sentence.
    let description = body["error_description"].as_str().unwrap_or_default();
    let description = description.split(['\r', '\n']).next().unwrap_or_default();
    let message = format!("{WHAT}: {error}: {description}");
    let kind = match status {
        429 => FailureKind::Throttled,
        408 | 500.. => FailureKind::Temporary,
        _ if error == "temporarily_unavailable" => FailureKind::Temporary,
        _ => FailureKind::Permanent,
    };
    let code = if kind == FailureKind::Permanent { Code::Unauthenticated } else { Code::Unavailable };
    Failure { reason: error.to_owned(), ..Failure::new(code, message, kind) }
}

/// The failure without this secret, which a service may have repeated.
fn redacted(secret: &Secret, mut failure: Failure) -> Failure {
    let mut data = SecretData::default();
    data.set("secret", secret.reveal().as_bytes().to_vec());
    failure.status.message = data.redacted(&failure.status.message);
    failure
}
