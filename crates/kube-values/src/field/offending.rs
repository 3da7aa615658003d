//! Values in findings: a hash identifies the value, and only the beginning of its text is kept.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use serde_json::{Map, Value};

use super::VALUE_MAX;
use crate::json::Json;

/// A value with a problem. Only the beginning of a value is copied, and only for a finding that is kept.
pub trait Offending {
    /// Hashes the whole value, to distinguish it from other values.
    fn hash_into<H: Hasher>(&self, hasher: &mut H);

    /// The beginning of the value that a text shows.
    fn beginning(&self) -> Value;
}

impl Offending for Value {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        self.hash(hasher);
    }

    fn beginning(&self) -> Value {
        Json::from(self).beginning()
    }
}

impl<T: Offending + ?Sized> Offending for &T {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        (**self).hash_into(hasher);
    }

    fn beginning(&self) -> Value {
        (**self).beginning()
    }
}

impl Offending for Json<'_> {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        self.hash(hasher);
    }

    fn beginning(&self) -> Value {
        let room = VALUE_MAX - MARKS;
        if fits(self, &mut { room }) { self.to_value() } else { pruned(self, &mut { room }) }
    }
}

impl Offending for str {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        self.hash(hasher);
    }

    fn beginning(&self) -> Value {
        Value::String(cut_to(self, VALUE_MAX - MARKS))
    }
}

impl Offending for String {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        self.hash(hasher);
    }

    fn beginning(&self) -> Value {
        self.as_str().beginning()
    }
}

/// A text that is made only if the finding is kept.
impl Offending for fmt::Arguments<'_> {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        struct Hashed<'h, H>(&'h mut H);
        impl<H: Hasher> fmt::Write for Hashed<'_, H> {
            fn write_str(&mut self, part: &str) -> fmt::Result {
                self.0.write(part.as_bytes());
                Ok(())
            }
        }
        // Hashing does not fail.
        let _ = fmt::write(&mut Hashed(hasher), *self);
        hasher.write_u8(u8::MAX);
    }

    fn beginning(&self) -> Value {
        self.to_string().beginning()
    }
}

impl Offending for i64 {
    fn hash_into<H: Hasher>(&self, hasher: &mut H) {
        self.hash(hasher);
    }

    fn beginning(&self) -> Value {
        Value::from(*self)
    }
}

/// The characters for the quotes and the mark of a cut.
const MARKS: usize = 3;

/// Whether a value has so few characters and members that it can be kept whole. Subtracts its size from `room`.
fn fits(value: &Json<'_>, room: &mut usize) -> bool {
    let own = match value {
        Json::Text(text) => text.len(),
        Json::List(elements) => 2 + elements.len(),
        Json::Object(members) => 2 + members.keys().map(|key| key.len() + 4).take(VALUE_MAX).sum::<usize>(),
        _ => 1,
    };
    let Some(left) = room.checked_sub(own) else { return false };
    *room = left;
    match value {
        Json::List(elements) => elements.iter().all(|element| fits(element, room)),
        Json::Object(members) => members.iter().all(|(_, member)| fits(member, room)),
        _ => true,
    }
}

/// The beginning of a value.
fn pruned(value: &Json<'_>, room: &mut usize) -> Value {
    match value {
        Json::Text(text) => {
            let kept = cut_to(text, *room);
            *room = room.saturating_sub(text.len());
            Value::String(kept)
        }
        Json::List(elements) => {
            let mut kept = Vec::new();
            for element in elements.iter() {
                if *room == 0 {
                    kept.push(Value::from("…"));
                    break;
                }
                *room = room.saturating_sub(1);
                kept.push(pruned(element, room));
            }
            Value::Array(kept)
        }
        Json::Object(members) => {
            let mut kept = Map::new();
            for (key, member) in members.iter() {
                if *room == 0 {
                    break;
                }
                let name = cut_to(key, *room);
                *room = room.saturating_sub(key.len() + 4);
                kept.insert(name, pruned(member, room));
            }
            Value::Object(kept)
        }
        other => other.to_value(),
    }
}

fn cut_to(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => [&text[..end], "…"].concat(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{
        super::{ErrorKind, FieldError, FieldPath},
        *,
    };

    #[rstest]
    #[case::a_long_text(json!("ä".repeat(5_000)))]
    #[case::a_text_of_quotes(json!("\"".repeat(5_000)))]
    #[case::a_long_list(json!(vec![1; 5_000]))]
    #[case::a_long_map(Value::Object((0..5_000).map(|n| (format!("key-{n}"), json!("value"))).collect()))]
    #[case::a_long_key(json!({"k".repeat(5_000): {"a": [1, 2, {"b": "c".repeat(900)}]}}))]
    #[case::deep(json!([[[[[[[["x".repeat(300), "y".repeat(300)]]]]]]]]))]
    fn a_long_value_is_cut(#[case] value: Value) {
        let beginning = value.beginning();
        assert!(beginning.to_string().len() < 1_000, "{beginning}");
        for value in [value, beginning] {
            let error = FieldError { path: FieldPath::new("a"), kind: ErrorKind::Invalid, value, detail: "bad".into() };
            let text = error.to_string();
            let printed = text.strip_prefix("a: Invalid value: ").and_then(|text| text.strip_suffix(": bad")).unwrap();
            assert!(printed.chars().count() <= VALUE_MAX && printed.contains('…'), "{printed}");
        }
    }

    #[test]
    fn a_short_value_stays_as_it_is() {
        let value = json!({"a": ["b", 1, null, {"c": true}]});
        assert_eq!(value.beginning(), value);
        assert_eq!(format_args!("{}:{}", "a", 1).beginning(), json!("a:1"));
    }
}
