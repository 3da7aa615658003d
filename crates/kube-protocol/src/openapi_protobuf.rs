//! The `OpenAPI` v2 document in the protobuf encoding of gnostic. Some clients read no other encoding, for example `kubectl apply` of a list.
//!
//! Only the parts that these clients use are encoded: the definitions. The field numbers come from `openapiv2/OpenAPIv2.proto` of
//! github.com/google/gnostic-models. Source: spec/extension-apiserver §2.4.

use serde_json::{Map, Value};

/// The media type that clients ask for.
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The same media type for `Content-Type` headers, which do not allow `@`.
pub const CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Whether a client asks for protobuf and accepts no JSON.
pub fn is_wanted(accept: &str) -> bool {
    let clauses = || accept.split(',').filter_map(|clause| clause.split(';').next()).map(str::trim);
    clauses().any(|clause| clause == MEDIA_TYPE || clause == CONTENT_TYPE)
        && !clauses().any(|clause| clause == "application/json")
}

/// The encoded fields of a protobuf message.
#[derive(Default)]
struct Message(Vec<u8>);

#[allow(clippy::cast_possible_truncation)] // Each cast keeps the lowest seven bits.
impl Message {
    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }

    fn boolean(&mut self, field: u64, value: bool) {
        self.varint(field << 3);
        self.varint(u64::from(value));
    }
}

/// Encodes a document of [`super::openapi::swagger`].
pub fn encode(document: &Value) -> Vec<u8> {
    let mut info = Message::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    let mut whole = Message::default();
    whole.text(1, &document["swagger"]);
    whole.message(2, &info);
    whole.message(8, &Message::default());
    whole.message(9, &named_schemas(&document["definitions"]));
    whole.0
}

/// Encodes named schemas: `Definitions` and `Properties` have the same form.
fn named_schemas(schemas: &Value) -> Message {
    let mut all = Message::default();
    for (name, schema) in schemas.as_object().into_iter().flatten() {
        let mut named = Message::default();
        named.bytes(1, name.as_bytes());
        named.message(2, &self::schema(schema));
        all.message(1, &named);
    }
    all
}

fn schema(value: &Value) -> Message {
    let mut written = Message::default();
    written.text(1, &value["$ref"]);
    written.text(2, &value["format"]);
    written.text(4, &value["description"]);
    for required in value["required"].as_array().into_iter().flatten() {
        written.text(19, required);
    }
    let mut wrapped = Message::default();
    match &value["additionalProperties"] {
        Value::Bool(allowed) => {
            wrapped.boolean(2, *allowed);
            written.message(21, &wrapped);
        }
        below @ Value::Object(_) => {
            wrapped.message(1, &schema(below));
            written.message(21, &wrapped);
        }
        _ => {}
    }
    if value["type"].is_string() {
        let mut kind = Message::default();
        kind.text(1, &value["type"]);
        written.message(22, &kind);
    }
    if value["items"].is_object() {
        let mut items = Message::default();
        items.message(1, &schema(&value["items"]));
        written.message(23, &items);
    }
    if value["properties"].is_object() {
        written.message(25, &named_schemas(&value["properties"]));
    }
    if let Value::Object(fields) = value {
        extensions(fields, &mut written);
    }
    written
}

/// Encodes the fields `x-kubernetes-…`. The format requires YAML. JSON is valid YAML.
fn extensions(fields: &Map<String, Value>, written: &mut Message) {
    for (name, value) in fields.iter().filter(|(name, _)| name.starts_with("x-kubernetes-")) {
        let mut any = Message::default();
        any.bytes(2, value.to_string().as_bytes());
        let mut named = Message::default();
        named.bytes(1, name.as_bytes());
        named.message(2, &any);
        written.message(31, &named);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::kubectl(MEDIA_TYPE, true)]
    #[case::with_parameters("application/com.github.proto-openapi.spec.v2.v1.0+protobuf;q=0.9", true)]
    #[case::json_too("application/com.github.proto-openapi.spec.v2@v1.0+protobuf, application/json", false)]
    #[case::json("application/json", false)]
    #[case::anything("*/*", false)]
    fn clients_that_accept_no_json_get_protobuf(#[case] accept: &str, #[case] wanted: bool) {
        assert_eq!(is_wanted(accept), wanted);
    }

    #[test]
    fn an_encoded_document() {
        let document = json!({
            "swagger": "2.0", "info": {"title": "K", "version": "v1"}, "paths": {"/apis": {}},
            "definitions": {"T": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/d"}},
                "x-kubernetes-list-type": "map"}},
        });
        let property = [&[0x0a, 1, b'a', 0x12, 5][..], &[0x0a, 3], b"#/d"].concat();
        let extension = [&[0x0a, 22][..], b"x-kubernetes-list-type", &[0x12, 7, 0x12, 5], b"\"map\""].concat();
        let schema = [
            &[0x9a, 0x01, 1, b'a'][..],
            &[0xb2, 0x01, 8, 0x0a, 6],
            b"object",
            &[0xca, 0x01, 12, 0x0a, 10],
            &property,
            &[0xfa, 0x01, 33],
            &extension,
        ]
        .concat();
        let named = [&[0x0a, 1, b'T', 0x12, u8::try_from(schema.len()).unwrap()][..], &schema].concat();
        let definitions = [&[0x0a, u8::try_from(named.len()).unwrap()][..], &named].concat();
        let expected = [
            &[0x0a, 3][..],
            b"2.0",
            &[0x12, 7, 0x0a, 1, b'K', 0x12, 2, b'v', b'1', 0x42, 0, 0x4a, u8::try_from(definitions.len()).unwrap()],
            &definitions,
        ]
        .concat();
        assert_eq!(encode(&document), expected);
    }
}
