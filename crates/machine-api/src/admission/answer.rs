//! Writes answers: allowed, patched, denied, or an error for a body that can't be read.
//!
//! Source: spec/api-and-admission §4.6, §9 items 3, 4 and 12. A denial is HTTP 200 with `allowed: false` and code 422. kubectl prints its causes
//! without the message, so that each cause must be clear alone.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use json_patch::Patch;
use serde::Serialize;

use super::{
    Endpoint, Operation, Question, Request,
    refusal::Refusal,
    review::{API_VERSION, KIND},
};
use crate::{kind::Kind, names::GROUP};
use kube_values::field::{ErrorKind, FINDINGS_MAX, Finding, Findings, RuleId, Severity, in_one_line, more};

/// The longest answer that denies or warns, in bytes of JSON. The sum of the limits below is less.
pub const ANSWER_MAX: usize = 16 << 10;
/// The longest warning, in characters. API servers and clients cut longer warnings themselves, at other places.
const WARNING_MAX: usize = 120;
/// The limit of all warnings of an answer together, in bytes of JSON. API servers drop the rest.
const WARNINGS_MAX: usize = 4096;
/// The limit of the errors in the message of a denial, in bytes of JSON.
const MESSAGE_MAX: usize = 4096;
/// The limit of the causes of a denial, in bytes of JSON.
const CAUSES_MAX: usize = 6144;
/// The bytes of a cause without its texts.
const CAUSE_FRAME: usize = 64;
/// The bytes reserved for the note that texts were left out.
const NOTE: usize = 128;
/// The longest name of an object in an answer, in bytes of JSON.
const NAME_MAX: usize = 260;

/// The answer to the API server, and the facts about it for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewAnswer {
    /// HTTP status code.
    pub status: u16,
    /// Body, JSON.
    pub body: Vec<u8>,
    /// For metrics and logs. Has no content of the object.
    pub facts: ReviewFacts,
}

/// How a review ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The request may go on.
    Allowed,
    /// The request is refused.
    Denied,
    /// The review could not be read or checked. The failure policy of the webhook decides.
    Failed,
}

/// The facts of a review for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewFacts {
    /// The endpoint. `None` for a body that could not be read.
    pub endpoint: Option<Endpoint>,
    /// The kind of the object, if it is one of our kinds.
    pub kind: Option<Kind>,
    /// The operation of the request.
    pub operation: Option<Operation>,
    /// The result.
    pub verdict: Verdict,
    /// The rules with findings, in order. Only the first of very many.
    pub rules: Vec<(RuleId, Severity)>,
    /// The reason of a failure, without content of the object. Empty if there was no failure.
    pub failure: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_annotations: Option<AuditAnnotations>,
}

#[derive(Serialize)]
struct AuditAnnotations {
    skipped: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    #[serde(rename = "status")]
    outcome: &'static str,
    code: u16,
    reason: &'static str,
    message: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    group: &'static str,
    kind: &'static str,
    name: &'a str,
    causes: Vec<Cause<'a>>,
}

#[derive(Serialize)]
struct Cause<'a> {
    reason: &'static str,
    message: String,
    field: Cow<'a, str>,
}

/// The answer to a body that can't be read: 400 with a `Status` that has the reason.
pub fn bad_request(refusal: &Refusal) -> ReviewAnswer {
    failure(400, "BadRequest", refusal)
}

/// The answer to a body that would take too much memory: 413 with a `Status` that has the reason.
pub fn too_large(refusal: &Refusal) -> ReviewAnswer {
    failure(413, "RequestEntityTooLarge", refusal)
}

/// The answer after a defect of this program: 500 with a `Status` that has the reason.
pub fn internal_error(refusal: &Refusal) -> ReviewAnswer {
    failure(500, "InternalError", refusal)
}

fn failure(code: u16, reason: &'static str, refusal: &Refusal) -> ReviewAnswer {
    let status = Status {
        kind: Some("Status"),
        api_version: Some("v1"),
        outcome: "Failure",
        code,
        reason,
        message: Cow::Borrowed(&refusal.reason),
        details: None,
    };
    let facts = ReviewFacts {
        endpoint: None,
        kind: None,
        operation: None,
        verdict: Verdict::Failed,
        rules: Vec::new(),
        failure: refusal.for_logs.clone(),
    };
    ReviewAnswer { status: code, body: to_json(&status), facts }
}

/// Allows without changes.
pub fn allow(request: &Request<'_>, endpoint: Endpoint) -> ReviewAnswer {
    respond(allowed(request), facts(request, endpoint, None, &Findings::new()))
}

/// Allows with the patch of the defaults. Without defaults, the answer has neither a patch nor a patch type.
pub fn patched(request: &Request<'_>, question: Question, patch: &Patch) -> ReviewAnswer {
    let facts = facts(request, Endpoint::Mutate, Some(question.kind), &Findings::new());
    if patch.0.is_empty() {
        return respond(allowed(request), facts);
    }
    let patch = STANDARD.encode(to_json(patch));
    respond(Response { patch: Some(patch), patch_type: Some("JSONPatch"), ..allowed(request) }, facts)
}

/// Allows or denies, depending on the findings.
pub fn judged(request: &Request<'_>, endpoint: Endpoint, question: Question, found: &Findings) -> ReviewAnswer {
    let facts = facts(request, endpoint, Some(question.kind), found);
    if found.is_empty() {
        return respond(allowed(request), facts);
    }
    let status = found.denies().then(|| denial(request.object_name(), question.kind, found));
    let response = Response {
        allowed: status.is_none(),
        status,
        warnings: warnings(found),
        audit_annotations: skipped(found),
        ..allowed(request)
    };
    respond(response, facts)
}

fn allowed<'a>(request: &'a Request<'_>) -> Response<'a> {
    Response {
        uid: &request.uid,
        allowed: true,
        status: None,
        patch: None,
        patch_type: None,
        warnings: Vec::new(),
        audit_annotations: None,
    }
}

fn facts(request: &Request<'_>, endpoint: Endpoint, kind: Option<Kind>, found: &Findings) -> ReviewFacts {
    ReviewFacts {
        endpoint: Some(endpoint),
        kind,
        operation: Some(request.operation()),
        verdict: if found.denies() { Verdict::Denied } else { Verdict::Allowed },
        rules: found.iter().map(|finding| (finding.rule, finding.severity)).collect(),
        failure: String::new(),
    }
}

fn respond(response: Response<'_>, facts: ReviewFacts) -> ReviewAnswer {
    let review = Review { api_version: API_VERSION, kind: KIND, response };
    ReviewAnswer { status: 200, body: to_json(&review), facts }
}

fn denial<'a>(name: &'a str, kind: Kind, found: &'a Findings) -> Status<'a> {
    let name = beginning(name, NAME_MAX);
    let errors = in_one_line(&found.error_texts(MESSAGE_MAX - NOTE, length_in_json));
    Status {
        kind: None,
        api_version: None,
        outcome: "Failure",
        code: 422,
        reason: "Invalid",
        message: Cow::Owned(format!("{kind}.{GROUP} {name:?} is invalid: {errors}")),
        details: Some(Details { group: GROUP, kind: kind.as_str(), name, causes: causes(found) }),
    }
}

/// The first errors as one cause each, and one more cause with the number of the missing ones.
fn causes(found: &Findings) -> Vec<Cause<'_>> {
    let mut left = CAUSES_MAX - NOTE;
    let mut causes = Vec::new();
    for error in found.errors().take(FINDINGS_MAX) {
        let (field, message) = (Cow::Borrowed(error.path.as_str()), error.message());
        match left.checked_sub(CAUSE_FRAME + length_in_json(&field) + length_in_json(&message)) {
            Some(rest) => left = rest,
            None => break,
        }
        causes.push(Cause { reason: error.kind.cause_reason(), message, field });
    }
    let missing = found.denied() - causes.len();
    if missing > 0 {
        let (reason, field) = (ErrorKind::Invalid.cause_reason(), Cow::Borrowed("…"));
        causes.push(Cause { reason, message: more(missing), field });
    }
    causes
}

/// The number of bytes that a text takes inside a JSON string.
fn length_in_json(text: &str) -> usize {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' => 1,
        byte if byte < b' ' => 5,
        _ => 0,
    };
    text.len() + text.bytes().map(escape).sum::<usize>()
}

/// The longest beginning of a text that takes at most `max_bytes` bytes of JSON.
fn beginning(text: &str, max_bytes: usize) -> &str {
    // A character takes at most six bytes.
    let end = text.char_indices().find(|(at, _)| length_in_json(&text[..*at]) + 6 > max_bytes);
    end.map_or(text, |(end, _)| &text[..end])
}

/// The warnings, each in one line, without duplicates, cut to the length and the sum that an API server passes on.
fn warnings(found: &Findings) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for text in found.warnings() {
        let text = one_line(&text);
        if !text.is_empty() && seen.insert(text.clone()) {
            all.push(text);
        }
    }
    let mut left = WARNINGS_MAX;
    let fitting = all.iter().take(FINDINGS_MAX).take_while(|text| {
        left = left.saturating_sub(length_in_json(text) + ", \"\"".len());
        left >= NOTE
    });
    let kept = fitting.count();
    let dropped = all.len() - kept + found.warned() - found.warnings().count();
    all.truncate(kept);
    if dropped > 0 {
        all.push(format!("… and {dropped} more"));
    }
    all
}

fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= WARNING_MAX {
        return text.chars().map(clean).collect();
    }
    text.chars().map(clean).take(WARNING_MAX - 1).chain(['…']).collect()
}

fn skipped(found: &Findings) -> Option<AuditAnnotations> {
    let skipped = |finding: &&Finding| finding.severity == Severity::Skipped;
    let rules: BTreeSet<_> = found.iter().filter(skipped).map(|finding| finding.rule).collect();
    let rules: Vec<_> = rules.into_iter().map(RuleId::as_str).collect();
    (!rules.is_empty()).then(|| AuditAnnotations { skipped: rules.join(",") })
}

/// Texts, numbers and lists always serialise. If not, the body is empty and the failure policy applies.
fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
