//! Content negotiation: the representations that a client accepts and sends.
//!
//! Source: spec/extension-apiserver §2.5. JSON and YAML are supported. Protobuf and CBOR are not supported.

use http::{HeaderMap, header::ACCEPT};
use serde_json::Value;

use super::{depth, status::ApiStatus};

/// The supported media types, for messages.
pub const MEDIA_TYPES: &str = "application/json, application/yaml";

/// The encoding of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    #[default]
    Json,
    /// `application/yaml`.
    Yaml,
}

/// The form into which objects are converted before they are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The object itself.
    Object,
    /// A table, in this version of `meta.k8s.io`.
    Table(&'static str),
    /// The metadata of one object.
    PartialObject,
    /// The metadata of a list of objects.
    PartialList,
    /// Discovery of all groups in one document, in this version of `apidiscovery.k8s.io`.
    GroupDiscovery(&'static str),
}

/// The representation that was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The encoding.
    pub encoding: Encoding,
    /// The form of the objects.
    pub shape: Shape,
}

/// The forms that the server offers for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Objects, tables and metadata.
    Objects,
    /// Discovery documents.
    Discovery,
}

/// Finds the first representation that the client accepts and the server offers.
///
/// # Errors
/// 406 if there is none.
pub fn accept(headers: &HeaderMap, offer: Offer) -> Result<Accepted, ApiStatus> {
    let text: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let text = text.join(",");
    let mut clauses: Vec<Clause<'_>> = text.split(',').filter_map(Clause::parse).collect();
    if clauses.is_empty() {
        return Ok(Accepted { encoding: Encoding::Json, shape: Shape::Object });
    }
    // The sort is stable: clauses of equal weight keep the order of the client.
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.weight));
    clauses.iter().find_map(|clause| clause.matches(offer)).ok_or_else(|| ApiStatus::not_acceptable(MEDIA_TYPES))
}

struct Clause<'a> {
    essence: String,
    /// The weight `q`, in thousandths.
    weight: u32,
    target: Option<(&'a str, &'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let essence = parts.next().filter(|essence| !essence.is_empty())?.to_ascii_lowercase();
        let (mut weight, mut kind, mut group, mut version) = (1000, None, "", "");
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match key.trim() {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                "q" => weight = value.trim().parse::<f32>().map_or(0, |q| (q.clamp(0.0, 1.0) * 1000.0) as u32),
                "as" => kind = Some(value.trim()),
                "g" => group = value.trim(),
                "v" => version = value.trim(),
                _ => {}
            }
        }
        Some(Self { essence, weight, target: kind.map(|kind| (kind, group, version)) })
    }

    fn matches(&self, offer: Offer) -> Option<Accepted> {
        let encoding = match self.essence.as_str() {
            "*/*" | "application/*" | "application/json" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            _ => return None,
        };
        let shape = match (offer, self.target) {
            (_, None) => Shape::Object,
            (Offer::Objects, Some(("Table", "meta.k8s.io", "v1"))) => Shape::Table("v1"),
            (Offer::Objects, Some(("Table", "meta.k8s.io", "v1beta1"))) => Shape::Table("v1beta1"),
            (Offer::Objects, Some(("PartialObjectMetadata", "meta.k8s.io", "v1"))) => Shape::PartialObject,
            (Offer::Objects, Some(("PartialObjectMetadataList", "meta.k8s.io", "v1"))) => Shape::PartialList,
            (Offer::Discovery, Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2"))) => {
                Shape::GroupDiscovery("v2")
            }
            (Offer::Discovery, Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1"))) => {
                Shape::GroupDiscovery("v2beta1")
            }
            _ => return None,
        };
        (self.weight > 0).then_some(Accepted { encoding, shape })
    }
}

/// Decodes a body by its content type.
///
/// # Errors
/// 415 for a type that is not supported, 400 for a body that is not valid in its type.
pub fn decode(content_type: Option<&str>, body: &[u8]) -> Result<Value, ApiStatus> {
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "" | "application/json" => json(body),
        "application/yaml" => yaml(body),
        _ => Err(ApiStatus::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: {MEDIA_TYPES}"
        ))),
    }
}

/// Decodes JSON. Numbers outside the range of a 64-bit floating-point number are refused.
pub fn json(body: &[u8]) -> Result<Value, ApiStatus> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ApiStatus::bad_request(format!("the object provided is unrecognized: cannot read JSON: {why}"))
    };
    depth::check_text(body).map_err(|error| unreadable(&error))?;
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// The maximum number of nodes that the aliases of a YAML text may expand to. Without a limit a few nested aliases keep the parser busy for
/// seconds.
const MAX_ALIAS_NODES: usize = 20_000;

/// Decodes YAML, which includes JSON. A text that is not JSON may be nested 64 levels deep. This limit of the YAML parser is lower than the limit
/// of JSON because the parser needs more stack for each level.
pub fn yaml(body: &[u8]) -> Result<Value, ApiStatus> {
    let unreadable =
        |why: String| ApiStatus::bad_request(format!("the object provided is unrecognized: cannot read YAML: {why}"));
    if let Ok(value) = serde_json::from_slice(body) {
        depth::check_value(&value, 0).map_err(|error| unreadable(error.to_string()))?;
        return Ok(value);
    }
    let text = std::str::from_utf8(body).map_err(|error| unreadable(error.to_string()))?;
    let bounded = serde_saphyr::options! {
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIAS_NODES }
    };
    serde_saphyr::from_str_with_options(text, bounded)
        .map_err(|error| unreadable(error.to_string().lines().next().unwrap_or_default().to_owned()))
}

/// Encodes a value, with a line feed at the end.
pub fn encode(value: &Value, encoding: Encoding, layout: Layout) -> Vec<u8> {
    let text = match (encoding, layout) {
        (Encoding::Json, Layout::Compact) => serde_json::to_string(value).map(|text| text + "\n").ok(),
        (Encoding::Json, Layout::Indented) => serde_json::to_string_pretty(value).map(|text| text + "\n").ok(),
        (Encoding::Yaml, _) => serde_saphyr::to_string(value).ok(),
    };
    // Every JSON value can be encoded.
    text.unwrap_or_default().into_bytes()
}

/// The layout of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// On one line.
    Compact,
    /// Indented, for people.
    Indented,
}

/// The layout of JSON for a client. Tools that people use get indented JSON, unless the query asks for compact JSON.
pub fn layout(pretty: Option<&str>, user_agent: &str) -> Layout {
    let for_people = || ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| user_agent.starts_with(tool));
    match pretty {
        Some("0" | "false") => Layout::Compact,
        Some(_) => Layout::Indented,
        None if for_people() => Layout::Indented,
        None => Layout::Compact,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

    #[rstest]
    #[case::none("", Some((Encoding::Json, Shape::Object)))]
    #[case::anything("*/*", Some((Encoding::Json, Shape::Object)))]
    #[case::weights_count("application/json;q=0.1,application/yaml", Some((Encoding::Yaml, Shape::Object)))]
    #[case::xa_030_protobuf_first("application/vnd.kubernetes.protobuf,application/json", Some((Encoding::Json, Shape::Object)))]
    #[case::xa_029_protobuf_alone("application/vnd.kubernetes.protobuf", None)]
    #[case::xa_031_html("text/html", None)]
    #[case::table(TABLE, Some((Encoding::Json, Shape::Table("v1"))))]
    #[case::xa_037_unknown_target("application/json;as=Nope;v=v1;g=meta.k8s.io", None)]
    #[case::xa_038_skipped("application/json;as=Nope;v=v1;g=meta.k8s.io,application/json", Some((Encoding::Json, Shape::Object)))]
    fn the_first_acceptable_clause_wins(#[case] text: &str, #[case] expected: Option<(Encoding, Shape)>) {
        let mut headers = HeaderMap::new();
        if !text.is_empty() {
            headers.insert(ACCEPT, text.parse().unwrap());
        }
        let found = accept(&headers, Offer::Objects).ok().map(|accepted| (accepted.encoding, accepted.shape));
        assert_eq!(found, expected);
    }

    fn flow(depth: usize) -> String {
        // The text is not JSON because `x` has no quotes.
        format!("{}x{}", "[".repeat(depth), "]".repeat(depth))
    }

    fn block(depth: usize) -> String {
        (0..depth).map(|level| " ".repeat(level) + "a:\n").collect()
    }

    #[rstest]
    #[case::json(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth)), depth::MAX_DEPTH)]
    #[case::flow(flow, 60)]
    #[case::block(block, 60)]
    fn th_01_the_depth_of_texts_is_limited(#[case] text: impl Fn(usize) -> String, #[case] deepest: usize) {
        let within = yaml(text(deepest).as_bytes());
        assert!(within.is_ok(), "{within:?}");
        for deeper in [depth::MAX_DEPTH + 1, 500, 1_500] {
            assert_eq!(yaml(text(deeper).as_bytes()).unwrap_err().code, 400, "{deeper}");
        }
    }

    #[test]
    fn th_01_a_text_of_opening_brackets_is_refused_before_it_is_parsed() {
        let refused = json("[".repeat(3 << 20).as_bytes()).unwrap_err();
        assert!(refused.code == 400 && refused.message.contains("exceeded max depth"), "{refused}");
    }
}
