//! The checks of the definitions beyond the types of the fields: bounds, patterns, enumerations and the CEL of the rules.
//!
//! These checks apply while the webhook is down (spec/api-and-admission §2.4 and §6.2). They must accept every object that works with the Go
//! original, and must forgive stored violations. API servers of 1.30 and later forgive per schema node. So checks are on scalars where that is
//! possible, and rules on objects compare with `oldSelf`. The CEL is declared together with the webhook's rule for the same check.

use serde_json::{Map, Value, json};

use crate::validation::{CrdCel, Part, RULES, Reason};

/// The path of a schema node: `spec.replicas`. `[]` is an element of a list, `{}` a value of a map, and the empty path the object itself.
type NodePath = &'static str;

/// A bound on one node.
pub(super) enum Bound {
    /// A number of at least 0.
    NotNegative,
    /// A duration of at least 0, in Go's syntax.
    Duration,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A resource quantity of at least 0.
    Quantity,
    /// The types of labels, annotations, finalizers and names in metadata that is otherwise unchecked.
    TemplateMetadata,
    /// A text with at most this number of characters.
    Length(u32),
}

const DURATION: &str = r"^[+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
const QUANTITY: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Bounds of a machine specification in v1alpha1.
pub(super) const MACHINE_SPEC_V1ALPHA1: &[(NodePath, Bound)] = &[
    ("drainTimeout", Bound::Duration),
    ("healthTimeout", Bound::Duration),
    ("creationTimeout", Bound::Duration),
    ("inPlaceUpdateTimeout", Bound::Duration),
    ("machinePreserveTimeout", Bound::Duration),
    ("maxEvictRetries", Bound::NotNegative),
    ("nodeConditions", Bound::Length(16 << 10)),
    ("nodeTemplate.metadata", Bound::TemplateMetadata),
];

/// Bounds of a machine specification in v1beta1.
pub(super) const MACHINE_SPEC_V1BETA1: &[(NodePath, Bound)] = &[
    ("lifecycle.drainTimeout", Bound::Duration),
    ("lifecycle.healthTimeout", Bound::Duration),
    ("lifecycle.creationTimeout", Bound::Duration),
    ("lifecycle.inPlaceUpdateTimeout", Bound::Duration),
    ("lifecycle.preserveTimeout", Bound::Duration),
    ("lifecycle.maxEvictRetries", Bound::NotNegative),
    ("lifecycle.healthCheck", Bound::OneOf(&["Enabled", "Disabled"])),
];

/// Bounds of the specification of a set.
pub(super) const SET_SPEC: &[(NodePath, Bound)] = &[
    ("replicas", Bound::NotNegative),
    ("minReadySeconds", Bound::NotNegative),
    ("autoPreserveFailedMachineMax", Bound::NotNegative),
    ("template.metadata", Bound::TemplateMetadata),
    // Every API server refuses a machine with longer values of labels.
    ("template.metadata.labels.{}", Bound::Length(LABEL_VALUE)),
    ("selector.matchLabels.{}", Bound::Length(LABEL_VALUE)),
];

/// Bounds of the specification of a deployment in both versions, in addition to [`SET_SPEC`].
pub(super) const DEPLOYMENT_SPEC: &[(NodePath, Bound)] =
    &[("revisionHistoryLimit", Bound::NotNegative), ("progressDeadlineSeconds", Bound::NotNegative)];

/// Bounds for fields that only v1alpha1 has: the empty strategy type that Go writes, and the deprecated rollback.
pub(super) const DEPLOYMENT_SPEC_V1ALPHA1: &[(NodePath, Bound)] = &[
    ("strategy.type", Bound::OneOf(&["", "Recreate", "RollingUpdate", "InPlaceUpdate"])),
    ("rollbackTo.revision", Bound::NotNegative),
];

/// No object was ever stored in v1beta1, so that an empty type is not allowed.
pub(super) const DEPLOYMENT_SPEC_V1BETA1: &[(NodePath, Bound)] =
    &[("strategy.type", Bound::OneOf(&["Recreate", "RollingUpdate", "InPlaceUpdate"]))];

/// The limits of Kubernetes for the value of a label, the name of a namespace, and the name of another object.
const LABEL_VALUE: u32 = 63;
const NAMESPACE: u32 = 63;
const NAME: u32 = 253;

/// Bounds of a reference to a Secret.
pub(super) const SECRET_REFERENCE: &[(NodePath, Bound)] =
    &[("name", Bound::Length(NAME)), ("namespace", Bound::Length(NAMESPACE))];

/// Bounds of the node template of a class.
pub(super) const NODE_TEMPLATE: &[(NodePath, Bound)] =
    &[("capacity.{}", Bound::Quantity), ("virtualCapacity.{}", Bound::Quantity)];

impl Bound {
    fn add_to(&self, node: &mut Map<String, Value>) {
        let additions = match self {
            Self::NotNegative => json!({"minimum": 0}),
            Self::Duration => json!({"pattern": DURATION, "maxLength": 64}),
            Self::OneOf(words) => json!({"enum": words}),
            Self::Quantity => json!({"pattern": QUANTITY, "minimum": 0, "maxLength": 64}),
            Self::TemplateMetadata => json!({"properties": {
                "name": {"type": "string", "description": "Without effect."},
                "generateName": {"type": "string", "description": "Without effect."},
                "namespace": {"type": "string", "description": "Without effect."},
                "labels": {
                    "type": "object", "additionalProperties": {"type": "string"},
                    "description": "Labels for the machines, or for the Node, that the template describes.",
                },
                "annotations": {
                    "type": "object", "additionalProperties": {"type": "string"},
                    "description": "Annotations for the machines, or for the Node, that the template describes.",
                },
                "finalizers": {
                    "type": "array", "items": {"type": "string"},
                    "description": "Finalizers for the machines that the template describes. Without effect for a Node.",
                },
            }}),
            Self::Length(max) => json!({"maxLength": max}),
        };
        if let Value::Object(additions) = additions {
            node.extend(additions);
        }
    }
}

/// The CEL expression of a definition. The settings of a strategy are not checked while another strategy type is chosen, or if the stored value is
/// the same.
fn expression(cel: &CrdCel) -> String {
    let (Some(other), Some(field)) = (cel.other_strategy, cel.field_path) else { return cel.expression.to_owned() };
    let settings = field.rsplit_once('.').map_or(field, |(settings, _)| settings);
    let demand = cel.expression.replace("<field>", field);
    format!(
        "(has(self.type) && self.type in ['Recreate', '{other}']) || !has(self{settings}) || !has(self{field}) || {demand} \
         || (oldSelf.hasValue() && has(oldSelf.value(){settings}) && has(oldSelf.value(){field}) \
         && oldSelf.value(){field} == self{field})"
    )
}

fn add_to(node: &mut Map<String, Value>, cel: &CrdCel) {
    let expression = expression(cel);
    let compares = expression.contains("oldSelf");
    let mut rule = json!({
        "rule": expression,
        "message": cel.message,
        "reason": match cel.reason {
            Reason::Required => "FieldValueRequired",
            Reason::Invalid => "FieldValueInvalid",
            Reason::Forbidden => "FieldValueForbidden",
        },
    });
    if let Some(field_path) = cel.field_path {
        rule["fieldPath"] = json!(field_path);
    }
    if compares {
        rule["optionalOldSelf"] = json!(true);
    }
    let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Value::Array(rules) = rules {
        rules.push(rule);
    }
}

/// Adds bounds to the nodes below `root`.
pub(super) fn bound(schema: &mut Value, root: &str, bounds: &[(NodePath, Bound)]) {
    for (path, bound) in bounds {
        bound.add_to(existing_node(schema, root, path));
    }
}

/// The default limits for the characters of a text and for the elements of a list in a specification. They are far above normal use, and limit the
/// cost of a rule.
const LONGEST_TEXT: u32 = 64 << 10;
const MOST_ELEMENTS: u32 = 4096;

/// Adds the default limits to every text and list at and below a node that has no limit.
pub(super) fn bound_all(node: &mut Value) {
    let Some(fields) = node.as_object_mut() else { return };
    let is_text = fields.get("type") == Some(&json!("string")) || fields.contains_key("x-kubernetes-int-or-string");
    if is_text && !fields.contains_key("maxLength") && !fields.contains_key("enum") {
        fields.insert("maxLength".to_owned(), json!(LONGEST_TEXT));
    }
    if fields.get("type") == Some(&json!("array")) && !fields.contains_key("maxItems") {
        fields.insert("maxItems".to_owned(), json!(MOST_ELEMENTS));
    }
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(bound_all);
    }
    for child in ["items", "additionalProperties"] {
        if let Some(child) = fields.get_mut(child) {
            bound_all(child);
        }
    }
}

/// Adds the CEL of all rules for a part to the nodes below `root`, the path of the part.
pub(super) fn validate(schema: &mut Value, root: &str, part: Part) {
    for cel in RULES.iter().flat_map(|rule| rule.crd_cel).filter(|cel| cel.part == part) {
        add_to(existing_node(schema, root, cel.node), cel);
    }
}

/// A node that the types declare.
///
/// # Panics
///
/// If a table names a field that no type has. Every build of the definitions applies every table, so that the first test finds this defect.
pub(super) fn existing_node<'a>(schema: &'a mut Value, root: &str, path: &str) -> &'a mut Map<String, Value> {
    let segments = root.split('.').chain(path.split('.')).filter(|segment| !segment.is_empty());
    let mut node = schema;
    for segment in segments {
        let child = match segment {
            "[]" => node.get_mut("items"),
            "{}" => node.get_mut("additionalProperties"),
            name => node.get_mut("properties").and_then(|properties| properties.get_mut(name)),
        };
        node = child.unwrap_or_else(|| panic!("no schema node {segment:?} of {root}.{path}"));
    }
    node.as_object_mut().unwrap_or_else(|| panic!("schema node {root}.{path} is no object"))
}
