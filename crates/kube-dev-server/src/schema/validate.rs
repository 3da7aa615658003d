//! Checks types and bounds. All errors are found, not only the first one.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ListType, Nature, Schema, Type, join};
use kube_protocol::status::Cause;

/// Validates a value. Parts that are unchanged since `old` are not checked.
pub(crate) fn check(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, found: &mut Vec<Cause>) {
    if old == Some(value) {
        return;
    }
    if value.is_null() && schema.nullable {
        return;
    }
    if !type_fits(value, schema) {
        let expected = match schema.nature {
            Nature::IntOrString => "integer,string",
            _ => schema.value_type.map_or("object", Type::name),
        };
        let shown = if value.is_null() { json!("null") } else { json!(type_name(value)) };
        let detail = format!("{path} in body must be of type {expected}: {shown}");
        found.push(Cause::wrong_type(path, &shown, &detail));
        return;
    }
    bounds(value, schema, path, found);
    match value {
        Value::Object(fields) => {
            for name in schema.required.iter().filter(|name| !fields.contains_key(*name)) {
                found.push(Cause::required(join(path, name), ""));
            }
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    let path = if is_plain(name) { join(path, name) } else { format!("{path}[{name}]") };
                    check(value, old.and_then(|old| old.get(name)), schema, &path, found);
                }
            }
        }
        Value::Array(items) => {
            unique(items, schema, path, found);
            if let Some(schema_of_items) = &schema.items {
                for (at, item) in items.iter().enumerate() {
                    let old = counterpart(old, item, at, &schema.list_type);
                    check(item, old, schema_of_items, &format!("{path}[{at}]"), found);
                }
            }
        }
        _ => {}
    }
    combinations(value, schema, path, found);
}

/// Whether a path shows the field after a dot and not in brackets.
fn is_plain(name: &str) -> bool {
    !name.contains(['.', '/'])
}

/// The element of the old list that corresponds to an element of the new list.
pub(super) fn counterpart<'a>(
    old: Option<&'a Value>,
    item: &Value,
    at: usize,
    list_type: &ListType,
) -> Option<&'a Value> {
    let old = old?.as_array()?;
    match list_type {
        ListType::Map(keys) => old.iter().find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key))),
        ListType::Set => old.iter().find(|candidate| *candidate == item),
        ListType::Atomic => old.get(at).filter(|candidate| *candidate == item),
    }
}

fn type_fits(value: &Value, schema: &Schema) -> bool {
    if schema.nature == Nature::IntOrString {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema.value_type {
        None => true,
        Some(Type::Object) => value.is_object(),
        Some(Type::Array) => value.is_array(),
        Some(Type::String) => value.is_string(),
        Some(Type::Integer) => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|float| float.fract() == 0.0)
        }
        Some(Type::Number) => value.is_number(),
        Some(Type::Boolean) => value.is_boolean(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn bounds(value: &Value, schema: &Schema, path: &str, found: &mut Vec<Cause>) {
    let bounds = &schema.bounds;
    let mut over = Vec::new();
    let mut wrong = |detail: String| found.push(Cause::invalid(path, value, &format!("{path} in body {detail}")));
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            if let Some(minimum) = bounds.minimum
                && (number < minimum || bounds.exclusive_minimum && number <= minimum)
            {
                let or_equal = if bounds.exclusive_minimum { "" } else { " or equal to" };
                wrong(format!("should be greater than{or_equal} {minimum}"));
            }
            if let Some(maximum) = bounds.maximum
                && (number > maximum || bounds.exclusive_maximum && number >= maximum)
            {
                let or_equal = if bounds.exclusive_maximum { "" } else { " or equal to" };
                wrong(format!("should be less than{or_equal} {maximum}"));
            }
            if let Some(factor) = bounds.multiple_of
                && factor > 0.0
                && (number / factor).fract().abs() > f64::EPSILON
            {
                wrong(format!("should be a multiple of {factor}"));
            }
            let (least, most) = match bounds.format.as_deref() {
                Some("int32") => (f64::from(i32::MIN), f64::from(i32::MAX)),
                _ => (f64::MIN, f64::MAX),
            };
            if number < least || number > most {
                wrong("must be of type int32".to_owned());
            }
        }
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if let Some(least) = bounds.min_length.filter(|least| length < *least) {
                wrong(format!("should be at least {least} chars long"));
            }
            if let Some(most) = bounds.max_length.filter(|most| length > *most) {
                // The message of kube-apiserver says bytes although characters are counted.
                over.push(Cause::too_long(path, &format!("may not be more than {most} bytes")));
            }
            if let Some(pattern) = bounds.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
                wrong(format!("should match '{pattern}'"));
            }
            if !format_fits(text, bounds.format.as_deref()) {
                wrong(format!("must be of type {}: {text:?}", bounds.format.as_deref().unwrap_or_default()));
            }
        }
        Value::Array(items) => {
            let count = items.len() as u64;
            if let Some(least) = bounds.min_items.filter(|least| count < *least) {
                wrong(format!("should have at least {least} items"));
            }
            if let Some(most) = bounds.max_items.filter(|most| count > *most) {
                over.push(Cause::too_many(path, count, most));
            }
        }
        Value::Object(fields) => {
            let count = fields.len() as u64;
            if let Some(least) = bounds.min_properties.filter(|least| count < *least) {
                wrong(format!("should have at least {least} properties"));
            }
            if let Some(most) = bounds.max_properties.filter(|most| count > *most) {
                over.push(Cause::too_many(path, count, most));
            }
        }
        _ => {}
    }
    found.extend(over);
    if let Some(enum_values) = bounds.enum_values.as_ref().filter(|enum_values| !enum_values.contains(value)) {
        found.push(Cause::not_supported(path, value, enum_values));
    }
}

fn format_fits(text: &str, format: Option<&str>) -> bool {
    match format {
        Some("date-time") => text.parse::<jiff::Timestamp>().is_ok(),
        Some("date") => text.parse::<jiff::civil::Date>().is_ok(),
        Some("ipv4") => text.parse::<std::net::Ipv4Addr>().is_ok(),
        Some("ipv6") => text.parse::<std::net::Ipv6Addr>().is_ok(),
        Some("duration") => text.parse::<kube_values::duration::GoDuration>().is_ok(),
        // Unknown formats are not checked.
        _ => true,
    }
}

fn unique(items: &[Value], schema: &Schema, path: &str, found: &mut Vec<Cause>) {
    let keys: Vec<Value> = match &schema.list_type {
        ListType::Atomic if schema.bounds.unique_items => items.to_vec(),
        ListType::Atomic => return,
        ListType::Set => items.to_vec(),
        ListType::Map(keys) => {
            items.iter().map(|item| keys.iter().map(|key| (key.clone(), item[key].clone())).collect()).collect()
        }
    };
    let mut known = BTreeSet::new();
    for (at, key) in keys.iter().enumerate() {
        if !known.insert(key.to_string()) {
            found.push(Cause::duplicate(format!("{path}[{at}]"), key));
        }
    }
}

fn fits(value: &Value, schema: &Schema) -> bool {
    let mut found = Vec::new();
    check(value, None, schema, "", &mut found);
    found.is_empty()
}

fn combinations(value: &Value, schema: &Schema, path: &str, found: &mut Vec<Cause>) {
    for part in &schema.all_of {
        check(value, None, part, path, found);
    }
    let mut wrong = |detail: String| found.push(Cause::invalid(path, value, &detail));
    if !schema.any_of.is_empty() && !schema.any_of.iter().any(|part| fits(value, part)) {
        wrong(format!("{path} in body must validate at least one schema (anyOf)"));
    }
    if !schema.one_of.is_empty() && schema.one_of.iter().filter(|part| fits(value, part)).count() != 1 {
        wrong(format!("{path} in body must validate one and only one schema (oneOf)"));
    }
    if schema.not.as_ref().is_some_and(|part| fits(value, part)) {
        wrong(format!("{path} in body must not validate the schema (not)"));
    }
}
