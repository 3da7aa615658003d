//! JSON patches, applied with bounds: an operation that copies can double an object, and thirty of them fill any memory; one that
//! moves can hide an object in itself, deeper each time.
//!
//! Source: spec/extension-apiserver §4.4; the bound on copies is that of a real API server.

use json_patch::PatchOperation;
use serde_json::Value;

use super::server::BODY_LIMIT;
use kube_protocol::depth::{self, TooDeep};

/// Why a patch is not applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unpatched {
    /// An operation does not fit the object.
    #[error(transparent)]
    Operation(#[from] json_patch::PatchError),
    /// The object would be nested too deep.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
    /// It copies, or moves, too much.
    #[error("the operations of the patch copy or move more than {BODY_LIMIT} bytes")]
    TooMuch,
}

/// Applies a patch. After an error the object is in no state that anybody has asked for.
pub(super) fn apply(object: &mut Value, patch: &[PatchOperation]) -> Result<(), Unpatched> {
    let mut carried = 0;
    for operation in patch {
        check(object, operation, &mut carried)?;
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))?;
    }
    Ok(())
}

/// Whether an operation stays within the bounds; `carried` counts what was copied or moved.
fn check(object: &Value, operation: &PatchOperation, carried: &mut usize) -> Result<(), Unpatched> {
    let (placed, from) = match operation {
        PatchOperation::Add(add) => (Some(&add.value), None),
        PatchOperation::Replace(replace) => (Some(&replace.value), None),
        PatchOperation::Copy(copy) => (object.pointer(copy.from.as_str()), Some(&copy.from)),
        PatchOperation::Move(moved) => (object.pointer(moved.from.as_str()), Some(&moved.from)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, None),
    };
    // What is not there is refused by the operation itself.
    let Some(placed) = placed else { return Ok(()) };
    if from.is_some() {
        *carried += bytes(placed);
        if *carried > BODY_LIMIT {
            return Err(Unpatched::TooMuch);
        }
    }
    let at = operation.path().as_str().bytes().filter(|byte| *byte == b'/').count();
    Ok(depth::check_value(placed, at)?)
}

/// About as long as the text of a value.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| bytes(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + 4 + bytes(value)).sum::<usize>(),
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::testing::{ask, cluster, exists};

    fn patched(mut object: Value, operations: Value) -> Result<Value, Unpatched> {
        let operations: Vec<PatchOperation> = serde_json::from_value(operations).unwrap();
        apply(&mut object, &operations).map(|()| object)
    }

    #[test]
    fn operations_see_what_those_before_them_have_done() {
        let operations = json!([
            {"op": "add", "path": "/a", "value": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"},
            {"op": "test", "path": "/c/b", "value": 1}, {"op": "move", "from": "/c/b", "path": "/d"},
            {"op": "remove", "path": "/a"},
        ]);
        assert_eq!(patched(json!({}), operations).unwrap(), json!({"c": {}, "d": 1}));
    }

    #[rstest]
    #[case::nothing_there(json!([{"op": "copy", "from": "/a", "path": "/b"}]))]
    #[case::not_so(json!([{"op": "test", "path": "/a", "value": 1}]))]
    fn what_does_not_fit_is_refused(#[case] operations: Value) {
        assert!(matches!(patched(json!({}), operations), Err(Unpatched::Operation(_))));
    }

    #[test]
    fn copies_that_double_an_object_end_early() {
        let operations: Vec<Value> =
            (0..10_000).map(|at| json!({"op": "copy", "from": "/data", "path": format!("/data/{}", at % 2)})).collect();
        let object = json!({"data": {"text": "x".repeat(1000)}});
        assert!(matches!(patched(object, json!(operations)), Err(Unpatched::TooMuch)));
    }

    #[test]
    fn no_operation_nests_deeper_than_bodies_can() {
        let deep = (0..60).fold(json!({}), |inner, _| json!({"a": inner}));
        let bottom = "/a".repeat(60);
        for operation in [
            json!({"op": "add", "path": bottom, "value": deep}),
            json!({"op": "replace", "path": bottom, "value": deep}),
            json!({"op": "copy", "from": "/a", "path": format!("{bottom}/b")}),
            json!({"op": "move", "from": "/c", "path": format!("{bottom}/b")}),
        ] {
            let mut object = deep.clone();
            object["c"] = deep.clone();
            let refused = patched(object, json!([operation]));
            assert!(matches!(refused, Err(Unpatched::TooDeep(_))), "{operation}: {refused:?}");
        }
    }

    /// Clients, this test's too, read 127 levels; what managers own and a list come on top of an object.
    #[tokio::test(start_paused = true)]
    async fn the_deepest_object_can_be_read_alone_and_in_a_list_and_none_gets_deeper() {
        let cluster = cluster([]);
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}}}]},
        });
        ask(&cluster, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.unwrap();
        let things = "/apis/example.com/v1/things";
        exists(&cluster, things).await;
        let thing = |name: &str, depth: usize| {
            let spec = (2..depth).fold(json!({}), |inner, _| json!({"a": inner}));
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec})
        };
        ask(&cluster, "POST", things, &thing("deepest", depth::DEEPEST)).await.unwrap();
        assert_eq!(ask(&cluster, "POST", things, &thing("deeper", depth::DEEPEST + 1)).await, Err(400));
        let one = ask(&cluster, "GET", &format!("{things}/deepest"), &Value::Null).await.unwrap();
        assert!(one["metadata"]["managedFields"][0]["fieldsV1"].to_string().matches("f:a").count() > 90, "{one}");
        let all = ask(&cluster, "GET", things, &Value::Null).await.unwrap();
        assert_eq!(all["items"].as_array().unwrap().len(), 1);
        // A merge patch, which is what a test sends, is no deeper than what it makes.
        let deeper = json!({"spec": thing("", depth::DEEPEST + 1)["spec"]});
        assert_eq!(ask(&cluster, "PATCH", &format!("{things}/deepest"), &deeper).await, Err(400));
    }
}
