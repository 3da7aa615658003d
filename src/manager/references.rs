//! Answers the questions of admission about other objects from the stores that the watches keep.
//!
//! No request goes to an API server here. There is no answer while the first list of a store is incomplete, and no answer for a
//! namespace that is not watched. Without an answer, a rule finds no problem.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::Resource;
use kube_values::selector::{self, Labels};
use machine_api::{
    kind::Kind,
    validation::{ClassFact, HolderFact, Node, OwnerKey, References, SecretFact, SelectingFact},
};
use machine_controllers::views::{
    BY_CLASS, BY_CONTROLLER, BY_INSTANCE, BY_NAMESPACE, BY_TEMPLATE_CLASS, ControlViews, qualified,
};
use machine_driver::same_instance::{holder_among, instance_key};
use serde::Serialize;
use serde_json::Value;

/// The stores of one namespace, once they exist.
pub(super) struct CachedReferences {
    namespace: String,
    views: OnceLock<ControlViews>,
}

impl CachedReferences {
    /// References without stores. There are no answers yet for this namespace, and there is never an answer for another namespace.
    pub(super) fn of_namespace(namespace: &str) -> Arc<Self> {
        Arc::new(Self { namespace: namespace.to_owned(), views: OnceLock::new() })
    }

    /// Answers from these stores from now on. A second call changes nothing.
    pub(super) fn use_stores(&self, views: ControlViews) {
        // A process makes its views once.
        let _ = self.views.set(views);
    }

    /// The store, if its first list is complete and it holds the namespace.
    fn store<S: Snapshot>(
        &self,
        namespace: &str,
        of: impl FnOnce(&ControlViews) -> &Arc<Store<S>>,
    ) -> Option<&Store<S>> {
        let store = self.views.get().map(of).filter(|_| namespace == self.namespace)?;
        store.is_synced().then_some(&**store)
    }
}

impl References for CachedReferences {
    fn machine_class(&self, namespace: &str, name: &str) -> Option<ClassFact> {
        let class = self.store(namespace, |views| &views.classes)?.get(&ObjectKey::new(namespace, name));
        Some(match class {
            None => ClassFact::Missing,
            Some(class) if is_terminating(&*class) => ClassFact::Terminating,
            Some(_) => ClassFact::Present,
        })
    }

    fn holder_of_provider_id(&self, namespace: &str, provider_id: &str, except: &str) -> Option<Option<HolderFact>> {
        let machines = self.store(namespace, |views| &views.machines)?;
        let same_instance = instance_key(provider_id).map(|instance| machines.by_index(BY_INSTANCE, &instance));
        let mut others = same_instance.unwrap_or_default();
        others.retain(|machine| !machine.is_deleting() && machine.name() != except);
        let ids = others.iter().map(|machine| (machine.name(), machine.provider_id()));
        Some(holder_among(provider_id, ids))
    }

    fn machines_of_class(&self, namespace: &str, class: &str) -> Option<Vec<String>> {
        let machines = self.store(namespace, |views| &views.machines)?;
        Some(names(&machines.by_index(BY_CLASS, &qualified(namespace, class))))
    }

    fn machines_of(&self, kind: Kind, namespace: &str, name: &str) -> Option<Vec<String>> {
        let machines = self.store(namespace, |views| &views.machines)?;
        let sets = self.store(namespace, |views| &views.sets)?;
        let key = ObjectKey::new(namespace, name);
        let sets: Vec<String> = match kind {
            Kind::MachineSet => vec![sets.get(&key)?.uid().to_owned()],
            Kind::MachineDeployment => {
                let deployment = self.store(namespace, |views| &views.deployments)?.get(&key)?;
                sets.by_index(BY_CONTROLLER, deployment.uid()).iter().map(|set| set.uid().to_owned()).collect()
            }
            Kind::Machine | Kind::MachineClass => return None,
        };
        Some(names(&sets.iter().flat_map(|set| machines.by_index(BY_CONTROLLER, set)).collect::<Vec<_>>()))
    }

    fn selecting(&self, namespace: &str, labels: Node<'_>) -> Option<Vec<SelectingFact>> {
        let labels: Labels = labels.texts().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let selects = |wanted: Option<&LabelSelector>| {
            wanted.is_some_and(|wanted| !selector::is_empty(wanted) && selector::matches(wanted, &labels))
        };
        let deployments = self.store(namespace, |views| &views.deployments)?.by_index(BY_NAMESPACE, namespace);
        let deployments = deployments
            .iter()
            .filter(|deployment| !deployment.is_deleting() && selects(deployment.selector()))
            .map(|deployment| SelectingFact {
                kind: Kind::MachineDeployment,
                name: deployment.name().to_owned(),
                is_controlled: deployment.controller().is_some(),
            });
        let sets = self.store(namespace, |views| &views.sets)?.by_index(BY_NAMESPACE, namespace);
        let sets = sets.iter().filter(|set| !set.is_deleting() && selects(set.selector())).map(|set| SelectingFact {
            kind: Kind::MachineSet,
            name: set.name().to_owned(),
            is_controlled: set.controller().is_some(),
        });
        let mut facts: Vec<_> = deployments.chain(sets).collect();
        facts.sort_by(|a, b| (b.kind, &a.name).cmp(&(a.kind, &b.name)));
        Some(facts)
    }

    fn templates_of_class(&self, namespace: &str, class: &str) -> Option<Vec<(Kind, String)>> {
        let class = qualified(namespace, class);
        let deployments = self.store(namespace, |views| &views.deployments)?.by_index(BY_TEMPLATE_CLASS, &class);
        let sets = self.store(namespace, |views| &views.sets)?.by_index(BY_TEMPLATE_CLASS, &class);
        let alone = sets.into_iter().filter(|set| set.controller().is_none());
        let living = deployments.into_iter().filter(|deployment| !deployment.is_deleting());
        let deployments = names(&living.collect::<Vec<_>>());
        let sets = names(&alone.filter(|set| !set.is_deleting()).collect::<Vec<_>>());
        let deployments = deployments.into_iter().map(|name| (Kind::MachineDeployment, name));
        Some(deployments.chain(sets.into_iter().map(|name| (Kind::MachineSet, name))).collect())
    }

    fn owner(&self, key: &OwnerKey) -> Option<Value> {
        let object = ObjectKey::new(&key.namespace, &key.name);
        match key.kind {
            Kind::MachineSet => as_json(&self.store(&key.namespace, |views| &views.sets)?.get(&object)?),
            Kind::MachineDeployment => as_json(&self.store(&key.namespace, |views| &views.deployments)?.get(&object)?),
            Kind::Machine | Kind::MachineClass => None,
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<SecretFact> {
        let secret = self.store(namespace, |views| &views.secrets)?.get(&ObjectKey::new(namespace, name));
        Some(secret.map_or(SecretFact::Missing, |secret| SecretFact::Holding(keys_with_values(&secret))))
    }
}

fn as_json(object: &impl Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}

fn is_terminating<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// The names in order, each once.
fn names(objects: &[impl Snapshot]) -> Vec<String> {
    let names: BTreeSet<String> = objects.iter().map(|object| object.name().to_owned()).collect();
    names.into_iter().collect()
}

fn keys_with_values(secret: &Secret) -> BTreeSet<String> {
    let is_blank = |value: &[u8]| value.iter().all(u8::is_ascii_whitespace);
    let data = secret.data.iter().flatten();
    data.filter(|(_, value)| !is_blank(&value.0)).map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kube_values::json::Json;
    use machine_api::validation::Holder;

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    /// A deployment `d1` with its set, two machines of class `c1` (one is terminating) and a Secret. The first lists are not complete.
    fn views() -> ControlViews {
        let views = ControlViews::default();
        views.machines.list_begins();
        views.sets.list_begins();
        views.deployments.list_begins();
        views.classes.list_begins();
        views.secrets.list_begins();
        let owned = |kind: &str, name: &str| json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name, "uid": name, "controller": true}]);
        let meta = |name: &str| json!({"name": name, "uid": name, "namespace": "ns", "resourceVersion": "5"});
        let selector = json!({"matchLabels": {"a": "b"}});
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}}});
        views
            .deployments
            .apply(object(json!({"metadata": meta("d1"), "spec": {"selector": selector, "template": template}})));
        let mut set = json!({"metadata": meta("s1"), "spec": {"selector": selector, "template": template}});
        set["metadata"]["ownerReferences"] = owned("MachineDeployment", "d1");
        views.sets.apply(object(set));
        for (name, deleted_at) in [("m1", Value::Null), ("m2", json!("2026-01-01T00:00:00Z"))] {
            let mut machine =
                json!({"metadata": meta(name), "spec": {"class": {"name": "c1"}, "providerID": format!("id-{name}")}});
            machine["metadata"]["ownerReferences"] = owned("MachineSet", "s1");
            machine["metadata"]["deletionTimestamp"] = deleted_at;
            views.machines.apply(object(machine));
        }
        views.classes.apply(object(json!({"metadata": meta("c1"), "provider": "virtual", "providerSpec": {}})));
        views.secrets.apply(object(json!({"metadata": meta("s"), "data": {"userData": "eA==", "blank": "ICA="}})));
        views
    }

    fn complete(views: &ControlViews) {
        views.machines.list_ends();
        views.sets.list_ends();
        views.deployments.list_ends();
        views.classes.list_ends();
        views.secrets.list_ends();
    }

    #[test]
    fn complete_stores_answer() {
        let views = views();
        complete(&views);
        let references = CachedReferences::of_namespace("ns");
        references.use_stores(views);
        assert_eq!(references.machine_class("ns", "c1"), Some(ClassFact::Present));
        assert_eq!(references.machine_class("ns", "c2"), Some(ClassFact::Missing));
        let holder = Holder { name: "m1".to_owned(), provider_id: "id-m1".to_owned() };
        for spelling in ["id-m1", "ID-M1"] {
            let held = HolderFact::Holds(holder.clone());
            assert_eq!(references.holder_of_provider_id("ns", spelling, "m9"), Some(Some(held)));
        }
        let may_hold = Some(Some(HolderFact::MayHold(holder)));
        assert_eq!(references.holder_of_provider_id("ns", "x:///id-m1", "m9"), may_hold);
        assert_eq!(references.holder_of_provider_id("ns", "id-m1", "m1"), Some(None), "its own");
        assert_eq!(references.holder_of_provider_id("ns", "id-m2", "m9"), Some(None), "v44: the holder is terminating");
        assert_eq!(references.machines_of_class("ns", "c1"), Some(vec!["m1".to_owned(), "m2".to_owned()]));
        for (kind, name) in [(Kind::MachineDeployment, "d1"), (Kind::MachineSet, "s1")] {
            assert_eq!(references.machines_of(kind, "ns", name).map(|machines| machines.len()), Some(2));
        }
        assert_eq!(references.templates_of_class("ns", "c1"), Some(vec![(Kind::MachineDeployment, "d1".to_owned())]));
        let labels = json!({"a": "b", "c": "d"});
        let facts = references.selecting("ns", Node::of(&Json::from(&labels))).unwrap();
        let facts: Vec<_> = facts.iter().map(|fact| (fact.kind, fact.name.as_str(), fact.is_controlled)).collect();
        assert_eq!(facts, [(Kind::MachineDeployment, "d1", false), (Kind::MachineSet, "s1", true)]);
        for (kind, name) in [(Kind::MachineSet, "s1"), (Kind::MachineDeployment, "d1")] {
            let key = |namespace: &str, name: &str| OwnerKey {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            };
            let owner = references.owner(&key("ns", name)).unwrap();
            assert!(key("ns", name).names(&Json::from(&owner)), "{owner}");
            assert_eq!((references.owner(&key("ns", "none")), references.owner(&key("elsewhere", name))), (None, None));
        }
        let held = SecretFact::Holding(["userData".to_owned()].into());
        assert_eq!(references.secret("ns", "s"), Some(held));
        assert_eq!(references.secret("ns", "t"), Some(SecretFact::Missing));
    }

    #[test]
    fn v09_incomplete_stores_and_other_namespaces_give_no_answer() {
        let references = CachedReferences::of_namespace("ns");
        assert_eq!(references.machine_class("ns", "c1"), None, "no stores");
        let views = views();
        references.use_stores(views.clone());
        assert_eq!(references.machine_class("ns", "c1"), None, "the first list is not complete");
        assert_eq!(references.secret("ns", "s"), None);
        complete(&views);
        assert_eq!(references.machine_class("elsewhere", "c1"), None);
        assert_eq!(references.machines_of(Kind::MachineSet, "ns", "unknown"), None);
    }
}
