//! The common parts of all objects: metadata, names, time stamps.

use jiff::Timestamp;
use kube_protocol::status::Cause;
use kube_values::uuid;
use rand::Rng;
use serde_json::{Map, Value, json};

/// Characters of generated names. Without vowels the names contain no words.
const NAME_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const LONGEST_BASE: usize = 63 - SUFFIX;

/// The text at a JSON pointer, such as `/metadata/name`; empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> Option<&str> {
    Some(text(object, "/metadata/namespace")).filter(|namespace| !namespace.is_empty())
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(super) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The metadata of an object. Creates the metadata if the object has none.
pub(super) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = json!({});
    }
    match metadata {
        Value::Object(fields) => fields,
        _ => unreachable!("the code above makes it an object"),
    }
}

/// A time stamp in whole seconds, the format of stored times.
pub(super) fn time(now: Timestamp) -> Value {
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!(seconds.to_string())
}

/// A random UUID.
pub(super) fn new_uid(random: &mut impl Rng) -> String {
    uuid::random(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()))
}

/// A name with a random suffix.
pub(super) fn generated_name(base: &str, random: &mut impl Rng) -> String {
    let mut end = base.len().min(LONGEST_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base[..end].to_owned();
    for _ in 0..SUFFIX {
        let at = random.next_u32() as usize % NAME_CHARACTERS.len();
        name.push(char::from(NAME_CHARACTERS[at]));
    }
    name
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
     start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
     with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// The rule for the names of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameRule {
    Subdomain,
    Label,
    /// The names of RBAC objects may contain almost all characters.
    Path,
}

/// Checks a name.
pub(super) fn check_name(name: &str, rule: NameRule) -> Option<Cause> {
    let label = |label: &str| {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(fine) && !label.starts_with('-') && !label.ends_with('-')
    };
    let (fits, detail, longest) = match rule {
        NameRule::Subdomain => (name.split('.').all(label), SUBDOMAIN, 253),
        NameRule::Label => (label(name), LABEL, 63),
        NameRule::Path => {
            (!name.contains(['/', '%']) && name != "." && name != "..", "may not contain '/' or '%'", 253)
        }
    };
    if !fits {
        return Some(Cause::invalid("metadata.name", &json!(name), detail));
    }
    (name.len() > longest)
        .then(|| Cause::invalid("metadata.name", &json!(name), &format!("must be no more than {longest} bytes")))
}

/// Checks labels, annotations, finalizers and owner references.
pub(super) fn check_metadata(object: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    let metadata = &object["metadata"];
    for field in ["labels", "annotations"] {
        match &metadata[field] {
            Value::Null => {}
            Value::Object(entries) => {
                for (key, value) in entries {
                    let path = format!("metadata.{field}");
                    let Some(text) = value.as_str() else {
                        found.push(Cause::wrong_type(format!("{path}.{key}"), value, "must be a string"));
                        continue;
                    };
                    if let Some(detail) = qualified_name_problem(key) {
                        found.push(Cause::invalid(&path, &json!(key), detail));
                    }
                    if field == "labels" && !is_label_value(text) {
                        let why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
                                   '.', and must start and end with an alphanumeric character, and have at most 63 characters";
                        found.push(Cause::invalid(&path, value, why));
                    }
                }
            }
            other => found.push(Cause::wrong_type(format!("metadata.{field}"), other, "must be an object")),
        }
    }
    for (at, owner) in metadata["ownerReferences"].as_array().into_iter().flatten().enumerate() {
        let path = |field: &str| {
            format!("metadata.ownerReferences{}.{field}", if at == 0 { String::new() } else { format!("[{at}]") })
        };
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                found.push(Cause::invalid(path(field), &owner[field], &format!("{field} must not be empty")));
            }
        }
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    if owners.filter(|owner| owner["controller"] == json!(true)).count() > 1 {
        let why = "Only one reference can have Controller set to true";
        found.push(Cause::invalid("metadata.ownerReferences", &metadata["ownerReferences"], why));
    }
    for finalizer in finalizers(object) {
        if let Some(detail) = qualified_name_problem(finalizer) {
            found.push(Cause::invalid("metadata.finalizers", &json!(finalizer), detail));
        }
    }
    found
}

fn qualified_name_problem(key: &str) -> Option<&'static str> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let name_fits =
        name.len() <= 63 && name.chars().all(fine) && ends(name.chars().next()) && ends(name.chars().last());
    let prefix_fits = prefix.is_none_or(|prefix| check_name(&prefix.to_lowercase(), NameRule::Subdomain).is_none());
    let detail = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                  alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc')";
    (!(name_fits && prefix_fits)).then_some(detail)
}

fn is_label_value(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && ends(text.chars().next())
        && ends(text.chars().last())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rstest::rstest;

    use super::*;

    #[test]
    fn xa_054_generated_names_end_in_five_characters() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let name = generated_name("g-", &mut random);
        assert!(name.len() == 7 && name[2..].bytes().all(|byte| NAME_CHARACTERS.contains(&byte)), "{name}");
        assert_eq!(generated_name(&"x".repeat(80), &mut random).len(), 63);
    }

    #[test]
    fn uids_are_random_uuids() {
        let uid = new_uid(&mut rand_chacha::ChaCha8Rng::seed_from_u64(1));
        assert!(uid.len() == 36 && &uid[14..15] == "4" && "89ab".contains(&uid[19..20]), "{uid}");
    }

    #[rstest]
    #[case::plain("a-b.c", true)]
    #[case::xa_052("B_", false)]
    #[case::empty_label("a..b", false)]
    fn names(#[case] name: &str, #[case] fine: bool) {
        assert_eq!(check_name(name, NameRule::Subdomain).is_none(), fine);
    }

    #[test]
    fn xa_075_an_owner_needs_a_uid() {
        let object = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}});
        assert_eq!(check_metadata(&object)[0].field, "metadata.ownerReferences.uid");
    }
}
