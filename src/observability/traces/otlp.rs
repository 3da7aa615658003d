//! Spans as protocol buffers: the part of `opentelemetry/proto/collector/trace/v1/trace_service.proto` that is used, with the numbers of its
//! fields.

use jiff::Timestamp;
use mcm_traces::{Key, Link, Outcome, Span, SpanKind, Value};
use prost::Message;

use crate::settings::Build;

/// The path of traces below the address of a collector.
pub const PATH: &str = "/v1/traces";
/// The media type of requests and answers.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// The name of this program in traces (`service.name`).
pub const SERVICE: &str = "machine-controller-manager";

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// The spans of each process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// Name, version and instance.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<WireSpan>,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
pub struct WireSpan {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or none.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// The name.
    #[prost(string, tag = "5")]
    pub name: String,
    /// `SpanKind`.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// Details.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// Links.
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<WireLink>,
    /// Links that were left out.
    #[prost(uint32, tag = "14")]
    pub dropped_links_count: u32,
    /// The result; absent if nothing failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// `Span.Link`.
#[derive(Clone, PartialEq, Message)]
pub struct WireLink {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

/// `Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// `StatusCode`.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// `AnyValue`.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value.
    #[prost(oneof = "OneValue", tags = "1, 3, 5")]
    pub value: Option<OneValue>,
}

/// One of the forms of `AnyValue`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum OneValue {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
    /// A list.
    #[prost(message, tag = "5")]
    List(ArrayValue),
}

/// `ArrayValue`.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayValue {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<AnyValue>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// Present if some spans were refused.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of spans that were refused.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
}

/// `STATUS_CODE_ERROR`.
pub const STATUS_ERROR: i32 = 2;

/// The body of a request with these spans. `instance` is the name of this process.
pub fn request(build: &Build, instance: &str, spans: &[Span]) -> Vec<u8> {
    let attributes = [("service.name", SERVICE), ("service.version", build.version), ("service.instance.id", instance)];
    let resource = Resource { attributes: attributes.map(|(key, value)| pair(key, text(value))).into() };
    let scope_spans = vec![ScopeSpans { spans: spans.iter().map(wire).collect() }];
    Request { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }.encode_to_vec()
}

/// The number of spans that a collector refused, according to the body of its answer. An answer that can't be read refuses none: collectors answer
/// in JSON, too.
pub fn refused(body: &[u8]) -> u64 {
    let partial = Response::decode(body).ok().and_then(|answer| answer.partial_success);
    partial.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or_default()
}

fn wire(span: &Span) -> WireSpan {
    WireSpan {
        trace_id: span.trace.bytes().into(),
        span_id: span.id.bytes().into(),
        parent_span_id: span.parent.map(|parent| parent.bytes().into()).unwrap_or_default(),
        name: span.name.clone().into_owned(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end),
        attributes: span.attributes.iter().map(|(key, value)| attribute(*key, value)).collect(),
        links: span.links.iter().map(link).collect(),
        dropped_links_count: span.dropped_links,
        status: match span.outcome {
            Outcome::Fine => None,
            Outcome::Failed => Some(Status { code: STATUS_ERROR }),
        },
    }
}

fn link(link: &Link) -> WireLink {
    WireLink { trace_id: link.trace.bytes().into(), span_id: link.span.bytes().into() }
}

/// Nanoseconds since 1970; 0 before that.
fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or_default()
}

fn attribute(key: Key, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(value) => text(value),
        Value::Number(number) => OneValue::Number(*number),
        Value::Words(words) => OneValue::List(ArrayValue {
            values: words.iter().map(|word| AnyValue { value: Some(text(word)) }).collect(),
        }),
    };
    pair(key.as_str(), value)
}

fn text(value: &str) -> OneValue {
    OneValue::Text(value.to_owned())
}

fn pair(key: &str, value: OneValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use mcm_traces::{SpanId, TraceId};

    fn span() -> Span {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (trace, parent) = (TraceId::of_number(0x0102), SpanId::of_number(0x0506));
        let mut span = Span::new(trace, SpanId::of_number(0x0304), Some(parent), "drain", (at(1), at(2)))
            .with(Key::Name, Value::text("m"))
            .with(Key::Revision, Value::Number(3))
            .with(Key::Rules, Value::Words(vec!["a", "b"]));
        span.kind = SpanKind::Client;
        span.outcome = Outcome::Failed;
        span.link(Link { trace, span: parent });
        span
    }

    /// The bytes of the same message, made by hand from the numbers in the specification.
    const GOLDEN: &str = "0a100000000000000000000000000000010212080000000000000304220800000000000005062a05647261696e30033900ca9a3b000000\
        004100943577000000004a0f0a086d636d2e6e616d6512030a016d4a120a0c6d636d2e7265766973696f6e120218034a190a096d636d2e\
        72756c6573120c2a0a0a030a01610a030a01626a1c0a1000000000000000000000000000000102120800000000000005067a021802";

    #[test]
    fn a_span_has_the_bytes_of_the_specification() {
        let bytes = wire(&span()).encode_to_vec();
        let golden: Vec<u8> =
            (0..GOLDEN.len()).step_by(2).map(|at| u8::from_str_radix(&GOLDEN[at..at + 2], 16).unwrap()).collect();
        assert_eq!(bytes, golden);
    }

    #[test]
    fn a_request_names_the_process() {
        let body = request(&Build::THIS, "host_1", &[span()]);
        let mut read = Request::decode(body.as_slice()).unwrap();
        let resource = read.resource_spans.pop().unwrap();
        let names: Vec<String> = resource.resource.unwrap().attributes.into_iter().map(|pair| pair.key).collect();
        assert_eq!(names, ["service.name", "service.version", "service.instance.id"]);
        assert_eq!(resource.scope_spans[0].spans, [wire(&span())]);
    }

    #[rstest]
    #[case::all_taken(Vec::new(), 0)]
    #[case::some_refused(Response { partial_success: Some(PartialSuccess { rejected_spans: 3 }) }.encode_to_vec(), 3)]
    #[case::nonsense(Response { partial_success: Some(PartialSuccess { rejected_spans: -3 }) }.encode_to_vec(), 0)]
    #[case::json(b"{\"partialSuccess\":{}}".to_vec(), 0)]
    fn a_collector_says_how_many_spans_it_refused(#[case] body: Vec<u8>, #[case] expected: u64) {
        assert_eq!(refused(&body), expected);
    }
}
