//! Answers before they are written, and how they are written: as the caller wants them, with tags, warnings and headers.
//!
//! Source: spec/extension-apiserver §2.3–§2.5, §2.8.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    discovery,
    negotiate::{self, Encoding, Layout},
    status::{ApiStatus, Form},
};

/// An answer before it is written.
#[derive(Debug)]
pub struct Answer {
    /// Its HTTP status.
    pub status: StatusCode,
    /// What it says.
    pub body: AnswerBody,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
    /// Further headers.
    pub headers: HeaderMap,
}

/// What an answer says.
#[derive(Debug)]
pub enum AnswerBody {
    /// An object, written as the caller wants it.
    Value(Value),
    /// Bytes with their content type.
    Bytes(&'static str, Bytes),
    /// A watch.
    Stream(Body),
    /// Nothing.
    Empty,
}

impl Answer {
    /// An object with a status.
    pub fn of(status: StatusCode, value: Value) -> Self {
        Self { status, body: AnswerBody::Value(value), warnings: Vec::new(), headers: HeaderMap::new() }
    }

    /// An object.
    pub fn ok(value: Value) -> Self {
        Self::of(StatusCode::OK, value)
    }

    /// An object that is written already, as JSON.
    pub fn json(text: impl Into<Bytes>) -> Self {
        let body = AnswerBody::Bytes("application/json", text.into());
        Self { status: StatusCode::OK, body, warnings: Vec::new(), headers: HeaderMap::new() }
    }

    /// A text with a status.
    pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        let body = AnswerBody::Bytes("text/plain; charset=utf-8", text.into());
        Self { status, body, warnings: Vec::new(), headers: HeaderMap::new() }
    }

    /// A document: 304 without a body for a caller that has it already.
    pub fn document(document: &Document, headers: &HeaderMap) -> Self {
        let tag = format!("\"{}\"", document.tag);
        let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()) == Some(tag.as_str());
        let (status, body) = if known {
            (StatusCode::NOT_MODIFIED, AnswerBody::Empty)
        } else {
            (StatusCode::OK, AnswerBody::Bytes(document.content_type, document.bytes.clone()))
        };
        let answer = Self { status, body, warnings: Vec::new(), headers: HeaderMap::new() };
        answer.with_header(header::ETAG, &tag).with_header(header::VARY, "Accept")
    }

    /// The same, with warnings.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// The same, with a header; one that can't be written is left out.
    #[must_use]
    pub fn with_header(mut self, name: header::HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }
}

/// A document that is made once, with the tag of its content.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its bytes.
    pub bytes: Bytes,
    /// Equal for equal bytes.
    pub tag: String,
    /// What the bytes are.
    pub content_type: &'static str,
}

impl Document {
    /// Writes a value as JSON.
    pub fn of(value: &Value) -> Self {
        Self::encoded(value.to_string().into_bytes(), "application/json")
    }

    /// What is written already.
    pub fn encoded(bytes: Vec<u8>, content_type: &'static str) -> Self {
        let bytes = Bytes::from(bytes);
        Self { tag: discovery::entity_tag(&bytes), bytes, content_type }
    }

    /// One document of a group-version, asked for with or without its hash.
    pub fn by_hash(&self, asked: Option<&str>, place: &str, headers: &HeaderMap, now: Timestamp) -> Answer {
        match asked {
            Some(hash) if hash == self.tag => Answer::document(self, headers)
                .with_header(header::CACHE_CONTROL, "public, immutable")
                .with_header(header::EXPIRES, &a_year_after(now)),
            Some(_) => {
                let current = format!("{place}?hash={}", self.tag);
                Answer::text(StatusCode::MOVED_PERMANENTLY, String::new()).with_header(header::LOCATION, &current)
            }
            None => Answer::document(self, headers),
        }
    }
}

/// A year later, as HTTP writes dates.
fn a_year_after(now: Timestamp) -> String {
    let then = now + SignedDuration::from_hours(365 * 24);
    then.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// The response that an answer becomes.
pub fn written(answer: Answer, encoding: Encoding, layout: Layout) -> Response<Body> {
    let (content_type, body) = match answer.body {
        AnswerBody::Value(value) => {
            let content_type = match encoding {
                Encoding::Json => "application/json",
                Encoding::Yaml => "application/yaml",
            };
            (Some(content_type), Body::from(negotiate::encode(&value, encoding, layout)))
        }
        AnswerBody::Bytes(content_type, bytes) => (Some(content_type), Body::from(bytes)),
        AnswerBody::Stream(body) => (Some("application/json"), body),
        AnswerBody::Empty => (None, Body::empty()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    // What the answer says of itself comes last, and wins.
    response.headers_mut().extend(answer.headers);
    add_warnings(&mut response, &answer.warnings);
    response
}

/// Characters of all warnings of an answer, and of one where all are more.
const WARNINGS: usize = 4096;
const WARNING: usize = 256;
/// Warnings of an answer. Many clients take no more than a hundred headers.
const MOST_WARNINGS: usize = 64;

/// The warnings that are told, as API servers choose them: all, or if that is too much, as many as there is room for, each cut.
fn within_bounds(warnings: &[String]) -> Vec<String> {
    let length = |text: &String| text.chars().count();
    let warnings = &warnings[..warnings.len().min(MOST_WARNINGS)];
    if warnings.iter().map(length).sum::<usize>() <= WARNINGS {
        return warnings.to_vec();
    }
    let mut room = WARNINGS;
    let cut = warnings.iter().map(|text| text.chars().take(WARNING).collect::<String>());
    cut.take_while(|text| {
        let fits = length(text) <= room;
        room = room.saturating_sub(length(text));
        fits
    })
    .collect()
}

fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    for warning in &within_bounds(warnings) {
        if let Ok(value) = HeaderValue::from_str(&warning_header(warning)) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// A warning as clients read it.
fn warning_header(text: &str) -> String {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ");
    format!("299 - \"{quoted}\"")
}

/// The response that a refusal becomes.
pub fn refused(status: &ApiStatus, layout: Layout) -> Response<Body> {
    let (content_type, body) = match status.form {
        Form::Status => ("application/json", negotiate::encode(&status.to_json(), Encoding::Json, layout)),
        Form::Text => ("text/plain; charset=utf-8", format!("{}\n", status.message).into_bytes()),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(seconds) = status.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    add_warnings(&mut response, &status.warnings);
    response
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn header_of(answer: &Answer, name: header::HeaderName) -> &str {
        answer.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn a_document_that_the_caller_has_is_not_sent_again() {
        let document = Document::of(&json!({"a": 1}));
        let mut headers = HeaderMap::new();
        assert_eq!(Answer::document(&document, &headers).status, StatusCode::OK);
        headers.insert(header::IF_NONE_MATCH, format!("\"{}\"", document.tag).parse().unwrap());
        let answer = Answer::document(&document, &headers);
        assert!(answer.status == StatusCode::NOT_MODIFIED && matches!(answer.body, AnswerBody::Empty));
    }

    #[rstest]
    #[case::xa_011_current(true, 200, "public, immutable")]
    #[case::xa_012_stale(false, 301, "")]
    fn a_hash_names_one_edition(#[case] current: bool, #[case] status: u16, #[case] caching: &str) {
        let document = Document::of(&json!({}));
        let asked = if current { document.tag.clone() } else { "ABC".to_owned() };
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let answer = document.by_hash(Some(&asked), "/openapi/v3/apis/g/v1", &HeaderMap::new(), now);
        assert_eq!((answer.status.as_u16(), header_of(&answer, header::CACHE_CONTROL)), (status, caching));
        if current {
            assert_eq!(header_of(&answer, header::EXPIRES), "Sat, 02 Jan 2027 03:04:05 GMT");
        } else {
            let place = format!("/openapi/v3/apis/g/v1?hash={}", document.tag);
            assert_eq!(header_of(&answer, header::LOCATION), place);
        }
    }

    #[rstest]
    #[case::few(3, 10, 3, 10)]
    #[case::one_long_one(1, 4096, 1, 4096)]
    #[case::one_too_long(1, 1 << 20, 1, 256)]
    #[case::too_many(100_000, 20, 64, 20)]
    #[case::too_much(40, 200, 20, 200)]
    fn a_head_stays_small(#[case] number: usize, #[case] length: usize, #[case] told: usize, #[case] each: usize) {
        let mut response = Response::new(Body::empty());
        add_warnings(&mut response, &vec!["x".repeat(length); number]);
        let values: Vec<_> = response.headers().get_all(header::WARNING).iter().collect();
        assert_eq!((values.len(), values[0].len()), (told, each + "299 - \"\"".len()));
    }

    #[test]
    fn a_warning_can_neither_end_its_header_nor_begin_another() {
        assert_eq!(warning_header("a \"b\" \\\r\nX: y"), "299 - \"a \\\"b\\\" \\\\  X: y\"");
    }
}
