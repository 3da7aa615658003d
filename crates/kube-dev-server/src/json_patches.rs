//! JSON patches with limits. Each copy operation can double the size of an object, so that thirty operations can fill the memory. Each move
//! operation can nest an object deeper.
//!
//! Source: spec/extension-apiserver §4.4; the limit of copies is the limit of kube-apiserver.

use json_patch::PatchOperation;
use serde_json::Value;

use super::server::BODY_LIMIT;
use kube_protocol::depth::{self, TooDeep};

/// The error of a patch that can't be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchError {
    /// An operation does not fit the object.
    #[error(transparent)]
    Operation(#[from] json_patch::PatchError),
    /// The object would be nested too deep.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
    /// The operations copy or move too many bytes.
    #[error("the operations of the patch copy or move more than {BODY_LIMIT} bytes")]
    TooMuch,
}

/// Applies a patch. After an error some operations may be applied, and the object must not be used.
pub(super) fn apply(object: &mut Value, patch: &[PatchOperation]) -> Result<(), PatchError> {
    let mut copied = 0;
    for operation in patch {
        check(object, operation, &mut copied)?;
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))?;
    }
    Ok(())
}

/// Checks the limits before an operation. `copied` counts the bytes that were copied or moved.
fn check(object: &Value, operation: &PatchOperation, copied: &mut usize) -> Result<(), PatchError> {
    let (placed, from) = match operation {
        PatchOperation::Add(add) => (Some(&add.value), None),
        PatchOperation::Replace(replace) => (Some(&replace.value), None),
        PatchOperation::Copy(copy) => (object.pointer(copy.from.as_str()), Some(&copy.from)),
        PatchOperation::Move(moved) => (object.pointer(moved.from.as_str()), Some(&moved.from)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, None),
    };
    // An operation on a missing value is refused when it is applied.
    let Some(placed) = placed else { return Ok(()) };
    if from.is_some() {
        *copied += bytes(placed);
        if *copied > BODY_LIMIT {
            return Err(PatchError::TooMuch);
        }
    }
    let at = operation.path().as_str().bytes().filter(|byte| *byte == b'/').count();
    Ok(depth::check_value(placed, at)?)
}

/// The estimated length of a value as text.
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

    fn patched(mut object: Value, operations: Value) -> Result<Value, PatchError> {
        let operations: Vec<PatchOperation> = serde_json::from_value(operations).unwrap();
        apply(&mut object, &operations).map(|()| object)
    }

    #[test]
    fn each_operation_applies_to_the_result_of_the_operations_before() {
        let operations = json!([
            {"op": "add", "path": "/a", "value": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"},
            {"op": "test", "path": "/c/b", "value": 1}, {"op": "move", "from": "/c/b", "path": "/d"},
            {"op": "remove", "path": "/a"},
        ]);
        assert_eq!(patched(json!({}), operations).unwrap(), json!({"c": {}, "d": 1}));
    }

    #[rstest]
    #[case::a_missing_value(json!([{"op": "copy", "from": "/a", "path": "/b"}]))]
    #[case::a_failed_test(json!([{"op": "test", "path": "/a", "value": 1}]))]
    fn operations_that_do_not_fit_the_object_are_refused(#[case] operations: Value) {
        assert!(matches!(patched(json!({}), operations), Err(PatchError::Operation(_))));
    }

    #[test]
    fn copies_that_double_an_object_are_limited() {
        let operations: Vec<Value> =
            (0..10_000).map(|at| json!({"op": "copy", "from": "/data", "path": format!("/data/{}", at % 2)})).collect();
        let object = json!({"data": {"text": "x".repeat(1000)}});
        assert!(matches!(patched(object, json!(operations)), Err(PatchError::TooMuch)));
    }

    #[test]
    fn operations_have_the_depth_limit_of_bodies() {
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
            assert!(matches!(refused, Err(PatchError::TooDeep(_))), "{operation}: {refused:?}");
        }
    }

    /// The client of this test reads at most 127 levels. In managed fields and lists, an object is nested some levels deeper.
    #[tokio::test(start_paused = true)]
    async fn the_deepest_object_can_be_read_alone_and_in_a_list() {
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
        ask(&cluster, "POST", things, &thing("deepest", depth::MAX_DEPTH)).await.unwrap();
        assert_eq!(ask(&cluster, "POST", things, &thing("deeper", depth::MAX_DEPTH + 1)).await, Err(400));
        let one = ask(&cluster, "GET", &format!("{things}/deepest"), &Value::Null).await.unwrap();
        assert!(one["metadata"]["managedFields"][0]["fieldsV1"].to_string().matches("f:a").count() > 90, "{one}");
        let all = ask(&cluster, "GET", things, &Value::Null).await.unwrap();
        assert_eq!(all["items"].as_array().unwrap().len(), 1);
        // The patch in this test is a merge patch, which is as deep as its result.
        let deeper = json!({"spec": thing("", depth::MAX_DEPTH + 1)["spec"]});
        assert_eq!(ask(&cluster, "PATCH", &format!("{things}/deepest"), &deeper).await, Err(400));
    }
}
