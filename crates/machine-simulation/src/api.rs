//! The API server of the simulation: typed objects by name, resource versions, and a log from which each watch reads at
//! its own pace.
//!
//! It behaves like the real API server where controllers depend on it: preconditions of patches and deletions,
//! finalizers, generations, subresources, and no new version for an unchanged object. It has no admission and no
//! schemas.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use controller_runtime::{
    error::ApiError,
    key::ObjectKey,
    objects::{Part, Patch},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, Secret},
        storage::v1::VolumeAttachment,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use machine_api::v1alpha1::{Machine, MachineClass, MachineDeployment, MachineSet};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// The number of kinds.
pub const KINDS: usize = 8;

/// An object of one of these kinds.
#[derive(Clone, Debug)]
pub enum Object {
    /// A machine.
    Machine(Arc<Machine>),
    /// A set.
    Set(Arc<MachineSet>),
    /// A deployment.
    Deployment(Arc<MachineDeployment>),
    /// A Node of the target cluster.
    Node(Arc<Node>),
    /// A pod of the target cluster.
    Pod(Arc<Pod>),
    /// A bootstrap token in the target cluster, or a Secret to which classes refer.
    Secret(Arc<Secret>),
    /// A class.
    Class(Arc<MachineClass>),
    /// A volume attachment in the target cluster.
    Attachment(Arc<VolumeAttachment>),
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct Event {
    /// The object; its last state if it is gone.
    pub object: Object,
    /// Whether it is gone.
    pub gone: bool,
}

type Table<K> = BTreeMap<String, Arc<K>>;

/// The objects of both clusters.
#[derive(Clone, Debug, Default)]
pub struct Api {
    /// Machines by name.
    pub machines: Table<Machine>,
    /// Sets by name.
    pub sets: Table<MachineSet>,
    /// Deployments by name.
    pub deployments: Table<MachineDeployment>,
    /// Nodes by name.
    pub nodes: Table<Node>,
    /// Pods by name.
    pub pods: Table<Pod>,
    /// Secrets by name: bootstrap tokens in the target cluster, and in the control cluster the Secrets to which classes
    /// refer.
    pub secrets: Table<Secret>,
    /// Volume attachments by name.
    pub attachments: Table<VolumeAttachment>,
    /// Classes by name.
    pub classes: Table<MachineClass>,
    /// All events so far, by kind ([`Kind::PLACE`]).
    pub log: [Vec<Event>; KINDS],
    /// Number of writes that changed something.
    pub changes: u64,
    version: u64,
    /// Statuses as JSON, as the last patch left them, by kind and name. Most patches change a status that an earlier
    /// patch has changed.
    statuses: [BTreeMap<String, Value>; KINDS],
}

/// A kind in the simulation.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Index of the kind's log.
    const PLACE: usize;
    /// The name of the kind.
    const NAME: &'static str;
    /// The objects of this kind.
    fn table(api: &Api) -> &Table<Self>;
    /// The objects of this kind, to change them.
    fn table_mut(api: &mut Api) -> &mut Table<Self>;
    /// The object as an [`Object`].
    fn object(object: Arc<Self>) -> Object;
    /// A top-level field as JSON.
    fn part(&self, field: &str) -> Value;
    /// Replaces a top-level field; returns `false` if the value has the wrong type.
    fn set_part(&mut self, field: &str, value: &Value) -> bool;
    /// Whether both have the same `spec`.
    fn same_spec(&self, other: &Self) -> bool;
    /// Whether both have the same status.
    fn same_status(&self, other: &Self) -> bool;
}

macro_rules! kinds {
    ($($kind:ident, $place:literal, $table:ident, $variant:ident;)+) => {$(
        impl Kind for $kind {
            const PLACE: usize = $place;
            const NAME: &'static str = stringify!($kind);
            fn table(api: &Api) -> &Table<Self> {
                &api.$table
            }
            fn table_mut(api: &mut Api) -> &mut Table<Self> {
                &mut api.$table
            }
            fn object(object: Arc<Self>) -> Object {
                Object::$variant(object)
            }
            fn part(&self, field: &str) -> Value {
                let value = match field {
                    "metadata" => serde_json::to_value(&self.metadata),
                    "spec" => serde_json::to_value(&self.spec),
                    "status" => serde_json::to_value(&self.status),
                    _ => Ok(Value::Null),
                };
                value.unwrap_or_default()
            }
            fn set_part(&mut self, field: &str, value: &Value) -> bool {
                match field {
                    "metadata" => put(&mut self.metadata, value),
                    "spec" => put(&mut self.spec, value),
                    "status" => put(&mut self.status, value),
                    _ => false,
                }
            }
            fn same_spec(&self, other: &Self) -> bool {
                self.spec == other.spec
            }
            fn same_status(&self, other: &Self) -> bool {
                self.status == other.status
            }
        }
    )+};
}

kinds! {
    Machine, 0, machines, Machine;
    MachineSet, 1, sets, Set;
    MachineDeployment, 2, deployments, Deployment;
    Node, 3, nodes, Node;
    Pod, 4, pods, Pod;
    VolumeAttachment, 6, attachments, Attachment;
}

/// Only the metadata of Secrets and classes is patched.
impl Kind for Secret {
    const PLACE: usize = 5;
    const NAME: &'static str = "Secret";

    fn table(api: &Api) -> &Table<Self> {
        &api.secrets
    }

    fn table_mut(api: &mut Api) -> &mut Table<Self> {
        &mut api.secrets
    }

    fn object(object: Arc<Self>) -> Object {
        Object::Secret(object)
    }

    fn part(&self, field: &str) -> Value {
        metadata_alone(&self.metadata, field)
    }

    fn set_part(&mut self, field: &str, value: &Value) -> bool {
        field == "metadata" && put(&mut self.metadata, value)
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.data == other.data
    }

    fn same_status(&self, _: &Self) -> bool {
        true
    }
}

impl Kind for MachineClass {
    const PLACE: usize = 7;
    const NAME: &'static str = "MachineClass";

    fn table(api: &Api) -> &Table<Self> {
        &api.classes
    }

    fn table_mut(api: &mut Api) -> &mut Table<Self> {
        &mut api.classes
    }

    fn object(object: Arc<Self>) -> Object {
        Object::Class(object)
    }

    fn part(&self, field: &str) -> Value {
        metadata_alone(&self.metadata, field)
    }

    fn set_part(&mut self, field: &str, value: &Value) -> bool {
        field == "metadata" && put(&mut self.metadata, value)
    }

    fn same_spec(&self, other: &Self) -> bool {
        let spec = |class: &Self| Self { metadata: ObjectMeta::default(), ..class.clone() };
        spec(self) == spec(other)
    }

    fn same_status(&self, _: &Self) -> bool {
        true
    }
}

/// Stores a value in `place`; returns `false` if the value has the wrong type.
fn put<T: DeserializeOwned>(place: &mut T, value: &Value) -> bool {
    let Ok(new) = T::deserialize(value) else { return false };
    *place = new;
    true
}

fn metadata_alone(meta: &ObjectMeta, field: &str) -> Value {
    if field == "metadata" { serde_json::to_value(meta).unwrap_or_default() } else { Value::Null }
}

fn name_of<K: Kind>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}

impl Api {
    /// Clears the log, for a world that starts here.
    pub fn begin(&mut self) {
        self.log = Default::default();
        self.statuses = Default::default();
    }

    /// Reads an object.
    pub fn get<K: Kind>(&self, name: &str) -> Option<Arc<K>> {
        K::table(self).get(name).cloned()
    }

    /// Stores an object unchanged, with its identity and its metadata.
    pub fn put<K: Kind>(&mut self, object: K) {
        self.store(object);
    }

    /// Creates an object.
    pub fn create<K: Kind>(&mut self, object: &K, now: Timestamp) -> Result<Arc<K>, ApiError> {
        let name = name_of(object);
        if K::table(self).contains_key(&name) {
            return Err(ApiError::AlreadyExists(name));
        }
        let mut object = object.clone();
        let meta = object.meta_mut();
        meta.uid = Some(format!("{name}/{}", self.version + 1));
        meta.generation = Some(1);
        meta.creation_timestamp = Some(stamp(now));
        meta.deletion_timestamp = None;
        Ok(self.store(object))
    }

    /// Patches an object as the API server does.
    pub fn patch<K: Kind>(&mut self, key: &ObjectKey, part: Part, patch: &Patch) -> Result<Arc<K>, ApiError> {
        let name = &key.name;
        let Some(before) = self.get::<K>(name) else { return Err(ApiError::NotFound(name.clone())) };
        let mut status = self.statuses.get_mut(K::PLACE).and_then(|known| known.remove(name));
        let mut after = patched(&*before, part, patch, &mut status)?;
        #[cfg(test)]
        super::both_ways::patched(&*before, part, patch, &after);
        // Other parts can't have changed.
        let (same_spec, same_rest) = match part {
            Part::Main => (after.same_spec(&before), after.meta() == before.meta()),
            Part::Status => (true, after.same_status(&before)),
        };
        let after = if same_spec && same_rest {
            before
        } else {
            if !same_spec {
                after.meta_mut().generation = Some(before.meta().generation.unwrap_or(0) + 1);
            }
            self.store(after)
        };
        if let (Some(status), Some(known)) = (status, self.statuses.get_mut(K::PLACE)) {
            known.insert(name.clone(), status);
        }
        Ok(after)
    }

    /// Changes an object, as another client does; `None` if it does not exist.
    pub fn edit<K: Kind>(&mut self, name: &str, change: impl FnOnce(&mut K)) -> Option<Arc<K>> {
        let before = self.get::<K>(name)?;
        let mut after = (*before).clone();
        change(&mut after);
        if after == *before {
            return Some(before);
        }
        if !after.same_spec(&before) {
            after.meta_mut().generation = Some(before.meta().generation.unwrap_or(0) + 1);
        }
        Some(self.store(after))
    }

    /// Deletes an object, or marks it as deleting while it has finalizers. Only if it has this UID and version.
    pub fn delete<K: Kind>(
        &mut self,
        name: &str,
        uid: Option<&str>,
        version: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<Arc<K>>, ApiError> {
        let Some(before) = self.get::<K>(name) else { return Err(ApiError::NotFound(name.to_owned())) };
        if uid.is_some() && before.meta().uid.as_deref() != uid {
            return Err(ApiError::Conflict("uid".to_owned()));
        }
        if version.is_some() && before.meta().resource_version.as_deref() != version {
            return Err(ApiError::Conflict("the object has been modified".to_owned()));
        }
        if before.meta().deletion_timestamp.is_some() {
            return Ok(Some(before));
        }
        let mut after = (*before).clone();
        after.meta_mut().deletion_timestamp = Some(stamp(now));
        let after = self.store(after);
        Ok(K::table(self).contains_key(name).then_some(after))
    }

    fn store<K: Kind>(&mut self, mut object: K) -> Arc<K> {
        self.version += 1;
        self.changes += 1;
        let meta = object.meta_mut();
        meta.resource_version = Some(self.version.to_string());
        let gone = meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty);
        let name = name_of(&object);
        if let Some(known) = self.statuses.get_mut(K::PLACE) {
            known.remove(&name);
        }
        let object = Arc::new(object);
        if gone {
            K::table_mut(self).remove(&name);
        } else {
            K::table_mut(self).insert(name, Arc::clone(&object));
        }
        if let Some(log) = self.log.get_mut(K::PLACE) {
            log.push(Event { object: K::object(Arc::clone(&object)), gone });
        }
        object
    }
}

/// Merges labels and annotations without a detour through JSON; most patches of metadata contain nothing else. Returns
/// `false` if the change contains anything else.
fn merge_maps(meta: &mut ObjectMeta, change: &Value) -> bool {
    const PRECONDITIONS: [&str; 2] = ["uid", "resourceVersion"];
    let is_simple = |(key, value): (&String, &Value)| match key.as_str() {
        "labels" | "annotations" => {
            value.as_object().is_some_and(|all| all.values().all(|value| value.is_string() || value.is_null()))
        }
        key => PRECONDITIONS.contains(&key),
    };
    let Some(change) = change.as_object().filter(|change| change.iter().all(is_simple)) else { return false };
    for (key, entries) in change {
        let map = match key.as_str() {
            "labels" => meta.labels.get_or_insert_default(),
            "annotations" => meta.annotations.get_or_insert_default(),
            _ => continue,
        };
        for (key, value) in entries.as_object().into_iter().flatten() {
            match value.as_str() {
                Some(value) => map.insert(key.clone(), value.to_owned()),
                None => map.remove(key),
            };
        }
    }
    true
}

/// A time as the API server stores it: in whole seconds.
pub fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The object after the patch. `status` is its status as JSON if known, and is updated.
fn patched<K: Kind>(before: &K, part: Part, patch: &Patch, status: &mut Option<Value>) -> Result<K, ApiError> {
    let fields: &[&str] = match part {
        Part::Main => &["metadata", "spec"],
        Part::Status => &["status"],
    };
    let uid = before.meta().uid.as_deref();
    let mut after = before.clone();
    match patch {
        Patch::Merge(merge) => {
            let bound_to = merge["metadata"]["uid"].as_str();
            if bound_to.is_some() && bound_to != uid {
                return Err(ApiError::Conflict("uid".to_owned()));
            }
            let expected = merge["metadata"]["resourceVersion"].as_str();
            if expected.is_some() && expected != before.meta().resource_version.as_deref() {
                return Err(ApiError::Conflict("the object has been modified".to_owned()));
            }
            for field in fields {
                let Some(change) = merge.get(*field) else { continue };
                if *field == "metadata" && merge_maps(after.meta_mut(), change) {
                    continue;
                }
                let known = if *field == "status" { status.take() } else { None };
                let mut value = known.unwrap_or_else(|| before.part(field));
                json_patch::merge(&mut value, change);
                if !after.set_part(field, &value) {
                    return Err(ApiError::Invalid(format!("{field}: {change}")));
                }
                if *field == "status" {
                    *status = Some(value);
                }
            }
        }
        Patch::Json(operations) => {
            // Handled separately, so that most patches need no metadata as JSON.
            let (bound_to, operations): (Vec<&Value>, Vec<&Value>) =
                operations.iter().partition(|one| one["op"] == "test" && one["path"] == "/metadata/uid");
            if bound_to.iter().any(|test| test["value"].as_str() != uid) {
                return Err(ApiError::Invalid("uid".to_owned()));
            }
            let touched: Vec<&str> = ["metadata", "spec", "status"]
                .into_iter()
                .filter(|field| {
                    operations.iter().any(|one| one["path"].as_str().is_some_and(|path| path[1..].starts_with(field)))
                })
                .collect();
            let document: Map<String, Value> =
                touched.iter().map(|field| ((*field).to_owned(), before.part(field))).collect();
            let mut document = Value::Object(document);
            let operations: Value = operations.into_iter().cloned().collect();
            let parsed: json_patch::Patch =
                serde_json::from_value(operations).map_err(|error| ApiError::Invalid(error.to_string()))?;
            json_patch::patch(&mut document, &parsed).map_err(|error| ApiError::Invalid(error.to_string()))?;
            for field in fields.iter().filter(|field| touched.contains(field)) {
                if !after.set_part(field, &document[*field]) {
                    return Err(ApiError::Invalid((*field).to_owned()));
                }
                if *field == "status" {
                    *status = None;
                }
            }
        }
    }
    after.meta_mut().resource_version.clone_from(&before.meta().resource_version);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_is_patched_again_and_again() {
        let mut api = Api::default();
        let mut set = MachineSet::default();
        set.metadata.name = Some("set".to_owned());
        let made = api.create(&set, Timestamp::UNIX_EPOCH).unwrap();
        let key = ObjectKey::of(&*made);
        let patch = |api: &mut Api, status: Value| {
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch::<MachineSet>(&key, Part::Status, &patch).unwrap().status.clone()
        };
        assert_eq!(patch(&mut api, json!({ "replicas": 3, "readyReplicas": 1 })).replicas, 3);
        let status = patch(&mut api, json!({ "readyReplicas": null, "selector": "a=b" }));
        assert_eq!((status.replicas, status.ready_replicas, status.selector.as_str()), (3, 0, "a=b"));
        // Another client writes in between.
        api.edit::<MachineSet>("set", |set| set.status.replicas = 7);
        let status = patch(&mut api, json!({ "readyReplicas": 2 }));
        assert_eq!((status.replicas, status.ready_replicas), (7, 2));
    }

    #[rstest]
    #[case::a_label(json!({ "labels": { "a": "2", "b": null, "c": "3" }, "resourceVersion": "7" }), true)]
    #[case::an_annotation_where_none_was(json!({ "annotations": { "x": "1" } }), true)]
    #[case::all_labels_go(json!({ "labels": null }), false)]
    #[case::a_finalizer(json!({ "finalizers": ["f"] }), false)]
    fn metadata_is_merged_as_json_would_be(#[case] change: Value, #[case] simple: bool) {
        let mut meta = ObjectMeta { resource_version: Some("7".to_owned()), ..ObjectMeta::default() };
        meta.labels = Some([("a", "1"), ("b", "1")].map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let mut document = serde_json::to_value(&meta).unwrap();
        json_patch::merge(&mut document, &change);
        assert_eq!(merge_maps(&mut meta, &change), simple);
        if simple {
            assert_eq!(meta, serde_json::from_value(document).unwrap());
        }
    }
}
