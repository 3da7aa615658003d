//! The objects of an input, as the source of facts about other objects for the rules.
//!
//! An absent class or Secret counts as missing only if the input has objects of that kind at all. A manifest with a single deployment
//! does not show which classes exist.

use std::collections::{BTreeMap, BTreeSet};

use kube_values::json::Json;
use machine_api::{
    kind::{ApiVersion, Kind},
    names,
    validation::{ClassFact, HolderFact, Node, OwnerKey, References, SecretFact, SelectingFact, selects},
};
use machine_driver::same_instance;
use serde_json::Value;

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    group: String,
    kind: String,
    /// Its namespace, or the default namespace if it has none.
    pub namespace: String,
    /// Its name; empty if the name will be generated.
    pub name: String,
}

impl Identity {
    /// The identity of an object.
    pub fn of(object: &Value, default_namespace: &str) -> Self {
        let object = Json::from(object);
        let node = Node::of(&object);
        let text = |place: &[&str]| node.at(place).text().unwrap_or_default().to_owned();
        let group = text(&["apiVersion"]).split_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default();
        let own = text(&["metadata", "namespace"]);
        let namespace = if own.is_empty() { default_namespace.to_owned() } else { own };
        Self { group, kind: text(&["kind"]), namespace, name: text(&["metadata", "name"]) }
    }
}

/// The facts about a machine that other objects need.
struct MachineFact {
    namespace: String,
    name: String,
    class: String,
    provider_id: String,
    is_terminating: bool,
}

/// The facts about a set or deployment that other objects need.
struct OwnerFact {
    kind: Kind,
    namespace: String,
    name: String,
    selector: Value,
    is_controlled: bool,
    is_terminating: bool,
    object: Value,
}

/// The facts about all objects of the input.
#[derive(Default)]
pub struct Inventory {
    classes: BTreeMap<(String, String), ClassFact>,
    secrets: BTreeMap<(String, String), SecretFact>,
    machines: Vec<MachineFact>,
    owners: Vec<OwnerFact>,
}

impl Inventory {
    /// The inventory of these objects.
    pub fn of<'a>(objects: impl Iterator<Item = &'a Value>, default_namespace: &str) -> Self {
        let mut inventory = Self::default();
        for object in objects {
            let identity = Identity::of(object, default_namespace);
            let read = Json::from(object);
            let node = Node::of(&read);
            let is_terminating = node.at(&["metadata", "deletionTimestamp"]).is_present();
            let key = (identity.namespace.clone(), identity.name.clone());
            match (identity.group.as_str(), identity.kind.as_str()) {
                (names::GROUP, kind) if kind == Kind::MachineClass.as_str() => {
                    let fact = if is_terminating { ClassFact::Terminating } else { ClassFact::Present };
                    inventory.classes.insert(key, fact);
                }
                (names::GROUP, kind) if kind == Kind::Machine.as_str() => {
                    let beta =
                        node.get("apiVersion").text().is_some_and(|it| it.ends_with(ApiVersion::V1beta1.as_str()));
                    let text = |place: &[&str]| node.at(place).text().unwrap_or_default().to_owned();
                    inventory.machines.push(MachineFact {
                        namespace: identity.namespace,
                        name: identity.name,
                        class: text(&["spec", if beta { "classRef" } else { "class" }, "name"]),
                        provider_id: text(&["spec", "providerID"]),
                        is_terminating,
                    });
                }
                (names::GROUP, kind) => {
                    let Some(kind) = Kind::from_name(kind) else { continue };
                    let owners = node.at(&["metadata", "ownerReferences"]).elements();
                    inventory.owners.push(OwnerFact {
                        kind,
                        namespace: identity.namespace,
                        name: identity.name,
                        selector: node.at(&["spec", "selector"]).value_or_null(),
                        is_controlled: owners.iter().any(|owner| Node::of(owner).get("controller").is_true()),
                        is_terminating,
                        object: object.clone(),
                    });
                }
                ("", "Secret") => {
                    let values = ["data", "stringData"].iter().flat_map(|field| node.get(field).texts());
                    let keys = values.filter(|(_, value)| !value.trim().is_empty()).map(|(key, _)| key.to_owned());
                    inventory.secrets.insert(key, SecretFact::Holding(keys.collect()));
                }
                _ => {}
            }
        }
        inventory
    }
}

impl References for Inventory {
    fn machine_class(&self, namespace: &str, name: &str) -> Option<ClassFact> {
        let fact = self.classes.get(&(namespace.to_owned(), name.to_owned())).copied();
        fact.or_else(|| (!self.classes.is_empty()).then_some(ClassFact::Missing))
    }

    fn holder_of_provider_id(&self, namespace: &str, provider_id: &str, except: &str) -> Option<Option<HolderFact>> {
        let others = self
            .machines
            .iter()
            .filter(|machine| machine.namespace == namespace && machine.name != except && !machine.is_terminating);
        let ids = others.map(|machine| (machine.name.as_str(), machine.provider_id.as_str()));
        Some(same_instance::holder_among(provider_id, ids))
    }

    fn machines_of_class(&self, namespace: &str, class: &str) -> Option<Vec<String>> {
        let users = self.machines.iter().filter(|machine| machine.namespace == namespace && machine.class == class);
        let names: BTreeSet<_> = users.map(|machine| machine.name.clone()).collect();
        Some(names.into_iter().collect())
    }

    fn selecting(&self, namespace: &str, labels: Node<'_>) -> Option<Vec<SelectingFact>> {
        let selecting = self.owners.iter().filter(|owner| {
            owner.namespace == namespace
                && !owner.is_terminating
                && selects(Node::of(&Json::from(&owner.selector)), labels)
        });
        let mut facts: Vec<_> = selecting
            .map(|owner| SelectingFact {
                kind: owner.kind,
                name: owner.name.clone(),
                is_controlled: owner.is_controlled,
            })
            .collect();
        facts.sort_by(|a, b| (b.kind, &a.name).cmp(&(a.kind, &b.name)));
        Some(facts)
    }

    fn owner(&self, key: &OwnerKey) -> Option<Value> {
        let is_it = |owner: &&OwnerFact| {
            (owner.kind, &owner.namespace, &owner.name) == (key.kind, &key.namespace, &key.name)
                && owner.object["apiVersion"] == names::API_VERSION_V1ALPHA1
        };
        let mut object = self.owners.iter().find(is_it)?.object.clone();
        object["metadata"]["namespace"] = Value::from(key.namespace.as_str());
        Some(object)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<SecretFact> {
        let fact = self.secrets.get(&(namespace.to_owned(), name.to_owned())).cloned();
        fact.or_else(|| (!self.secrets.is_empty()).then_some(SecretFact::Missing))
    }
}
