//! Requests and answers of driver calls.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    ByteString,
    api::core::v1::{NodeAddress, PersistentVolumeSpec},
};
use machine_api::v1alpha1::{Machine, MachineClass};

/// Name, providers and abilities of a driver.
#[derive(Clone, Debug)]
pub struct DriverInfo {
    /// Name for `--drivers`, logs and the `provider` label of metrics.
    pub name: &'static str,
    /// The `provider` strings of the classes that it serves.
    pub providers: Vec<String>,
    /// JSON Schema (2020-12) of `providerSpec`; types only, cross-field rules are in `validate`.
    pub schema: Option<serde_json::Value>,
    /// Optional abilities.
    pub capabilities: Capabilities,
}

/// Abilities that a driver may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether a repeated create with the same machine name never creates a second VM. If not, the machine controller records its
    /// intent before the first call.
    pub create_is_idempotent: bool,
    /// Whether `list_machines` returns when a VM was created.
    pub lists_creation_time: bool,
}

/// The replacement for secrets in texts.
const REDACTED: &str = "<redacted>";
/// Shorter values are not treated as secrets. They are words such as a region, which errors must be able to contain.
const MIN_SECRET: usize = 6;
/// In a longer value, such as a key or user data, each line of at least this length is treated as a secret too.
const MIN_SECRET_LINE: usize = 16;

/// The merged data of the Secrets that a class names. `Debug` does not print it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, ByteString>);

impl SecretData {
    /// Key of the user data.
    pub const USER_DATA: &'static str = "userData";

    /// The keys of both maps. If a key is in both, the value in `over` is used (spec/providers §1.2).
    pub fn merged(base: BTreeMap<String, ByteString>, over: BTreeMap<String, ByteString>) -> Self {
        let mut all = base;
        all.extend(over);
        Self(all)
    }

    /// The bytes under a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(|value| value.0.as_slice())
    }

    /// Sets the bytes under a key.
    pub fn set(&mut self, key: impl Into<String>, value: Vec<u8>) {
        self.0.insert(key.into(), ByteString(value));
    }

    /// All keys with their bytes, for a driver that passes them on to its own process.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.0.as_slice()))
    }

    /// Removes these values from a text of the provider: plain or in base64, as a whole or line by line, and as a form encodes them. Errors are shown in
    /// statuses, events, logs and views, and a provider may repeat what it received.
    pub fn redacted(&self, text: &str) -> String {
        let mut secrets: Vec<String> = Vec::new();
        for value in self.0.values() {
            let encoded = BASE64_STANDARD.encode(&value.0);
            secrets.push(in_a_form(&encoded));
            secrets.push(encoded);
            let Ok(value) = std::str::from_utf8(&value.0) else { continue };
            secrets.push(value.trim().to_owned());
            secrets.push(in_a_form(value.trim()));
            secrets
                .extend(value.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET_LINE).map(str::to_owned));
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET && text.contains(secret.as_str()));
        // Longer secrets are replaced first. If a part of a longer secret were replaced first, the rest of it would stay
        // readable.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), REDACTED))
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A key or a token as an HTML form encodes it.
fn in_a_form(text: &str) -> String {
    text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretData([REDACTED; {} keys])", self.0.len())
    }
}

/// A call about one machine.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// The machine. For the deletion of an orphan VM this is a synthetic machine that has only name, namespace and
    /// `spec.providerID`.
    pub machine: Arc<Machine>,
    /// Its class.
    pub class: Arc<MachineClass>,
    /// The class's secret data. In create and initialize calls, placeholders in the user data are replaced.
    pub secret: SecretData,
}

/// A call about all machines of a class.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// The class.
    pub class: Arc<MachineClass>,
    /// Its secret data.
    pub secret: SecretData,
}

/// A call about volumes.
#[derive(Clone, Debug)]
pub struct VolumeIdsRequest {
    /// The volumes.
    pub volumes: Vec<PersistentVolumeSpec>,
}

/// The identity of a VM.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct VmIdentity {
    /// Its id at the provider.
    pub provider_id: String,
    /// The name of its Node.
    pub node_name: String,
    /// Its addresses; used only without a target cluster.
    pub addresses: Vec<NodeAddress>,
}

/// A VM that was created or found.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CreatedVm {
    /// Its identity.
    pub vm: VmIdentity,
    /// State to store.
    pub last_known_state: Option<String>,
}

/// The result of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeletedVm {
    /// State to store.
    pub last_known_state: Option<String>,
}

/// A VM in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVm {
    /// Its id at the provider.
    pub provider_id: String,
    /// The machine that it was created for; may be empty when the provider has lost the name.
    pub machine_name: String,
    /// When it was created, if the provider returns it.
    pub created: Option<jiff::Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_util_11_mc_044_the_second_secret_of_a_class_wins() {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect()
        };
        let merged = SecretData::merged(data(&[("x", "1"), ("y", "1")]), data(&[("y", "2")]));
        assert_eq!((merged.get("x"), merged.get("y")), (Some("1".as_bytes()), Some("2".as_bytes())));
        assert_eq!(SecretData::merged(BTreeMap::new(), BTreeMap::new()), SecretData::default());
    }

    #[test]
    fn th_32_errors_contain_no_secret() {
        let secret = SecretData(
            [
                ("token", "hunter2-and-more"),
                ("short", "eu"),
                ("signed", "a+key/of=all"),
                ("key", "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0\nab\n"),
            ]
            .map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())))
            .into(),
        );
        let encoded = BASE64_STANDARD.encode("hunter2-and-more");
        for (text, expected) in [
            ("no such user hunter2-and-more in eu".to_owned(), "no such user <redacted> in eu"),
            (format!("sent {encoded}, twice {encoded}"), "sent <redacted>, twice <redacted>"),
            ("bad key MIIEvQIBADANBgkqhkiG9w0, line ab".to_owned(), "bad key <redacted>, line ab"),
            ("UserData=aHVudGVyMi1hbmQtbW9yZQ%3D%3D&x=1".to_owned(), "UserData=<redacted>&x=1"),
            ("Key=a%2Bkey%2Fof%3Dall&x=1".to_owned(), "Key=<redacted>&x=1"),
            ("nothing of it".to_owned(), "nothing of it"),
        ] {
            assert_eq!(secret.redacted(&text), expected);
        }
    }
}
