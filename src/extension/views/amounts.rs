//! Sums of resources over many nodes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource;
use kube_values::quantity::Quantity;
use machine_controllers::snapshots::NodeSnapshot;

/// Amounts of resources. Equal amounts are counted and multiplied at the end, because the nodes of a class have equal amounts.
#[derive(Default)]
pub struct Amounts(BTreeMap<String, BTreeMap<String, u64>>);

impl Amounts {
    /// Adds these amounts, `times` times.
    pub fn add(&mut self, amounts: &BTreeMap<String, resource::Quantity>, times: u64) {
        for (name, amount) in amounts {
            let known = match self.0.get_mut(name) {
                Some(known) => known,
                None => self.0.entry(name.clone()).or_default(),
            };
            match known.get_mut(&amount.0) {
                Some(number) => *number += times,
                None => drop(known.insert(amount.0.clone(), times)),
            }
        }
    }

    /// The sums. Unreadable amounts are left out.
    pub fn sum(&self) -> BTreeMap<String, resource::Quantity> {
        let sum_of = |amounts: &BTreeMap<String, u64>| {
            amounts
                .iter()
                .filter_map(|(text, times)| Some(text.parse::<Quantity>().ok()?.times(*times)))
                .fold(Quantity::zero(), |sum, amount| sum.plus(&amount))
        };
        self.0.iter().map(|(name, amounts)| (name.clone(), (&sum_of(amounts)).into())).collect()
    }
}

/// Amounts of Nodes.
#[derive(Default)]
pub struct NodeAmounts {
    /// The capacity.
    pub capacity: Amounts,
    /// The allocatable amounts.
    pub allocatable: Amounts,
}

impl NodeAmounts {
    /// Adds a Node.
    pub fn add(&mut self, node: &NodeSnapshot) {
        if let Some(capacity) = node.capacity() {
            self.capacity.add(capacity, 1);
        }
        if let Some(allocatable) = node.allocatable() {
            self.allocatable.add(allocatable, 1);
        }
    }
}
