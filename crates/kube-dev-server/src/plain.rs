//! JSON text of stored objects. An object that is sent unchanged is encoded from the store without a copy of its tree.
//!
//! Source: spec/extension-apiserver §6.11.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};

use super::{
    kinds::{Conversion, Served},
    read::{as_item, in_version},
    schema::defaults,
    server::Call,
    store::{MANAGED, Stored},
};
use kube_protocol::negotiate::{self, Encoding, Layout, Shape};

/// The form of an encoded object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Alone,
    /// An item of a list. Items of built-in kinds have no `kind` and no `apiVersion`.
    Item,
}

/// Whether the client accepts plain objects in compact JSON.
pub(super) fn is_wanted(call: &Call<'_>) -> bool {
    call.accepted.shape == Shape::Object
        && call.accepted.encoding == Encoding::Json
        && negotiate::layout(call.query.get("pretty"), call.user_agent()) == Layout::Compact
}

/// Whether a webhook must convert the object.
pub(super) fn needs_webhook(stored: &Stored, served: &Served) -> bool {
    let by_webhook = served.custom().is_some_and(|custom| matches!(custom.conversion, Conversion::Webhook(_)));
    by_webhook && !is_version(stored, served)
}

fn is_version(stored: &Stored, served: &Served) -> bool {
    stored.value["apiVersion"] == served.api_version().as_str()
}

/// Encodes an object in the version of a served kind. The object must not need a webhook.
pub(super) fn write(stored: &Stored, served: &Served, form: Form, out: &mut Vec<u8>) {
    let is_unchanged =
        is_version(stored, served) && (!served.is_custom() || defaults::is_filled(&stored.value, &served.schema));
    // The serialization of a JSON value never fails.
    let _ = if is_unchanged {
        let has_kind = form == Form::Alone || served.is_custom();
        serde_json::to_writer(out, &Plain { stored, has_kind })
    } else {
        let mut object = stored.whole();
        in_version(&mut object, served);
        if form == Form::Item {
            as_item(&mut object, served);
        }
        serde_json::to_writer(out, &object)
    };
}

/// The text of an object in its stored version.
pub(super) fn stored_text(stored: &Stored) -> Vec<u8> {
    serde_json::to_vec(&Plain { stored, has_kind: true }).unwrap_or_default()
}

struct Plain<'a> {
    stored: &'a Stored,
    has_kind: bool,
}

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = &self.stored.value else { return self.stored.value.serialize(serializer) };
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in fields {
            match (name.as_str(), value, self.stored.managed()) {
                ("kind" | "apiVersion", _, _) if !self.has_kind => {}
                ("metadata", Value::Object(fields), Some(managed)) => {
                    map.serialize_entry(name, &Metadata { fields, managed })?;
                }
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// Metadata with the managed fields, which are stored separately.
struct Metadata<'a> {
    fields: &'a Map<String, Value>,
    managed: &'a RawValue,
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.fields {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry(MANAGED, self.managed)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::{crd, kinds::Registry};

    fn things(conversion: &str) -> Vec<Arc<Served>> {
        let version = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "default": 1}, "name": {"type": "string"}}}}}}})
        };
        crd::served(&json!({
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [version("v1", true), version("v2", false)],
                "conversion": {"strategy": conversion}},
            "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}]},
        }))
    }

    fn thing(version: &str, spec: &Value) -> Stored {
        let metadata =
            json!({"name": "t", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {".": {}}}}], "uid": "u"});
        let value = json!({"apiVersion": format!("example.com/{version}"), "kind": "Thing", "metadata": metadata, "spec": spec});
        Stored::of(1, value)
    }

    /// The expected object, converted as a tree.
    fn by_tree(stored: &Stored, served: &Served, form: Form) -> Value {
        let mut object = stored.whole();
        in_version(&mut object, served);
        if form == Form::Item {
            as_item(&mut object, served);
        }
        object
    }

    #[rstest]
    #[case::unchanged("v1", json!({"size": 2}))]
    #[case::a_default_is_missing("v1", json!({"name": "n"}))]
    #[case::no_spec("v1", Value::Null)]
    #[case::another_version("v2", json!({"size": 2}))]
    fn the_text_is_equal_to_the_converted_tree(#[case] version: &str, #[case] spec: Value) {
        for served in things("None") {
            for form in [Form::Alone, Form::Item] {
                let stored = thing(version, &spec);
                let mut text = Vec::new();
                write(&stored, &served, form, &mut text);
                let read: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(read, by_tree(&stored, &served, form), "{} {form:?}", served.api_version());
            }
        }
    }

    #[test]
    fn items_of_built_in_kinds_have_no_kind() {
        let pods = Registry::new(Vec::new()).find("", "v1", "pods").unwrap();
        let pod = Stored::of(
            1,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"kind": "own"}}),
        );
        let text = |form| {
            let mut text = Vec::new();
            write(&pod, &pods, form, &mut text);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(text(Form::Item), r#"{"metadata":{"name":"p"},"spec":{"kind":"own"}}"#);
        assert_eq!(text(Form::Alone).as_bytes(), stored_text(&pod));
    }

    #[rstest]
    #[case::no_webhook("None", "v2", false)]
    #[case::the_stored_version("Webhook", "v1", false)]
    #[case::another_version("Webhook", "v2", true)]
    fn objects_of_another_version_need_the_webhook(
        #[case] conversion: &str,
        #[case] version: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(needs_webhook(&thing(version, &json!({})), &things(conversion)[0]), expected);
    }
}
