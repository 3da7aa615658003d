//! What the definitions demand beyond the shape of the fields: bounds, patterns, words and CEL rules.
//!
//! These hold while the webhook is down (spec/api-and-admission §2.4 and §6.2). Everything here must be true for every
//! object that works with the original, and must forgive stored violations: the API server does so per schema node
//! since 1.30, so that rules sit on scalars where they can, and rules on objects compare with `oldSelf` themselves.
//! A rule's id is that of the webhook's rule with the same text.

use std::collections::BTreeSet;

use kube_values::{field::RuleId, int_or_percent::NOT_A_PERCENTAGE};
use serde_json::{Map, Value, json};

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

/// How a CEL violation is classified; the API server knows only these.
#[derive(Clone, Copy)]
pub(super) enum Reason {
    Required,
    Invalid,
    Forbidden,
}

/// One CEL rule.
pub(super) struct CelRule {
    /// The webhook rule that says the same.
    pub rule: RuleId,
    pub node: NodePath,
    pub expression: &'static str,
    pub reason: Reason,
    pub message: &'static str,
    /// The field below the node that is at fault, if the node is an object.
    pub field_path: Option<&'static str>,
}

const DURATION: &str = r"^[+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
const QUANTITY: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";
const RFC_1123: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const CAPACITY: &str = "MachineClass NodeTemplate Capacity should mandatorily have CPU, GPU and Memory configured";

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

/// Rules for a reference to a class.
pub(super) const CLASS_REFERENCE_CEL: &[CelRule] = &[
    CelRule {
        rule: "MCH-3",
        node: "kind",
        expression: "self in ['', 'MachineClass']",
        reason: Reason::Invalid,
        message: "supported values: \"MachineClass\"",
        field_path: None,
    },
    CelRule {
        rule: "MCH-4",
        node: "apiGroup",
        expression: "self in ['', 'machine.sapcloud.io']",
        reason: Reason::Invalid,
        message: "supported values: \"machine.sapcloud.io\"",
        field_path: None,
    },
    CelRule {
        rule: "MCH-5",
        node: "name",
        expression: "self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$') && size(self) <= 253",
        reason: Reason::Invalid,
        message: RFC_1123,
        field_path: None,
    },
    CelRule {
        rule: "MCH-2",
        node: "",
        expression: "has(self.name) && self.name != '' || (oldSelf.hasValue() && (!has(oldSelf.value().name) || oldSelf.value().name == ''))",
        reason: Reason::Required,
        message: "Name is required",
        field_path: Some(".name"),
    },
];

/// Rules for the specification of a set or deployment; the texts that name the kind come from [`empty_selector`].
pub(super) const SET_SPEC_CEL: &[CelRule] = &[
    CelRule {
        rule: "SEL-1",
        node: "",
        expression: "has(self.selector) || (oldSelf.hasValue() && !has(oldSelf.value().selector))",
        reason: Reason::Required,
        message: "must be specified",
        field_path: Some(".selector"),
    },
    CelRule {
        rule: "MCH-22",
        node: "template.spec.providerID",
        expression: "self == ''",
        reason: Reason::Forbidden,
        message: "may not be set in a template",
        field_path: None,
    },
];

const fn empty_selector(message: &'static str) -> CelRule {
    CelRule {
        rule: "SEL-2",
        node: "",
        expression: "!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0) || (oldSelf.hasValue() && has(oldSelf.value().selector) && self.selector == oldSelf.value().selector)",
        reason: Reason::Invalid,
        message,
        field_path: Some(".selector"),
    }
}

/// What a set demands of its selector.
pub(super) const SET_SELECTOR_CEL: &[CelRule] = &[empty_selector("empty selector is invalid for machine set")];

/// What must hold of a setting of a strategy, unless another type is chosen than the one that it belongs to, or the same was
/// stored before.
macro_rules! setting_rule {
    ($settings:literal, $setting:literal, $other:literal, $demand:expr) => {
        concat!(
            "(has(self.type) && self.type in ['Recreate', '",
            $other,
            "'])",
            " || !has(self.",
            $settings,
            ") || !has(self.",
            $settings,
            ".",
            $setting,
            ")",
            " || ",
            $demand,
            " || (oldSelf.hasValue() && has(oldSelf.value().",
            $settings,
            ") && has(oldSelf.value().",
            $settings,
            ".",
            $setting,
            ")",
            " && oldSelf.value().",
            $settings,
            ".",
            $setting,
            " == self.",
            $settings,
            ".",
            $setting,
            ")"
        )
    };
}

macro_rules! percent_string {
    ($settings:literal, $margin:literal, $other:literal) => {
        CelRule {
            rule: "STR-7",
            node: "strategy",
            expression: setting_rule!(
                $settings,
                $margin,
                $other,
                concat!(
                    "type(self.",
                    $settings,
                    ".",
                    $margin,
                    ") == int || self.",
                    $settings,
                    ".",
                    $margin,
                    ".matches('^[0-9]+%$')"
                )
            ),
            reason: Reason::Invalid,
            message: NOT_A_PERCENTAGE,
            field_path: Some(concat!(".", $settings, ".", $margin)),
        }
    };
}

macro_rules! not_negative_count {
    ($settings:literal, $margin:literal, $other:literal) => {
        CelRule {
            rule: "STR-8",
            node: "strategy",
            expression: setting_rule!(
                $settings,
                $margin,
                $other,
                concat!("type(self.", $settings, ".", $margin, ") != int || self.", $settings, ".", $margin, " >= 0")
            ),
            reason: Reason::Invalid,
            message: "must be greater than or equal to 0",
            field_path: Some(concat!(".", $settings, ".", $margin)),
        }
    };
}

/// What a deployment demands beside [`SET_SPEC_CEL`].
pub(super) const DEPLOYMENT_SPEC_CEL: &[CelRule] = &[
    empty_selector("empty selector is invalid for machine deployment"),
    CelRule {
        rule: "REP-4",
        node: "",
        expression: "!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds > (has(self.minReadySeconds) ? self.minReadySeconds : 0) || (oldSelf.hasValue() && has(oldSelf.value().progressDeadlineSeconds) && oldSelf.value().progressDeadlineSeconds == self.progressDeadlineSeconds)",
        reason: Reason::Invalid,
        message: "must be greater than minReadySeconds",
        field_path: Some(".progressDeadlineSeconds"),
    },
    percent_string!("rollingUpdate", "maxSurge", "InPlaceUpdate"),
    percent_string!("rollingUpdate", "maxUnavailable", "InPlaceUpdate"),
    percent_string!("inPlaceUpdate", "maxSurge", "RollingUpdate"),
    percent_string!("inPlaceUpdate", "maxUnavailable", "RollingUpdate"),
    not_negative_count!("rollingUpdate", "maxSurge", "InPlaceUpdate"),
    not_negative_count!("rollingUpdate", "maxUnavailable", "InPlaceUpdate"),
    not_negative_count!("inPlaceUpdate", "maxSurge", "RollingUpdate"),
    not_negative_count!("inPlaceUpdate", "maxUnavailable", "RollingUpdate"),
    CelRule {
        rule: "STR-12",
        node: "strategy",
        expression: setting_rule!(
            "inPlaceUpdate",
            "orchestrationType",
            "RollingUpdate",
            "self.inPlaceUpdate.orchestrationType in ['', 'Auto', 'Manual']"
        ),
        reason: Reason::Invalid,
        message: "supported values: \"Auto\", \"Manual\"",
        field_path: Some(".inPlaceUpdate.orchestrationType"),
    },
];

/// Rules for a class's node template; one per resource, so that each missing one is named.
pub(super) const NODE_TEMPLATE_CEL: &[CelRule] = &[
    mandatory_resource(
        "'cpu' in self.capacity || (oldSelf.hasValue() && !('cpu' in oldSelf.value().capacity))",
        ".capacity['cpu']",
    ),
    mandatory_resource(
        "'gpu' in self.capacity || (oldSelf.hasValue() && !('gpu' in oldSelf.value().capacity))",
        ".capacity['gpu']",
    ),
    mandatory_resource(
        "'memory' in self.capacity || (oldSelf.hasValue() && !('memory' in oldSelf.value().capacity))",
        ".capacity['memory']",
    ),
];

const fn mandatory_resource(expression: &'static str, field_path: &'static str) -> CelRule {
    CelRule {
        rule: "CLS-10",
        node: "",
        expression,
        reason: Reason::Required,
        message: CAPACITY,
        field_path: Some(field_path),
    }
}

/// The webhook rules that hold in the definitions too, by CEL.
pub fn rule_ids() -> BTreeSet<RuleId> {
    [CLASS_REFERENCE_CEL, SET_SPEC_CEL, SET_SELECTOR_CEL, DEPLOYMENT_SPEC_CEL, NODE_TEMPLATE_CEL]
        .into_iter()
        .flatten()
        .map(|rule| rule.rule)
        .collect()
}

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

impl CelRule {
    fn add_to(&self, node: &mut Map<String, Value>) {
        let mut rule = json!({
            "rule": self.expression,
            "message": self.message,
            "reason": match self.reason {
                Reason::Required => "FieldValueRequired",
                Reason::Invalid => "FieldValueInvalid",
                Reason::Forbidden => "FieldValueForbidden",
            },
        });
        if let Some(field_path) = self.field_path {
            rule["fieldPath"] = json!(field_path);
        }
        if self.expression.contains("oldSelf") {
            rule["optionalOldSelf"] = json!(true);
        }
        let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(rule);
        }
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

/// Adds CEL rules to the nodes below `root`.
pub(super) fn validate(schema: &mut Value, root: &str, rules: &[CelRule]) {
    for rule in rules {
        rule.add_to(existing_node(schema, root, rule.node));
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
