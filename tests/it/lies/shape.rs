//! The shape of an object: its content without names, numbers and times. Two runs with the same result leave objects of the same shapes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Shapes, world::World};
use crate::{
    fleet::phase,
    support::{cluster_object::text, one_thread::list},
};

/// Our kinds, and the kinds that the machine controller writes.
const KINDS: [(&str, &str); 6] = [
    ("machines", "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines"),
    ("machinesets", "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinesets"),
    ("machinedeployments", "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments"),
    ("machineclasses", "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machineclasses"),
    ("nodes", "/api/v1/nodes"),
    ("secrets", "/api/v1/namespaces/default/secrets"),
];

/// The shapes of all objects, by kind.
pub async fn of_all(world: &World) -> Shapes {
    let mut all = BTreeMap::new();
    for (kind, path) in KINDS {
        let mut shapes: Vec<String> = list(&world.stage.client, path).await.iter().map(shape).collect();
        shapes.sort();
        all.insert(kind, shapes);
    }
    all
}

fn shape(object: &Value) -> String {
    let keys = |pointer: &str| -> Vec<String> {
        object.pointer(pointer).and_then(Value::as_object).map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    let items = |pointer: &str, name: &dyn Fn(&Value) -> String| -> Vec<String> {
        let mut items: Vec<String> =
            object.pointer(pointer).and_then(Value::as_array).into_iter().flatten().map(name).collect();
        items.sort();
        items
    };
    let condition = |condition: &Value| format!("{}={}", text(condition, "/type"), text(condition, "/status"));
    format!(
        "labels {:?} annotations {:?} finalizers {:?} taints {:?} unschedulable {} phase {:?} conditions {:?} {:?}",
        keys("/metadata/labels"),
        keys("/metadata/annotations"),
        items("/metadata/finalizers", &Value::to_string),
        items("/spec/taints", &|taint| text(taint, "/key").to_owned()),
        object["spec"]["unschedulable"],
        phase(object),
        items("/status/conditions", &condition),
        items("/status/machineConditions", &condition),
    )
}
