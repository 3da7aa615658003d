//! Virtual capacity: extended resources of the class that are mirrored into the Node's status.
//!
//! Source: spec/machine-controller §8. Only `status.capacity` is written; the kubelet derives the rest.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use kube::ResourceExt;
use machine_api::names::annotation;
use serde_json::{Map, Value, json};

/// Resources by name.
pub type Capacity = BTreeMap<String, Quantity>;

/// The patches that bring the Node's capacity to what is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityChange {
    /// Merge patch of the Node's status.
    pub status: Option<Value>,
    /// Merge patch of the Node: the memory.
    pub memory: Option<Value>,
}

/// What is to change on the Node for this capacity. An unreadable memory counts as empty.
pub fn change(wanted: &Capacity, node: &Node) -> CapacityChange {
    let text = node.annotations().get(annotation::LAST_APPLIED_VIRTUAL_CAPACITY);
    let before: Capacity = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let none = Capacity::new();
    let has = node.status.as_ref().and_then(|status| status.capacity.as_ref()).unwrap_or(&none);
    let removed = before
        .keys()
        .filter(|name| !wanted.contains_key(*name) && has.contains_key(*name))
        .map(|name| (name.clone(), Value::Null));
    let set = wanted
        .iter()
        .filter(|(name, quantity)| has.get(*name) != Some(*quantity))
        .map(|(name, quantity)| (name.clone(), json!(quantity)));
    let capacity: Map<String, Value> = removed.chain(set).collect();
    let memory = match (wanted.is_empty(), text.is_some(), before == *wanted) {
        (true, true, _) => Some(Value::Null),
        (true, false, _) | (false, true, true) => None,
        (false, ..) => serde_json::to_string(wanted).ok().map(Value::from),
    };
    CapacityChange {
        status: (!capacity.is_empty()).then(|| json!({ "status": { "capacity": capacity } })),
        memory: memory
            .map(|text| json!({ "metadata": { "annotations": { annotation::LAST_APPLIED_VIRTUAL_CAPACITY: text } } })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    fn node(capacity: &[(&str, &str)], memory: Option<&str>) -> Node {
        let mut node = Node::default();
        node.status.get_or_insert_default().capacity =
            Some(capacity.iter().map(|(name, text)| ((*name).to_owned(), quantity(text))).collect());
        if let Some(memory) = memory {
            node.annotations_mut().insert(annotation::LAST_APPLIED_VIRTUAL_CAPACITY.to_owned(), memory.to_owned());
        }
        node
    }

    #[test]
    fn mc_233_a_wanted_resource_is_set_and_remembered() {
        let wanted = Capacity::from([("x.io/y".to_owned(), quantity("4"))]);
        let change = change(&wanted, &node(&[("cpu", "1")], None));
        assert_eq!(change.status, Some(json!({ "status": { "capacity": { "x.io/y": "4" } } })));
        assert_eq!(
            change.memory.unwrap()["metadata"]["annotations"][annotation::LAST_APPLIED_VIRTUAL_CAPACITY],
            json!("{\"x.io/y\":\"4\"}")
        );
    }

    #[test]
    fn mc_234_mc_235_a_resource_that_is_not_wanted_any_more_is_removed_with_its_memory() {
        let change = change(&Capacity::new(), &node(&[("x.io/y", "4")], Some("{\"x.io/y\":\"4\"}")));
        assert_eq!(change.status, Some(json!({ "status": { "capacity": { "x.io/y": null } } })));
        assert!(change.memory.unwrap()["metadata"]["annotations"][annotation::LAST_APPLIED_VIRTUAL_CAPACITY].is_null());
    }

    #[test]
    fn a_node_that_has_it_all_is_left_alone() {
        let wanted = Capacity::from([("x.io/y".to_owned(), quantity("4"))]);
        assert_eq!(change(&wanted, &node(&[("x.io/y", "4")], Some("{\"x.io/y\":\"4\"}"))), CapacityChange::default());
    }
}
