//! Reads bodies that Go programs write as protobuf: the built-in kinds and the options of deletions.
//!
//! Answers are never written so: whoever accepts protobuf accepts JSON too. Numbers, types and JSON names of all fields come
//! from `builtin/protobuf.json.gz`, made by `scripts/dev-server-protobuf`; what is no built-in kind is not read.

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
/// Deeper messages are refused: schemas can be nested without end.
const DEEPEST: usize = 64;
/// What the envelope of `k8s.io/apimachinery/pkg/runtime.Unknown` holds.
const TYPE: u64 = 1;
const RAW: u64 = 2;

/// Why a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It holds a kind that is only read as JSON or YAML.
    Kind,
    /// It is no protobuf of that kind.
    Malformed,
}

#[derive(Deserialize)]
struct Document {
    /// Messages by `group/version/kind`.
    kinds: HashMap<String, String>,
    messages: HashMap<String, BTreeMap<u64, FieldType>>,
}

/// A field: its name in JSON, its type, and how JSON differs.
#[derive(Deserialize)]
struct FieldType(String, String, String);

impl FieldType {
    fn is_map(&self) -> bool {
        self.2.contains('m')
    }

    fn is_repeated(&self) -> bool {
        self.2.contains('r')
    }

    /// Its fields belong to the object around it.
    fn is_embedded(&self) -> bool {
        self.2.contains('i')
    }

    /// JSON tells of it even when it says nothing.
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

/// A field as it was sent.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

type Fields<'a> = Vec<(u64, Field<'a>)>;

/// The object in a body.
///
/// # Errors
/// [`Unread`] says why there is none.
pub(super) fn decode(body: &[u8]) -> Result<Value, Unread> {
    let envelope = message(body.strip_prefix(MAGIC).ok_or(Unread::Malformed)?)?;
    let head = message(bytes(&envelope, TYPE))?;
    let (api_version, kind) = (text(&head, 1)?, text(&head, 2)?);
    let name = message_of(api_version, kind).ok_or(Unread::Kind)?;
    let mut object = structure(name, bytes(&envelope, RAW), 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    if kind == "DeleteOptions" {
        // Every group has them.
        return Some("meta.DeleteOptions");
    }
    let path =
        if api_version.contains('/') { format!("{api_version}/{kind}") } else { format!("/{api_version}/{kind}") };
    document().kinds.get(&path).map(String::as_str)
}

/// A message as a JSON object.
fn structure(name: &str, body: &[u8], depth: usize) -> Result<Map<String, Value>, Unread> {
    if depth > DEEPEST {
        return Err(Unread::Malformed);
    }
    let known = document().messages.get(name).ok_or(Unread::Malformed)?;
    let mut object = Map::new();
    for (number, sent) in message(body)? {
        // A field of a newer client.
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

/// Whether JSON leaves a value out: Go's empty values, but never a structure.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(truth) => !truth,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// An entry of a map.
fn entry(kind: &str, sent: Field<'_>, depth: usize) -> Result<(String, Value), Unread> {
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

fn value(kind: &str, sent: Field<'_>, depth: usize) -> Result<Value, Unread> {
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

/// Field 1 is one schema, field 2 a list instead of it.
fn schema_or(item: &str, body: &[u8], depth: usize) -> Result<Value, Unread> {
    match find(&message(body)?, 1) {
        Some(schema) => value("apiextensions.JSONSchemaProps", schema, depth),
        None => list(item, body, 2, depth),
    }
}

fn list(item: &str, body: &[u8], wanted: u64, depth: usize) -> Result<Value, Unread> {
    let parts = message(body)?;
    let items = parts.iter().filter(|(number, _)| *number == wanted).map(|(_, sent)| value(item, *sent, depth));
    Ok(Value::Array(items.collect::<Result<_, _>>()?))
}

/// Go writes whole numbers without a point.
#[allow(clippy::cast_possible_truncation)] // checked
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9e15 { json!(number as i64) } else { json!(number) }
}

/// Seconds and nanoseconds; nothing at all is no time.
fn time(body: &[u8], digits: usize) -> Result<Value, Unread> {
    let parts = message(body)?;
    if parts.is_empty() {
        return Ok(Value::Null);
    }
    let number = |wanted| find(&parts, wanted).map_or(Ok(0), Field::number).map(u64::cast_signed);
    let nanos = i32::try_from(number(2)?).map_err(|_| Unread::Malformed)?;
    let at = Timestamp::new(number(1)?, if digits == 0 { 0 } else { nanos }).map_err(|_| Unread::Malformed)?;
    Ok(json!(format!("{at:.digits$}")))
}

fn raw_json(body: &[u8]) -> Result<Value, Unread> {
    let parts = message(body)?;
    match bytes(&parts, 1) {
        [] => Ok(Value::Null),
        raw => serde_json::from_slice(raw).map_err(|_| Unread::Malformed),
    }
}

fn int_or_string(body: &[u8]) -> Result<Value, Unread> {
    let parts = message(body)?;
    let number = |wanted| find(&parts, wanted).map_or(Ok(0), Field::number);
    if number(1)? == 1 { Ok(json!(text(&parts, 3)?)) } else { Ok(json!(number(2)?.cast_signed())) }
}

impl<'a> Field<'a> {
    fn bytes(self) -> Result<&'a [u8], Unread> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(Unread::Malformed),
        }
    }

    fn number(self) -> Result<u64, Unread> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err(Unread::Malformed),
        }
    }
}

/// The last of a number counts, as protobuf says.
fn find<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Option<Field<'a>> {
    fields.iter().rev().find(|(number, _)| *number == wanted).map(|(_, field)| *field)
}

fn bytes<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> &'a [u8] {
    find(fields, wanted).and_then(|field| field.bytes().ok()).unwrap_or_default()
}

fn text<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Result<&'a str, Unread> {
    utf8(bytes(fields, wanted))
}

fn utf8(bytes: &[u8]) -> Result<&str, Unread> {
    std::str::from_utf8(bytes).map_err(|_| Unread::Malformed)
}

fn message(mut rest: &[u8]) -> Result<Fields<'_>, Unread> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => Field::Number(take(&mut rest, 8)?.try_into().map(u64::from_le_bytes).map_err(|_| Unread::Malformed)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).map_err(|_| Unread::Malformed)?;
                Field::Bytes(take(&mut rest, length)?)
            }
            _ => return Err(Unread::Malformed),
        };
        fields.push((key >> 3, field));
    }
    Ok(fields)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Unread> {
    let (part, after) = bytes.split_at_checked(length).ok_or(Unread::Malformed)?;
    *bytes = after;
    Ok(part)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Unread> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, after) = bytes.split_first().ok_or(Unread::Malformed)?;
        *bytes = after;
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Unread::Malformed)
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
    fn an_access_review_is_read() {
        let attributes = [field(1, b""), field(2, b"create"), field(5, b"pods")].concat();
        let review = field(2, &field(1, &attributes));
        let read = decode(&body("authorization.k8s.io/v1", "SelfSubjectAccessReview", &review)).unwrap();
        assert_eq!(read["spec"]["resourceAttributes"], json!({"verb": "create", "resource": "pods"}));
    }

    #[test]
    fn objects_are_read_as_json_would_write_them() {
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
    fn options_of_a_deletion_keep_a_grace_of_nothing() {
        let options = [number(1, 0), field(4, b"Background")].concat();
        let read = decode(&body("policy/v1", "DeleteOptions", &options)).unwrap();
        assert_eq!((&read["gracePeriodSeconds"], &read["propagationPolicy"]), (&json!(0), &json!("Background")));
    }

    #[rstest]
    #[case::no_magic(b"".to_vec(), Unread::Malformed)]
    #[case::no_type(MAGIC.to_vec(), Unread::Kind)]
    #[case::cut_off(b"k8s\0\x0a\xff".to_vec(), Unread::Malformed)]
    #[case::a_number_without_end([MAGIC, &[0x08], &[0xff; 12]].concat(), Unread::Malformed)]
    #[case::a_group([MAGIC, &[0x0b]].concat(), Unread::Malformed)]
    #[case::no_built_in_kind(body("probe.example.com/v1", "Thing", b""), Unread::Kind)]
    #[case::a_number_for_a_structure(body("v1", "ConfigMap", &number(1, 3)), Unread::Malformed)]
    #[case::no_utf8(body("v1", "ConfigMap", &field(1, &field(1, b"\xff"))), Unread::Malformed)]
    fn what_is_not_read(#[case] body: Vec<u8>, #[case] why: Unread) {
        assert_eq!(decode(&body), Err(why));
    }

    #[test]
    fn schemas_nested_without_end_are_refused() {
        let mut schema = Vec::new();
        for _ in 0..200 {
            // `not`, whose length needs a varint of its own.
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
        assert_eq!(structure("apiextensions.JSONSchemaProps", &schema, 0), Err(Unread::Malformed));
    }
}
