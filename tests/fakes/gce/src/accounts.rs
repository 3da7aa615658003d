//! Accounts: the credentials that tests give to a driver, and the check of each request's authorization.
//!
//! A caller has a JWT that it has signed itself, or an access token. Access tokens come from the token endpoints of OAuth, STS and IAM.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};

use crate::{PROJECT, errors::Refusal};

/// The service account of the tests.
pub const ACCOUNT: &str = "machines@shoot-project.iam.gserviceaccount.com";
/// The id of the second key of [`ACCOUNT`]. Calls that it signs have it in [`crate::Call::by`].
pub const SECOND_KEY_ID: &str = "f1a5c0de00000000000000000000000000000002";
/// The token of another issuer that STS accepts.
pub const SUBJECT_TOKEN: &str = "a-token-of-the-cluster";
/// The audience of an external account: a provider of a workload identity pool.
pub const AUDIENCE: &str =
    "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/providers/seed";
/// The URL of Google for assertions of service accounts.
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
/// The audience of a JWT that is sent to Compute Engine without a token endpoint.
const SERVICE: &str = "https://compute.googleapis.com/";
const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The longest life of a JWT, and the life of access tokens, in seconds.
const LIFE: i64 = 3600;
/// How far the clocks of caller and service may differ, in seconds.
const SKEW: i64 = 300;

/// The two keys of the service account: id, private key as PEM, public key.
static KEYS: LazyLock<[(&str, &str, Vec<u8>); 2]> = LazyLock::new(|| {
    let key = |id, pem: &'static str| {
        let private = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).expect("the key is PEM");
        let pair = RsaKeyPair::from_pkcs8(private.secret_pkcs8_der()).expect("the key is an RSA key");
        (id, pem, pair.public_key().as_ref().to_vec())
    };
    let first = key("f1a5c0de00000000000000000000000000000001", include_str!("../key.pem"));
    let second = key(SECOND_KEY_ID, include_str!("../other-key.pem"));
    [first, second]
});

/// Which private key is in a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The first key of the account.
    First,
    /// A second key of the account, for rotations.
    Second,
    /// A private key that does not belong to the key id, so that no signature is right.
    Wrong,
}

/// The key file of the service account, as JSON.
pub fn key_file(key: Key) -> String {
    let [first, second] = &*KEYS;
    let (id, pem) = match key {
        Key::First => (first.0, first.1),
        Key::Second => (second.0, second.1),
        Key::Wrong => (first.0, second.1),
    };
    json!({
        "type": "service_account", "project_id": PROJECT, "private_key_id": id, "private_key": pem, "client_email": ACCOUNT,
        "client_id": "100000000000000000001", "auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": TOKEN_URI,
        "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs", "universe_domain": "googleapis.com",
    })
    .to_string()
}

/// The configuration of an external account whose token is in a file, as JSON.
pub fn external_account(token_file: &Path, impersonated: Option<&str>) -> Value {
    let mut config = json!({
        "type": "external_account", "audience": AUDIENCE, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token", "credential_source": {"file": token_file}, "universe_domain": "googleapis.com",
    });
    if let Some(account) = impersonated {
        let url = format!(
            "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        );
        config["service_account_impersonation_url"] = json!(url);
    }
    config
}

/// A caller whose credentials are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its account.
    pub account: String,
    /// How it has authorized the request: the id of the key, or the name of the token endpoint.
    pub by: String,
    scopes: Vec<String>,
}

impl Caller {
    /// The caller of a method without authorization.
    pub fn nobody() -> Self {
        Self { account: String::new(), by: String::new(), scopes: Vec::new() }
    }

    /// Whether one of these scopes is the caller's.
    pub fn has_one_of(&self, mut wanted: impl Iterator<Item = &'static str>) -> bool {
        wanted.any(|scope| self.scopes.iter().any(|own| own == scope))
    }
}

/// The access tokens that have been issued.
#[derive(Default)]
pub struct Tokens {
    issued: BTreeMap<String, Caller>,
    count: usize,
}

impl Tokens {
    /// The caller with this `Authorization` header.
    pub fn caller(&self, header: &str, now: i64) -> Result<Caller, Refusal> {
        let token = header.strip_prefix("Bearer ").ok_or_else(Refusal::unauthenticated)?;
        if let Some(caller) = self.issued.get(token) {
            return Ok(caller.clone());
        }
        let (claims, key) = verified(token, now).map_err(|_| Refusal::unauthenticated())?;
        // Without a token endpoint the JWT names the service, or it names scopes (AIP-4111).
        let scopes = words(&claims["scope"]);
        let scopes = match claims["aud"].as_str() {
            Some(SERVICE) => vec![CLOUD_PLATFORM.to_owned()],
            None if !scopes.is_empty() => scopes,
            _ => return Err(Refusal::unauthenticated()),
        };
        if claims["sub"] != ACCOUNT {
            return Err(Refusal::unauthenticated());
        }
        Ok(Caller { account: ACCOUNT.to_owned(), by: key, scopes })
    }

    /// Ends all access tokens.
    pub fn revoke(&mut self) {
        self.issued.clear();
    }

    fn issue(&mut self, account: &str, by: &str, scopes: Vec<String>) -> String {
        self.count += 1;
        let token = format!("ya29.{by}-{}", self.count);
        self.issued.insert(token.clone(), Caller { account: account.to_owned(), by: by.to_owned(), scopes });
        token
    }

    /// The token endpoint of OAuth: an access token for an assertion of a service account. `own_url` may be its audience, too.
    pub fn for_assertion(
        &mut self,
        form: &BTreeMap<String, String>,
        own_url: &str,
        now: i64,
    ) -> Result<Value, Refusal> {
        let text = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        if text("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
            return Err(Refusal::oauth("unsupported_grant_type", "Invalid grant_type"));
        }
        let (claims, _) = verified(text("assertion"), now).map_err(|why| Refusal::oauth("invalid_grant", why))?;
        let audience = claims["aud"].as_str().unwrap_or_default();
        if audience != TOKEN_URI && audience != format!("{own_url}/token") {
            return Err(Refusal::oauth("invalid_grant", "Invalid JWT: the audience is not the token endpoint."));
        }
        let scopes = words(&claims["scope"]);
        if scopes.is_empty() {
            let why = "Invalid OAuth scope or ID token audience provided.";
            return Err(Refusal::oauth("invalid_scope", why));
        }
        Ok(
            json!({"access_token": self.issue(ACCOUNT, "oauth", scopes), "expires_in": LIFE - 1, "token_type": "Bearer"}),
        )
    }

    /// STS: an access token for the token of another issuer. The body has the names of the discovery document.
    pub fn for_external(&mut self, body: &Value) -> Result<Value, Refusal> {
        for (field, wanted) in [
            ("grantType", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requestedTokenType", "urn:ietf:params:oauth:token-type:access_token"),
            ("subjectTokenType", "urn:ietf:params:oauth:token-type:jwt"),
        ] {
            if body[field] != wanted {
                return Err(Refusal::oauth("invalid_request", &format!("Invalid {field}.")));
            }
        }
        if body["audience"] != AUDIENCE {
            return Err(Refusal::oauth(
                "invalid_target",
                "The target service indicated by the \"audience\" parameters is invalid.",
            ));
        }
        if body["subjectToken"] != SUBJECT_TOKEN {
            return Err(Refusal::oauth(
                "invalid_grant",
                "The given credential is rejected by the attribute condition.",
            ));
        }
        let scopes = words(&body["scope"]);
        let token = self.issue("principal://seed", "sts", scopes);
        Ok(json!({
            "access_token": token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": LIFE,
        }))
    }

    /// IAM: an access token of a service account, for a caller that may act as it.
    pub fn for_account(&mut self, name: &str, body: &Value, caller: &Caller) -> Result<Value, Refusal> {
        let may = caller.has_one_of([CLOUD_PLATFORM, "https://www.googleapis.com/auth/iam"].into_iter());
        if !may || name != format!("projects/-/serviceAccounts/{ACCOUNT}") {
            let message = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).";
            return Err(Refusal::new(403, "forbidden", message));
        }
        let scopes = body["scope"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let token = self.issue(ACCOUNT, "iam", scopes.map(str::to_owned).collect());
        let until =
            jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + LIFE).unwrap_or(jiff::Timestamp::MAX);
        Ok(json!({"accessToken": token, "expireTime": until.to_string()}))
    }
}

/// Scopes, separated by spaces.
fn words(claim: &Value) -> Vec<String> {
    claim.as_str().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// The claims of a JWT of the service account, and the id of its key. Checks signature, issuer and times.
fn verified(token: &str, now: i64) -> Result<(Value, String), &'static str> {
    let parts: Vec<_> = token.split('.').collect();
    let [header, payload, signature] = *parts else { return Err("Invalid JWT: it has three parts.") };
    let json =
        |part: &str| -> Option<Value> { serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok() };
    let (header, claims) = json(header).zip(json(payload)).ok_or("Invalid JWT: it is not readable.")?;
    if header["alg"] != "RS256" {
        return Err("Invalid JWT: the algorithm is RS256.");
    }
    let (id, _, public) = KEYS.iter().find(|(id, ..)| header["kid"] == *id).ok_or("Invalid JWT: unknown key.")?;
    let signed = token.rsplit_once('.').map(|(signed, _)| signed).unwrap_or_default();
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| "Invalid JWT Signature.")?;
    UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public)
        .verify(signed.as_bytes(), &signature)
        .map_err(|_| "Invalid JWT Signature.")?;
    let (issued, expires) = (claims["iat"].as_i64(), claims["exp"].as_i64());
    let (issued, expires) = issued.zip(expires).ok_or("Invalid JWT: iat and exp are numbers.")?;
    if claims["iss"] != ACCOUNT {
        return Err("Invalid JWT: unknown issuer.");
    }
    if expires < now - SKEW || issued > now + SKEW || expires - issued > LIFE {
        return Err("Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.");
    }
    Ok((claims, (*id).to_owned()))
}
