//! Shared by all views: metadata, times, missing inputs, rights, reviews, and errors.
//!
//! Source: spec/extension-apiserver §1.1.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::describe::Names;
use crate::extension::view::{GROUP, Question, SourceRight};
use controller_runtime::{events::correlate::shortened, key::ObjectKey};
use kube_protocol::{
    request::Verb,
    status::{ApiStatus, Cause},
};
use kube_values::duration::GoDuration;
use machine_controllers::times::rfc3339;

/// Longest text of a `Warning` header.
const LONGEST_WARNING: usize = 120;
/// Maximum number of names in a list of names.
pub const MOST_NAMES: usize = 500;
/// Longest duration that a review may contain.
const LONGEST_HOURS: i64 = 24 * 30;

/// An input that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Incomplete {
    /// The input, such as a class.
    pub source: String,
    /// The reason, as one word in CamelCase.
    pub reason: String,
    /// The reason, as a sentence.
    pub message: String,
}

impl Incomplete {
    /// A missing input. The message is cut to the length of texts of providers.
    pub fn new(source: impl Into<String>, reason: impl Into<String>, message: &str) -> Self {
        Self { source: source.into(), reason: reason.into(), message: scrubbed(message) }
    }

    /// The text of a `Warning` header about the input.
    pub fn warning(&self) -> String {
        warning(&format!("{} is not complete: {}: {}", self.source, self.reason, self.message))
    }
}

/// How the answer was computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The time at which the view was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// Missing inputs. Fields that depend on them are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

impl Observed {
    /// A complete answer that was computed at this time.
    pub fn at(now: Timestamp) -> Self {
        Self { observed_at: rfc3339(now), incomplete: Vec::new() }
    }
}

/// The text for a `Warning` header: one line of ASCII, at most 120 characters.
pub fn warning(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(LONGEST_WARNING + 1)
        .collect();
    if line.len() <= LONGEST_WARNING { line } else { format!("{}...", &line[..LONGEST_WARNING - 3]) }
}

/// The text of a provider without control characters, at most 1 KiB.
pub fn scrubbed(text: &str) -> String {
    shortened(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// Metadata of an object of a view that shows no stored object.
pub fn metadata(kind: &str, key: &ObjectKey, provider_id: &str, created: Timestamp) -> ObjectMeta {
    ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: Some(uid(kind, key, provider_id)),
        creation_timestamp: Some(Time(whole_seconds(created))),
        ..ObjectMeta::default()
    }
}

/// The time in whole seconds, as API servers store times.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The namespace of the UUIDs of views: the UUID of RFC 9562 for URLs.
const NAMESPACE_URL: [u8; 16] =
    [0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8];

/// A UUID (version 5) of these names: equal names give an equal UUID.
fn uid(kind: &str, key: &ObjectKey, provider_id: &str) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(&NAMESPACE_URL);
    for part in [GROUP, kind, &key.namespace, &key.name, provider_id] {
        context.update(part.as_bytes());
        context.update(b"\n");
    }
    let digest = context.finish();
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        use std::fmt::Write;
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The duration in whole seconds.
pub fn seconds(length: Duration) -> GoDuration {
    GoDuration::from_secs(i64::try_from(length.as_secs()).unwrap_or(i64::MAX))
}

/// The count as a field of a view.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// 503: a cache is not complete yet.
pub fn not_ready(what: &str) -> ApiStatus {
    let message = format!(
        "the cache of {what} of this server is not complete; try again shortly (a replica with --standby-caches=false has \
         none until it leads)"
    );
    ApiStatus::new(503, "ServiceUnavailable", message).retry_after(1)
}

/// Name and specification of a review. The name may be empty.
///
/// # Errors
/// 400 for an unreadable specification.
pub fn review<T: DeserializeOwned>(names: &Names, review: &Value) -> Result<(String, T), ApiStatus> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ApiStatus::bad_request(scrubbed(&format!("the spec of the {} can't be read: {why}", names.kind)))
    };
    let name = review.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let spec = match review.get("spec") {
        None | Some(Value::Null) => serde_json::Map::new(),
        Some(Value::Object(spec)) => spec.clone(),
        Some(_) => return Err(unreadable(&"it is no object")),
    };
    // The fields do not depend on each other. So each field can be read alone, to find the wrong one.
    let wrong = || spec.iter().find(|(field, value)| serde_json::from_value::<T>(json!({ *field: value })).is_err());
    match serde_json::from_value(Value::Object(spec.clone())) {
        Ok(read) => Ok((name, read)),
        Err(error) => {
            Err(wrong().map_or_else(|| unreadable(&error), |(field, _)| unreadable(&format!("spec.{field}: {error}"))))
        }
    }
}

/// Checks a duration of a review.
///
/// # Errors
/// The cause for the caller.
pub fn checked_duration(field: &str, given: Option<GoDuration>) -> Result<Option<Duration>, Cause> {
    match given {
        Some(given) if given.is_negative() || given > GoDuration::from_hours(LONGEST_HOURS) => {
            let why = format!("must be from 0 to {LONGEST_HOURS}h");
            Err(Cause::invalid(field, &json!(given.to_string()), &why))
        }
        given => Ok(given.map(GoDuration::to_std)),
    }
}

/// A right on stored objects.
pub fn right(verb: Verb, resource: &'static str, namespace: Option<&str>, name: Option<&str>) -> SourceRight {
    SourceRight { verb, resource, namespace: namespace.map(str::to_owned), name: name.map(str::to_owned) }
}

/// The right for a view that shows many stored objects in one: to list them in the namespace of the request.
pub fn right_to_list(resource: &'static str, question: Question<'_>) -> Vec<SourceRight> {
    let namespace = match question {
        Question::Get { namespace, .. } | Question::Create { namespace, .. } => Some(namespace),
        Question::List { namespace, .. } => namespace,
    };
    vec![right(Verb::List, resource, namespace, None)]
}

/// The right for a view whose objects have the names of stored objects: to get the stored object, or to list them.
pub fn right_to_read(resource: &'static str, question: Question<'_>) -> Vec<SourceRight> {
    match question {
        Question::Get { namespace, name } => vec![right(Verb::Get, resource, Some(namespace), Some(name))],
        Question::List { namespace, name } => vec![right(Verb::List, resource, namespace, name)],
        Question::Create { .. } => right_to_list(resource, question),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_v5_and_equal_for_equal_names() {
        let key = ObjectKey::new("ns", "vm");
        let one = uid("ProviderMachine", &key, "cloud:///1");
        assert_eq!(one, uid("ProviderMachine", &key, "cloud:///1"));
        assert_ne!(one, uid("ProviderMachine", &key, "cloud:///2"));
        assert_eq!((one.len(), &one[14..15]), (36, "5"), "{one}");
    }

    /// The API server authorizes a list with such a field selector in the same way.
    #[test]
    fn the_name_of_a_field_selector_reaches_the_right_on_the_source() {
        let listed = |name| right_to_read("machines", Question::List { namespace: Some("ns"), name });
        assert_eq!(listed(Some("m1")), [right(Verb::List, "machines", Some("ns"), Some("m1"))]);
        assert_eq!(listed(None), [right(Verb::List, "machines", Some("ns"), None)]);
        let of_many = right_to_list("machines", Question::List { namespace: Some("ns"), name: Some("vm") });
        assert_eq!(
            of_many,
            [right(Verb::List, "machines", Some("ns"), None)],
            "names of VMs are not names of machines"
        );
    }

    #[test]
    fn texts_of_providers_are_cut_and_cleaned() {
        assert_eq!(scrubbed("a\nb\u{7}c"), "a b c");
        assert_eq!(scrubbed(&"x".repeat(5000)).len(), 1024);
        let long = warning(&format!("é{}", "y".repeat(200)));
        assert!(long.len() == 120 && long.starts_with("?yy") && long.ends_with("..."), "{long}");
    }
}
