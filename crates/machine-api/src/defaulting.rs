//! The defaults of the four kinds, as a JSON Patch or applied in place.
//!
//! Defaulting is pure, deterministic, idempotent and monotone: it only sets absent fields (and empty ones where Go can't distinguish them), and never
//! changes a user's value. Mutation comes before schema validation, so that the functions read untyped JSON of any shape and ignore the parts that
//! they don't understand. The mutating webhook uses these functions, and the controllers use them before they create children. Source:
//! spec/api-and-admission §7.

use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation, jsonptr::PointerBuf};
use kube_values::json::Json;
use serde_json::{Map, Value, json};

use super::{
    kind::{ApiVersion, Kind},
    names::{DEFAULT_MACHINE_PRIORITY, MACHINE_CLASS_KIND, annotation, finalizer},
    validation::{Change, Node},
};

/// Whether our finalizer is among the defaults (`--default-finalizers`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinalizerDefault {
    /// The defaults include it.
    #[default]
    Add,
    /// The defaults don't include it. The controllers add it.
    Leave,
}

/// The input of defaulting.
#[derive(Clone, Copy, Debug)]
pub struct DefaultingRequest<'a> {
    /// The kind of the object.
    pub kind: Kind,
    /// The version of the object.
    pub version: ApiVersion,
    /// The change of the object.
    pub change: Change<'a>,
    /// The namespace of the request. The object may have none.
    pub namespace: &'a str,
    /// Whether our finalizer is among the defaults.
    pub finalizers: FinalizerDefault,
}

/// The patch that sets the defaults of an object. Empty if no default is missing, the object is being deleted, or the object can't be read.
pub fn default_patch(request: &DefaultingRequest<'_>) -> Patch {
    let mut edits = Edits::default();
    let Some(new) = request.change.new_object() else { return edits.patch };
    let metadata = Node::of(new).get("metadata");
    if !new.is_object() || metadata.get("deletionTimestamp").is_present() {
        return edits.patch;
    }
    default_metadata(request, Node::of(new), &mut edits);
    let spec = Node::of(new).get("spec");
    match request.kind {
        Kind::Machine => default_class_kind(request.version, spec, &["spec"], &mut edits),
        Kind::MachineSet | Kind::MachineDeployment => {
            default_replicas(spec, &mut edits);
            if request.kind == Kind::MachineDeployment {
                default_strategy(request.version, spec, &mut edits);
            }
            let place = ["spec", "template", "spec"];
            default_class_kind(request.version, Node::of(new).at(&place), &place, &mut edits);
        }
        Kind::MachineClass => default_secret_namespaces(request, Node::of(new), &mut edits),
    }
    edits.patch
}

/// Sets the defaults of a new v1alpha1 object as the webhook would. Controllers call this before they create children, so that they don't depend on
/// the webhook and need no second write.
pub fn apply_defaults(kind: Kind, object: &mut Value) {
    let read = Json::from(&*object);
    let namespace = Node::of(&read).at(&["metadata", "namespace"]).text().unwrap_or_default();
    let patch = default_patch(&DefaultingRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change: Change::Create { new: &read },
        namespace,
        finalizers: FinalizerDefault::Add,
    });
    let applied = json_patch::patch(object, &patch);
    debug_assert!(applied.is_ok(), "a default patch applies to the object it was made from");
}

/// Collects the operations of a patch. Parents come first. Pointers are always escaped.
#[derive(Default)]
struct Edits {
    patch: Patch,
}

impl Edits {
    fn add(&mut self, place: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(place.iter().copied());
        self.patch.0.push(PatchOperation::Add(AddOperation { path, value }));
    }

    fn replace(&mut self, place: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(place.iter().copied());
        self.patch.0.push(PatchOperation::Replace(ReplaceOperation { path, value }));
    }
}

/// Sets the priority annotation and the finalizer. Adds the whole `metadata` if it is absent.
fn default_metadata(request: &DefaultingRequest<'_>, object: Node<'_>, edits: &mut Edits) {
    let metadata = object.get("metadata");
    if metadata.is_absent() {
        let mut fresh = Edits::default();
        default_priority(request, Node::Absent, &mut fresh);
        default_finalizer(request, Node::Absent, &mut fresh);
        let members: Map<_, _> = fresh
            .patch
            .0
            .into_iter()
            .filter_map(|operation| match operation {
                PatchOperation::Add(AddOperation { path, value }) => Some((path.last()?.decoded().into_owned(), value)),
                _ => None,
            })
            .collect();
        if !members.is_empty() {
            edits.add(&["metadata"], Value::Object(members));
        }
        return;
    }
    if metadata.members().is_some() {
        default_priority(request, metadata.get("annotations"), edits);
        default_finalizer(request, metadata.get("finalizers"), edits);
    }
}

/// Sets the priority of a new machine. The controller would set the same value.
fn default_priority(request: &DefaultingRequest<'_>, annotations: Node<'_>, edits: &mut Edits) {
    if request.kind != Kind::Machine || !matches!(request.change, Change::Create { .. }) {
        return;
    }
    let priority = DEFAULT_MACHINE_PRIORITY.to_string();
    let place = ["metadata", "annotations", annotation::MACHINE_PRIORITY];
    match annotations {
        Node::Absent => edits.add(&place[..2], json!({ annotation::MACHINE_PRIORITY: priority })),
        Node::Is(Json::Object(members)) => match members.get(annotation::MACHINE_PRIORITY) {
            None | Some(Json::Null) => edits.add(&place, priority.into()),
            Some(Json::Text(text)) if text.is_empty() => edits.replace(&place, priority.into()),
            Some(_) => {}
        },
        Node::Is(_) | Node::Mistyped => {}
    }
}

/// Adds our finalizer, so that it also exists between the creation of an object and the first reconciliation by its controller. An update respects
/// the explicit removal. After creation, the controller of the classes is responsible for the finalizer of a class.
fn default_finalizer(request: &DefaultingRequest<'_>, finalizers: Node<'_>, edits: &mut Edits) {
    let ours = |list: Node<'_>| list.elements().iter().any(|name| *name == finalizer::MACHINE);
    let wanted = match request.change {
        _ if request.finalizers == FinalizerDefault::Leave => false,
        Change::Create { .. } => true,
        Change::Update { old, .. } => {
            request.kind != Kind::MachineClass && !ours(Node::of(old).at(&["metadata", "finalizers"]))
        }
        Change::Delete { .. } => false,
    };
    if !wanted || ours(finalizers) {
        return;
    }
    match finalizers {
        Node::Absent => edits.add(&["metadata", "finalizers"], json!([finalizer::MACHINE])),
        Node::Is(Json::List(_)) => edits.add(&["metadata", "finalizers", "-"], finalizer::MACHINE.into()),
        Node::Is(_) | Node::Mistyped => {}
    }
}

/// Sets the kind of the class, of which there is only one. The comparison of templates ignores this field, so that the default causes no rollout.
fn default_class_kind(version: ApiVersion, spec: Node<'_>, place: &[&str], edits: &mut Edits) {
    let field = match version {
        ApiVersion::V1alpha1 => "class",
        ApiVersion::V1beta1 => "classRef",
    };
    let class = spec.get(field);
    let is_named = class.get("name").text().is_some_and(|name| !name.is_empty());
    if is_named && class.get("kind").text_or_empty() == Some("") {
        edits.add(&[place, &[field, "kind"]].concat(), MACHINE_CLASS_KIND.into());
    }
}

/// Sets the replicas to 0. A stored zero keeps the scale subresource readable.
fn default_replicas(spec: Node<'_>, edits: &mut Edits) {
    if spec.members().is_some() && spec.get("replicas").is_absent() {
        edits.add(&["spec", "replicas"], json!(0));
    }
}

/// Sets the type `RollingUpdate`, and the margins of the chosen strategy. v1beta1 has no default for the type.
fn default_strategy(version: ApiVersion, spec: Node<'_>, edits: &mut Edits) {
    const PLACE: [&str; 2] = ["spec", "strategy"];
    if spec.members().is_none() {
        return;
    }
    let strategy = spec.get("strategy");
    let chosen = match strategy.get("type").text_or_empty() {
        Some("") if version == ApiVersion::V1alpha1 && strategy.get("inPlaceUpdate").is_absent() => "RollingUpdate",
        Some(name) => name,
        None => return,
    };
    let (field, surge, unavailable) = match chosen {
        "RollingUpdate" => ("rollingUpdate", 1, 0),
        "InPlaceUpdate" => ("inPlaceUpdate", 0, 1),
        _ => return,
    };
    match strategy {
        Node::Is(Json::Object(members)) if !members.is_empty() => {
            if strategy.get("type").text() != Some(chosen) {
                edits.add(&[&PLACE[..], &["type"]].concat(), chosen.into());
            }
            default_margins(strategy.get(field), &[&PLACE[..], &[field]].concat(), surge, unavailable, edits);
        }
        Node::Absent | Node::Is(Json::Object(_)) => {
            let whole = json!({ "type": chosen, field: { "maxSurge": surge, "maxUnavailable": unavailable } });
            if strategy.is_absent() { edits.add(&PLACE, whole) } else { edits.replace(&PLACE, whole) }
        }
        Node::Is(_) | Node::Mistyped => {}
    }
}

/// Sets `maxSurge` or `maxUnavailable` if it is absent. The value becomes 1 if both would be zero, because then the rollout could not proceed.
fn default_margins(settings: Node<'_>, place: &[&str], surge: i64, unavailable: i64, edits: &mut Edits) {
    match settings {
        Node::Absent => edits.add(place, json!({ "maxSurge": surge, "maxUnavailable": unavailable })),
        Node::Is(Json::Object(_)) => {
            let (given_surge, given_unavailable) = (settings.get("maxSurge"), settings.get("maxUnavailable"));
            let at = |field| [place, &[field]].concat();
            match (given_surge.is_absent(), given_unavailable.is_absent()) {
                (true, true) => {
                    edits.add(&at("maxSurge"), surge.into());
                    edits.add(&at("maxUnavailable"), unavailable.into());
                }
                (true, false) => edits.add(&at("maxSurge"), if is_zero(given_unavailable) { 1 } else { surge }.into()),
                (false, true) => {
                    edits.add(&at("maxUnavailable"), if is_zero(given_surge) { 1 } else { unavailable }.into());
                }
                (false, false) => {}
            }
        }
        Node::Is(_) | Node::Mistyped => {}
    }
}

/// Whether a margin is `0` or a percentage of zero.
fn is_zero(margin: Node<'_>) -> bool {
    margin.integer() == Some(0)
        || margin
            .text()
            .and_then(|text| text.strip_suffix('%'))
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte == b'0'))
}

/// Sets the namespace of a reference to the namespace of the class. The Go original found no Secret without a namespace.
fn default_secret_namespaces(request: &DefaultingRequest<'_>, object: Node<'_>, edits: &mut Edits) {
    let own = object.at(&["metadata", "namespace"]).text().filter(|namespace| !namespace.is_empty());
    let namespace = own.unwrap_or(request.namespace);
    let (root, fields): (&[&str], _) = match request.version {
        ApiVersion::V1alpha1 => (&[], ["secretRef", "credentialsSecretRef"]),
        ApiVersion::V1beta1 => (&["spec"], ["userDataSecretRef", "credentialsSecretRef"]),
    };
    for field in fields {
        let place = [root, &[field, "namespace"]].concat();
        let reference = object.at(&place[..place.len() - 1]);
        let lacks_namespace = reference.get("namespace").text_or_empty() == Some("");
        if !namespace.is_empty() && reference.members().is_some() && lacks_namespace {
            edits.add(&place, namespace.into());
        }
    }
}

#[cfg(test)]
mod tests;
