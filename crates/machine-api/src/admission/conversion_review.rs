//! `ConversionReview` v1: reads it, converts its objects one by one, and writes the answer (spec/api-and-admission §8.5).
//!
//! An object stays text until it is converted, and is written into the answer at once. So a review with a thousand objects takes the memory of its
//! bytes and of one parsed object.

use std::{
    borrow::Cow,
    io::{ErrorKind, Write},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{answer, refusal::Refusal, review::UID_MAX, weight};
use crate::{
    conversion::{Loss, convert_json},
    kind::ApiVersion,
    names,
};
use kube_values::json::Json;

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// The answer to the API server, and the facts about it for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionAnswer {
    /// HTTP status code.
    pub status: u16,
    /// Body, JSON.
    pub body: Vec<u8>,
    /// For metrics and logs. Has no content of the objects.
    pub facts: ConversionFacts,
}

/// The facts of a conversion for metrics and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversionFacts {
    /// The version of the objects. `None` if they differ, or for an unknown version.
    pub from: Option<ApiVersion>,
    /// The requested version. `None` for an unknown version.
    pub to: Option<ApiVersion>,
    /// The number of converted objects.
    pub objects: u64,
    /// The fields that were lost. Almost always empty.
    pub losses: Vec<Loss>,
    /// The reason of a failure. Empty if there was no failure.
    pub failure: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default, rename = "desiredAPIVersion")]
    desired: Cow<'a, str>,
    #[serde(borrow, default)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(tag = "status")]
enum Outcome<'a> {
    Success,
    Failure { message: &'a str },
}

/// Answers a review. Success and failure are both HTTP 200. Only a body that is no review gets another code. `given_up` is called before each object
/// and returns whether the client has stopped waiting for the answer.
pub fn answer(body: &[u8], given_up: &dyn Fn() -> bool) -> ConversionAnswer {
    let review: Review<'_> = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return refused(&Refusal::of_json(&format!("the body is no {KIND} of {API_VERSION}"), &error)),
    };
    if review.kind != KIND || review.api_version != API_VERSION {
        return refused(&Refusal::plain(format!("want a {KIND} of {API_VERSION}")));
    }
    let Some(request) = review.request else {
        return refused(&Refusal::plain(format!("the {KIND} has no request")));
    };
    if request.uid.len() > UID_MAX {
        return refused(&Refusal::plain(format!("the uid of the {KIND} has more than {UID_MAX} bytes")));
    }
    let mut facts = ConversionFacts { to: version(&request.desired), ..ConversionFacts::default() };
    let written = match convert_all(&request, given_up, body.len(), &mut facts) {
        Ok(answer) => answer.end(&Outcome::Success),
        Err(refusal) => {
            // One failed object fails the whole review.
            facts.failure = refusal.for_logs;
            facts.objects = 0;
            AnswerText::begin(&request.uid, 0).end(&Outcome::Failure { message: &refusal.reason })
        }
    };
    match written {
        Ok(body) => ConversionAnswer { status: 200, body, facts },
        Err(error) => {
            let refusal = Refusal::plain(format!("the converted objects cannot be written: {error}"));
            let answer = answer::internal_error(&refusal);
            ConversionAnswer { status: answer.status, body: answer.body, facts }
        }
    }
}

fn refused(refusal: &Refusal) -> ConversionAnswer {
    let answer = answer::bad_request(refusal);
    let facts = ConversionFacts { failure: answer.facts.failure, ..ConversionFacts::default() };
    ConversionAnswer { status: answer.status, body: answer.body, facts }
}

/// An answer while it is written.
struct AnswerText {
    bytes: Vec<u8>,
    has_objects: bool,
}

impl AnswerText {
    /// Writes the text before the objects, and reserves `room` bytes for the objects.
    fn begin(uid: &str, room: usize) -> Self {
        let uid = Value::from(uid);
        let head =
            format!(r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","response":{{"uid":{uid},"convertedObjects":["#);
        let mut bytes = Vec::with_capacity(head.len() + room + END_ROOM);
        bytes.extend_from_slice(head.as_bytes());
        Self { bytes, has_objects: false }
    }

    /// Writes an object. If it doesn't fit into the reserved memory, its length is counted first: a buffer that grows in steps copies its content
    /// again and again.
    fn add(&mut self, object: &Json<'_>) -> serde_json::Result<()> {
        if std::mem::replace(&mut self.has_objects, true) {
            self.bytes.push(b',');
        }
        let begin = self.bytes.len();
        if serde_json::to_writer(Room(&mut self.bytes), object).is_ok() {
            return Ok(());
        }
        self.bytes.truncate(begin);
        self.bytes.reserve(object.text_length_up_to(usize::MAX) + END_ROOM);
        serde_json::to_writer(&mut self.bytes, object)
    }

    fn end(mut self, result: &Outcome<'_>) -> serde_json::Result<Vec<u8>> {
        self.bytes.extend_from_slice(br#"],"result":"#);
        serde_json::to_writer(&mut self.bytes, result)?;
        self.bytes.extend_from_slice(b"}}");
        Ok(self.bytes)
    }
}

/// The bytes that are reserved for the text after the objects.
const END_ROOM: usize = 64;

/// A writer into a buffer that fails instead of growing the buffer.
struct Room<'b>(&'b mut Vec<u8>);

impl Write for Room<'_> {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        if self.0.capacity() - self.0.len() < text.len() {
            return Err(ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Converts all objects in their order. For several objects, `room` bytes are reserved, because they take about the length of the request. The length
/// of a single object is counted instead.
///
/// # Errors
///
/// The reason why an object can't be converted.
fn convert_all(
    request: &Request<'_>,
    given_up: &dyn Fn() -> bool,
    room: usize,
    facts: &mut ConversionFacts,
) -> Result<AnswerText, Refusal> {
    let mut answer = AnswerText::begin(&request.uid, if request.objects.len() > 1 { room } else { 0 });
    for (index, raw) in request.objects.iter().enumerate() {
        if given_up() {
            let count = request.objects.len();
            return Err(Refusal::plain(format!("the deadline passed after {index} of {count} objects")));
        }
        if weight::is_too_heavy(raw.get().as_bytes()) {
            return Err(Refusal::plain(weight::too_heavy(&format!("object {index}"))));
        }
        let object: Json<'_> =
            serde_json::from_str(raw.get()).map_err(|error| Refusal::of_json(&format!("object {index}"), &error))?;
        let word = |field: &str| object.get(field).and_then(Json::as_str);
        let kind: String = word("kind").unwrap_or("without a kind").chars().take(80).collect();
        let explain = |error: &dyn std::fmt::Display| Refusal::plain(format!("object {index} ({kind}): {error}"));
        let from = word("apiVersion").and_then(version);
        facts.from = if index == 0 { from } else { facts.from.filter(|earlier| Some(*earlier) == from) };
        let done = convert_json(object, &request.desired).map_err(|error| explain(&error))?;
        facts.losses.extend(done.losses);
        facts.objects += 1;
        answer.add(&done.object).map_err(|error| explain(&error))?;
    }
    Ok(answer)
}

/// The version in a `group/version` with our group.
fn version(api_version: &str) -> Option<ApiVersion> {
    let (group, version) = api_version.split_once('/')?;
    if group == names::GROUP { ApiVersion::from_name(version) } else { None }
}
