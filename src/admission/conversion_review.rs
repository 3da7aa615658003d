//! `ConversionReview` v1: reading, converting one object after the other, writing (spec/api-and-admission §8.5).
//!
//! The objects stay text until it is their turn, and text again afterwards, so that a review with a thousand objects
//! costs the memory of its bytes and of one object.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{answer, refusal::Refusal, review::UID_MAX, weight};
use crate::api::{
    conversion::{Loss, convert_json},
    json::Json,
    kind::ApiVersion,
    names,
};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// What goes back to the API server, and what metrics and logs want to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionAnswer {
    /// HTTP status code.
    pub status: u16,
    /// Body, JSON.
    pub body: Vec<u8>,
    /// For metrics and logs; holds nothing of the objects.
    pub facts: ConversionFacts,
}

/// What metrics and logs may know of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversionFacts {
    /// Version of the objects; none if they differ, or if it is none of ours.
    pub from: Option<ApiVersion>,
    /// The version asked for; none if it is none of ours.
    pub to: Option<ApiVersion>,
    /// Objects that were converted.
    pub objects: u64,
    /// What got lost on the way; almost always nothing.
    pub losses: Vec<Loss>,
    /// Why it failed; empty unless it did.
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
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    converted_objects: Vec<Box<RawValue>>,
    result: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(tag = "status")]
enum Outcome<'a> {
    Success,
    Failure { message: &'a str },
}

/// Answers a review. Both success and failure are HTTP 200; only a body that is no review is not. `given_up` is asked before
/// each object whether anybody waits for the answer still.
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
    let (converted_objects, message) = match convert_all(&request, given_up, &mut facts) {
        Ok(converted) => (converted, None),
        Err(refusal) => {
            // A review fails as a whole.
            facts.failure = refusal.for_logs;
            facts.objects = 0;
            (Vec::new(), Some(refusal.reason))
        }
    };
    let result = match &message {
        None => Outcome::Success,
        Some(message) => Outcome::Failure { message },
    };
    let response = Response { uid: &request.uid, converted_objects, result };
    match serde_json::to_vec(&Answer { api_version: API_VERSION, kind: KIND, response }) {
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

/// All objects in their order, or why one of them cannot be converted.
fn convert_all(
    request: &Request<'_>,
    given_up: &dyn Fn() -> bool,
    facts: &mut ConversionFacts,
) -> Result<Vec<Box<RawValue>>, Refusal> {
    let mut converted = Vec::with_capacity(request.objects.len());
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
        converted.push(serde_json::value::to_raw_value(&done.object).map_err(|error| explain(&error))?);
    }
    Ok(converted)
}

/// The version in a `group/version` of ours.
fn version(api_version: &str) -> Option<ApiVersion> {
    let (group, version) = api_version.split_once('/')?;
    if group == names::GROUP { ApiVersion::from_name(version) } else { None }
}
