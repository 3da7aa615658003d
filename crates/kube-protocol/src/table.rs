//! Tables, as `kubectl get` prints them, and the metadata-only shapes of objects.
//!
//! Source: spec/extension-apiserver §2.11.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    negotiate::{MEDIA_TYPES, Shape},
    request::Query,
    resource::Column,
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

/// How an answer shows its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As rows of a table of this version of `meta.k8s.io`. Each row carries a part of its object.
    Table(&'static str, IncludeObject),
    /// Only their metadata.
    Metadata,
    /// Whole.
    Objects,
}

impl Form {
    /// The form of one object.
    ///
    /// # Errors
    /// 406 for the shape of a list, 400 for an unknown `includeObject`.
    pub fn of_object(shape: Shape, query: &Query) -> Result<Self, ApiStatus> {
        if shape == Shape::PartialList { Err(ApiStatus::not_acceptable(MEDIA_TYPES)) } else { Self::of(shape, query) }
    }

    /// The form of a list.
    ///
    /// # Errors
    /// 406 for the shape of one object, 400 for an unknown `includeObject`.
    pub fn of_list(shape: Shape, query: &Query) -> Result<Self, ApiStatus> {
        if shape == Shape::PartialObject { Err(ApiStatus::not_acceptable(MEDIA_TYPES)) } else { Self::of(shape, query) }
    }

    /// The form of objects that are answered one by one, as in a watch.
    ///
    /// # Errors
    /// 400 for an unknown `includeObject`.
    pub fn of(shape: Shape, query: &Query) -> Result<Self, ApiStatus> {
        Ok(match shape {
            Shape::Table(version) => Self::Table(version, IncludeObject::parse(query)?),
            Shape::PartialObject | Shape::PartialList => Self::Metadata,
            Shape::Object | Shape::GroupDiscovery(_) => Self::Objects,
        })
    }

    /// A list of items that already have this form. `heads` is called for a table, `whole` for a list of whole objects.
    pub fn list(
        self,
        heads: impl FnOnce() -> Value,
        items: Vec<Value>,
        metadata: &Value,
        whole: impl FnOnce(Vec<Value>) -> Value,
    ) -> Value {
        match self {
            Self::Table(version, _) => table(version, heads(), items, metadata),
            Self::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items,
            }),
            Self::Objects => whole(items),
        }
    }
}

/// The column definitions of a table.
pub fn heads<C>(columns: &[Column<C>]) -> Value {
    let head = |column: &Column<C>| {
        json!({
            "name": column.name, "type": column.value_type, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    columns.iter().map(head).collect()
}

/// A row of a table. `object` is the part of the object that the row carries.
pub fn row(cells: Vec<Value>, object: Value) -> Value {
    Value::Object(Map::from_iter([("cells".to_owned(), Value::Array(cells)), ("object".to_owned(), object)]))
}

/// A table of this version of `meta.k8s.io`. `metadata` is the metadata of the list; `heads` is null when the reader knows the columns.
pub fn table(version: &str, heads: Value, rows: Vec<Value>, metadata: &Value) -> Value {
    let mut table = json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata});
    table["columnDefinitions"] = heads;
    table["rows"] = Value::Array(rows);
    table
}

/// How long ago a time is, as `kubectl` prints ages.
pub fn age(time: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second() - time.as_second())
}

/// A time span in seconds, as `kubectl` prints ages.
fn human_duration(seconds: i64) -> String {
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

/// An object of which only the metadata are shown.
pub fn partial(metadata: &impl Serialize) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
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
