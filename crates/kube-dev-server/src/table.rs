//! Tables of stored objects, whose cells show the values at JSON paths.

use jiff::Timestamp;
use kube_protocol::{
    negotiate::Shape,
    request::Query,
    resource,
    status::ApiStatus,
    table::{Form, IncludeObject, age, heads, partial, row, table},
};
use serde_json::{Value, json};

use super::jsonpath::JsonPath;

/// The content of a cell.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// The value at a path.
    Path(JsonPath),
    /// The result of a function of the object.
    Computed(fn(&Value) -> Value),
    /// The age of the time at a path.
    Age(JsonPath),
}

/// A column of a table.
pub(super) type Column = resource::Column<Cell>;

/// An object in this form: for a table, its row.
pub(super) fn show(form: Form, columns: &[Column], object: Value, now: Timestamp) -> Value {
    match form {
        Form::Table(_, include) => {
            let cells = columns.iter().map(|column| cell(column, &object, now)).collect();
            let object = match include {
                IncludeObject::None => Value::Null,
                IncludeObject::Metadata => partial(&object["metadata"]),
                IncludeObject::Object => object,
            };
            row(cells, object)
        }
        Form::Metadata => partial(&object["metadata"]),
        Form::Objects => object,
    }
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
        Some(Ok(time)) => json!(age(time, now)),
    }
}

/// A value as text in a cell.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".to_owned(),
        other => other.to_string(),
    }
}

/// One object in the shape that its caller accepts.
///
/// # Errors
/// 406 for the shape of a list, 400 for an unknown `includeObject`.
pub(super) fn shape_object(
    shape: Shape,
    columns: &[Column],
    object: Value,
    query: &Query,
    now: Timestamp,
) -> Result<Value, ApiStatus> {
    let form = Form::of_object(shape, query)?;
    let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    let object = show(form, columns, object, now);
    Ok(match form {
        Form::Table(version, _) => table(version, heads(columns), vec![object], &metadata),
        Form::Metadata | Form::Objects => object,
    })
}

/// A list in the shape that its caller accepts. `whole` makes a list of whole objects.
///
/// # Errors
/// 406 for the shape of one object, 400 for an unknown `includeObject`.
pub(super) fn shape_list(
    shape: Shape,
    columns: &[Column],
    objects: Vec<Value>,
    metadata: &Value,
    query: &Query,
    now: Timestamp,
    whole: impl FnOnce(Vec<Value>) -> Value,
) -> Result<Value, ApiStatus> {
    let form = Form::of_list(shape, query)?;
    let items = objects.into_iter().map(|object| show(form, columns, object, now)).collect();
    Ok(form.list(|| heads(columns), items, metadata, whole))
}
