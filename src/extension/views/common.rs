//! What all views share: metadata, times, what is missing, rights, reviews, and errors. How they are described is
//! [`super::describe`]'s.
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
/// Names in a list of names; more are cut.
pub const MOST_NAMES: usize = 500;
/// Longest time that a review may ask about.
const LONGEST_HOURS: i64 = 24 * 30;

/// An input that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Incomplete {
    /// Which input, such as a class.
    pub source: String,
    /// Why in one word in CamelCase.
    pub reason: String,
    /// What happened.
    pub message: String,
}

impl Incomplete {
    /// An input that could not be used; texts of providers are cut.
    pub fn new(source: impl Into<String>, reason: impl Into<String>, message: &str) -> Self {
        Self { source: source.into(), reason: reason.into(), message: scrubbed(message) }
    }

    /// What a `Warning` header says of it.
    pub fn warning(&self) -> String {
        warning(&format!("{} is not complete: {}: {}", self.source, self.reason, self.message))
    }
}

/// How an answer came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// When the view was computed.
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: String,
    /// Inputs that are missing; what depends on them is left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<Incomplete>,
}

impl Observed {
    /// A complete answer of this time.
    pub fn at(now: Timestamp) -> Self {
        Self { observed_at: rfc3339(now), incomplete: Vec::new() }
    }
}

/// A text for a `Warning` header: one line of ASCII, at most 120 characters.
pub fn warning(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
        .take(LONGEST_WARNING + 1)
        .collect();
    if line.len() <= LONGEST_WARNING { line } else { format!("{}...", &line[..LONGEST_WARNING - 3]) }
}

/// Text of a provider as a reader may see it: without control characters, at most 1 KiB.
pub fn scrubbed(text: &str) -> String {
    shortened(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// Metadata of a view of something that is no object.
pub fn metadata(kind: &str, key: &ObjectKey, provider_id: &str, created: Timestamp) -> ObjectMeta {
    ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: Some(uid(kind, key, provider_id)),
        creation_timestamp: Some(Time(whole_seconds(created))),
        ..ObjectMeta::default()
    }
}

/// A time as API servers keep them.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The names under which v5 UUIDs of views are made: the UUID that RFC 9562 gives to URLs.
const NAMESPACE_URL: [u8; 16] =
    [0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8];

/// A UUID (version 5) that is the same as long as the thing is the same.
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

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        use std::fmt::Write;
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A duration in whole seconds.
pub fn seconds(length: Duration) -> GoDuration {
    GoDuration::from_secs(i64::try_from(length.as_secs()).unwrap_or(i64::MAX))
}

/// A count as the views tell it.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// 503: a cache is still being filled.
pub fn not_ready(what: &str) -> ApiStatus {
    let message = format!(
        "the cache of {what} of this server is not complete; try again shortly (a replica with --standby-caches=false has \
         none until it leads)"
    );
    ApiStatus::new(503, "ServiceUnavailable", message).retry_after(1)
}

/// Name and specification of a review; the name may be empty.
///
/// # Errors
/// 400 for what can't be read.
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
    // No field needs another one, so that each can be read alone to see which is wrong.
    let wrong = || spec.iter().find(|(field, value)| serde_json::from_value::<T>(json!({ *field: value })).is_err());
    match serde_json::from_value(Value::Object(spec.clone())) {
        Ok(read) => Ok((name, read)),
        Err(error) => {
            Err(wrong().map_or_else(|| unreadable(&error), |(field, _)| unreadable(&format!("spec.{field}: {error}"))))
        }
    }
}

/// Checks a length of time of a review.
///
/// # Errors
/// What is wrong with it, for the caller.
pub fn length(field: &str, given: Option<GoDuration>) -> Result<Option<Duration>, Cause> {
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

/// What one must be allowed to be told of many stored objects at once: to list them where the question looks.
pub fn right_to_list(resource: &'static str, question: Question<'_>) -> Vec<SourceRight> {
    let namespace = match question {
        Question::Get { namespace, .. } | Question::Create { namespace, .. } => Some(namespace),
        Question::List { namespace, .. } => namespace,
    };
    vec![right(Verb::List, resource, namespace, None)]
}

/// What one must be allowed to be told of a stored object of the same name: to get it, or to list what is listed.
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
    fn uids_are_v5_and_last_as_long_as_the_thing() {
        let key = ObjectKey::new("ns", "vm");
        let one = uid("ProviderMachine", &key, "cloud:///1");
        assert_eq!(one, uid("ProviderMachine", &key, "cloud:///1"));
        assert_ne!(one, uid("ProviderMachine", &key, "cloud:///2"));
        assert_eq!((one.len(), &one[14..15]), (36, "5"), "{one}");
    }

    /// As the API server asks about a list with such a field selector.
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
