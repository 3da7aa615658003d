//! The description of a view: names, columns, field selectors, and the schema of the objects.
//!
//! Source: spec/extension-apiserver §1.1.

use std::sync::Arc;

use kube_protocol::{
    request::Verb,
    resource::{self, GroupVersionKind, Resource, ResourceScope},
    status::ApiStatus,
    table::heads,
};
use machine_api::schema::structural_of_answers;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::extension::{
    rows::{Cell, Field, Renderer},
    view::{Description, GROUP, VERSION},
};

/// The category of all views with lists.
pub const CATEGORY: &str = "machineviews";

/// The names of a view.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The kind.
    pub kind: &'static str,
    /// The plural.
    pub plural: &'static str,
    /// The short name.
    pub short: &'static str,
    /// The supported verbs.
    pub verbs: &'static [Verb],
}

impl Names {
    /// The renderer of a view with these columns and field selectors.
    pub fn describe<T: JsonSchema>(&self, columns: Vec<Column<T>>, fields: &[Field<T>]) -> Arc<Renderer<T>> {
        let description = Description {
            resource: self.resource(),
            schema: self.schema::<T>(),
            heads: heads(&columns),
            selectable: fields.iter().map(|(name, _)| *name).collect(),
        };
        Arc::new(Renderer { description, columns, fields: fields.to_vec() })
    }

    fn resource(&self) -> Resource {
        Resource {
            kind: GroupVersionKind { group: GROUP.to_owned(), version: VERSION.to_owned(), kind: self.kind.to_owned() },
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short_names: vec![self.short.to_owned()],
            categories: self.verbs.contains(&Verb::List).then(|| CATEGORY.to_owned()).into_iter().collect(),
            scope: ResourceScope::Namespaced,
            verbs: self.verbs.to_vec(),
            subresources: Vec::new(),
        }
    }

    fn schema<T: JsonSchema>(&self) -> Value {
        let mut schema = structural_of_answers::<T>();
        if let Some(properties) = schema.pointer_mut("/properties").and_then(Value::as_object_mut) {
            properties.insert("metadata".to_owned(), json!({"type": "object"}));
        }
        // A review is sent without its answer.
        if self.verbs.contains(&Verb::Create)
            && let Some(required) = schema.pointer_mut("/required").and_then(Value::as_array_mut)
        {
            required.retain(|field| field != "status");
        }
        schema
    }

    /// 404 for an object of the view.
    pub fn not_found(&self, name: &str) -> ApiStatus {
        ApiStatus::not_found(GROUP, self.plural, name)
    }
}

/// A column of a view, for objects with a body of type `T`.
pub type Column<T> = resource::Column<Cell<T>>;

/// The first column of every view.
pub fn name_column<T>() -> Column<T> {
    Column { format: "name".to_owned(), ..new_column("Name", "string", Cell::Name, "Name of the object.") }
}

/// A column whose cells are the results of a function of the body.
pub fn column<T>(name: &str, value_type: &str, description: &str, value: fn(&T) -> Value) -> Column<T> {
    new_column(name, value_type, Cell::Of(value), description)
}

/// The cell of a text; null for an empty text.
pub fn text_or_null(text: &str) -> Value {
    Some(text).filter(|text| !text.is_empty()).into()
}

/// The same column, shown by `-o wide` only.
#[must_use]
pub fn wide<T>(column: Column<T>) -> Column<T> {
    Column { priority: 1, ..column }
}

/// The column with the age of the object.
pub fn age_column<T>() -> Column<T> {
    new_column("Age", "date", Cell::Age, "Time since what is viewed came into being.")
}

fn new_column<T>(name: &str, value_type: &str, cell: Cell<T>, description: &str) -> Column<T> {
    Column {
        name: name.to_owned(),
        value_type: value_type.to_owned(),
        format: String::new(),
        description: description.to_owned(),
        priority: 0,
        cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A review.
    #[derive(JsonSchema)]
    #[allow(dead_code)] // only its schema is used
    struct Review {
        spec: Vec<i32>,
        status: i32,
    }

    const NAMES: Names = Names { kind: "Review", plural: "reviews", short: "r", verbs: &[Verb::Create] };

    #[test]
    fn a_review_is_sent_without_its_answer() {
        let schema = &NAMES.describe::<Review>(Vec::new(), &[]).description.schema;
        assert_eq!(schema["required"], json!(["spec"]));
        assert_eq!(
            (&schema["description"], &schema["properties"]["metadata"]["type"]),
            (&json!("A review."), &json!("object"))
        );
    }
}
