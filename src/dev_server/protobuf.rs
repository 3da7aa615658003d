//! Reads the few questions that `kubectl` sends as protobuf and nothing else: access reviews, evictions, token requests.
//!
//! Objects are never read so: a body of any other kind is refused, and clients say the same in JSON. Field numbers are those
//! of `k8s.io/api` and `k8s.io/apimachinery`.

use serde_json::{Value, json};

const MAGIC: &[u8] = b"k8s\0";

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The question, if the body holds one of those that are read.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let envelope = message(body.strip_prefix(MAGIC)?)?;
    let head = message(bytes(&envelope, 1)?)?;
    let (api_version, kind) = (text(&head, 1)?, text(&head, 2)?);
    let fields = message(bytes(&envelope, 2)?)?;
    let spec = || message(bytes(&fields, 2).unwrap_or_default());
    let mut object = match kind.as_str() {
        "SelfSubjectAccessReview" => json!({"spec": access(&spec()?)?}),
        "SelfSubjectRulesReview" => json!({"spec": {"namespace": text(&spec()?, 1).unwrap_or_default()}}),
        "SelfSubjectReview" => json!({}),
        "Eviction" => {
            let metadata = message(bytes(&fields, 1)?)?;
            let options = spec()?;
            let grace = options.iter().find_map(|(number, field)| match (number, field) {
                (1, Field::Number(seconds)) => Some(*seconds),
                _ => None,
            });
            let mut eviction =
                json!({"metadata": {"name": text(&metadata, 1).unwrap_or_default()}, "deleteOptions": {}});
            if let Some(grace) = grace {
                eviction["deleteOptions"]["gracePeriodSeconds"] = json!(grace);
            }
            eviction
        }
        "TokenRequest" => {
            let seconds = spec()?.iter().find_map(|(number, field)| match (number, field) {
                (4, Field::Number(seconds)) => Some(*seconds),
                _ => None,
            });
            json!({"spec": {"expirationSeconds": seconds}})
        }
        _ => return None,
    };
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    Some(object)
}

fn access(spec: &[(u64, Field<'_>)]) -> Option<Value> {
    let named = |fields: &[(u64, Field<'_>)], names: &[(u64, &str)]| -> Value {
        let present =
            names.iter().filter_map(|(number, name)| Some(((*name).to_owned(), json!(text(fields, *number)?))));
        Value::Object(present.collect())
    };
    if let Some(attributes) = bytes(spec, 1) {
        const NAMES: [(u64, &str); 7] = [
            (1, "namespace"),
            (2, "verb"),
            (3, "group"),
            (4, "version"),
            (5, "resource"),
            (6, "subresource"),
            (7, "name"),
        ];
        return Some(json!({"resourceAttributes": named(&message(attributes)?, &NAMES)}));
    }
    let attributes = message(bytes(spec, 2).unwrap_or_default())?;
    Some(json!({"nonResourceAttributes": named(&attributes, &[(1, "path"), (2, "verb")])}))
}

fn bytes<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Option<&'a [u8]> {
    fields.iter().find_map(|(number, field)| match field {
        Field::Bytes(bytes) if *number == wanted => Some(*bytes),
        _ => None,
    })
}

fn text(fields: &[(u64, Field<'_>)], wanted: u64) -> Option<String> {
    String::from_utf8(bytes(fields, wanted)?.to_vec()).ok()
}

fn message(mut rest: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (key, after) = varint(rest)?;
        rest = after;
        let field = match key & 7 {
            0 => {
                let (number, after) = varint(rest)?;
                rest = after;
                Field::Number(number)
            }
            2 => {
                let (length, after) = varint(rest)?;
                let (bytes, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                Field::Bytes(bytes)
            }
            _ => return None,
        };
        fields.push((key >> 3, field));
    }
    Some(fields)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    #[test]
    fn an_access_review_is_read() {
        let attributes = [field(2, b"create"), field(5, b"pods")].concat();
        let review = field(2, &field(1, &attributes));
        let head = [field(1, b"authorization.k8s.io/v1"), field(2, b"SelfSubjectAccessReview")].concat();
        let body = [MAGIC, &field(1, &head), &field(2, &review)].concat();
        let read = decode(&body).unwrap();
        assert_eq!(read["spec"]["resourceAttributes"], json!({"verb": "create", "resource": "pods"}));
    }

    #[test]
    fn nothing_else_is_read() {
        let pod = [MAGIC, &field(1, &[field(1, b"v1"), field(2, b"Pod")].concat()), &field(2, b"")].concat();
        for body in [&b""[..], b"k8s\0", b"k8s\0\x0a\xff", &pod] {
            assert_eq!(decode(body), None);
        }
    }
}
