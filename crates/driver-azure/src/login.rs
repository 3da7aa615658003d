//! The credentials in the Secrets of a class: an application of Microsoft Entra with its secret, or with a file that has the token of another issuer.

use std::path::PathBuf;

use cloud_client::{CredentialsKey, Secret};
use machine_driver::{Code, SecretData, Status};

use crate::{
    names::is_account,
    secret::{CLIENT_ID, CLIENT_SECRET, EXCLUSIVE, NO_PROOF, SUBSCRIPTION, TENANT, TOKEN_FILE},
};

/// The credentials of a class with their subscription.
#[derive(Clone, Debug)]
pub struct Login {
    /// The subscription of new resources.
    pub subscription: String,
    pub tenant: String,
    pub client: String,
    pub proof: Proof,
    /// The key of these credentials in caches and request budgets.
    pub account: CredentialsKey,
}

/// How the application proves its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A secret of the application.
    ClientSecret(Secret),
    /// A file with the token of another issuer.
    TokenFile(PathBuf),
}

impl Login {
    /// Reads the credentials in the Secrets of a class.
    ///
    /// # Errors
    /// `InvalidArgument` with the keys that are missing or invalid, without their values.
    pub fn of(secret: &SecretData) -> Result<Self, Status> {
        let client = id(secret, CLIENT_ID, "must provide clientID");
        let proof = match (filled(secret, &CLIENT_SECRET), filled(secret, &[TOKEN_FILE])) {
            (Some(_), Some(_)) => Err(format!("data.{}: Forbidden: {EXCLUSIVE}", CLIENT_SECRET[0])),
            (None, None) => Err(format!("data.{}: Required value: {NO_PROOF}", CLIENT_SECRET[0])),
            (Some(text), None) => Ok(Proof::ClientSecret(Secret::new(text))),
            (None, Some(path)) => Ok(Proof::TokenFile(path.into())),
        };
        let subscription = id(secret, SUBSCRIPTION, "must provide subscriptionID");
        let tenant = id(secret, TENANT, "must provide tenantID");
        match (client, proof, subscription, tenant) {
            (Ok(client), Ok(proof), Ok(subscription), Ok(tenant)) => {
                let shown = match &proof {
                    Proof::ClientSecret(secret) => secret.reveal(),
                    Proof::TokenFile(path) => path.to_str().unwrap_or_default(),
                };
                let account = CredentialsKey::of(&[&tenant, &client, shown]);
                Ok(Self { subscription, tenant, client, proof, account })
            }
            (client, proof, subscription, tenant) => {
                let problems = [client.err(), proof.err(), subscription.err(), tenant.err()];
                let problems: Vec<String> = problems.into_iter().flatten().collect();
                let joined = match problems.as_slice() {
                    [one] => one.clone(),
                    _ => format!("[{}]", problems.join(", ")),
                };
                Err(Status::new(Code::InvalidArgument, format!("error in validating secret: {joined}")))
            }
        }
    }
}

/// The first of these keys with a value that is not blank.
fn filled<'s>(secret: &'s SecretData, keys: &[&str]) -> Option<&'s str> {
    let text = |key: &&str| std::str::from_utf8(secret.get(key)?).ok().map(str::trim).filter(|text| !text.is_empty());
    keys.iter().find_map(text)
}

/// An id that can be a part of a URL.
fn id(secret: &SecretData, keys: [&str; 2], missing: &str) -> Result<String, String> {
    let [key, _] = keys;
    let text = filled(secret, &keys).ok_or_else(|| format!("data.{key}: Required value: {missing}"))?;
    if is_account(text) { Ok(text.to_owned()) } else { Err(format!("data.{key}: Invalid value: is no id")) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> SecretData {
        let mut secret = SecretData::default();
        for (key, value) in pairs {
            secret.set(*key, value.as_bytes().to_vec());
        }
        secret
    }

    const IDS: [(&str, &str); 3] = [("clientID", "c"), ("subscriptionID", "s"), ("tenantID", "t")];

    #[rstest]
    #[case::a_secret(&[("clientSecret", "x")], Proof::ClientSecret(Secret::new("x")))]
    #[case::a_blank_new_key_hides_no_old_one(&[("clientSecret", " "), ("azureClientSecret", "y\n")], Proof::ClientSecret(Secret::new("y")))]
    #[case::a_file(&[("workloadIdentityTokenFile", "/f")], Proof::TokenFile("/f".into()))]
    fn credentials_are_read(#[case] more: &[(&str, &str)], #[case] proof: Proof) {
        let login = Login::of(&secret(&[&IDS, more].concat())).unwrap();
        assert_eq!((login.client.as_str(), login.subscription.as_str(), login.tenant.as_str()), ("c", "s", "t"));
        assert_eq!(login.proof, proof);
    }

    #[rstest]
    #[case::z15_both_proofs(&[("clientSecret", "hunter2"), ("workloadIdentityTokenFile", "/f")],
        "error in validating secret: data.clientSecret: Forbidden: clientSecret is mutually exclusive with workloadIdentityTokenFile")]
    #[case::no_proof(&[], "error in validating secret: data.clientSecret: Required value: must provide clientSecret or workloadIdentityTokenFile")]
    #[case::a_path_as_tenant(&[("tenantID", "a/../b"), ("clientSecret", "x")], "error in validating secret: data.tenantID: Invalid value: is no id")]
    #[case::two_mistakes(&[("tenantID", ""), ("clientID", ""), ("clientSecret", "x")],
        "error in validating secret: [data.clientID: Required value: must provide clientID, data.tenantID: Required value: must provide tenantID]")]
    fn credentials_are_refused(#[case] more: &[(&str, &str)], #[case] expected: &str) {
        let refused = Login::of(&secret(&[&IDS, more].concat())).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, expected));
    }

    #[test]
    fn another_secret_is_another_account() {
        let account = |text| Login::of(&secret(&[&IDS[..], &[("clientSecret", text)]].concat())).unwrap().account;
        assert_ne!(account("a"), account("b"));
    }
}
