//! Reviews of objects at the limits of a schema or an API server, and beyond them. The test of their cost (`tests/cost.rs`) and the benchmark of
//! their time (`benches/webhooks limits`) use them.

use machine_api::admission::Endpoint;

use serde_json::{Map, Value, json};

/// The kind of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewKind {
    /// Admission, at this endpoint.
    Admission(Endpoint),
    /// Conversion.
    Conversion,
}

/// One review.
pub struct Sample {
    /// The part that the object contains in large numbers.
    pub name: &'static str,
    /// The kind of the review.
    pub review_kind: ReviewKind,
    /// The body of the review.
    pub body: Vec<u8>,
}

/// The highest length of a residue, in bytes.
const RESIDUE: usize = 32 << 10;

/// All reviews. Every count and length is this fraction of the limit, so that two fractions show how the cost grows.
pub fn samples(numerator: usize, denominator: usize) -> Vec<Sample> {
    let of = |limit: usize| limit * numerator / denominator;
    let mut all = Vec::new();
    let objects = [
        ("commas", machine(json!({"nodeConditions": ",".repeat(of(16 << 10))}))),
        (
            "conditions",
            machine(json!({"nodeConditions": words(of(16 << 10), |n| format!("Condition{}", n % of(700)))})),
        ),
        ("commas far beyond the bound", machine(json!({"nodeConditions": ",".repeat(of(1 << 20))}))),
        (
            "long texts",
            machine(json!({"providerID": "x".repeat(of(64 << 10)), "drainTimeout": "y".repeat(of(64 << 10))})),
        ),
        ("good labels", machine(labelled(of(60_000), |n| (format!("label-{n}"), json!("value"))))),
        ("bad labels", machine(labelled(of(60_000), |n| (format!("!{n}"), json!("v a l u e"))))),
        (
            "long keys",
            machine(labelled(of(200), |n| (format!("{n}{}", "!".repeat(of(5_000))), json!("x".repeat(of(5_000)))))),
        ),
        ("labels of wrong types", machine(labelled(of(60_000), |n| (format!("l{n}"), json!(n))))),
        ("equal taints", machine(taints(of(4_096), |_| json!({"key": "k", "effect": "NoSchedule"})))),
        ("taints", machine(taints(of(30_000), |n| json!({"key": format!("k{n}"), "effect": "NoSchedule"})))),
        ("bad taints", machine(taints(of(4_096), |n| json!({"key": format!("!{n}"), "value": "a b", "effect": "x"})))),
        (
            "skips",
            with_metadata(json!({"annotations": {"admission.machine.sapcloud.io/skip": "a,".repeat(of(100 << 10))}})),
        ),
        ("wrong finalizers", with_metadata(json!({"finalizers": vec![7; of(100_000)]}))),
        (
            "annotations",
            with_metadata(json!({"annotations": members(of(2_000), |n| (format!("a{n}"), json!("x".repeat(100))))})),
        ),
        (
            "residue of v1beta1",
            with_metadata(
                json!({"annotations": {"conversion.machine.sapcloud.io/v1beta1": "x".repeat(of(200 << 10))}}),
            ),
        ),
        (
            "expressions",
            set(
                &json!({"matchExpressions": list(of(4_096), |n| json!({"key": format!("k{n}"), "operator": "In", "values": ["a", "!"]}))}),
            ),
        ),
        (
            "values of an expression",
            set(
                &json!({"matchExpressions": [{"key": "k", "operator": "In", "values": list(of(4_096), |n| json!(format!("v{n}")))}]}),
            ),
        ),
        ("the scaler's list", scaled(of(40_000))),
        (
            "capacity",
            class(json!({"nodeTemplate": {"capacity": members(of(20_000), |n| (format!("r{n}"), json!("x")))}})),
        ),
        ("a deep configuration", class(json!({"providerSpec": deep(of(100), of(1_000))}))),
    ];
    for (name, object) in objects {
        all.push(admission(name, Endpoint::Validate, "v1alpha1", None, &object));
        all.push(admission(name, Endpoint::Validate, "v1alpha1", Some(&object), &changed(&object)));
        all.push(admission(name, Endpoint::Mutate, "v1alpha1", None, &object));
        all.push(conversion(name, "v1beta1", &object));
    }
    for (name, residue) in residues(of(RESIDUE - 200)) {
        let labels = members(of(60_000), |n| (format!("label-{n}"), json!("value")));
        let spec = |class: &str| json!({class: {"kind": "MachineClass", "name": "c"}, "nodeTemplate": {"metadata": {"labels": labels}}});
        let alpha = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "spec": spec("class"),
            "metadata": {"name": "m", "annotations": {"conversion.machine.sapcloud.io/v1beta1": residue}}});
        let beta = json!({"apiVersion": "machine.sapcloud.io/v1beta1", "kind": "Machine", "spec": spec("classRef"),
            "metadata": {"name": "m", "annotations": {"conversion.machine.sapcloud.io/v1alpha1": residue}}});
        all.push(conversion(name, "v1beta1", &alpha));
        all.push(conversion(name, "v1alpha1", &beta));
        all.push(admission(name, Endpoint::Validate, "v1beta1", None, &beta));
    }
    let conditions = list(of(10_000), |n| json!({"type": format!("T{n}"), "status": "True"}));
    for kind in ["machineSetCondition", "conditions"] {
        let mut set = set(&json!({"matchLabels": {"a": "b"}}));
        set["status"] = json!({kind: conditions});
        all.push(conversion("conditions of a status", "v1beta1", &set));
    }
    all
}

/// Residues of this number of bytes: edits of visible fields, edits of hidden fields, and edits of one long list.
fn residues(bytes: usize) -> Vec<(&'static str, String)> {
    let of = |edit: &dyn Fn(usize) -> Value| {
        let mut edits = Vec::new();
        let mut left = bytes;
        for number in 0.. {
            let edit = edit(number);
            let Some(rest) = left.checked_sub(edit.to_string().len() + 1) else { break };
            left = rest;
            edits.push(edit);
        }
        json!({"name": "m", "edits": edits}).to_string()
    };
    vec![
        ("a residue that shows", of(&|n| json!({"at": ["spec", format!("x{n}")], "put": n}))),
        ("a residue in classRef", of(&|n| json!({"at": ["spec", "classRef", format!("x{n}")], "put": 1}))),
        (
            "a residue that is hidden",
            of(&|n| json!({"at": ["spec", "nodeTemplate", "spec", format!("x{n}")], "put": n})),
        ),
        (
            "a residue of labels",
            of(
                &|n| json!({"at": ["spec", "nodeTemplate", "metadata", "labels", format!("label-{n}")], "put": "y", "was": "value"}),
            ),
        ),
    ]
}

fn changed(object: &Value) -> Value {
    let mut changed = object.clone();
    changed["metadata"]["labels"] = json!({"x": "y"});
    changed
}

fn admission(name: &'static str, endpoint: Endpoint, version: &str, old: Option<&Value>, new: &Value) -> Sample {
    let request = json!({
        "uid": "u", "kind": {"group": "machine.sapcloud.io", "version": version, "kind": new["kind"]},
        "name": "m", "namespace": "n", "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
        "userInfo": {"username": "alice"}, "object": new, "oldObject": old,
    });
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    Sample { name, review_kind: ReviewKind::Admission(endpoint), body: review.to_string().into_bytes() }
}

fn conversion(name: &'static str, version: &str, object: &Value) -> Sample {
    let request =
        json!({"uid": "u", "desiredAPIVersion": format!("machine.sapcloud.io/{version}"), "objects": [object]});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request});
    Sample { name, review_kind: ReviewKind::Conversion, body: review.to_string().into_bytes() }
}

fn object(kind: &str, fields: Value) -> Value {
    let mut object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "metadata": {"name": "m", "namespace": "n"}});
    merge(&mut object, fields);
    object
}

fn merge(object: &mut Value, fields: Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (name, value) in fields {
                merge(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, fields) => *object = fields,
    }
}

fn machine(fields: Value) -> Value {
    let mut machine = object("Machine", json!({"spec": {"class": {"kind": "MachineClass", "name": "c"}}}));
    merge(&mut machine["spec"], fields);
    machine
}

fn with_metadata(metadata: Value) -> Value {
    let mut machine = machine(json!({}));
    merge(&mut machine["metadata"], metadata);
    machine
}

fn set(selector: &Value) -> Value {
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"kind": "MachineClass", "name": "c"}}});
    object("MachineSet", json!({"spec": {"replicas": 1, "selector": selector, "template": template}}))
}

fn scaled(entries: usize) -> Value {
    let mut deployment = set(&json!({"matchLabels": {"a": "b"}}));
    deployment["kind"] = json!("MachineDeployment");
    let list = words(entries * 6, |n| format!("m{n}"));
    deployment["metadata"]["annotations"] = json!({"node.machine.sapcloud.io/trigger-deletion-by-mcm": list});
    deployment
}

fn class(fields: Value) -> Value {
    object("MachineClass", merged(json!({"provider": "virtual", "providerSpec": {}}), fields))
}

fn merged(mut object: Value, fields: Value) -> Value {
    merge(&mut object, fields);
    object
}

fn labelled(number: usize, make: impl Fn(usize) -> (String, Value)) -> Value {
    json!({"nodeTemplate": {"metadata": {"labels": members(number, make)}}})
}

fn taints(number: usize, make: impl Fn(usize) -> Value) -> Value {
    json!({"nodeTemplate": {"spec": {"taints": list(number, make)}}})
}

fn members(number: usize, make: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..number).map(make).collect::<Map<_, _>>())
}

fn list(number: usize, make: impl Fn(usize) -> Value) -> Value {
    Value::Array((0..number).map(make).collect())
}

/// Words separated by commas, with at most this number of bytes.
fn words(bytes: usize, word: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0.. {
        let next = word(number);
        if text.len() + next.len() + 1 > bytes {
            break;
        }
        text.push_str(&next);
        text.push(',');
    }
    text.pop();
    text
}

fn deep(levels: usize, width: usize) -> Value {
    let leaf = members(width, |n| (format!("k{n}"), json!(n)));
    (0..levels.min(100)).fold(leaf, |inner, n| json!({"below": inner, "beside": n}))
}
