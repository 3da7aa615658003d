//! How a view is described: its names and columns, the schema of its objects, and the three fields that all objects begin with.
//!
//! Source: spec/extension-apiserver §1.1.

use kube_protocol::{
    jsonpath::JsonPath,
    request::Verb,
    resource::{Cell, Column, GroupVersionKind, Resource, ResourceScope},
    status::ApiStatus,
};
use machine_api::schema::structural_of_answers;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::extension::view::{Description, GROUP, VERSION};

/// The category of all views that can be listed.
pub const CATEGORY: &str = "machineviews";

/// The names of a view.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Its kind.
    pub kind: &'static str,
    /// Its plural.
    pub plural: &'static str,
    /// Its short name.
    pub short: &'static str,
    /// What can be asked.
    pub verbs: &'static [Verb],
}

impl Names {
    /// The description of a view with these columns and field selectors; `T` is what its objects say beside their metadata.
    pub fn describe<T: JsonSchema>(
        &self,
        columns: Vec<Column>,
        selectable: &[(&'static str, &'static str)],
    ) -> Description {
        Description {
            resource: self.resource(columns),
            schema: self.schema::<T>(),
            selectable: selectable.iter().map(|(field, at)| (*field, path(at))).collect(),
        }
    }

    fn resource(&self, columns: Vec<Column>) -> Resource {
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
            columns,
        }
    }

    fn schema<T: JsonSchema>(&self) -> Value {
        let mut schema = structural_of_answers::<T>();
        if let Some(properties) = schema.pointer_mut("/properties").and_then(Value::as_object_mut) {
            properties.insert("metadata".to_owned(), json!({"type": "object"}));
        }
        // Whoever asks by a review does not bring the answer.
        if self.verbs.contains(&Verb::Create)
            && let Some(required) = schema.pointer_mut("/required").and_then(Value::as_array_mut)
        {
            required.retain(|field| field != "status");
        }
        schema
    }

    /// The object of this metadata that says `body`.
    ///
    /// # Errors
    /// 500 for a type of ours that can't be written: a defect that the reader is told of.
    pub fn object(&self, metadata: &impl Serialize, body: &impl Serialize) -> Result<Value, ApiStatus> {
        let metadata = serde_json::to_value(metadata).map_err(ApiStatus::internal)?;
        let Value::Object(mut object) = serde_json::to_value(body).map_err(ApiStatus::internal)? else {
            return Err(ApiStatus::internal("what a view says is no object"));
        };
        object.insert("apiVersion".to_owned(), Value::String(format!("{GROUP}/{VERSION}")));
        object.insert("kind".to_owned(), Value::String(self.kind.to_owned()));
        object.insert("metadata".to_owned(), metadata);
        Ok(Value::Object(object))
    }

    /// 404 for an object of the view.
    pub fn not_found(&self, name: &str) -> ApiStatus {
        ApiStatus::not_found(GROUP, self.plural, name)
    }
}

/// A path that this program itself wrote down: every view is made by a test, which would meet one that can't be read.
fn path(text: &'static str) -> JsonPath {
    JsonPath::parse(text).unwrap_or_else(|why| unreachable!("{why}"))
}

/// The first column of every view.
pub fn name_column() -> Column {
    Column { format: "name".to_owned(), ..column("Name", "string", ".metadata.name", "Name of the object.") }
}

/// A column that shows the value at a path.
pub fn column(name: &str, value_type: &str, at: &'static str, description: &str) -> Column {
    Column {
        name: name.to_owned(),
        value_type: value_type.to_owned(),
        format: String::new(),
        description: description.to_owned(),
        priority: 0,
        cell: Cell::Path(path(at)),
    }
}

/// A column that shows what a function makes of the object.
pub fn computed(name: &str, value_type: &str, cell: fn(&Value) -> Value, description: &str) -> Column {
    Column { cell: Cell::Computed(cell), ..column(name, value_type, "", description) }
}

/// The column that is shown by `-o wide` only.
#[must_use]
pub fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

/// The age of what is viewed.
pub fn age_column() -> Column {
    let at = path(".metadata.creationTimestamp");
    Column { cell: Cell::Age(at), ..column("Age", "date", "", "Time since what is viewed came into being.") }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    /// A review.
    #[derive(JsonSchema, Serialize)]
    struct Review {
        spec: Vec<i32>,
        status: i32,
    }

    const NAMES: Names = Names { kind: "Review", plural: "reviews", short: "r", verbs: &[Verb::Create] };

    #[test]
    fn a_review_brings_no_answer() {
        let schema = NAMES.describe::<Review>(Vec::new(), &[]).schema;
        assert_eq!(schema["required"], json!(["spec"]));
        assert_eq!(
            (&schema["description"], &schema["properties"]["metadata"]["type"]),
            (&json!("A review."), &json!("object"))
        );
    }

    #[test]
    fn an_object_begins_as_all_objects_do() {
        let metadata = ObjectMeta { name: Some("a".to_owned()), ..ObjectMeta::default() };
        let object = NAMES.object(&metadata, &Review { spec: Vec::new(), status: 1 }).unwrap();
        assert_eq!(
            object,
            json!({ "apiVersion": "views.machine.sapcloud.io/v1alpha1", "kind": "Review", "metadata": { "name": "a" },
                    "spec": [], "status": 1 })
        );
        assert_eq!(NAMES.object(&metadata, &7).unwrap_err().code, 500);
    }
}
