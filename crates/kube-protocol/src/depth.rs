//! The limit of the depth of nested objects and lists.
//!
//! Many functions walk an object recursively, and each level takes stack of the task that answers the request. Clients have limits too: for example,
//! every client that reads JSON with serde fails at 128 levels. One deeper object breaks every list and watch that contains it. The limit for request
//! bodies is lower than the limit of clients, because lists, reviews and managed fields contain the object some levels deep. Source:
//! spec/extension-apiserver §4.4, §8 (TH-01).

use serde_json::Value;

/// The maximum number of levels of nested objects and lists.
pub const MAX_DEPTH: usize = 100;

/// The error for a document that is nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exceeded max depth: objects and lists can be nested {MAX_DEPTH} deep")]
pub struct TooDeep;

/// Checks the depth of a JSON text before it is parsed. A text that is not JSON may pass, and the parser refuses it.
///
/// # Errors
/// If the text is nested too deep.
pub fn check_text(json: &[u8]) -> Result<(), TooDeep> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(TooDeep);
                }
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the depth of a value that is at level `at` of a document.
///
/// # Errors
/// If the document would be nested too deep.
pub fn check_value(value: &Value, at: usize) -> Result<(), TooDeep> {
    let below = |value| check_value(value, at + 1);
    match value {
        Value::Object(_) | Value::Array(_) if at >= MAX_DEPTH => Err(TooDeep),
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
    #[case::deepest(MAX_DEPTH, true)]
    #[case::deeper(MAX_DEPTH + 1, false)]
    #[case::deeper_than_parsers_read(5_000, false)]
    fn texts_and_values_have_the_same_limit(#[case] depth: usize, #[case] passes: bool) {
        let text = nested(depth);
        assert_eq!(check_text(text.as_bytes()).is_ok(), passes);
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            assert_eq!(check_value(&value, 0).is_ok(), passes);
        }
    }

    #[test]
    fn the_level_of_a_value_counts() {
        assert!(check_value(&json!({}), MAX_DEPTH - 1).is_ok());
        assert!(check_value(&json!({"a": "b"}), MAX_DEPTH - 1).is_ok());
        assert_eq!(check_value(&json!({"a": []}), MAX_DEPTH - 1), Err(TooDeep));
        assert!(check_value(&json!("text"), MAX_DEPTH).is_ok());
    }

    #[test]
    fn th_01_a_text_of_opening_brackets_is_refused() {
        assert_eq!(check_text("[".repeat(3 << 20).as_bytes()), Err(TooDeep));
    }
}
