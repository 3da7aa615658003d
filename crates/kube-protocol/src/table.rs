//! Tables, as `kubectl get` prints them, and the metadata-only shapes of objects.
//!
//! Source: spec/extension-apiserver §2.11.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    negotiate::{MEDIA_TYPES, Shape},
    request::Query,
    resource::{Cell, Column},
    status::{ApiStatus, Cause},
};

/// How much of each object a row carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads `includeObject`.
    ///
    /// # Errors
    /// 400 for an unknown word.
    pub fn parse(query: &Query) -> Result<Self, ApiStatus> {
        match query.get("includeObject") {
            Some("None") => Ok(Self::None),
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("Object") => Ok(Self::Object),
            Some(other) => {
                let why = "must be 'Metadata', 'Object', 'None', or empty";
                let cause = Cause::invalid("includeObject", &json!(other), why);
                let message = format!("TableOptions.meta.k8s.io \"\" is invalid: {}: {}", cause.field, cause.message);
                Err(ApiStatus { causes: vec![cause], ..ApiStatus::bad_request(message) })
            }
        }
    }
}

/// Whether a table says what its columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// It does.
    Shown,
    /// The reader knows them.
    Known,
}

/// A table of objects. `metadata` is that of the list; `version` that of `meta.k8s.io`.
pub fn table(
    columns: &[Column],
    objects: &[&Value],
    metadata: &Value,
    version: &str,
    include: IncludeObject,
    heads: Heads,
    now: Timestamp,
) -> Value {
    let head = |column: &Column| {
        json!({
            "name": column.name, "type": column.value_type, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| cell(column, object, now)).collect();
            let object = match include {
                IncludeObject::None => Value::Null,
                IncludeObject::Metadata => partial(object),
                IncludeObject::Object => (*object).clone(),
            };
            json!({"cells": cells, "object": object})
        })
        .collect();
    let heads = match heads {
        Heads::Shown => json!(columns.iter().map(head).collect::<Vec<_>>()),
        Heads::Known => Value::Null,
    };
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata,
        "columnDefinitions": heads, "rows": rows,
    })
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    match &column.cell {
        Cell::Computed(compute) => compute(object),
        Cell::Age(path) => path.find(object).first().map_or(Value::Null, |time| age_cell(time, now)),
        Cell::Path(path) => {
            let found = path.find(object);
            match (found.as_slice(), column.value_type.as_str()) {
                ([] | [Value::Null], _) => Value::Null,
                ([one], "string") => json!(text(one)),
                ([one], "integer") => one.as_i64().map_or(Value::Null, |number| json!(number)),
                ([one], "date") => age_cell(one, now),
                ([one], _) => (*one).clone(),
                (several, _) => json!(several.iter().map(|value| text(value)).collect::<Vec<_>>().join(",")),
            }
        }
    }
}

fn age_cell(time: &Value, now: Timestamp) -> Value {
    match time.as_str().map(str::parse::<Timestamp>) {
        None => Value::Null,
        Some(Err(_)) => json!("<invalid>"),
        Some(Ok(time)) => json!(human_duration(now.as_second() - time.as_second())),
    }
}

/// A value as text in a cell.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".to_owned(),
        other => other.to_string(),
    }
}

/// A time span in seconds, as `kubectl` prints ages.
pub fn human_duration(seconds: i64) -> String {
    let parts = |large: i64, l: &str, small: i64, s: &str| {
        if small == 0 { format!("{large}{l}") } else { format!("{large}{l}{small}{s}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => parts(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => parts(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => parts(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => parts(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The metadata of an object.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// The metadata of a list's objects.
pub fn partial_list(objects: &[&Value], metadata: &Value) -> Value {
    let items: Vec<Value> = objects.iter().map(|object| partial(object)).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
}

/// One object as its caller wants it.
///
/// # Errors
/// 406 for a list that is none, 400 for an unknown `includeObject`.
pub fn shape_object(
    shape: Shape,
    columns: &[Column],
    object: Value,
    query: &Query,
    now: Timestamp,
) -> Result<Value, ApiStatus> {
    match shape {
        Shape::Table(version) => {
            let include = IncludeObject::parse(query)?;
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            Ok(table(columns, &[&object], &metadata, version, include, Heads::Shown, now))
        }
        Shape::PartialObject => Ok(partial(&object)),
        Shape::PartialList => Err(ApiStatus::not_acceptable(MEDIA_TYPES)),
        Shape::Object | Shape::GroupDiscovery(_) => Ok(object),
    }
}

/// A list as its caller wants it; `whole` makes that of the objects themselves.
///
/// # Errors
/// 406 for an object that is none, 400 for an unknown `includeObject`.
pub fn shape_list(
    shape: Shape,
    columns: &[Column],
    objects: Vec<Value>,
    metadata: &Value,
    query: &Query,
    now: Timestamp,
    whole: impl FnOnce(Vec<Value>) -> Value,
) -> Result<Value, ApiStatus> {
    let borrowed: Vec<&Value> = objects.iter().collect();
    match shape {
        Shape::Table(version) => {
            let include = IncludeObject::parse(query)?;
            Ok(table(columns, &borrowed, metadata, version, include, Heads::Shown, now))
        }
        Shape::PartialList => Ok(partial_list(&borrowed, metadata)),
        Shape::PartialObject => Err(ApiStatus::not_acceptable(MEDIA_TYPES)),
        Shape::Object | Shape::GroupDiscovery(_) => Ok(whole(objects)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(5, "5s")]
    #[case(119, "119s")]
    #[case(192, "3m12s")]
    #[case(900, "15m")]
    #[case(4 * 3600 + 300, "4h5m")]
    #[case(3 * 86_400 + 7200, "3d2h")]
    #[case(30 * 86_400, "30d")]
    #[case::th_42_a_clock_that_was_set_back(-5, "<invalid>")]
    fn ages(#[case] seconds: i64, #[case] expected: &str) {
        assert_eq!(human_duration(seconds), expected);
    }

    #[test]
    fn xa_035_an_unknown_include_object_is_refused() {
        let refused = IncludeObject::parse(&Query::parse(Some("includeObject=Foo"))).unwrap_err();
        assert!(refused.code == 400 && refused.message.contains("includeObject: Invalid value: \"Foo\""), "{refused}");
    }
}
