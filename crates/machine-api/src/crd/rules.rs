//! What the definitions demand beyond the shape of the fields: bounds, patterns, words and the CEL of the rules.
//!
//! These hold while the webhook is down (spec/api-and-admission §2.4 and §6.2). Everything here must be true for every
//! object that works with the original, and must forgive stored violations: the API server does so per schema node
//! since 1.30, so that rules sit on scalars where they can, and rules on objects compare with `oldSelf` themselves.
//! CEL is declared with the rule of the webhook that says the same.

use serde_json::{Map, Value, json};

use crate::validation::{CrdCel, Part, RULES, Reason};

/// Where a demand sits: `spec.replicas`; `[]` is a list's element, `{}` a map's value, the empty path the object itself.
type NodePath = &'static str;

/// A bound on one node.
pub(super) enum Bound {
    /// A number that is not negative.
    NotNegative,
    /// A duration in Go's syntax that is not negative.
    Duration,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A resource quantity that is not negative.
    Quantity,
    /// Typed labels, annotations, finalizers and names inside otherwise open metadata.
    TemplateMetadata,
    /// A text of at most so many characters.
    Length(u32),
}

const DURATION: &str = r"^[+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
const QUANTITY: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Bounds of a machine specification, in the words of v1alpha1.
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

/// The same in the words of v1beta1.
pub(super) const MACHINE_SPEC_V1BETA1: &[(NodePath, Bound)] = &[
    ("lifecycle.drainTimeout", Bound::Duration),
    ("lifecycle.healthTimeout", Bound::Duration),
    ("lifecycle.creationTimeout", Bound::Duration),
    ("lifecycle.inPlaceUpdateTimeout", Bound::Duration),
    ("lifecycle.preserveTimeout", Bound::Duration),
    ("lifecycle.maxEvictRetries", Bound::NotNegative),
    ("lifecycle.healthCheck", Bound::OneOf(&["Enabled", "Disabled"])),
];

/// Bounds of a set's specification.
pub(super) const SET_SPEC: &[(NodePath, Bound)] = &[
    ("replicas", Bound::NotNegative),
    ("minReadySeconds", Bound::NotNegative),
    ("autoPreserveFailedMachineMax", Bound::NotNegative),
    ("template.metadata", Bound::TemplateMetadata),
    // A machine with other labels is refused by every API server.
    ("template.metadata.labels.{}", Bound::Length(LABEL_VALUE)),
    ("selector.matchLabels.{}", Bound::Length(LABEL_VALUE)),
];

/// Bounds of a deployment's specification beside those of [`SET_SPEC`], in both versions.
pub(super) const DEPLOYMENT_SPEC: &[(NodePath, Bound)] =
    &[("revisionHistoryLimit", Bound::NotNegative), ("progressDeadlineSeconds", Bound::NotNegative)];

/// What only v1alpha1 has: the empty strategy type that Go writes, and the deprecated rollback.
pub(super) const DEPLOYMENT_SPEC_V1ALPHA1: &[(NodePath, Bound)] = &[
    ("strategy.type", Bound::OneOf(&["", "Recreate", "RollingUpdate", "InPlaceUpdate"])),
    ("rollbackTo.revision", Bound::NotNegative),
];

/// No object was ever stored in v1beta1, so that an empty type need not be allowed.
pub(super) const DEPLOYMENT_SPEC_V1BETA1: &[(NodePath, Bound)] =
    &[("strategy.type", Bound::OneOf(&["Recreate", "RollingUpdate", "InPlaceUpdate"]))];

/// Longest value of a label, name of a namespace, and name of another object, in Kubernetes.
const LABEL_VALUE: u32 = 63;
const NAMESPACE: u32 = 63;
const NAME: u32 = 253;

/// Bounds of a reference to a Secret.
pub(super) const SECRET_REFERENCE: &[(NodePath, Bound)] =
    &[("name", Bound::Length(NAME)), ("namespace", Bound::Length(NAMESPACE))];

/// Bounds of a class's node template.
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
                "name": {"type": "string"},
                "generateName": {"type": "string"},
                "namespace": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                "finalizers": {"type": "array", "items": {"type": "string"}},
            }}),
            Self::Length(max) => json!({"maxLength": max}),
        };
        if let Value::Object(additions) = additions {
            node.extend(additions);
        }
    }
}

/// The expression as a definition has it. A setting of a strategy is not judged while another type is chosen than the one that it
/// belongs to, or if the same was stored before.
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

/// Longest text of a specification in characters, and most elements of one of its lists, where nothing smaller is demanded:
/// far above any use, so that what a rule costs has an end.
const LONGEST_TEXT: u32 = 64 << 10;
const MOST_ELEMENTS: u32 = 4096;

/// Bounds every text and list at and below a node that has no bound yet.
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

/// Adds the CEL of all rules over a part to the nodes below `root`, where the part is.
pub(super) fn validate(schema: &mut Value, root: &str, part: Part) {
    for cel in RULES.iter().flat_map(|rule| rule.crd_cel).filter(|cel| cel.part == part) {
        add_to(existing_node(schema, root, cel.node), cel);
    }
}

/// A node that the types are known to declare.
///
/// # Panics
/// When a table names a field that no type has; every table is applied in every build of the definitions, so that the
/// first test run finds it.
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
