//! Reads fields of objects that kubectl prints as JSON.

use serde_json::Value;

/// Name of an object.
pub fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// Text at a JSON pointer; empty when it is absent.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Number at a JSON pointer; 0 when it is absent, because Go omits zeros.
pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Items of a list.
pub fn items(list: &Value) -> Vec<Value> {
    list.get("items").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Whether the object has a finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .is_some_and(|finalizers| finalizers.iter().any(|entry| entry == finalizer))
}

/// Status of a condition; empty when the object has no condition of this type.
pub fn condition<'a>(object: &'a Value, condition_type: &str) -> &'a str {
    object
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .and_then(|conditions| conditions.iter().find(|condition| text(condition, "/type") == condition_type))
        .map_or("", |condition| text(condition, "/status"))
}
