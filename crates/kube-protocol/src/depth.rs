//! How deep a document may be nested.
//!
//! Objects are trees that a dozen walks follow down, each on the stack of whoever answers the request. And they must stay readable:
//! many clients, all that read JSON with serde among them, give up 127 levels down, and a single object beyond that
//! would break every list and watch that has it. So one limit holds for whatever comes in, well below that: an object lies some levels deep in
//! what is made of it, such as lists, reviews, and the fields that its managers own.
//! Source: spec/extension-apiserver §4.4, §8 (TH-01).

use serde_json::Value;

/// The deepest nesting of objects and lists.
pub const DEEPEST: usize = 100;

/// Something is nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exceeded max depth: objects and lists can be nested {DEEPEST} deep")]
pub struct TooDeep;

/// Looks at a JSON text before anybody reads it. What is no JSON may pass; it is refused by its reader.
///
/// # Errors
/// When it is nested too deep.
pub fn check_text(json: &[u8]) -> Result<(), TooDeep> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                if depth > DEEPEST {
                    return Err(TooDeep);
                }
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Looks at a value that is to stand so many levels deep in another.
///
/// # Errors
/// When the whole would be nested too deep.
pub fn check_value(value: &Value, at: usize) -> Result<(), TooDeep> {
    let below = |value| check_value(value, at + 1);
    match value {
        Value::Object(_) | Value::Array(_) if at >= DEEPEST => Err(TooDeep),
        Value::Object(fields) => fields.values().try_for_each(below),
        Value::Array(items) => items.iter().try_for_each(below),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> String {
        let pairs = depth / 2;
        let middle = if depth % 2 == 1 { "{}" } else { "1" };
        format!("{}{middle}{}", r#"{"a}{\"[":["#.repeat(pairs), "]}".repeat(pairs))
    }

    #[rstest]
    #[case::flat(1, true)]
    #[case::deepest(DEEPEST, true)]
    #[case::deeper(DEEPEST + 1, false)]
    #[case::deeper_than_readers_go(5_000, false)]
    fn texts_and_values_are_judged_alike(#[case] depth: usize, #[case] passes: bool) {
        let text = nested(depth);
        assert_eq!(check_text(text.as_bytes()).is_ok(), passes);
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            assert_eq!(check_value(&value, 0).is_ok(), passes);
        }
    }

    #[test]
    fn where_a_value_stands_counts() {
        assert!(check_value(&json!({}), DEEPEST - 1).is_ok());
        assert!(check_value(&json!({"a": "b"}), DEEPEST - 1).is_ok());
        assert_eq!(check_value(&json!({"a": []}), DEEPEST - 1), Err(TooDeep));
        assert!(check_value(&json!("text"), DEEPEST).is_ok());
    }

    #[test]
    fn th_01_what_opens_for_ever_is_noticed_early() {
        assert_eq!(check_text("[".repeat(3 << 20).as_bytes()), Err(TooDeep));
    }
}
