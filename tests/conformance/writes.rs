//! §7.4: creations and updates.

use serde_json::{Value, json};

use super::{Fact::*, Probe, config_map, get, merge, post, put, thing};

pub fn probes() -> Vec<Probe> {
    let red = || post("$T", thing("a", json!({"color": "red"})));
    let invalid =
        |field: &'static str, reason: &'static str| vec![Is("/reason", json!("Invalid")), Text(field), Text(reason)];
    vec![
        Probe::new("XA-046", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing",
            "metadata": {"name": "a", "uid": "zzz", "generation": 77, "creationTimestamp": "2001-01-01T00:00:00Z"},
            "spec": {"color": "red", "nul": null, "nonnul": null, "unknown": 1, "any": {"x": null}, "list": [{"k": "1"}]},
            "status": {"phase": "x"}, "junk": 1,
        }))
        .facts([
            Is("/metadata/generation", json!(1)),
            Is("/spec", json!({
                "any": {"x": null}, "color": "red", "list": [{"k": "1", "v": "vd"}], "nested": {"a": "x"}, "nonnul": "dflt",
                "nul": null, "replicas": 1,
            })),
            Absent("/status"), Absent("/junk"),
            Header("warning", "unknown field"),
        ])]),
        Probe::new("XA-047", [
            red(),
            red().status(409).facts([Is("/reason", json!("AlreadyExists")), Is("/details/kind", json!("things"))]),
        ]),
        Probe::new("XA-048", [post(
            "$T?fieldValidation=Strict",
            r#"{"apiVersion":"probe.example.com/v1","kind":"Thing","metadata":{"name":"a","foo":1},"spec":{"color":"red","color":"red","unknown":1}}"#,
        )
        .status(400)
        .facts([
            Holds("/message", "strict decoding error"), Holds("/message", "duplicate field \"spec.color\""),
            Holds("/message", "unknown field \"spec.unknown\""), Holds("/message", "unknown field \"metadata.foo\""),
        ])]),
        Probe::new("XA-049", [post("$T?fieldValidation=Strictly", thing("a", json!({"color": "red"}))).status(422).facts([
            Is("/details/kind", json!("CreateOptions")), Is("/details/causes/0/field", json!("fieldValidation")),
            Is("/details/causes/0/reason", json!("FieldValueNotSupported")),
        ])]),
        Probe::new("XA-050", [post("$T", thing("a", json!({"color": "pink", "replicas": "x"}))).status(422).facts([
            Is("/reason", json!("Invalid")), Is("/details/kind", json!("Thing")), Text("spec.color"), Text("spec.replicas"),
            Text("FieldValueNotSupported"),
        ])]),
        Probe::new("XA-051", [post("$T", thing("a", json!({"color": "red", "replicas": 99}))).status(422).facts([
            Count("/details/causes", 1), Is("/details/causes/0/field", json!("spec.replicas")),
            Is("/details/causes/0/reason", json!("FieldValueForbidden")), Holds("/message", "too many"),
        ])]),
        Probe::new("XA-052", [post("$T", thing("B_", json!({"color": "red"}))).status(422).facts([
            Is("/details/causes/0/field", json!("metadata.name")), Text("lowercase RFC 1123 subdomain"),
        ])]),
        Probe::new("XA-053", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {}, "spec": {"color": "red"},
        }))
        .status(422)
        .facts(invalid("metadata.name", "name or generateName is required"))]),
        Probe::new("XA-054", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"generateName": "g-"}, "spec": {"color": "red"},
        }))
        .facts([Holds("/metadata/name", "g-")])]),
        Probe::new("XA-055", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "other"},
            "spec": {"color": "red"},
        }))
        .status(400)
        .facts([Text("does not match the namespace sent on the request")])]),
        Probe::new("XA-056", [post(
            "/apis/probe.example.com/v1/namespaces/no-such-namespace/things",
            thing("a", json!({"color": "red"})),
        )
        .status(404)
        .facts([Is("/details/kind", json!("namespaces"))])]),
        Probe::new("XA-057", [post("$T", json!({
            "apiVersion": "probe.example.com/v2", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"color": "red"},
        }))
        .status(400)
        .facts([Text("does not match the expected API version")])]),
        Probe::new("XA-058", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thingy", "metadata": {"name": "a"}, "spec": {"color": "red"},
        }))
        .one_of(&[400, 422])
        .facts([Text("Thingy")])]),
        Probe::new("XA-059", [post("$T", json!({
            "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "resourceVersion": "5"},
            "spec": {"color": "red"},
        }))
        .one_of(&[400, 500])
        .facts([Text("resourceVersion should not be set on objects to be created")])]),
        Probe::new("XA-060", [post("$T", "{bad").status(400), post("$T", "").status(400)]),
        Probe::new("XA-061", [
            post("$T?dryRun=All", thing("z", json!({"color": "red"}))).facts([Absent("/metadata/resourceVersion")]),
            get("$T/z").status(404),
        ]),
        Probe::new("XA-062", [post("$M", too_large()).status(413).facts([Text("limit is 3145728")])]),
        Probe::new("XA-063", [
            red(),
            put("$T/a", thing("a", json!({"color": "red"}))).status(422).facts([
                Is("/details/causes/0/field", json!("metadata.resourceVersion")), Text("must be specified for an update"),
            ]),
        ]),
        Probe::new("XA-064", [
            red(),
            put("$T/a", json!({
                "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "resourceVersion": "1"},
                "spec": {"color": "red"},
            }))
            .status(409)
            .facts([Is("/reason", json!("Conflict")), Text("the object has been modified")]),
        ]),
        Probe::new("XA-065", [
            red(),
            put("$T/a", json!({
                "apiVersion": "probe.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "uid": "other"},
                "spec": {"color": "red"},
            }))
            .status(409)
            .facts([Text("Precondition failed: UID")]),
        ]),
        Probe::new("XA-066", [
            red(),
            put("$T/a", thing("zz", json!({"color": "red"}))).status(400).facts([Text("does not match the name on the URL")]),
        ]),
        Probe::new("XA-068", [
            red().facts([Keep("$RV", "/metadata/resourceVersion"), Keep("$UID", "/metadata/uid")]),
            put("$T/a", r#"{"apiVersion":"probe.example.com/v1","kind":"Thing","metadata":{"name":"a","resourceVersion":"$RV","uid":"$UID"},"spec":{"color":"red","replicas":1,"nonnul":"dflt","nested":{"a":"x"}}}"#)
                .facts([Same("/metadata/resourceVersion", "$RV")]),
        ]),
        Probe::new("XA-069", [
            red().facts([Keep("$RV", "/metadata/resourceVersion")]),
            merge("$T/a", json!({"metadata": {"labels": {"a": "b"}}})).facts([
                Is("/metadata/generation", json!(1)), Differs("/metadata/resourceVersion", "$RV"),
            ]),
            merge("$T/a", json!({"spec": {"replicas": 3}})).facts([Is("/metadata/generation", json!(2))]),
        ]),
        Probe::new("XA-070", [
            red(),
            merge("$T/a/status", json!({"spec": {"replicas": 9}, "status": {"phase": "P", "replicas": 4}})).facts([
                Is("/spec/replicas", json!(1)), Is("/metadata/generation", json!(1)), Is("/status/phase", json!("P")),
            ]),
        ]),
        Probe::new("XA-071", [
            red().facts([Keep("$UID", "/metadata/uid")]),
            get("$T/a/scale").facts([
                Is("/kind", json!("Scale")), Is("/apiVersion", json!("autoscaling/v1")), Same("/metadata/uid", "$UID"),
            ]),
            merge("$T/a/scale", json!({"spec": {"replicas": 7}})).facts([Is("/spec/replicas", json!(7))]),
            get("$T/a").facts([Is("/spec/replicas", json!(7)), Is("/metadata/generation", json!(2))]),
        ]),
        Probe::new("XA-072", [
            red(),
            merge("$T/a", json!({"spec": {"color": "blue"}})).status(422).facts([Text("color is immutable")]),
        ]),
        Probe::new("XA-073", [post("/api/v1/namespaces/$NS/secrets", json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"},
        }))
        .facts([Is("/data/a", json!("Yg==")), Absent("/stringData")])]),
        Probe::new("XA-074", [post("/api/v1/namespaces/$NS/secrets", json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "!!"},
        }))
        .status(400)
        .facts([Text("illegal base64")])]),
        Probe::new("XA-075", [post("$M", json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
        }))
        .status(422)
        .facts([Is("/details/causes/0/field", json!("metadata.ownerReferences.uid"))])]),
        Probe::new("XA-076", [post("/api/v1/namespaces/$NS/pods", super::deletions::pod("p"))
            .facts([
                Is("/spec/terminationGracePeriodSeconds", json!(30)), Is("/status/phase", json!("Pending")),
                Count("/spec/tolerations", 2), Is("/spec/tolerations/0/tolerationSeconds", json!(300)),
            ])]),
        Probe::new("XA-076-QUALITY", [
            post("/api/v1/namespaces/$NS/pods", with_resources("none", &Value::Null, &Value::Null))
                .facts([Is("/status/qosClass", json!("BestEffort"))]),
            // A limit without a request sets the request.
            post("/api/v1/namespaces/$NS/pods", with_resources("limited", &json!({"limits": ample()}), &Value::Null))
                .facts([
                    Is("/status/qosClass", json!("Guaranteed")),
                    Is("/spec/containers/0/resources/requests", ample()),
                ]),
            post("/api/v1/namespaces/$NS/pods", with_resources("asking", &json!({"requests": ample()}), &Value::Null))
                .facts([Is("/status/qosClass", json!("Burstable"))]),
            post(
                "/api/v1/namespaces/$NS/pods",
                with_resources("with-init", &json!({"limits": ample()}), &json!({"limits": {"cpu": "1"}})),
            )
            .facts([Is("/status/qosClass", json!("Burstable"))]),
            post(
                "/api/v1/namespaces/$NS/pods",
                with_resources("disk", &json!({"limits": {"ephemeral-storage": "1Gi"}}), &Value::Null),
            )
            .facts([Is("/status/qosClass", json!("BestEffort"))]),
        ]),
        Probe::new("XA-041-BODY", [post("$M", config_map("m")), get("$M/m").facts([Is("/data/a", json!("1"))])]),
    ]
}

fn ample() -> Value {
    json!({"cpu": "500m", "memory": "1Gi"})
}

/// A pod with these resources of its container and, unless null, of an init container.
fn with_resources(name: &str, own: &Value, init: &Value) -> Value {
    let mut pod = super::deletions::pod(name);
    pod["spec"]["containers"][0]["resources"] = own.clone();
    if !init.is_null() {
        pod["spec"]["initContainers"] = json!([{"name": "i", "image": "i", "resources": init}]);
    }
    pod
}

/// Only a little more than the limit: with a larger body, a server could close the connection before its answer is read.
fn too_large() -> serde_json::Value {
    let mut map = config_map("large");
    map["data"]["a"] = json!("x".repeat(3 * 1024 * 1024 + 50_000));
    map
}
