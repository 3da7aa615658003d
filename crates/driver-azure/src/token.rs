//! The tokens that authorize requests, from Microsoft Entra, for an application with a secret or with the token of another issuer.
//!
//! Source: OAuth 2.0 client credentials flow of the Microsoft identity platform, with a secret or with a federated credential.

use std::time::Duration;

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, FailureKind, Repeat, Secret, Token,
    http::{Request, header},
    redacted,
    token_file::{self, FileTrust},
};
use machine_driver::{Code, OpContext, Status, Timestamp};
use serde_json::Value;

use crate::{
    api::{self, Cloud},
    errors,
    login::{Login, Proof},
    options::AzureOptions,
    secret::TOKEN_FILE,
};

/// The lifetime of a token whose answer names none.
const DEFAULT_LIFETIME: u64 = 600;
/// The longest lifetime that is believed: Entra issues tokens for at most a day.
const LONGEST_LIFETIME: u64 = 24 * 3600;
/// What the request is, for messages.
const WHAT: &str = "getting a token";
/// The kind of proof that is a token of another issuer.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

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
    /// The account in its cloud.
    pub fn key(self) -> CredentialsKey {
        self.login.account.with(self.cloud.resource_manager())
    }

    /// Asks for a token.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn fetch(self, now: Timestamp) -> Result<Token, Failure> {
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
                return Err(redacted(&[&secret], refusal(answer)));
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
