//! Requests that a real API server refuses and a lenient server would accept: writes without a version, with another name, or without the right to
//! create; dry runs of evictions; invalid definitions.

use serde_json::{Value, json};

use super::{Fact::*, Probe, Step, delete, get, merge, patch, post, put, thing};

const APPLY: &str = "application/apply-patch+yaml";
/// The UID of no object.
const UID: &str = "11111111-1111-4111-8111-111111111111";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/$NS/leases";
const PODS: &str = "/api/v1/namespaces/$NS/pods";
const SECRETS: &str = "/api/v1/namespaces/$NS/secrets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.$NS.example.com";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/$NS";

pub fn probes() -> Vec<Probe> {
    [versions(), applies(), patches(), rights(), evictions(), definitions(), built_in()].concat()
}

fn red() -> Step {
    post("$T", thing("a", json!({"color": "red"}))).facts([Keep("$UID", "/metadata/uid")])
}

/// A thing with its UID and further metadata.
fn versioned(metadata: Value) -> Value {
    let mut wanted = thing("a", json!({"color": "red", "replicas": 9}));
    wanted["metadata"]["uid"] = json!("$UID");
    for (field, value) in metadata.as_object().into_iter().flatten() {
        wanted["metadata"][field] = value.clone();
    }
    wanted
}

fn must_be_specified(step: Step) -> Step {
    step.status(422).facts([Text("metadata.resourceVersion"), Text("must be specified for an update")])
}

fn lease(spec: Value) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec})
}

fn versions() -> Vec<Probe> {
    vec![
        Probe::new(
            "UPDATE-WITHOUT-VERSION",
            [
                red(),
                must_be_specified(put("$T/a", versioned(json!({})))),
                must_be_specified(put("$T/a", versioned(json!({"resourceVersion": ""})))),
                must_be_specified(put("$T/a", versioned(json!({"resourceVersion": "0"})))),
                must_be_specified(put("$T/a/status", versioned(json!({})))),
                get("$T/a").facts([Is("/spec/replicas", json!(1))]),
            ],
        ),
        Probe::new(
            "PATCH-THAT-TAKES-THE-VERSION",
            [
                red(),
                must_be_specified(merge(
                    "$T/a",
                    json!({"metadata": {"resourceVersion": null}, "spec": {"replicas": 3}}),
                )),
            ],
        ),
        Probe::new(
            "LEASE-WITHOUT-VERSION",
            [
                post(LEASES, lease(json!({"holderIdentity": "one"}))),
                must_be_specified(put(&format!("{LEASES}/l"), lease(json!({"holderIdentity": "two"})))),
                get(&format!("{LEASES}/l")).facts([Is("/spec/holderIdentity", json!("one"))]),
            ],
        ),
        Probe::new(
            "LEASE-BOUNDS",
            [
                post(LEASES, lease(json!({"leaseTransitions": -1}))).status(422).facts([Text("spec.leaseTransitions")]),
                post(LEASES, lease(json!({"renewTime": "2026-01-01T00:00:00.5Z"})))
                    .status(400)
                    .facts([Text(".000000")]),
                post(LEASES, lease(json!({"renewTime": "2026-01-01T00:00:00.500000Z"}))),
            ],
        ),
        Probe::new(
            "MAP-WITHOUT-VERSION",
            [
                post("$M", super::config_map("m")),
                put(
                    "$M/m",
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "2"}}),
                )
                .facts([Is("/data/a", json!("2"))]),
            ],
        ),
    ]
}

fn applies() -> Vec<Probe> {
    let place = |name: &str| format!("$T/{name}?fieldManager=m");
    let with_uid = |name: &str, uid: &str| {
        let mut wanted = thing(name, json!({"color": "red"}));
        wanted["metadata"]["uid"] = json!(uid);
        wanted
    };
    vec![
        Probe::new("APPLY-TO-ANOTHER-NAME", [
            patch(&place("b"), APPLY, thing("c", json!({"color": "red"})))
                .status(400)
                .facts([Text("the name of the object (c) does not match the name on the URL (b)")]),
            get("$T/c").status(404),
            get("$T/b").status(404),
        ]),
        Probe::new("APPLY-WITH-UID", [
            patch(&place("b"), APPLY, with_uid("b", UID)).status(409).facts([Text("uid mismatch")]),
            red(),
            patch(&place("a"), APPLY, with_uid("a", UID)).status(422).facts([Text("metadata.uid")]),
            patch(&place("a"), APPLY, with_uid("a", "$UID")).status(200),
        ]),
        Probe::new("APPLY-OF-NO-FIELD", [
            red(),
            patch(&place("a"), APPLY, thing("a", json!({"color": "red", "zz": 1})))
                .status(500)
                .facts([Text("failed to create typed patch object"), Text("field not declared in schema")]),
            patch(&place("a"), APPLY, thing("a", json!({"color": 7}))).status(500).facts([Text("typed patch object")]),
            patch(&place("a"), APPLY, thing("a", json!({"color": "red", "list": [{"k": "1"}, {"k": "1"}]})))
                .status(500)
                .facts([Text("typed patch object")]),
        ]),
        Probe::new("SCALE-OF-ANOTHER", [
            red(),
            put("$T/a/scale", json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "b"}, "spec": {"replicas": 3},
            }))
            .status(400),
            put("$T/a/scale", json!({
                "apiVersion": "autoscaling/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {"replicas": 3},
            }))
            .status(400),
            patch("$T/a/scale", APPLY, json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 3},
            }))
            .one_of(&[400, 422])
            .facts([Text("fieldManager")]),
            get("$T/a").facts([Is("/spec/replicas", json!(1))]),
        ]),
        Probe::new("TWO-CONTROLLERS", [post("$M", json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": true},
            ]},
        }))
        .status(422)
        .facts([Text("Only one reference can have Controller set to true")])]),
    ]
}

/// Patches with fields that the kind does not have, and with duplicate fields.
fn patches() -> Vec<Probe> {
    const JSON_PATCH: &str = "application/json-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    let unknown = || json!({"spec": {"color": "red", "zz": 1}});
    let warns = |step: Step, field: &'static str| {
        step.facts([Header("warning", "299 - "), Header("warning", field), Lacks("zz")])
    };
    let refuses = |step: Step, field: &'static str| {
        step.status(422).facts([Is("/reason", json!("Invalid")), Text("strict decoding error"), Text(field)])
    };
    let added = json!([{"op": "add", "path": "/spec/zz", "value": 1}]);
    let twice = r#"{"spec": {"replicas": 2, "replicas": 3}}"#;
    vec![
        Probe::new(
            "PATCH-OF-NO-FIELD",
            [
                red(),
                warns(merge("$T/a", unknown()), "spec.zz"),
                warns(merge("$T/a?fieldValidation=Warn", unknown()), "spec.zz"),
                merge("$T/a?fieldValidation=Ignore", unknown()).facts([Lacks("zz")]),
                refuses(merge("$T/a?fieldValidation=Strict", unknown()), "spec.zz"),
                warns(patch("$T/a", JSON_PATCH, added.clone()), "spec.zz"),
                refuses(patch("$T/a?fieldValidation=Strict", JSON_PATCH, added), "spec.zz"),
                merge("$T/a?fieldValidation=Strict", json!({"spec": {"color": "red"}})),
            ],
        ),
        Probe::new(
            "PATCH-OF-NO-STATUS-FIELD",
            [
                red(),
                warns(merge("$T/a/status", json!({"status": {"zz": 1}})), "status.zz"),
                refuses(merge("$T/a/status?fieldValidation=Strict", json!({"status": {"zz": 1}})), "status.zz"),
            ],
        ),
        Probe::new(
            "PATCH-OF-A-FIELD-TWICE",
            [
                red(),
                merge("$T/a", twice).facts([Header("warning", "duplicate field"), Is("/spec/replicas", json!(3))]),
                refuses(merge("$T/a?fieldValidation=Strict", twice), "duplicate field"),
            ],
        ),
        Probe::new(
            "PATCH-OF-NO-FIELD-OF-A-MAP",
            [
                post("$M", super::config_map("m")),
                warns(merge("$M/m", json!({"zz": 1})), "zz"),
                refuses(merge("$M/m?fieldValidation=Strict", json!({"zz": 1})), "zz"),
                warns(patch("$M/m", STRATEGIC, json!({"zz": 1})), "zz"),
                refuses(patch("$M/m?fieldValidation=Strict", STRATEGIC, json!({"zz": 1})), "zz"),
            ],
        ),
    ]
}

/// A role for the user that a probe impersonates. The authorizer loads it a moment later, so the first request that needs it is repeated until the
/// role applies.
fn role(resource: &str, group: &str, verbs: &[&str]) -> [Step; 2] {
    let metadata = json!({"name": "probe"});
    let kind = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata});
    let mut role = kind("Role");
    role["rules"] = json!([{"apiGroups": [group], "resources": [resource], "verbs": verbs}]);
    let mut binding = kind("RoleBinding");
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "probe"});
    binding["subjects"] = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "user-$NS"}]);
    [post(&format!("{ROLES}/roles"), role), post(&format!("{ROLES}/rolebindings"), binding)]
}

fn rights() -> Vec<Probe> {
    let as_user = |step: Step| step.with("impersonate-user", "user-$NS");
    let [things, bound] = role("things", "probe.example.com", &["get", "patch"]);
    let [leases, bound_leases] = role("leases", "coordination.k8s.io", &["get", "update"]);
    vec![
        Probe::new(
            "APPLY-CREATES-WITH-THE-RIGHT",
            [
                things,
                bound,
                as_user(patch("$T/b?fieldManager=m", APPLY, thing("b", json!({"color": "red"}))))
                    .status(403)
                    .facts([Text("cannot create resource")])
                    .eventually(),
                get("$T/b").status(404),
            ],
        ),
        Probe::new(
            "UPDATE-CREATES-WITH-THE-RIGHT",
            [
                leases,
                bound_leases,
                as_user(put(&format!("{LEASES}/l"), lease(json!({"holderIdentity": "one"}))))
                    .status(403)
                    .facts([Text("cannot create resource")])
                    .eventually(),
                put(&format!("{LEASES}/l"), lease(json!({"holderIdentity": "one"}))).status(201),
            ],
        ),
    ]
}

fn eviction(fields: Value) -> Value {
    let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    for (field, value) in fields.as_object().into_iter().flatten() {
        eviction[field] = value.clone();
    }
    eviction
}

/// A running pod on a node.
fn running() -> [Step; 2] {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    [
        post(PODS, super::deletions::pod("p")),
        merge(&format!("{PODS}/p/status"), status)
            .facts([Keep("$RV", "/metadata/resourceVersion"), Keep("$UID", "/metadata/uid")]),
    ]
}

/// Checks that the pod of a probe is unchanged.
fn untouched() -> Step {
    get(&format!("{PODS}/p")).facts([
        Absent("/metadata/deletionTimestamp"),
        Count("/status/conditions", 1),
        Same("/metadata/resourceVersion", "$RV"),
    ])
}

fn evictions() -> Vec<Probe> {
    let evict = |path: &str, body: Value| post(&format!("{PODS}/p/eviction{path}"), body);
    let budgets = "/apis/policy/v1/namespaces/$NS/poddisruptionbudgets";
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    });
    let allowing = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
    }});
    let allows_one = || {
        get(&format!("{budgets}/b"))
            .facts([Is("/status/disruptionsAllowed", json!(1)), Count("/status/disruptedPods", 0)])
    };
    let with = |options: Value| eviction(json!({"deleteOptions": options}));
    let [made, ready] = running();
    let [made_too, ready_too] = running();
    let [made_last, ready_last] = running();
    vec![
        Probe::new(
            "EVICTION-THAT-ASKS",
            [
                made,
                ready,
                post(budgets, budget),
                merge(&format!("{budgets}/b/status"), allowing),
                evict("?dryRun=All", eviction(json!({}))),
                allows_one(),
                untouched(),
                evict("", with(json!({"dryRun": ["All"]}))),
                allows_one(),
                untouched(),
            ],
        )
        .with_uncounted_budgets(),
        Probe::new(
            "EVICTION-THAT-IS-WRONG",
            [
                made_too,
                ready_too,
                evict("", with(json!({"preconditions": {"uid": "other"}}))).status(409),
                untouched(),
                evict("", with(json!({"preconditions": {"resourceVersion": "1"}}))).status(409),
                untouched(),
                evict("", with(json!({"gracePeriodSeconds": "x"}))).status(400),
                evict("", json!({})).status(400),
                evict("", json!({"apiVersion": "policy/v1", "kind": "Foo", "metadata": {"name": "p"}})).status(400),
                evict("", json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "other"}}))
                    .status(400)
                    .facts([Text("name in URL does not match name in Eviction object")]),
                untouched(),
            ],
        ),
        Probe::new(
            "EVICTION-OF-A-VERSION",
            [
                made_last,
                ready_last,
                evict("", with(json!({"preconditions": {"resourceVersion": "$RV", "uid": "$UID"}}))),
                get(&format!("{PODS}/p"))
                    .facts([Present("/metadata/deletionTimestamp"), Holds("/status/conditions", "DisruptionTarget")]),
            ],
        ),
    ]
}

/// A definition in the group of the probe, with one change.
fn definition(pointer: &str, value: Value) -> Value {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.$NS.example.com"},
        "spec": {
            "group": "$NS.example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "a": {"type": "string"}, "n": {"type": "integer", "minimum": 2},
                        "l": {"type": "array", "items": {"type": "string"}},
                    }},
                }}},
            }],
        },
    });
    if let Some((parent, field)) = pointer.rsplit_once('/') {
        definition.pointer_mut(parent).expect("a place in the definition")[field] = value;
    }
    definition
}

/// A definition with stored version `v1` and a version `v2` with one more field, without conversion.
fn both_versions() -> Value {
    let mut definition = definition("", Value::Null);
    let mut newer = definition["spec"]["versions"][0].clone();
    newer["name"] = json!("v2");
    newer["storage"] = json!(false);
    newer["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["b"] = json!({"type": "integer"});
    definition["spec"]["versions"].as_array_mut().expect("it has versions").push(newer);
    definition
}

const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";

fn refused(pointer: &str, value: Value, field: &'static str) -> Step {
    post(DEFINITIONS, definition(pointer, value)).status(422).facts([Is("/reason", json!("Invalid")), Text(field)])
}

fn definitions() -> Vec<Probe> {
    let fields = format!("{SPEC}/properties");
    let version = "/spec/versions/0";
    let scale = json!({"scale": {"specReplicasPath": "spec.n", "statusReplicasPath": ".status.n"}});
    let keyed = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}}},
    });
    let both = json!({
        "type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"},
    });
    let established = || {
        get(DEFINITION)
            .facts([Holds("/status/conditions", "InitialNamesAccepted"), Keep("$RV", "/metadata/uid")])
            .eventually()
    };
    let things = "/apis/$NS.example.com/v1/namespaces/$NS/things";
    let of_group = |name: &str, finalizers: Value| {
        json!({
            "apiVersion": "$NS.example.com/v1", "kind": "Thing", "metadata": {"name": name, "finalizers": finalizers},
            "spec": {"a": "x"},
        })
    };
    let with_two_fields = json!({
        "apiVersion": "$NS.example.com/v2", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"a": "x", "b": 2},
    });
    vec![
        Probe::new(
            "DEFINITION-DEFAULTS",
            [
                refused(&format!("{fields}/a"), json!({"type": "string", "default": 7}), "default"),
                refused(&format!("{fields}/n"), json!({"type": "integer", "minimum": 2, "default": 1}), "default"),
            ],
        ),
        Probe::new(
            "DEFINITION-STRUCTURE",
            [
                refused(&format!("{fields}/a"), json!({}), "properties[a].type"),
                refused(&format!("{fields}/l"), json!({"type": "array"}), "properties[l].items"),
                refused(&format!("{fields}/l"), keyed, "properties[k].default"),
                refused(&format!("{fields}/b"), both, "properties[b].additionalProperties"),
                refused(
                    &format!("{fields}/l"),
                    json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
                    "uniqueItems",
                ),
                refused(&format!("{fields}/a"), json!({"type": "object", "$ref": "#/definitions/x"}), "$ref"),
                refused(
                    "/spec/versions/0/schema/openAPIV3Schema/properties/metadata",
                    json!({"type": "object", "properties": {"labels": {"type": "object", "maxProperties": 1}}}),
                    "properties[metadata]",
                ),
                refused("/spec/preserveUnknownFields", json!(true), "spec.preserveUnknownFields"),
            ],
        ),
        Probe::new(
            "DEFINITION-WORDS",
            [
                refused(&format!("{version}/subresources"), scale, "specReplicasPath"),
                refused(&format!("{version}/selectableFields"), json!([{"jsonPath": ".spec.zz"}]), "selectableFields"),
                refused(&format!("{version}/name"), json!("V_1"), "spec.versions[0].name"),
                refused(
                    &format!("{version}/additionalPrinterColumns"),
                    json!([{"name": "A", "type": "zz", "jsonPath": ".spec.a"}]),
                    "additionalPrinterColumns[0].type",
                ),
                refused("/spec/names/shortNames", json!(["B A D"]), "shortNames[0]"),
                refused(&format!("{SPEC}/x-kubernetes-validations"), json!([{"rule": "self.nope > 1"}]), "nope"),
            ],
        ),
        Probe::new(
            "DEFINITION-THAT-CHANGES",
            [
                post(DEFINITIONS, definition("", Value::Null)),
                established(),
                merge(DEFINITION, json!({"spec": {"scope": "Cluster"}})).status(422).facts([Text("spec.scope")]),
                merge(DEFINITION, json!({"spec": {"names": {"kind": "Other"}}}))
                    .status(422)
                    .facts([Text("spec.names.kind")]),
                delete(DEFINITION),
            ],
        ),
        Probe::new(
            "DEFINITION-WITHOUT-CONVERTER",
            [
                post(DEFINITIONS, both_versions()),
                established(),
                post(&things.replace("/v1/", "/v2/"), with_two_fields).eventually(),
                get(&format!("{things}/t")).facts([Is("/spec/a", json!("x")), Absent("/spec/b")]),
                get(&format!("{}/t", things.replace("/v1/", "/v2/")))
                    .facts([Is("/spec/a", json!("x")), Absent("/spec/b")]),
                delete(DEFINITION),
            ],
        ),
        Probe::new(
            "DEFINITION-THAT-GOES",
            [
                post(DEFINITIONS, definition("", Value::Null)),
                established(),
                post(things, of_group("held", json!(["probe.example.com/hold"]))).eventually(),
                delete(DEFINITION),
                get(DEFINITION).facts([Holds("/status/conditions", "Terminating")]).eventually(),
                post(things, of_group("late", json!([])))
                    .status(403)
                    .facts([Text("create not allowed while custom resource definition is terminating")])
                    .eventually(),
                merge(&format!("{things}/held"), json!({"metadata": {"finalizers": null}})),
                get(DEFINITION).status(404).eventually(),
            ],
        ),
    ]
}

fn secret(fields: Value) -> Value {
    let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    for (field, value) in fields.as_object().into_iter().flatten() {
        secret[field] = value.clone();
    }
    secret
}

fn map(fields: Value) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    for (field, value) in fields.as_object().into_iter().flatten() {
        map[field] = value.clone();
    }
    map
}

fn built_in() -> Vec<Probe> {
    let namespace = "/api/v1/namespaces/$NS";
    vec![
        Probe::new(
            "NAME-OF-A-NAMESPACE",
            [
                get(namespace).facts([Keep("$RV", "/metadata/resourceVersion")]),
                merge(namespace, json!({"metadata": {"labels": {"kubernetes.io/metadata.name": null}}})).facts([
                    Part("/metadata/labels", json!({"kubernetes.io/metadata.name": "probe-name-of-a-namespace"})),
                    Same("/metadata/resourceVersion", "$RV"),
                ]),
            ],
        ),
        Probe::new(
            "TYPE-OF-A-SECRET",
            [
                post(SECRETS, secret(json!({}))),
                merge(&format!("{SECRETS}/s"), json!({"type": "x/y"}))
                    .status(422)
                    .facts([Text("field is immutable"), Is("/details/causes/0/field", json!("type"))]),
            ],
        ),
        Probe::new(
            "DATA-BOUNDS",
            [
                post("$M", map(json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}}))).status(422),
                post("$M", map(json!({"binaryData": {"a": "!!"}}))).status(400),
                post("$M", map(json!({"data": {"bad key": "x"}}))).status(422).facts([Text("bad key")]),
                post("$M", map(json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}}))).status(422),
            ],
        ),
    ]
}
