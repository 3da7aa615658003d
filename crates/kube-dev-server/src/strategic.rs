//! Strategic merge patches of built-in kinds.
//!
//! Merge keys and strategies come from the schema. The directives `$patch`, `$setElementOrder`, `$deleteFromPrimitiveList` and `$retainKeys` are
//! supported.
//! Source: spec/extension-apiserver §6.7.

use serde_json::{Map, Value};

use super::schema::{PatchStrategy, Schema};

/// The object after a patch.
///
/// # Errors
/// If the patch has an unknown directive, or an item without its merge key.
pub(super) fn merge(old: &Value, patch: &Value, schema: &Schema) -> Result<Value, String> {
    let (Value::Object(before), Value::Object(changes)) = (old, patch) else { return Ok(patch.clone()) };
    match changes.get("$patch").and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => return Ok(without_directives(changes)),
        Some("delete") => return Ok(Value::Object(Map::new())),
        Some(other) => return Err(format!("unknown $patch directive {other:?}")),
    }
    let anything = Schema::anything();
    let mut merged = before.clone();
    if let Some(Value::Array(kept)) = changes.get("$retainKeys") {
        merged.retain(|name, _| kept.iter().any(|kept| kept == name.as_str()));
    }
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(items)) = merged.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if name.starts_with('$') {
            continue;
        }
        let below = schema.field(name).unwrap_or(&anything);
        let value = match (merged.get(name), change) {
            (_, Value::Null) => {
                merged.remove(name);
                continue;
            }
            (Some(Value::Array(before)), Value::Array(changes)) => list(before, changes, below)?,
            (None, Value::Array(changes)) => list(&[], changes, below)?,
            (Some(before @ Value::Object(_)), Value::Object(_)) => merge(before, change, below)?,
            (_, Value::Object(_)) => merge(&Value::Object(Map::new()), change, below)?,
            (_, other) => other.clone(),
        };
        merged.insert(name.clone(), value);
    }
    for (name, order) in
        changes.iter().filter_map(|(name, order)| Some((name.strip_prefix("$setElementOrder/")?, order)))
    {
        let below = schema.field(name).unwrap_or(&anything);
        if let (Some(Value::Array(items)), Some(order)) = (merged.get_mut(name), order.as_array()) {
            sort(items, order, below);
        }
    }
    Ok(Value::Object(merged))
}

fn without_directives(fields: &Map<String, Value>) -> Value {
    Value::Object(
        fields.iter().filter(|(name, _)| !name.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect(),
    )
}

fn directive(item: &Value) -> Option<&str> {
    item.get("$patch").and_then(Value::as_str)
}

fn list(before: &[Value], changes: &[Value], schema: &Schema) -> Result<Value, String> {
    let plain = |changes: &[Value]| {
        let kept = changes.iter().filter(|item| directive(item).is_none_or(|word| word == "merge"));
        Value::Array(kept.map(|item| item.as_object().map_or_else(|| item.clone(), without_directives)).collect())
    };
    let PatchStrategy::Merge(key) = &schema.patch_strategy else { return Ok(plain(changes)) };
    if changes.iter().any(|item| directive(item) == Some("replace")) {
        let rest: Vec<Value> = changes.iter().filter(|item| directive(item) != Some("replace")).cloned().collect();
        return Ok(plain(&rest));
    }
    let mut merged = before.to_vec();
    let Some(key) = key else {
        // A list of plain values is a set.
        for item in changes {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(Value::Array(merged));
    };
    let anything = Schema::anything();
    let below = schema.items.as_deref().unwrap_or(&anything);
    for item in changes {
        let name = item.get(key).ok_or_else(|| format!("map: {item} does not contain declared merge key: {key}"))?;
        let known = merged.iter().position(|known| known.get(key) == Some(name));
        match (known, directive(item)) {
            (Some(at), Some("delete")) => {
                merged.remove(at);
            }
            (None, Some("delete")) => {}
            (Some(at), _) => merged[at] = merge(&merged[at], item, below)?,
            (None, _) => merged.push(merge(&Value::Object(Map::new()), item, below)?),
        }
    }
    Ok(Value::Array(merged))
}

/// Sorts the elements of a list by a given order. Elements that are not in the order come last.
fn sort(items: &mut [Value], order: &[Value], schema: &Schema) {
    let place = |item: &Value| match &schema.patch_strategy {
        PatchStrategy::Merge(Some(key)) => order.iter().position(|wanted| wanted.get(key) == item.get(key)),
        _ => order.iter().position(|wanted| wanted == item),
    };
    items.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::kinds::Registry;

    #[rstest]
    #[case::xa_091_conditions_merge_by_type(
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}}),
        json!({"status": {"conditions": [{"type": "X", "status": "Unknown"}, {"$patch": "delete", "type": "Ready"}]}}),
        json!({"status": {"conditions": [{"type": "X", "status": "Unknown"}]}})
    )]
    #[case::xa_092_taints_are_replaced(
        json!({"spec": {"taints": [{"key": "not-ready", "effect": "NoSchedule"}]}}),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})
    )]
    #[case::finalizers_are_a_set(
        json!({"metadata": {"finalizers": ["a/b"]}}),
        json!({"metadata": {"finalizers": ["c/d", "a/b"]}}),
        json!({"metadata": {"finalizers": ["a/b", "c/d"]}})
    )]
    #[case::finalizers_can_be_removed(
        json!({"metadata": {"finalizers": ["a/b", "c/d"]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}}),
        json!({"metadata": {"finalizers": ["c/d"]}})
    )]
    #[case::null_removes(
        json!({"spec": {"unschedulable": true}}), json!({"spec": {"unschedulable": null}}), json!({"spec": {}})
    )]
    #[case::replace(
        json!({"metadata": {"labels": {"a": "1"}}}),
        json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
        json!({"metadata": {"labels": {"b": "2"}}})
    )]
    fn patches_of_nodes(#[case] old: Value, #[case] patch: Value, #[case] expected: Value) {
        let nodes = Registry::new(Vec::new()).find("", "v1", "nodes").unwrap();
        assert_eq!(merge(&old, &patch, &nodes.schema).unwrap(), expected);
    }
}
