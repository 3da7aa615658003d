//! Decodes the protobuf bodies of Go clients: the built-in kinds and delete options.
//!
//! Answers are never protobuf, because clients that accept protobuf also accept JSON. Numbers, types and JSON names of all fields are in
//! `builtin/protobuf.json.gz`, which `scripts/dev-server-protobuf` creates. Other kinds are not supported.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
    sync::OnceLock,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const DOCUMENT: &[u8] = include_bytes!("builtin/protobuf.json.gz");
const MAGIC: &[u8] = b"k8s\0";
/// The maximum number of levels of nested messages. Without a limit schemas can be nested to any depth.
const MAX_DEPTH: usize = 64;
/// The fields of the envelope `k8s.io/apimachinery/pkg/runtime.Unknown`.
const TYPE: u64 = 1;
const RAW: u64 = 2;

/// The error of a body that can't be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// The kind is supported only as JSON or YAML.
    UnsupportedKind,
    /// The body is no valid protobuf of its kind.
    Malformed,
}

#[derive(Deserialize)]
struct Document {
    /// The message names by `group/version/kind`.
    kinds: HashMap<String, String>,
    messages: HashMap<String, BTreeMap<u64, FieldType>>,
}

/// A field: its name in JSON, its type, and flags for the conversion to JSON.
#[derive(Deserialize)]
struct FieldType(String, String, String);

impl FieldType {
    fn is_map(&self) -> bool {
        self.2.contains('m')
    }

    fn is_repeated(&self) -> bool {
        self.2.contains('r')
    }

    /// Whether the fields of the field belong to the outer object in JSON.
    fn is_embedded(&self) -> bool {
        self.2.contains('i')
    }

    /// Whether JSON contains the field even if it has its zero value.
    fn keeps_zero(&self) -> bool {
        self.2.contains('z')
    }
}

fn document() -> &'static Document {
    static READ: OnceLock<Document> = OnceLock::new();
    READ.get_or_init(|| {
        let mut text = String::new();
        GzDecoder::new(DOCUMENT).read_to_string(&mut text).expect("the pinned document is gzip");
        serde_json::from_str(&text).expect("the pinned document is as its script writes it")
    })
}

/// The encoded value of a field.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

type Fields<'a> = Vec<(u64, Field<'a>)>;

/// Decodes the object in a body.
pub(super) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = message(body.strip_prefix(MAGIC).ok_or(DecodeError::Malformed)?)?;
    let head = message(bytes(&envelope, TYPE))?;
    let (api_version, kind) = (text(&head, 1)?, text(&head, 2)?);
    let name = message_of(api_version, kind).ok_or(DecodeError::UnsupportedKind)?;
    let mut object = structure(name, bytes(&envelope, RAW), 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    if kind == "DeleteOptions" {
        // `DeleteOptions` exist in every group.
        return Some("meta.DeleteOptions");
    }
    let path =
        if api_version.contains('/') { format!("{api_version}/{kind}") } else { format!("/{api_version}/{kind}") };
    document().kinds.get(&path).map(String::as_str)
}

/// Converts a message to a JSON object.
fn structure(name: &str, body: &[u8], depth: usize) -> Result<Map<String, Value>, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::Malformed);
    }
    let known = document().messages.get(name).ok_or(DecodeError::Malformed)?;
    let mut object = Map::new();
    for (number, sent) in message(body)? {
        // An unknown field of a newer client is ignored.
        let Some(field) = known.get(&number) else { continue };
        let FieldType(json_name, kind, _) = field;
        if field.is_map() {
            let (key, value) = entry(kind, sent, depth)?;
            let map = object.entry(json_name.clone()).or_insert_with(|| json!({}));
            map[key] = value;
            continue;
        }
        if field.is_embedded() {
            object.extend(structure(kind, sent.bytes()?, depth + 1)?);
            continue;
        }
        let value = value(kind, sent, depth)?;
        if field.is_repeated() {
            let list = object.entry(json_name.clone()).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(value);
            }
        } else if field.keeps_zero() || !is_zero(&value) {
            object.insert(json_name.clone(), value);
        }
    }
    Ok(object)
}

/// Whether JSON leaves a value out: the zero values of Go, but never a structure.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(truth) => !truth,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// An entry of a map.
fn entry(kind: &str, sent: Field<'_>, depth: usize) -> Result<(String, Value), DecodeError> {
    let parts = message(sent.bytes()?)?;
    let key = text(&parts, 1)?.to_owned();
    let empty = match kind {
        "string" | "bytes" => json!(""),
        _ => json!({}),
    };
    match find(&parts, 2) {
        Some(sent) => Ok((key, value(kind, sent, depth)?)),
        None => Ok((key, empty)),
    }
}

fn value(kind: &str, sent: Field<'_>, depth: usize) -> Result<Value, DecodeError> {
    Ok(match kind {
        "string" => json!(utf8(sent.bytes()?)?),
        "bytes" => json!(BASE64_STANDARD.encode(sent.bytes()?)),
        "bool" => json!(sent.number()? != 0),
        "int32" | "int64" => json!(sent.number()?.cast_signed()),
        "uint32" | "uint64" => json!(sent.number()?),
        "double" => whole(f64::from_bits(sent.number()?)),
        "meta.Time" => time(sent.bytes()?, 0)?,
        "meta.MicroTime" => time(sent.bytes()?, 6)?,
        "resource.Quantity" => json!(text(&message(sent.bytes()?)?, 1)?),
        "meta.FieldsV1" | "runtime.RawExtension" | "apiextensions.JSON" => raw_json(sent.bytes()?)?,
        "intstr.IntOrString" => int_or_string(sent.bytes()?)?,
        "authentication.ExtraValue" | "authorization.ExtraValue" => list("string", sent.bytes()?, 1, depth)?,
        "apiextensions.JSONSchemaPropsOrBool" => {
            let parts = message(sent.bytes()?)?;
            match find(&parts, 2) {
                Some(schema) => value("apiextensions.JSONSchemaProps", schema, depth)?,
                None => json!(find(&parts, 1).is_some_and(|allows| allows.number() == Ok(1))),
            }
        }
        "apiextensions.JSONSchemaPropsOrArray" => schema_or("apiextensions.JSONSchemaProps", sent.bytes()?, depth)?,
        "apiextensions.JSONSchemaPropsOrStringArray" => schema_or("string", sent.bytes()?, depth)?,
        name => Value::Object(structure(name, sent.bytes()?, depth + 1)?),
    })
}

/// Decodes a message with either a schema (field 1) or a list (field 2).
fn schema_or(item: &str, body: &[u8], depth: usize) -> Result<Value, DecodeError> {
    match find(&message(body)?, 1) {
        Some(schema) => value("apiextensions.JSONSchemaProps", schema, depth),
        None => list(item, body, 2, depth),
    }
}

fn list(item: &str, body: &[u8], wanted: u64, depth: usize) -> Result<Value, DecodeError> {
    let parts = message(body)?;
    let items = parts.iter().filter(|(number, _)| *number == wanted).map(|(_, sent)| value(item, *sent, depth));
    Ok(Value::Array(items.collect::<Result<_, _>>()?))
}

/// A number in the format of Go, which writes whole numbers without a decimal point.
#[allow(clippy::cast_possible_truncation)] // The condition checks the range.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9e15 { json!(number as i64) } else { json!(number) }
}

/// Decodes a time: seconds and nanoseconds. An empty message means null.
fn time(body: &[u8], digits: usize) -> Result<Value, DecodeError> {
    let parts = message(body)?;
    if parts.is_empty() {
        return Ok(Value::Null);
    }
    let number = |wanted| find(&parts, wanted).map_or(Ok(0), Field::number).map(u64::cast_signed);
    let nanos = i32::try_from(number(2)?).map_err(|_| DecodeError::Malformed)?;
    let at = Timestamp::new(number(1)?, if digits == 0 { 0 } else { nanos }).map_err(|_| DecodeError::Malformed)?;
    Ok(json!(format!("{at:.digits$}")))
}

fn raw_json(body: &[u8]) -> Result<Value, DecodeError> {
    let parts = message(body)?;
    match bytes(&parts, 1) {
        [] => Ok(Value::Null),
        raw => serde_json::from_slice(raw).map_err(|_| DecodeError::Malformed),
    }
}

fn int_or_string(body: &[u8]) -> Result<Value, DecodeError> {
    let parts = message(body)?;
    let number = |wanted| find(&parts, wanted).map_or(Ok(0), Field::number);
    if number(1)? == 1 { Ok(json!(text(&parts, 3)?)) } else { Ok(json!(number(2)?.cast_signed())) }
}

impl<'a> Field<'a> {
    fn bytes(self) -> Result<&'a [u8], DecodeError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(DecodeError::Malformed),
        }
    }

    fn number(self) -> Result<u64, DecodeError> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err(DecodeError::Malformed),
        }
    }
}

/// The last value of a field, as the protobuf specification demands.
fn find<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Option<Field<'a>> {
    fields.iter().rev().find(|(number, _)| *number == wanted).map(|(_, field)| *field)
}

fn bytes<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> &'a [u8] {
    find(fields, wanted).and_then(|field| field.bytes().ok()).unwrap_or_default()
}

fn text<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Result<&'a str, DecodeError> {
    utf8(bytes(fields, wanted))
}

fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Malformed)
}

fn message(mut rest: &[u8]) -> Result<Fields<'_>, DecodeError> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => Field::Number(
                take(&mut rest, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| DecodeError::Malformed)?,
            ),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).map_err(|_| DecodeError::Malformed)?;
                Field::Bytes(take(&mut rest, length)?)
            }
            _ => return Err(DecodeError::Malformed),
        };
        fields.push((key >> 3, field));
    }
    Ok(fields)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], DecodeError> {
    let (part, after) = bytes.split_at_checked(length).ok_or(DecodeError::Malformed)?;
    *bytes = after;
    Ok(part)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, after) = bytes.split_first().ok_or(DecodeError::Malformed)?;
        *bytes = after;
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DecodeError::Malformed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn number(number: u8, value: u8) -> Vec<u8> {
        vec![number << 3, value]
    }

    fn body(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let head = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &head), &field(2, object)].concat()
    }

    #[test]
    fn an_access_review() {
        let attributes = [field(1, b""), field(2, b"create"), field(5, b"pods")].concat();
        let review = field(2, &field(1, &attributes));
        let read = decode(&body("authorization.k8s.io/v1", "SelfSubjectAccessReview", &review)).unwrap();
        assert_eq!(read["spec"]["resourceAttributes"], json!({"verb": "create", "resource": "pods"}));
    }

    #[test]
    fn an_object_is_equal_to_its_json_form() {
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let metadata =
            [field(1, b"m"), field(2, b""), number(7, 0), field(8, b""), field(11, &entry), field(14, b"f")].concat();
        let map = [field(1, &metadata), field(2, &entry), field(3, &entry), number(4, 0)].concat();
        assert_eq!(
            decode(&body("v1", "ConfigMap", &map)).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"}, "binaryData": {"key": "dmFsdWU="},
                "immutable": false,
                "metadata": {"name": "m", "creationTimestamp": null, "labels": {"key": "value"}, "finalizers": ["f"]},
            })
        );
    }

    #[test]
    fn embedded_structures_times_and_numbers_or_texts() {
        let secret = field(6, &field(1, b"s"));
        let volume = [field(1, b"v"), field(2, &secret)].concat();
        let metadata = field(8, &[number(1, 60), number(2, 5)].concat());
        let pod = [field(1, &metadata), field(2, &field(1, &volume))].concat();
        let read = decode(&body("v1", "Pod", &pod)).unwrap();
        assert_eq!(read["metadata"]["creationTimestamp"], "1970-01-01T00:01:00Z");
        assert_eq!(read["spec"]["volumes"], json!([{"name": "v", "secret": {"secretName": "s"}}]));
        let share = [number(1, 1), number(2, 0), field(3, b"50%")].concat();
        let budget = field(2, &[field(1, &share), field(3, &number(2, 3))].concat());
        let read = decode(&body("policy/v1", "PodDisruptionBudget", &budget)).unwrap();
        assert_eq!(read["spec"], json!({"minAvailable": "50%", "maxUnavailable": 3}));
        let lease = field(
            2,
            &[number(2, 15), field(4, &[number(1, 1), vec![2 << 3, 0x80, 0xca, 0xb5, 0xee, 0x01]].concat())].concat(),
        );
        let read = decode(&body("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
        assert_eq!(read["spec"], json!({"leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:01.500000Z"}));
    }

    #[test]
    fn delete_options_keep_a_grace_period_of_zero() {
        let options = [number(1, 0), field(4, b"Background")].concat();
        let read = decode(&body("policy/v1", "DeleteOptions", &options)).unwrap();
        assert_eq!((&read["gracePeriodSeconds"], &read["propagationPolicy"]), (&json!(0), &json!("Background")));
    }

    #[rstest]
    #[case::no_magic(b"".to_vec(), DecodeError::Malformed)]
    #[case::no_type(MAGIC.to_vec(), DecodeError::UnsupportedKind)]
    #[case::truncated(b"k8s\0\x0a\xff".to_vec(), DecodeError::Malformed)]
    #[case::a_number_without_end([MAGIC, &[0x08], &[0xff; 12]].concat(), DecodeError::Malformed)]
    #[case::a_group([MAGIC, &[0x0b]].concat(), DecodeError::Malformed)]
    #[case::no_built_in_kind(body("probe.example.com/v1", "Thing", b""), DecodeError::UnsupportedKind)]
    #[case::a_number_for_a_structure(body("v1", "ConfigMap", &number(1, 3)), DecodeError::Malformed)]
    #[case::no_utf8(body("v1", "ConfigMap", &field(1, &field(1, b"\xff"))), DecodeError::Malformed)]
    fn bodies_that_can_not_be_decoded(#[case] body: Vec<u8>, #[case] why: DecodeError) {
        assert_eq!(decode(&body), Err(why));
    }

    #[test]
    fn the_depth_of_schemas_is_limited() {
        let mut schema = Vec::new();
        for _ in 0..200 {
            // The field `not` with its length as a varint.
            let mut length = schema.len();
            let mut outer = vec![0xe2, 0x01];
            while length > 0x7f {
                outer.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
                length >>= 7;
            }
            outer.push(u8::try_from(length).unwrap());
            outer.extend(schema);
            schema = outer;
        }
        assert_eq!(structure("apiextensions.JSONSchemaProps", &schema, 0), Err(DecodeError::Malformed));
    }
}
