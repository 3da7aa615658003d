//! Virtual capacity: extended resources of the class that are mirrored into the Node's status.
//!
//! Source: spec/machine-controller §8. Only `status.capacity` is written; the kubelet derives the rest.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use machine_api::names::annotation;

use crate::{changes::Changes, snapshots::NodeSnapshot};

/// Resources by name.
pub type Capacity = BTreeMap<String, Quantity>;

/// The changes that give the Node the wanted capacity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityChange {
    /// Resources to set and, with `None`, resources to remove.
    pub resources: BTreeMap<String, Option<Quantity>>,
    /// The annotation that stores the resources which were set.
    pub memory: Changes,
}

/// The changes on the Node for this capacity. An unreadable annotation counts as empty.
pub fn change(wanted: &Capacity, node: &NodeSnapshot) -> CapacityChange {
    let text = node.annotation(annotation::LAST_APPLIED_VIRTUAL_CAPACITY);
    let before: Capacity = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let none = Capacity::new();
    let has = node.capacity().unwrap_or(&none);
    let removed = before
        .keys()
        .filter(|name| !wanted.contains_key(*name) && has.contains_key(*name))
        .map(|name| (name.clone(), None));
    let set = wanted
        .iter()
        .filter(|(name, quantity)| has.get(*name) != Some(*quantity))
        .map(|(name, quantity)| (name.clone(), Some(quantity.clone())));
    let memory = match (wanted.is_empty(), text.is_some(), before == *wanted) {
        (true, true, _) => Some(None),
        (true, false, _) | (false, true, true) => None,
        (false, ..) => serde_json::to_string(wanted).ok().map(Some),
    };
    CapacityChange {
        resources: removed.chain(set).collect(),
        memory: memory.map(|text| (annotation::LAST_APPLIED_VIRTUAL_CAPACITY.to_owned(), text)).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::ResourceExt;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    fn node(capacity: &[(&str, &str)], memory: Option<&str>) -> NodeSnapshot {
        let mut node = Node::default();
        node.status.get_or_insert_default().capacity =
            Some(capacity.iter().map(|(name, text)| ((*name).to_owned(), quantity(text))).collect());
        if let Some(memory) = memory {
            node.annotations_mut().insert(annotation::LAST_APPLIED_VIRTUAL_CAPACITY.to_owned(), memory.to_owned());
        }
        node.into()
    }

    #[test]
    fn mc_233_a_wanted_resource_is_set_and_remembered() {
        let wanted = Capacity::from([("x.io/y".to_owned(), quantity("4"))]);
        let change = change(&wanted, &node(&[("cpu", "1")], None));
        assert_eq!(change.resources, BTreeMap::from([("x.io/y".to_owned(), Some(quantity("4")))]));
        assert_eq!(change.memory[annotation::LAST_APPLIED_VIRTUAL_CAPACITY].as_deref(), Some("{\"x.io/y\":\"4\"}"));
    }

    #[test]
    fn mc_234_mc_235_a_resource_that_is_not_wanted_any_more_is_removed_with_its_memory() {
        let change = change(&Capacity::new(), &node(&[("x.io/y", "4")], Some("{\"x.io/y\":\"4\"}")));
        assert_eq!(change.resources, BTreeMap::from([("x.io/y".to_owned(), None)]));
        assert_eq!(change.memory[annotation::LAST_APPLIED_VIRTUAL_CAPACITY], None);
    }

    #[test]
    fn a_node_that_has_it_all_is_left_alone() {
        let wanted = Capacity::from([("x.io/y".to_owned(), quantity("4"))]);
        assert_eq!(change(&wanted, &node(&[("x.io/y", "4")], Some("{\"x.io/y\":\"4\"}"))), CapacityChange::default());
    }
}
