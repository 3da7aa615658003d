//! Answers, and their conversion to HTTP responses with content type, entity tag, warnings and headers.
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

/// An answer that is not encoded yet.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The body.
    pub body: AnswerBody,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
    /// Further headers.
    pub headers: HeaderMap,
    /// The encoding of an object.
    pub encoding: Encoding,
}

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// An object. The encoding is negotiated with the client.
    Value(Value),
    /// Bytes with their content type.
    Bytes(&'static str, Bytes),
    /// The event stream of a watch.
    Stream(Body),
    /// No body.
    Empty,
}

impl Answer {
    /// An answer without further headers.
    pub fn new(status: StatusCode, body: AnswerBody) -> Self {
        Self { status, body, warnings: Vec::new(), headers: HeaderMap::new(), encoding: Encoding::Json }
    }

    /// An object with an HTTP status.
    pub fn of(status: StatusCode, value: Value) -> Self {
        Self::new(status, AnswerBody::Value(value))
    }

    /// An object with the status 200.
    pub fn ok(value: Value) -> Self {
        Self::of(StatusCode::OK, value)
    }

    /// An object that is encoded as JSON already.
    pub fn json(text: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, AnswerBody::Bytes("application/json", text.into()))
    }

    /// A text with an HTTP status.
    pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        Self::new(status, AnswerBody::Bytes("text/plain; charset=utf-8", text.into()))
    }

    /// A document; 304 without a body if the client has this version of the document already (`If-None-Match`).
    pub fn document(document: &Document, headers: &HeaderMap) -> Self {
        let tag = format!("\"{}\"", document.tag);
        let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()) == Some(tag.as_str());
        let (status, body) = if known {
            (StatusCode::NOT_MODIFIED, AnswerBody::Empty)
        } else {
            (StatusCode::OK, AnswerBody::Bytes(document.content_type, document.bytes.clone()))
        };
        Self::new(status, body).with_header(header::ETAG, &tag).with_header(header::VARY, "Accept")
    }

    /// The same answer with these warnings.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// The same answer with a header. A value that HTTP does not allow is left out.
    #[must_use]
    pub fn with_header(mut self, name: header::HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }
}

/// An encoded document, with the entity tag of its content.
#[derive(Clone, Debug)]
pub struct Document {
    /// The encoded document.
    pub bytes: Bytes,
    /// The entity tag: equal bytes have equal tags.
    pub tag: String,
    /// The content type of the bytes.
    pub content_type: &'static str,
}

impl Document {
    /// Encodes a value as JSON.
    pub fn of(value: &Value) -> Self {
        Self::encoded(value.to_string().into_bytes(), "application/json")
    }

    /// Takes a document that is encoded already.
    pub fn encoded(bytes: Vec<u8>, content_type: &'static str) -> Self {
        let bytes = Bytes::from(bytes);
        Self { tag: discovery::entity_tag(&bytes), bytes, content_type }
    }

    /// Answers a request for this document with or without a hash in the query. The current hash allows the client to cache the answer for a year.
    /// Any other hash is answered with a redirect to the current hash.
    pub fn by_hash(&self, hash: Option<&str>, path: &str, headers: &HeaderMap, now: Timestamp) -> Answer {
        match hash {
            Some(hash) if hash == self.tag => Answer::document(self, headers)
                .with_header(header::CACHE_CONTROL, "public, immutable")
                .with_header(header::EXPIRES, &a_year_after(now)),
            Some(_) => {
                let current = format!("{path}?hash={}", self.tag);
                Answer::text(StatusCode::MOVED_PERMANENTLY, String::new()).with_header(header::LOCATION, &current)
            }
            None => Answer::document(self, headers),
        }
    }
}

/// The time a year later, in the date format of HTTP.
fn a_year_after(now: Timestamp) -> String {
    let then = now + SignedDuration::from_hours(365 * 24);
    then.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Converts an answer to an HTTP response.
pub fn written(answer: Answer, layout: Layout) -> Response<Body> {
    let (content_type, body) = match answer.body {
        AnswerBody::Value(value) => {
            let content_type = match answer.encoding {
                Encoding::Json => "application/json",
                Encoding::Yaml => "application/yaml",
            };
            (Some(content_type), Body::from(negotiate::encode(&value, answer.encoding, layout)))
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
    // The headers of the answer override the content type above.
    response.headers_mut().extend(answer.headers);
    add_warnings(&mut response, &answer.warnings);
    response
}

/// The most characters that all warnings of an answer have together.
const MAX_TOTAL_LENGTH: usize = 4096;
/// The length in characters to which each warning is cut if the warnings together are too long.
const CUT_LENGTH: usize = 256;
/// The most warnings of an answer. Many clients accept no more than a hundred headers.
const MAX_WARNINGS: usize = 64;

/// The warnings that are sent. If all of them together are too long, each is cut and the last ones are left out, as a kube-apiserver does.
fn within_bounds(warnings: &[String]) -> Vec<String> {
    let length = |text: &String| text.chars().count();
    let warnings = &warnings[..warnings.len().min(MAX_WARNINGS)];
    if warnings.iter().map(length).sum::<usize>() <= MAX_TOTAL_LENGTH {
        return warnings.to_vec();
    }
    let mut remaining = MAX_TOTAL_LENGTH;
    let cut = warnings.iter().map(|text| text.chars().take(CUT_LENGTH).collect::<String>());
    cut.take_while(|text| {
        let fits = length(text) <= remaining;
        remaining = remaining.saturating_sub(length(text));
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

/// The value of a `Warning` header.
fn warning_header(text: &str) -> String {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ");
    format!("299 - \"{quoted}\"")
}

/// Converts an error to an HTTP response.
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
    fn a_document_that_the_client_has_is_not_sent_again() {
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
    fn a_hash_names_one_version_of_a_document(#[case] current: bool, #[case] status: u16, #[case] caching: &str) {
        let document = Document::of(&json!({}));
        let hash = if current { document.tag.clone() } else { "ABC".to_owned() };
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let answer = document.by_hash(Some(&hash), "/openapi/v3/apis/g/v1", &HeaderMap::new(), now);
        assert_eq!((answer.status.as_u16(), header_of(&answer, header::CACHE_CONTROL)), (status, caching));
        if current {
            assert_eq!(header_of(&answer, header::EXPIRES), "Sat, 02 Jan 2027 03:04:05 GMT");
        } else {
            let location = format!("/openapi/v3/apis/g/v1?hash={}", document.tag);
            assert_eq!(header_of(&answer, header::LOCATION), location);
        }
    }

    #[rstest]
    #[case::few(3, 10, 3, 10)]
    #[case::one_long_one(1, 4096, 1, 4096)]
    #[case::one_too_long(1, 1 << 20, 1, 256)]
    #[case::too_many(100_000, 20, 64, 20)]
    #[case::too_much(40, 200, 20, 200)]
    fn warnings_are_bounded(#[case] number: usize, #[case] length: usize, #[case] sent: usize, #[case] each: usize) {
        let mut response = Response::new(Body::empty());
        add_warnings(&mut response, &vec!["x".repeat(length); number]);
        let values: Vec<_> = response.headers().get_all(header::WARNING).iter().collect();
        assert_eq!((values.len(), values[0].len()), (sent, each + "299 - \"\"".len()));
    }

    #[test]
    fn a_warning_can_neither_end_its_header_nor_begin_another() {
        assert_eq!(warning_header("a \"b\" \\\r\nX: y"), "299 - \"a \\\"b\\\" \\\\  X: y\"");
    }
}
