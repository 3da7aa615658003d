//! Secrets with a token of a service account. The server fills them, like the token controller of a cluster.
//!
//! Source: spec/extension-apiserver §6.1, §6.3 no. 9.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    account_tokens::Holder,
    object::{self, text},
    server::Server,
    store::{Collection, Expect, Stored, key},
};

const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// The lifetime of a token: longer than a development server runs.
const LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The account whose token is missing in a Secret. `None` if the Secret needs no token.
fn waits_for(secret: &Value) -> Option<&str> {
    let has_token = secret["data"]["token"].as_str().is_some_and(|token| !token.is_empty());
    let account = secret["metadata"]["annotations"][ACCOUNT].as_str()?;
    let waits = secret["type"] == SECRET_TYPE && !has_token && !object::is_deleting(secret);
    waits.then_some(account)
}

/// A Secret with token, namespace and certificate authority.
fn filled(secret: &Value, account_uid: &str, token: &str, authority: Option<&str>) -> Value {
    let mut filled = secret.clone();
    if !filled["data"].is_object() {
        filled["data"] = json!({});
    }
    let namespace = object::namespace(secret).unwrap_or_default();
    let parts = [("token", Some(token)), ("namespace", Some(namespace)), ("ca.crt", authority)];
    for (name, content) in parts {
        if let Some(content) = content {
            filled["data"][name] = json!(BASE64_STANDARD.encode(content));
        }
    }
    filled["metadata"]["annotations"][ACCOUNT_UID] = json!(account_uid);
    filled
}

impl Server {
    /// Fills a Secret, if it needs a token and the account exists.
    pub(super) fn fill_account_secret(&self, stored: &Stored) {
        let Some(name) = waits_for(&stored.value) else { return };
        let namespace = object::namespace(&stored.value).unwrap_or_default();
        let accounts = Collection::new("", "serviceaccounts");
        let Some(account) = self.store.get(&accounts, &key(Some(namespace), name)) else { return };
        let uid = object::uid(&account.value);
        let now: Timestamp = self.now();
        let id = object::new_uid(&mut *self.random());
        let token = self.accounts.issue(&Holder { namespace, name, uid }, &id, now, now + LIFETIME);
        let Some(token) = token else { return };
        let value = filled(&stored.whole(), uid, &token, self.authority.get().map(String::as_str));
        let place = key(Some(namespace), object::name(&stored.value));
        // A conflict needs no retry, because the other change of the Secret leads here again.
        let _ =
            self.store.write(&Collection::new("", "secrets"), &place, Expect::Revision(stored.revision), Some(value));
    }

    /// Fills the Secrets of an account that need a token.
    pub(super) fn fill_secrets_of(&self, account: &Value) {
        let prefix = format!("{}/", object::namespace(account).unwrap_or_default());
        for (_, secret) in self.store.list(&Collection::new("", "secrets"), &prefix).objects {
            if waits_for(&secret.value) == Some(text(account, "/metadata/name")) {
                self.fill_account_secret(&secret);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn secret() -> Value {
        json!({
            "metadata": {"name": "s", "namespace": "n", "annotations": {ACCOUNT: "robot"}}, "type": SECRET_TYPE,
        })
    }

    #[rstest]
    #[case::empty("/none", json!(null), Some("robot"))]
    #[case::of_another_type("/type", json!("Opaque"), None)]
    #[case::without_an_account("/metadata/annotations", json!({}), None)]
    #[case::filled("/data", json!({"token": "dA=="}), None)]
    #[case::being_deleted("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), None)]
    fn secrets_that_need_a_token(#[case] place: &str, #[case] value: Value, #[case] expected: Option<&str>) {
        let mut secret = secret();
        secret["data"] = json!({});
        secret["metadata"]["deletionTimestamp"] = Value::Null;
        if let Some(field) = secret.pointer_mut(place) {
            *field = value;
        }
        assert_eq!(waits_for(&secret), expected);
    }

    #[test]
    fn a_filled_secret_needs_no_token_and_has_all_that_a_client_needs() {
        let filled = filled(&secret(), "u", "the.to.ken", Some("PEM"));
        assert_eq!(waits_for(&filled), None);
        assert_eq!(filled["data"], json!({"token": "dGhlLnRvLmtlbg==", "namespace": "bg==", "ca.crt": "UEVN"}));
        assert_eq!(filled["metadata"]["annotations"][ACCOUNT_UID], "u");
    }
}
