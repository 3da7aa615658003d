//! Entra: the application that tests act as, its credentials, and its tokens.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::errors::Refusal;

/// The subscription.
pub const SUBSCRIPTION: &str = "5a8b1c2d-0000-4000-8000-00000000a001";
/// The tenant of the subscription.
pub const TENANT: &str = "5a8b1c2d-0000-4000-8000-00000000b001";
/// The application of the tests.
pub const CLIENT: &str = "5a8b1c2d-0000-4000-8000-00000000c001";
/// A secret of [`CLIENT`].
pub const CLIENT_SECRET: &str = "fake~first-secret-of-the-application";
/// Another secret of [`CLIENT`], as after a rotation. Calls with it have [`SECOND_SECRET`] in [`crate::Call::by`].
pub const SECOND_CLIENT_SECRET: &str = "fake~second-secret-of-the-application";
/// The token of another issuer that Entra accepts instead of a secret.
pub const FEDERATED_TOKEN: &str = "a-token-of-the-cluster";
/// How calls with the second secret are authorized.
pub const SECOND_SECRET: &str = "second-secret";

/// What tokens may be valid for: ARM of the three clouds.
const SCOPES: [&str; 3] = [
    "https://management.azure.com/.default",
    "https://management.chinacloudapi.cn/.default",
    "https://management.usgovcloudapi.net/.default",
];
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// The life of a token, in seconds.
const LIFE: u32 = 3599;

/// The tokens that have been issued: each with the name of the credential.
#[derive(Default)]
pub struct Tokens {
    issued: BTreeMap<String, &'static str>,
    revoked: BTreeMap<String, &'static str>,
    count: usize,
}

impl Tokens {
    /// The name of the credential behind an `Authorization` header.
    pub fn caller(&self, header: &str) -> Result<&'static str, Refusal> {
        let Some(token) = header.strip_prefix("Bearer ") else {
            let message = "Authentication failed. The 'Authorization' header is missing.";
            return Err(Refusal::unauthenticated("AuthenticationFailed", message));
        };
        if self.revoked.contains_key(token) {
            let message = "The access token expiry UTC time is earlier than current UTC time.";
            return Err(Refusal::unauthenticated("ExpiredAuthenticationToken", message));
        }
        let invalid = || Refusal::unauthenticated("InvalidAuthenticationToken", "The access token is invalid.");
        self.issued.get(token).copied().ok_or_else(invalid)
    }

    /// Ends all tokens.
    pub fn revoke(&mut self) {
        self.revoked.append(&mut self.issued);
    }

    /// The token endpoint of a tenant (OAuth 2.0, client credentials).
    pub fn issue(&mut self, tenant: &str, form: &BTreeMap<String, String>) -> Result<Value, Refusal> {
        let text = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        if tenant != TENANT {
            let words = format!("Tenant '{tenant}' not found. Check to make sure you have the correct tenant ID.");
            return Err(Refusal::entra(400, "invalid_request", 90_002, &words));
        }
        if text("grant_type") != "client_credentials" {
            let words = "The app requested an unsupported grant type.";
            return Err(Refusal::entra(400, "unsupported_grant_type", 70_003, words));
        }
        if text("client_id") != CLIENT {
            let words = format!("Application with identifier '{}' was not found in the directory.", text("client_id"));
            return Err(Refusal::entra(400, "unauthorized_client", 700_016, &words));
        }
        // Clients may add scopes of OpenID. Entra ignores them here.
        if !text("scope").split(' ').any(|scope| SCOPES.contains(&scope)) {
            let words = format!("The provided value for scope {} is not valid.", text("scope"));
            return Err(Refusal::entra(400, "invalid_scope", 70_011, &words));
        }
        let by = match (text("client_secret"), text("client_assertion"), text("client_assertion_type")) {
            (CLIENT_SECRET, "", _) => "secret",
            (SECOND_CLIENT_SECRET, "", _) => SECOND_SECRET,
            ("", FEDERATED_TOKEN, ASSERTION) => "federated",
            ("", "", _) => {
                let words =
                    "The request body must contain the following parameter: 'client_assertion' or 'client_secret'.";
                return Err(Refusal::entra(401, "invalid_client", 7_000_218, words));
            }
            ("", ..) => {
                let words = "No matching federated identity record found for presented assertion subject.";
                return Err(Refusal::entra(401, "invalid_client", 700_213, words));
            }
            (secret, ..) => {
                let words = format!(
                    "Invalid client secret provided. Ensure the secret being sent in the request is the client secret value, not the client \
                     secret ID, for a secret added to app '{CLIENT}' ({} characters).",
                    secret.len()
                );
                return Err(Refusal::entra(401, "invalid_client", 7_000_215, &words));
            }
        };
        self.count += 1;
        let token = format!("eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.{by}.{}", self.count);
        self.issued.insert(token.clone(), by);
        Ok(json!({"token_type": "Bearer", "expires_in": LIFE, "ext_expires_in": LIFE, "access_token": token}))
    }
}

/// The description of the endpoints of a tenant, for clients that ask for it.
pub fn open_id_configuration(tenant: &str) -> Value {
    let url = format!("https://login.microsoftonline.com/{tenant}");
    json!({
        "token_endpoint": format!("{url}/oauth2/v2.0/token"), "authorization_endpoint": format!("{url}/oauth2/v2.0/authorize"),
        "device_authorization_endpoint": format!("{url}/oauth2/v2.0/devicecode"), "issuer": format!("{url}/v2.0"),
        "jwks_uri": format!("{url}/discovery/v2.0/keys"), "tenant_region_scope": "EU", "cloud_instance_name": "microsoftonline.com",
        "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"],
    })
}
