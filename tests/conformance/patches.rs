//! §7.5: patches and server-side apply.

use serde_json::{Value, json};

use super::{Fact::*, Probe, Step, get, merge, patch, post, thing};

const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn apply(query: &str, spec: Value) -> Step {
    patch(&format!("$T/a?{query}"), APPLY, thing("a", spec))
}

pub fn probes() -> Vec<Probe> {
    let red = || post("$T", thing("a", json!({"color": "red"})));
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    vec![
        Probe::new("XA-077", [
            red().facts([Keep("$RV", "/metadata/resourceVersion")]),
            merge("$T/a", "{}").facts([Same("/metadata/resourceVersion", "$RV")]),
        ]),
        Probe::new("XA-078", [red(), merge("$T/a", "{bad").status(400).facts([Text("error decoding patch")])]),
        Probe::new("XA-079", [red(), merge("$T/a", json!({"metadata": {"name": "x"}})).status(400)]),
        Probe::new("XA-080", [red(), merge("$T/a", json!({"metadata": {"resourceVersion": "1"}})).status(409)]),
        Probe::new("XA-081", [red(), patch("$T/a", STRATEGIC, "{}").status(415).facts([
            Text("application/json-patch+json"), Text("application/merge-patch+json"), Text("application/apply-patch+yaml"),
        ])]),
        Probe::new("XA-082", [
            red(),
            patch("$T/a", "application/json", "{}").status(415),
            patch("$T/a", "application/x-www-form-urlencoded", "{}").status(415),
        ]),
        Probe::new("XA-083", [
            red(),
            patch("$T/a", JSON_PATCH, json!([{"op": "test", "path": "/spec/color", "value": "blue"}])).status(422),
            patch("$T/a", JSON_PATCH, json!([{"op": "remove", "path": "/spec/nope"}])).status(422),
        ]),
        Probe::new("XA-084", [red(), patch("$T/a", JSON_PATCH, "{}").status(400)]),
        Probe::new("XA-085", [merge("$T/a", "{}").status(404)]),
        Probe::new("XA-086", [apply("", json!({"color": "red"})).status(422).facts([
            Is("/details/kind", json!("PatchOptions")), Is("/details/causes/0/field", json!("fieldManager")),
        ])]),
        Probe::new("XA-087", [
            apply("fieldManager=m1", json!({"color": "red", "replicas": 2})).status(201).facts([
                Count("/metadata/managedFields", 1), Is("/metadata/managedFields/0/manager", json!("m1")),
                Is("/metadata/managedFields/0/operation", json!("Apply")),
            ]),
            patch("$T/a?fieldManager=m2", APPLY, json!({
                "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": "a"},
                "spec": {"color": "red", "replicas": 3},
            }))
            .status(409)
            .facts([
                Is("/details/causes/0/reason", json!("FieldManagerConflict")),
                Is("/details/causes/0/field", json!(".spec.replicas")),
            ]),
            apply("fieldManager=m2&force=true", json!({"color": "red", "replicas": 3})).facts([
                Is("/spec/replicas", json!(3)), Count("/metadata/managedFields", 2),
            ]),
            get("$T/a").facts([Text("f:replicas")]),
        ]),
        Probe::new("XA-088", [patch("$T/a?fieldManager=m1", APPLY, json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing",
            "metadata": {"name": "a", "managedFields": [{"manager": "x", "operation": "Apply"}]}, "spec": {"color": "red"},
        }))
        .status(400)
        .facts([Text("metadata.managedFields must be nil")])]),
        Probe::new("XA-089", [
            apply("fieldManager=m1", json!({"color": "red", "list": [{"k": "a"}, {"k": "b"}]})).status(201),
            apply("fieldManager=m2", json!({"color": "red", "list": [{"k": "c"}]})),
            apply("fieldManager=m1", json!({"color": "red", "list": [{"k": "a"}]})).facts([
                Count("/spec/list", 2), Is("/spec/list/0/k", json!("a")), Is("/spec/list/1/k", json!("c")),
            ]),
        ]),
        Probe::new("XA-090", [red(), merge("$T/a?force=true", "{}").status(422).facts([
            Text("may not be specified for non-apply patch"),
        ])]),
        Probe::new("XA-091", [
            post("/api/v1/nodes", node("xa-091")),
            patch("/api/v1/nodes/xa-091/status", STRATEGIC, json!({"status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "X", "status": "True"},
            ]}})),
            patch("/api/v1/nodes/xa-091/status", STRATEGIC, json!({"status": {"conditions": [
                {"type": "X", "status": "Unknown"}, {"$patch": "delete", "type": "Ready"},
            ]}}))
            .facts([
                Count("/status/conditions", 1), Is("/status/conditions/0/type", json!("X")),
                Is("/status/conditions/0/status", json!("Unknown")),
            ]),
        ]),
        Probe::new("XA-092", [
            post("/api/v1/nodes", node("xa-092")),
            patch("/api/v1/nodes/xa-092", STRATEGIC, json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})).facts([
                Count("/spec/taints", 1), Is("/spec/taints/0/key", json!("a")),
            ]),
        ]),
    ]
}
