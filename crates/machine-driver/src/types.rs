//! Requests and answers of driver calls.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    ByteString,
    api::core::v1::{NodeAddress, PersistentVolumeSpec},
};
use machine_api::v1alpha1::{Machine, MachineClass};

/// What a driver is called, serves and can do.
#[derive(Clone, Debug)]
pub struct DriverInfo {
    /// Name for `--drivers`, logs and the `provider` label of metrics.
    pub name: &'static str,
    /// The `provider` strings of classes that it serves.
    pub providers: Vec<String>,
    /// JSON Schema (2020-12) of `providerSpec`; types only, cross-field rules are in `validate`.
    pub schema: Option<serde_json::Value>,
    /// Optional abilities.
    pub capabilities: Capabilities,
}

/// Abilities that a driver may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// A repeated create with the same machine name never makes a second VM. Without it the core records its intent
    /// before the first call.
    pub create_is_idempotent: bool,
    /// `list_machines` tells when a VM was made.
    pub lists_creation_time: bool,
}

/// What stands in place of a secret.
const REDACTED: &str = "<redacted>";
/// Shorter values are no secrets but words, such as a region, and errors need them.
const SHORTEST_SECRET: usize = 6;
/// Lines of a longer value, such as a key or user data, from this length on are secrets of their own.
const LONG_LINE: usize = 16;

/// Data of the Secrets that a class names, merged. Prints nothing of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, ByteString>);

impl SecretData {
    /// Key of the user data.
    pub const USER_DATA: &'static str = "userData";

    /// `base` overlaid by `over`, whose keys win (spec/providers §1.2).
    pub fn merged(base: BTreeMap<String, ByteString>, over: BTreeMap<String, ByteString>) -> Self {
        let mut all = base;
        all.extend(over);
        Self(all)
    }

    /// The bytes under a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(|value| value.0.as_slice())
    }

    /// Puts bytes under a key.
    pub fn set(&mut self, key: impl Into<String>, value: Vec<u8>) {
        self.0.insert(key.into(), ByteString(value));
    }

    /// All keys with their bytes, for a driver that passes them on to a process of its own.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.0.as_slice()))
    }

    /// A text of the provider without any of these values, plain or in base64, whole or line by line: errors are told in
    /// statuses, events, logs and views, and a provider may repeat what it was sent.
    pub fn redacted(&self, text: &str) -> String {
        let mut secrets: Vec<String> = Vec::new();
        for value in self.0.values() {
            let encoded = BASE64_STANDARD.encode(&value.0);
            // As it stands in a form.
            secrets.push(encoded.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D"));
            secrets.push(encoded);
            let Ok(value) = std::str::from_utf8(&value.0) else { continue };
            secrets.push(value.trim().to_owned());
            secrets.extend(value.lines().map(str::trim).filter(|line| line.len() >= LONG_LINE).map(str::to_owned));
        }
        secrets.retain(|secret| secret.len() >= SHORTEST_SECRET && text.contains(secret.as_str()));
        // The longest first: a part of it would leave the rest standing.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), REDACTED))
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretData([REDACTED; {} keys])", self.0.len())
    }
}

/// A call about one machine.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// The machine. An orphan's deletion brings a synthetic one: name, namespace and `spec.providerID`, nothing more.
    pub machine: Arc<Machine>,
    /// Its class.
    pub class: Arc<MachineClass>,
    /// The class's secret data; in create and initialize calls the user data's placeholders are replaced.
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

/// Who a VM is.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct VmIdentity {
    /// Its identity at the provider.
    pub provider_id: String,
    /// The Node it registers as.
    pub node_name: String,
    /// Its addresses; used only without a target cluster.
    pub addresses: Vec<NodeAddress>,
}

/// A VM that was made or found.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CreatedVm {
    /// Who it is.
    pub vm: VmIdentity,
    /// State to remember.
    pub last_known_state: Option<String>,
}

/// A VM that is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeletedVm {
    /// State to remember.
    pub last_known_state: Option<String>,
}

/// A VM in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVm {
    /// Its identity at the provider.
    pub provider_id: String,
    /// The machine it was made for; may be empty when the provider lost the name.
    pub machine_name: String,
    /// When it was made, where the provider tells.
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
    fn th_32_errors_tell_no_secret() {
        let secret = SecretData(
            [("token", "hunter2-and-more"), ("short", "eu"), ("key", "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0\nab\n")]
                .map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())))
                .into(),
        );
        let encoded = BASE64_STANDARD.encode("hunter2-and-more");
        for (text, expected) in [
            ("no such user hunter2-and-more in eu".to_owned(), "no such user <redacted> in eu"),
            (format!("sent {encoded}, twice {encoded}"), "sent <redacted>, twice <redacted>"),
            ("bad key MIIEvQIBADANBgkqhkiG9w0, line ab".to_owned(), "bad key <redacted>, line ab"),
            ("UserData=aHVudGVyMi1hbmQtbW9yZQ%3D%3D&x=1".to_owned(), "UserData=<redacted>&x=1"),
            ("nothing of it".to_owned(), "nothing of it"),
        ] {
            assert_eq!(secret.redacted(&text), expected);
        }
    }
}
