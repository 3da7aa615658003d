//! Which representation a caller wants, and which one it sends.
//!
//! Source: spec/extension-apiserver §2.5. JSON and YAML are spoken, protobuf and CBOR are not.

use http::{HeaderMap, header::ACCEPT};
use serde_json::Value;

use super::{depth, status::ApiStatus};

/// What is spoken, as messages say it.
pub const MEDIA_TYPES: &str = "application/json, application/yaml";

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    #[default]
    Json,
    /// `application/yaml`.
    Yaml,
}

/// What objects are turned into before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing: the object itself.
    Object,
    /// A table of this version of `meta.k8s.io`.
    Table(&'static str),
    /// The metadata of one object.
    PartialObject,
    /// The metadata of a list of objects.
    PartialList,
    /// Discovery of all groups in one document, of this version.
    GroupDiscovery(&'static str),
}

/// What a caller accepts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// How it is written.
    pub encoding: Encoding,
    /// What it is turned into.
    pub shape: Shape,
}

/// What the resource at hand can be turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Objects, tables and metadata.
    Objects,
    /// Discovery documents.
    Discovery,
}

/// Finds the first representation that the caller accepts and the server can give.
///
/// # Errors
/// 406 when there is none.
pub fn accept(headers: &HeaderMap, offer: Offer) -> Result<Accepted, ApiStatus> {
    let text: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let text = text.join(",");
    let mut clauses: Vec<Clause<'_>> = text.split(',').filter_map(Clause::parse).collect();
    if clauses.is_empty() {
        return Ok(Accepted { encoding: Encoding::Json, shape: Shape::Object });
    }
    // Stable: equal weights keep the caller's order.
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.weight));
    clauses.iter().find_map(|clause| clause.meets(offer)).ok_or_else(|| ApiStatus::not_acceptable(MEDIA_TYPES))
}

struct Clause<'a> {
    essence: String,
    /// In thousandths.
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

    fn meets(&self, offer: Offer) -> Option<Accepted> {
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

/// Reads a body by its content type.
///
/// # Errors
/// 415 for a type that is not spoken, 400 for text that is none.
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

/// Reads JSON. Numbers that JSON numbers of Kubernetes can't hold are refused.
pub fn json(body: &[u8]) -> Result<Value, ApiStatus> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ApiStatus::bad_request(format!("the object provided is unrecognized: cannot read JSON: {why}"))
    };
    depth::check_text(body).map_err(|error| unreadable(&error))?;
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// Most that the aliases of a text may repeat, in nodes. A few of them that name each other would otherwise keep a reader busy
/// for seconds.
const REPEATED: usize = 20_000;

/// Reads YAML, of which JSON is a part. What is no JSON may be nested 64 deep: the reader's own limit, since it needs more of the stack
/// for each level.
pub fn yaml(body: &[u8]) -> Result<Value, ApiStatus> {
    let unreadable =
        |why: String| ApiStatus::bad_request(format!("the object provided is unrecognized: cannot read YAML: {why}"));
    if let Ok(value) = serde_json::from_slice(body) {
        depth::check_value(&value, 0).map_err(|error| unreadable(error.to_string()))?;
        return Ok(value);
    }
    let text = std::str::from_utf8(body).map_err(|error| unreadable(error.to_string()))?;
    let bounded = serde_saphyr::options! {
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPEATED }
    };
    serde_saphyr::from_str_with_options(text, bounded)
        .map_err(|error| unreadable(error.to_string().lines().next().unwrap_or_default().to_owned()))
}

/// Writes a value, with a line end.
pub fn encode(value: &Value, encoding: Encoding, layout: Layout) -> Vec<u8> {
    let text = match (encoding, layout) {
        (Encoding::Json, Layout::Compact) => serde_json::to_string(value).map(|text| text + "\n").ok(),
        (Encoding::Json, Layout::Indented) => serde_json::to_string_pretty(value).map(|text| text + "\n").ok(),
        (Encoding::Yaml, _) => serde_saphyr::to_string(value).ok(),
    };
    // A value of JSON can always be written.
    text.unwrap_or_default().into_bytes()
}

/// How JSON is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// On one line.
    Compact,
    /// For people.
    Indented,
}

/// How a caller wants JSON: tools for people get it indented, unless they say otherwise.
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
        // Without quotes it is no JSON.
        format!("{}x{}", "[".repeat(depth), "]".repeat(depth))
    }

    fn block(depth: usize) -> String {
        (0..depth).map(|level| " ".repeat(level) + "a:\n").collect()
    }

    #[rstest]
    #[case::json(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth)), depth::DEEPEST)]
    #[case::flow(flow, 60)]
    #[case::block(block, 60)]
    fn th_01_texts_are_read_to_some_depth(#[case] text: impl Fn(usize) -> String, #[case] deepest: usize) {
        let within = yaml(text(deepest).as_bytes());
        assert!(within.is_ok(), "{within:?}");
        for deeper in [depth::DEEPEST + 1, 500, 1_500] {
            assert_eq!(yaml(text(deeper).as_bytes()).unwrap_err().code, 400, "{deeper}");
        }
    }

    #[test]
    fn th_01_what_opens_for_ever_is_refused_unread() {
        let refused = json("[".repeat(3 << 20).as_bytes()).unwrap_err();
        assert!(refused.code == 400 && refused.message.contains("exceeded max depth"), "{refused}");
    }
}
