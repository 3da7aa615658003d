//! The tokens that authorize requests: signed by the driver itself for a service account, or exchanged at Google for a workload identity.
//!
//! Source: spec/providers §5.3; the forms of AIP-4111 (self-signed JWT) and AIP-4117 (external accounts).

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use cloud_client::{
    Answer, Bytes, Call, Client, Failure, FailureKind, Repeat, Secret, Token,
    http::{Request, Uri, header},
    redacted,
    token_file::{self, FileTrust},
};
use machine_driver::{Code, OpContext, Status, Timestamp};
use ring::{rand::SystemRandom, signature::RSA_PKCS1_SHA256};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    errors,
    login::{Credentials, ExternalAccount, IMPERSONATION_PATH, Login, TOKEN_PATH, key_pair},
    options::{Api, GcpOptions},
};

/// The audience of a token that the driver signs itself: the service, whatever endpoint serves it.
const AUDIENCE: &str = "https://compute.googleapis.com/";
/// What a token of a workload identity may be used for, within the roles of the identity.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The lifetime of tokens. Google accepts at most one hour.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Signed tokens are issued this long ago, because Google refuses tokens from the future, and clocks differ.
const BACKDATED: Duration = Duration::from_secs(10);
/// The field of credentials with the path of a token file, for messages.
const FILE_FIELD: &str = "credential_source.file";

/// Makes or requests the token of one account.
#[derive(Clone, Copy)]
pub struct TokenSource<'a> {
    pub client: &'a Client,
    pub cx: &'a OpContext,
    pub options: &'a GcpOptions,
    pub login: &'a Login,
}

impl TokenSource<'_> {
    /// Makes or asks for a token.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn fetch(self, now: Timestamp) -> Result<Token, Failure> {
        match &self.login.credentials {
            Credentials::ServiceAccount { email, key_id, key } => Ok(signed(email, key_id, key, now)?),
            Credentials::ExternalAccount(account) => self.exchanged(account, now).await,
        }
    }

    async fn exchanged(self, account: &ExternalAccount, now: Timestamp) -> Result<Token, Failure> {
        let subject = subject_token(account, self.options)?;
        let body = json!({
            "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
            "audience": account.audience,
            "scope": SCOPE,
            "subjectToken": subject.reveal(),
            "subjectTokenType": account.subject_token_type,
        });
        let url = self.options.url(Api::Tokens, TOKEN_PATH)?;
        let exchange = Exchange { what: "exchanging the token", service: "token_exchange", url, proof: None, body };
        let exchanged: ExchangedToken = self.post(exchange, &[&subject]).await?;
        let token = Token {
            value: Secret::new(exchanged.access_token),
            expires: now.saturating_add(Duration::from_secs(exchanged.expires_in)).unwrap_or(now),
        };
        let Some(email) = &account.impersonates else { return Ok(token) };
        let (before, after) = IMPERSONATION_PATH;
        let url = self.options.url(Api::AccountCredentials, &format!("{before}{email}{after}"))?;
        let body = json!({"scope": [SCOPE], "lifetime": format!("{}s", LIFETIME.as_secs())});
        let exchange = Exchange {
            what: "getting the token of the service account",
            service: "account_token",
            url,
            proof: Some(&token.value),
            body,
        };
        let made: AccountToken = self.post(exchange, &[&token.value]).await?;
        Ok(Token { value: Secret::new(made.access_token), expires: made.expire_time })
    }

    /// Sends a request for a token. Messages do not contain `secrets`.
    async fn post<T: DeserializeOwned + Send>(self, exchange: Exchange<'_>, secrets: &[&Secret]) -> Result<T, Failure> {
        let Exchange { what, service, url, proof, body } = exchange;
        let body = Bytes::from(body.to_string());
        let build = || {
            let mut request = Request::post(url.clone()).header(header::CONTENT_TYPE, "application/json");
            if let Some(proof) = proof {
                request = request.header(header::AUTHORIZATION, format!("Bearer {}", proof.reveal()));
            }
            request.body(body.clone()).map_err(|_| unsendable())
        };
        let read = |answer: &Answer| match errors::failure(what, answer) {
            Some(failure) => Err(redacted(secrets, as_refusal(failure, what, answer))),
            None => serde_json::from_slice(&answer.body)
                .map_err(|_| Failure::permanent(Code::Internal, format!("{what}: the answer can't be read"))),
        };
        // A second token does no harm.
        let call = Call { service, what, account: self.login.account, repeat: Repeat::Safe };
        self.client.call(self.cx, call, build, read).await
    }
}

/// A request for a token.
struct Exchange<'a> {
    what: &'static str,
    service: &'static str,
    url: Uri,
    /// The token that authorizes the request.
    proof: Option<&'a Secret>,
    body: Value,
}

fn unsendable() -> Status {
    Status::new(Code::Unauthenticated, "the token contains characters that no request can carry")
}

/// The errors of the token service have the form of OAuth (RFC 6749): it refuses the token of the other issuer.
fn as_refusal(failure: Failure, what: &str, answer: &Answer) -> Failure {
    let refusal =
        serde_json::from_slice::<Refusal>(&answer.body).ok().filter(|_| failure.kind == FailureKind::Permanent);
    let Some(refusal) = refusal else { return failure };
    let message = format!("{what}: {}: {}", refusal.error, refusal.error_description);
    Failure { reason: refusal.error, ..Failure::permanent(Code::Unauthenticated, message) }
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

#[derive(Deserialize)]
struct ExchangedToken {
    access_token: String,
    expires_in: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountToken {
    access_token: String,
    expire_time: Timestamp,
}

/// The token of the other issuer.
fn subject_token(account: &ExternalAccount, options: &GcpOptions) -> Result<Secret, Status> {
    let text = token_file::read(&account.file, FileTrust::Secret, &options.identity_directories, FILE_FIELD)?;
    let Some(field) = &account.field else { return Ok(text) };
    let document: Value = serde_json::from_str(text.reveal()).unwrap_or_default();
    document[field].as_str().filter(|token| !token.is_empty()).map(Secret::new).ok_or_else(|| {
        let message = format!("token file {}: it has no field {field:?} with a token", account.file.display());
        Status::new(Code::FailedPrecondition, message)
    })
}

/// A token that is signed with the key of a service account. No request is needed.
fn signed(email: &str, key_id: &str, key: &Secret, now: Timestamp) -> Result<Token, Status> {
    let refused = |why: &str| Status::new(Code::InvalidArgument, format!("signing a token: {why}"));
    let key = key_pair(key).map_err(refused)?;
    let issued = now.saturating_sub(BACKDATED).unwrap_or(now);
    let expires = issued.saturating_add(LIFETIME).unwrap_or(now);
    let head = json!({"alg": "RS256", "typ": "JWT", "kid": key_id});
    let claims =
        json!({"iss": email, "sub": email, "aud": AUDIENCE, "iat": issued.as_second(), "exp": expires.as_second()});
    let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&head), encode(&claims));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|_| refused("the key can't sign"))?;
    let value = Secret::new(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)));
    Ok(Token { value, expires })
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
