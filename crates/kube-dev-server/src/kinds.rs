//! The served kinds: the built-in kinds, and the kinds of established custom resource definitions.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};

use super::{
    builtin,
    jsonpath::JsonPath,
    object::NameRule,
    schema::{Schema, compile::Compiler},
    store::Collection,
    table::Column,
};
use kube_protocol::{
    request::Verb,
    resource::{GroupVersionKind, Resource, ResourceScope, Subresource},
};

/// The `clientConfig` of a webhook in a configuration or definition.
pub(super) type ClientConfig = Value;

/// The conversion between the versions of a custom kind.
#[derive(Clone, Debug)]
pub(super) enum Conversion {
    /// The versions differ only in `apiVersion`.
    None,
    /// A webhook converts the objects.
    Webhook(ClientConfig),
}

/// The paths of the `scale` subresource.
#[derive(Clone, Debug)]
pub(super) struct ScalePaths {
    pub(super) spec_replicas: Vec<String>,
    pub(super) status_replicas: Vec<String>,
    pub(super) selector: Option<Vec<String>>,
}

/// The properties of a custom kind.
#[derive(Clone, Debug)]
pub(super) struct Custom {
    pub(super) storage_version: String,
    pub(super) conversion: Conversion,
    pub(super) selectable: Vec<String>,
    pub(super) deprecation: Option<String>,
    /// The schema in the definition, for documents.
    pub(super) raw_schema: Value,
    /// The version of the definition of this kind.
    pub(super) definition: DefinitionVersion,
}

/// A version of a definition: its `metadata.uid` and its `metadata.generation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DefinitionVersion {
    pub(super) uid: String,
    pub(super) generation: i64,
}

/// The origin of a kind.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    BuiltIn,
    Custom(Arc<Custom>),
}

/// A served kind.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) resource: Resource,
    pub(super) columns: Vec<Column>,
    pub(super) schema: Arc<Schema>,
    /// The name of its schema in documents.
    pub(super) schema_name: String,
    pub(super) collection: Collection,
    pub(super) scale: Option<ScalePaths>,
    pub(super) origin: Origin,
}

impl Served {
    pub(super) fn group(&self) -> &str {
        &self.resource.kind.group
    }

    pub(super) fn plural(&self) -> &str {
        &self.resource.plural
    }

    pub(super) fn kind(&self) -> &str {
        &self.resource.kind.kind
    }

    pub(super) fn api_version(&self) -> String {
        self.resource.kind.api_version()
    }

    pub(super) fn is_namespaced(&self) -> bool {
        self.resource.scope == ResourceScope::Namespaced
    }

    pub(super) fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Custom(_))
    }

    pub(super) fn custom(&self) -> Option<&Custom> {
        match &self.origin {
            Origin::Custom(custom) => Some(custom),
            Origin::BuiltIn => None,
        }
    }

    /// Whether this is the built-in kind with this group and plural.
    pub(super) fn is(&self, group: &str, plural: &str) -> bool {
        !self.is_custom() && self.group() == group && self.plural() == plural
    }

    pub(super) fn has_status(&self) -> bool {
        self.resource.subresource("status").is_some()
    }

    pub(super) fn name_rule(&self) -> NameRule {
        match (self.group(), self.plural()) {
            ("rbac.authorization.k8s.io", _) => NameRule::Path,
            ("", "namespaces" | "services") => NameRule::Label,
            _ => NameRule::Subdomain,
        }
    }

    /// The fields for field selectors, in addition to name and namespace.
    pub(super) fn selectable_fields(&self) -> Vec<&str> {
        if let Some(custom) = self.custom() {
            return custom.selectable.iter().map(String::as_str).collect();
        }
        match (self.group(), self.plural()) {
            ("", "pods") => {
                vec!["spec.nodeName", "status.phase", "spec.restartPolicy", "spec.schedulerName", "status.podIP"]
            }
            ("", "nodes") => vec!["spec.unschedulable"],
            ("", "namespaces") => vec!["status.phase"],
            ("", "secrets") => vec!["type"],
            ("", "events") => vec![
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.apiVersion",
                "involvedObject.resourceVersion",
                "involvedObject.fieldPath",
                "reason",
                "reportingComponent",
                "source",
                "type",
            ],
            _ => Vec::new(),
        }
    }
}

/// All served kinds. A change of the definitions replaces the whole registry.
pub(super) struct Registry {
    all: Vec<Arc<Served>>,
    by_path: HashMap<(String, String, String), Arc<Served>>,
    /// The storage versions of the collections.
    by_collection: HashMap<Collection, Arc<Served>>,
    /// The schemas of the built-in kinds by name.
    pub(super) schemas: &'static BTreeMap<String, Value>,
}

impl Registry {
    /// A registry of the built-in kinds and these custom kinds.
    pub(super) fn new(custom: Vec<Arc<Served>>) -> Self {
        let mut custom = custom;
        custom.sort_by(|one, other| {
            let key = |served: &Served| (served.group().to_owned(), served.plural().to_owned());
            key(one).cmp(&key(other)).then_with(|| {
                kube_protocol::discovery::compare_versions(&one.resource.kind.version, &other.resource.kind.version)
            })
        });
        let all: Vec<Arc<Served>> = built_in().iter().cloned().chain(custom).collect();
        let by_path = all
            .iter()
            .map(|served| {
                let kind = &served.resource.kind;
                ((kind.group.clone(), kind.version.clone(), served.resource.plural.clone()), Arc::clone(served))
            })
            .collect();
        let mut by_collection: HashMap<Collection, Arc<Served>> = HashMap::new();
        for served in all.iter().filter(|served| is_storage_version(served)) {
            by_collection.entry(served.collection.clone()).or_insert_with(|| Arc::clone(served));
        }
        Self { all, by_path, by_collection, schemas: &builtin::document().schemas }
    }

    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// Whether a kind of the group-version is served.
    pub(super) fn serves(&self, group: &str, version: &str) -> bool {
        let visible = |served: &&Arc<Served>| !served.resource.verbs.is_empty();
        let mut all = self.all.iter().filter(visible);
        all.any(|served| served.group() == group && served.resource.kind.version == version)
    }

    /// The kind with this `apiVersion` and `kind`.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Served>> {
        self.all.iter().find(|served| served.kind() == kind && served.api_version() == api_version)
    }

    /// The storage version of a collection.
    pub(super) fn storage_of(&self, collection: &Collection) -> Option<&Arc<Served>> {
        self.by_collection.get(collection)
    }

    pub(super) fn all(&self) -> &[Arc<Served>] {
        &self.all
    }

    /// The resources of the kinds for which the predicate holds.
    pub(super) fn resources(&self, wanted: impl Fn(&Served) -> bool) -> Vec<&Resource> {
        self.all.iter().filter(|served| wanted(served)).map(|served| &served.resource).collect()
    }
}

/// Whether this kind is the storage version of its collection.
fn is_storage_version(served: &Served) -> bool {
    served.custom().is_none_or(|custom| custom.storage_version == served.resource.kind.version)
        && served.group() == served.collection.group
}

/// The verb with a name.
pub(super) fn verb(name: &str) -> Option<Verb> {
    use Verb::{Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch};
    [Get, List, Watch, Create, Update, Patch, Delete, DeleteCollection].into_iter().find(|verb| verb.name() == name)
}

/// The columns of a kind that declares none.
pub(super) fn plain_columns() -> Vec<Column> {
    ["Name", "Age"]
        .map(|name| Column {
            name: name.to_owned(),
            value_type: if name == "Age" { "date" } else { "string" }.to_owned(),
            format: if name == "Name" { "name" } else { "" }.to_owned(),
            description: String::new(),
            priority: 0,
            cell: builtin::cell("", name),
        })
        .into()
}

fn built_in() -> &'static [Arc<Served>] {
    static MADE: OnceLock<Vec<Arc<Served>>> = OnceLock::new();
    MADE.get_or_init(|| {
        let document = builtin::document();
        let compiler = Compiler::over(&document.schemas);
        let names = schema_names(&document.schemas);
        document
            .resources
            .iter()
            .map(|resource| {
                let kind = GroupVersionKind {
                    group: resource.group.clone(),
                    version: resource.version.clone(),
                    kind: resource.kind.clone(),
                };
                let schema_name = names.get(&kind).cloned().unwrap_or_default();
                Arc::new(Served {
                    schema: compiler.named(&schema_name),
                    schema_name,
                    collection: collection_of(&resource.group, &resource.resource),
                    scale: scale_of(&resource.subresources),
                    origin: Origin::BuiltIn,
                    columns: columns(resource),
                    resource: describe(resource, kind),
                })
            })
            .collect()
    })
}

/// The names of schemas by their kinds.
pub(super) fn schema_names(schemas: &BTreeMap<String, Value>) -> BTreeMap<GroupVersionKind, String> {
    let mut names = BTreeMap::new();
    for (name, schema) in schemas {
        for kind in schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let text = |key: &str| kind[key].as_str().unwrap_or_default().to_owned();
            names.insert(
                GroupVersionKind { group: text("group"), version: text("version"), kind: text("kind") },
                name.clone(),
            );
        }
    }
    names
}

/// The collection of a resource. Both groups of events are one collection.
fn collection_of(group: &str, resource: &str) -> Collection {
    match (group, resource) {
        ("events.k8s.io", "events") => Collection::new("", "events"),
        _ => Collection::new(group, resource),
    }
}

fn scale_of(subresources: &[builtin::BuiltInSubresource]) -> Option<ScalePaths> {
    let path = |text: &str| text.split('.').map(str::to_owned).collect();
    subresources.iter().any(|subresource| subresource.name == "scale").then(|| ScalePaths {
        spec_replicas: path("spec.replicas"),
        status_replicas: path("status.replicas"),
        selector: None,
    })
}

fn describe(resource: &builtin::BuiltInResource, kind: GroupVersionKind) -> Resource {
    let verbs = |names: &[String]| names.iter().filter_map(|name| verb(name)).collect::<Vec<_>>();
    Resource {
        list_kind: format!("{}List", resource.kind),
        plural: resource.resource.clone(),
        singular: resource.singular.clone(),
        short_names: resource.short_names.clone(),
        categories: resource.categories.clone(),
        scope: if resource.namespaced { ResourceScope::Namespaced } else { ResourceScope::Cluster },
        verbs: verbs(&resource.verbs),
        subresources: resource
            .subresources
            .iter()
            .map(|subresource| Subresource {
                name: subresource.name.clone(),
                kind: GroupVersionKind {
                    group: subresource.group.clone(),
                    version: subresource.version.clone(),
                    kind: subresource.kind.clone(),
                },
                verbs: verbs(&subresource.verbs),
            })
            .collect(),
        kind,
    }
}

fn columns(resource: &builtin::BuiltInResource) -> Vec<Column> {
    let column = |column: &builtin::BuiltInColumn| Column {
        name: column.name.clone(),
        value_type: column.value_type.clone(),
        format: column.format.clone(),
        description: column.description.clone(),
        priority: column.priority,
        cell: builtin::cell(&resource.resource, &column.name),
    };
    resource.columns.iter().map(column).collect()
}

/// The fields of a simple path such as `.spec.replicas`.
pub(super) fn simple_path(text: &str) -> Option<Vec<String>> {
    let path = JsonPath::parse(text).ok()?;
    Some(path.fields()?.into_iter().map(str::to_owned).collect())
}

/// The value at a simple path; null if there is none.
pub(super) fn value_at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, field| &value[field.as_str()])
}

/// Sets the value at a simple path.
pub(super) fn set_at(object: &mut Value, path: &[String], value: Value) {
    let mut place = object;
    for field in path {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[field.as_str()];
    }
    *place = value;
}
