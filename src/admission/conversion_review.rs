//! `ConversionReview` v1: reading, converting one object after the other, writing (spec/api-and-admission §8.5).
//!
//! The objects stay text until it is their turn, and text again afterwards, so that a review with a thousand objects
//! costs the memory of its bytes and of one object.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    Converter, ReviewAnswer,
    answer::{self, Verdict},
};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

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
    result: Outcome,
}

#[derive(Serialize)]
#[serde(tag = "status")]
enum Outcome {
    Success,
    Failure { message: String },
}

/// Answers a review. Both success and failure are HTTP 200; only a body that is no review is not.
pub fn answer(body: &[u8], converter: &Converter) -> ReviewAnswer {
    let review: Review<'_> = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return answer::bad_request(&format!("the body is no {KIND} of {API_VERSION}: {error}")),
    };
    if review.kind != KIND || review.api_version != API_VERSION {
        return answer::bad_request(&format!("want a {KIND} of {API_VERSION}"));
    }
    let Some(request) = review.request else {
        return answer::bad_request(&format!("the {KIND} has no request"));
    };
    let (converted_objects, result, failure) = match convert_all(&request, converter) {
        Ok(objects) => (objects, Outcome::Success, String::new()),
        Err(message) => (Vec::new(), Outcome::Failure { message: message.clone() }, message),
    };
    let verdict = if failure.is_empty() { Verdict::Allowed } else { Verdict::Failed };
    let response = Response { uid: &request.uid, converted_objects, result };
    match serde_json::to_vec(&Answer { api_version: API_VERSION, kind: KIND, response }) {
        Ok(body) => answer::plain(body, verdict, failure),
        Err(error) => answer::internal_error(&format!("the converted objects cannot be written: {error}")),
    }
}

/// All objects in their order, or why one of them cannot be converted.
fn convert_all(request: &Request<'_>, converter: &Converter) -> Result<Vec<Box<RawValue>>, String> {
    let convert = |(index, raw): (usize, &&RawValue)| {
        let object: Value = serde_json::from_str(raw.get()).map_err(|error| format!("object {index}: {error}"))?;
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or("without a kind");
        let explain = |error: &dyn std::fmt::Display| format!("object {index} ({kind}): {error}");
        let converted = converter(&object, &request.desired).map_err(|error| explain(&error))?;
        serde_json::value::to_raw_value(&converted).map_err(|error| explain(&error))
    };
    request.objects.iter().enumerate().map(convert).collect()
}
