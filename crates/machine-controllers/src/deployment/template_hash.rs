//! The hash of a template and the name of a set made from it.
//!
//! FNV-1a over canonical JSON: sorted keys, absent and empty are equal (spec/deployment-and-set §8, decisions.md 3).
//! The hash only names new sets; an existing set is recognised by its template ([`super::template_equality`]). So
//! hashes may differ from the original's hashes.

use crate::snapshots::DeploymentSnapshot;
use controller_runtime::snapshot::Snapshot;
use machine_api::v1alpha1::MachineTemplateSpec;
use serde::Serialize;
use serde_json::{Map, Value};

const FNV_OFFSET: u32 = 2_166_136_261;
const FNV_PRIME: u32 = 16_777_619;
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;

/// The value as JSON without nulls, empty strings, lists and maps.
pub fn pruned<T: Serialize>(value: &T) -> Value {
    // Serialising an API type never fails.
    prune(serde_json::to_value(value).unwrap_or_default())
}

fn prune(value: Value) -> Value {
    let is_something = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    match value {
        Value::Object(fields) => {
            let kept: Map<String, Value> =
                fields.into_iter().map(|(key, value)| (key, prune(value))).filter(|(_, v)| is_something(v)).collect();
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(prune).collect()),
        other => other,
    }
}

/// Writes JSON with sorted keys, whatever the order of the map.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(fields.get(key).unwrap_or(&Value::Null), out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The hash of a template in decimal, the value of the label `machine-template-hash`.
pub fn template_hash(template: &MachineTemplateSpec, collision_count: Option<i32>) -> String {
    let mut text = String::new();
    write_canonical(&pruned(template), &mut text);
    let mut bytes = text.into_bytes();
    if let Some(count) = collision_count {
        bytes.extend(count.to_le_bytes());
        bytes.extend([0; 4]);
    }
    let hash = bytes.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME));
    hash.to_string()
}

/// The hash as part of a name: in the alphabet of Kubernetes, at most five characters.
pub fn name_suffix(hash: &str) -> String {
    let letter = |byte: u8| char::from(ALPHABET.get(usize::from(byte) % ALPHABET.len()).copied().unwrap_or(b'b'));
    hash.bytes().take(SUFFIX_LENGTH).map(letter).collect()
}

/// The name and the hash label of the set for the deployment's present template.
pub fn new_set_identity(deployment: &DeploymentSnapshot) -> (String, String) {
    let hash = template_hash(deployment.template(), deployment.status().collision_count);
    let name = format!("{}-{}", deployment.name(), name_suffix(&hash));
    (name, hash)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::set;
    use kube_values::selector::Labels;

    fn template() -> MachineTemplateSpec {
        set(1).build().spec.template
    }

    #[rstest]
    #[case::s_hash_06("1672883749", "5bc6d")]
    #[case::s_hash_07_a_short_text_stays_short("42", "86")]
    #[case::another("429901771", "86ff4")]
    fn a_hash_becomes_a_suffix(#[case] hash: &str, #[case] suffix: &str) {
        assert_eq!(name_suffix(hash), suffix);
    }

    #[test]
    fn s_hash_02_the_order_of_insertion_does_not_matter() {
        let with = |pairs: &[(&str, &str)]| {
            let mut template = template();
            let labels = template.metadata.labels.get_or_insert_default();
            for (key, value) in pairs {
                labels.insert((*key).to_owned(), (*value).to_owned());
            }
            template_hash(&template, None)
        };
        assert_eq!(with(&[("a", "1"), ("b", "2")]), with(&[("b", "2"), ("a", "1")]));
    }

    #[test]
    fn s_hash_03_equal_values_in_different_places_have_equal_hashes() {
        let with_timeout = || {
            let mut template = template();
            template.spec.configuration.drain_timeout = Some(kube_values::duration::GoDuration::from_secs(17));
            Box::new(template)
        };
        let (one, other) = (with_timeout(), with_timeout());
        assert!(!std::ptr::eq(&raw const *one, &raw const *other));
        assert_eq!(template_hash(&one, None), template_hash(&other, None));
    }

    #[test]
    fn s_hash_04_a_value_behind_an_option_counts() {
        let with_timeout = |seconds| {
            let mut template = template();
            template.spec.configuration.drain_timeout = Some(kube_values::duration::GoDuration::from_secs(seconds));
            template_hash(&template, None)
        };
        assert_ne!(with_timeout(17), with_timeout(22));
    }

    #[test]
    fn s_hash_01_equal_values_have_equal_hashes() {
        let first = template_hash(&template(), None);
        assert!((0..100).all(|_| template_hash(&template(), None) == first));
        let mut empty = template();
        empty.metadata.annotations = Some(Labels::new());
        assert_eq!(template_hash(&empty, None), first);
        assert!(first.parse::<u32>().is_ok());
    }

    #[test]
    fn s_hash_04_every_field_counts() {
        let mut other = template();
        other.spec.node_template.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_ne!(template_hash(&other, None), template_hash(&template(), None));
    }

    #[test]
    fn s_hash_05_no_collision_and_zero_collisions_differ() {
        let hashes = [None, Some(0), Some(1)].map(|count| template_hash(&template(), count));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
    }
}
