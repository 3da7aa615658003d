//! Every known field has its JSON type; the one place where a wrong type is reported.
//!
//! Schema validation of the API server does the same where the CRDs are installed as they should be. These checks stand
//! behind it for older schemas, parts that preserve unknown fields, stored poison values and `mcm validate`. Unknown
//! fields are nobody's business here: the API server prunes them.

use super::node::{Node, integer};
use crate::kind::{ApiVersion, Kind};
use kube_values::{
    field::{Findings, PathRef, RuleId},
    json::{Json, Members},
};

/// The rule of a wrong type where no other rule names the field.
pub const TYPE: RuleId = "TYPE";

/// What type a field has.
enum Shape {
    Text,
    Boolean,
    Int32,
    Int64,
    IntOrText,
    /// Any object.
    Map,
    /// An object whose values are texts; the rule is that of a value that is none.
    TextMap(RuleId),
    List(&'static Shape),
    Object(&'static [(&'static str, Shape)]),
}

use Shape::{Boolean, Int32, Int64, IntOrText, List, Map, Object, Text, TextMap};

/// Adds a finding for every known field of an object that has the wrong JSON type. `null` counts as absent, except as an
/// element of a list.
pub fn fields_have_their_types(kind: Kind, version: ApiVersion, object: &Json<'_>, found: &mut Findings) {
    if !object.is_object() {
        found.mistyped(TYPE, PathRef::new(""), object, "must be an object");
        return;
    }
    let shapes = shape_of(kind, version);
    // Almost every object is as it should be.
    if members_fit(shapes, object) {
        return;
    }
    let root = PathRef::new("");
    for (name, shape) in shapes {
        shape.check(Node::of(object).get(name), root.child(name), found);
    }
}

fn shape_of(kind: Kind, version: ApiVersion) -> &'static [(&'static str, Shape)] {
    match (kind, version) {
        (Kind::Machine, ApiVersion::V1alpha1) => MACHINE,
        (Kind::Machine, ApiVersion::V1beta1) => MACHINE_BETA,
        (Kind::MachineSet, ApiVersion::V1alpha1) => MACHINE_SET,
        (Kind::MachineSet, ApiVersion::V1beta1) => MACHINE_SET_BETA,
        (Kind::MachineDeployment, ApiVersion::V1alpha1) => MACHINE_DEPLOYMENT,
        (Kind::MachineDeployment, ApiVersion::V1beta1) => MACHINE_DEPLOYMENT_BETA,
        (Kind::MachineClass, ApiVersion::V1alpha1) => MACHINE_CLASS,
        (Kind::MachineClass, ApiVersion::V1beta1) => MACHINE_CLASS_BETA,
    }
}

/// Whether all known members have their types.
fn members_fit(shapes: &[(&str, Shape)], object: &Json<'_>) -> bool {
    object.as_object().is_some_and(|members| {
        members.iter().all(|(name, value)| {
            let shape = shapes.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape);
            value.is_null() || shape.is_none_or(|shape| shape.fits(value))
        })
    })
}

impl Shape {
    /// Whether [`Self::check`] would find nothing wrong with a value that is there.
    fn fits(&self, value: &Json<'_>) -> bool {
        match self {
            Text => value.is_string(),
            Boolean => value.is_boolean(),
            Int32 => integer(value).is_some_and(|number| i32::try_from(number).is_ok()),
            Int64 => integer(value).is_some(),
            IntOrText => value.is_string() || integer(value).is_some(),
            Map => value.is_object(),
            TextMap(_) => value.as_object().is_some_and(|members| members.iter().all(|(_, value)| value.is_string())),
            List(element) => value.as_array().is_some_and(|list| list.iter().all(|value| element.fits(value))),
            Object(fields) => members_fit(fields, value),
        }
    }

    fn check(&self, node: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
        let Some(value) = node.value() else { return };
        let expected = match self {
            Text if !value.is_string() => "must be a string",
            Boolean if !value.is_boolean() => "must be a boolean",
            Int32 | Int64 if integer(value).is_none() => "must be an integer",
            Int32 if integer(value).is_some_and(|number| i32::try_from(number).is_err()) => "must fit a 32-bit integer",
            IntOrText if !value.is_string() && integer(value).is_none() => "must be an integer or a string",
            Map | TextMap(_) | Object(_) if !value.is_object() => "must be an object",
            List(_) if !value.is_array() => "must be a list",
            Text | Boolean | Int32 | Int64 | IntOrText | Map => return,
            TextMap(rule) => return values_are_texts(rule, node, path, found),
            List(element) => return elements_have_their_type(element, value, path, found),
            Object(fields) => {
                for (name, shape) in *fields {
                    shape.check(node.get(name), path.child(name), found);
                }
                return;
            }
        };
        found.mistyped(TYPE, path, value, expected);
    }
}

fn values_are_texts(rule: RuleId, map: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (key, value) in map.members().into_iter().flat_map(Members::iter) {
        if !value.is_string() {
            found.mistyped(rule, path.key(key), value, "must be a string");
        }
    }
}

fn elements_have_their_type(element: &Shape, list: &Json<'_>, path: PathRef<'_>, found: &mut Findings) {
    for (index, value) in list.as_array().into_iter().flatten().enumerate() {
        if value.is_null() {
            found.mistyped(TYPE, path.index(index), value, "must not be null");
        }
        element.check(Node::of(value), path.index(index), found);
    }
}

const METADATA: Shape = Object(&[
    ("name", Text),
    ("generateName", Text),
    ("namespace", Text),
    ("labels", TextMap(TYPE)),
    ("annotations", TextMap(TYPE)),
    ("finalizers", List(&Text)),
    ("deletionTimestamp", Text),
    ("ownerReferences", List(&Map)),
]);

const TEMPLATE_METADATA: Shape = Object(&[
    ("name", Text),
    ("generateName", Text),
    ("namespace", Text),
    ("labels", TextMap("MCH-24")),
    ("annotations", TextMap("MCH-24")),
    ("finalizers", List(&Text)),
]);

const CLASS: Shape = Object(&[("apiGroup", Text), ("kind", Text), ("name", Text)]);

const TAINT: Shape = Object(&[("key", Text), ("value", Text), ("effect", Text), ("timeAdded", Text)]);

const NODE_TEMPLATE: Shape = Object(&[
    ("metadata", Object(&[("labels", TextMap("MCH-11")), ("annotations", TextMap("MCH-11"))])),
    ("spec", Object(&[("taints", List(&TAINT))])),
]);

const MACHINE_SPEC: Shape = Object(&[
    ("class", CLASS),
    ("providerID", Text),
    ("nodeTemplate", NODE_TEMPLATE),
    ("drainTimeout", Text),
    ("healthTimeout", Text),
    ("creationTimeout", Text),
    ("inPlaceUpdateTimeout", Text),
    ("machinePreserveTimeout", Text),
    ("disableHealthTimeout", Boolean),
    ("maxEvictRetries", Int32),
    ("nodeConditions", Text),
]);

const MACHINE_SPEC_BETA: Shape = Object(&[
    ("classRef", CLASS),
    ("providerID", Text),
    ("nodeTemplate", NODE_TEMPLATE),
    (
        "lifecycle",
        Object(&[
            ("drainTimeout", Text),
            ("healthTimeout", Text),
            ("creationTimeout", Text),
            ("inPlaceUpdateTimeout", Text),
            ("preserveTimeout", Text),
            ("healthCheck", Text),
            ("maxEvictRetries", Int32),
            ("unhealthyNodeConditions", List(&Text)),
        ]),
    ),
]);

const SELECTOR: Shape = Object(&[
    ("matchLabels", TextMap(TYPE)),
    ("matchExpressions", List(&Object(&[("key", Text), ("operator", Text), ("values", List(&Text))]))),
]);

const ROLLING_UPDATE: Shape = Object(&[("maxSurge", IntOrText), ("maxUnavailable", IntOrText)]);

const IN_PLACE_UPDATE: Shape =
    Object(&[("maxSurge", IntOrText), ("maxUnavailable", IntOrText), ("orchestrationType", Text)]);

const STRATEGY: Shape =
    Object(&[("type", Text), ("rollingUpdate", ROLLING_UPDATE), ("inPlaceUpdate", IN_PLACE_UPDATE)]);

const TEMPLATE: Shape = Object(&[("metadata", TEMPLATE_METADATA), ("spec", MACHINE_SPEC)]);
const TEMPLATE_BETA: Shape = Object(&[("metadata", TEMPLATE_METADATA), ("spec", MACHINE_SPEC_BETA)]);

const MACHINE: &[(&str, Shape)] = &[("metadata", METADATA), ("spec", MACHINE_SPEC)];
const MACHINE_BETA: &[(&str, Shape)] = &[("metadata", METADATA), ("spec", MACHINE_SPEC_BETA)];

const MACHINE_SET: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("replicas", Int32),
            ("selector", SELECTOR),
            ("machineClass", CLASS),
            ("template", TEMPLATE),
            ("minReadySeconds", Int32),
            ("autoPreserveFailedMachineMax", Int32),
        ]),
    ),
];

const MACHINE_SET_BETA: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("replicas", Int32),
            ("selector", SELECTOR),
            ("template", TEMPLATE_BETA),
            ("minReadySeconds", Int32),
            ("autoPreserveFailedMachineMax", Int32),
        ]),
    ),
];

const MACHINE_DEPLOYMENT: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("replicas", Int32),
            ("selector", SELECTOR),
            ("template", TEMPLATE),
            ("strategy", STRATEGY),
            ("minReadySeconds", Int32),
            ("revisionHistoryLimit", Int32),
            ("paused", Boolean),
            ("rollbackTo", Object(&[("revision", Int64)])),
            ("progressDeadlineSeconds", Int32),
            ("autoPreserveFailedMachineMax", Int32),
        ]),
    ),
];

const MACHINE_DEPLOYMENT_BETA: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("replicas", Int32),
            ("selector", SELECTOR),
            ("template", TEMPLATE_BETA),
            ("strategy", STRATEGY),
            ("minReadySeconds", Int32),
            ("revisionHistoryLimit", Int32),
            ("paused", Boolean),
            ("progressDeadlineSeconds", Int32),
            ("autoPreserveFailedMachineMax", Int32),
        ]),
    ),
];

const SECRET_REFERENCE: Shape = Object(&[("name", Text), ("namespace", Text)]);

const CLASS_NODE_TEMPLATE: Shape = Object(&[
    ("capacity", Map),
    ("virtualCapacity", Map),
    ("instanceType", Text),
    ("region", Text),
    ("zone", Text),
    ("architecture", Text),
]);

const MACHINE_CLASS: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    ("provider", Text),
    ("providerSpec", Map),
    ("secretRef", SECRET_REFERENCE),
    ("credentialsSecretRef", SECRET_REFERENCE),
    ("nodeTemplate", CLASS_NODE_TEMPLATE),
];

const MACHINE_CLASS_BETA: &[(&str, Shape)] = &[
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("provider", Text),
            ("providerSpec", Map),
            ("userDataSecretRef", SECRET_REFERENCE),
            ("credentialsSecretRef", SECRET_REFERENCE),
            ("nodeTemplate", CLASS_NODE_TEMPLATE),
        ]),
    ),
];

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::v019_a_number_for_a_duration(Kind::Machine, json!({"spec": {"drainTimeout": 300}}), &["spec.drainTimeout: Invalid value: 300: must be a string"])]
    #[case::a_number_for_the_whole_spec(Kind::Machine, json!({"spec": 5}), &["spec: Invalid value: 5: must be an object"])]
    #[case::no_object_at_all(Kind::Machine, json!([]), &["Invalid value: []: must be an object"])]
    #[case::v032_a_number_for_a_label(Kind::Machine, json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"a": 1}}}}}), &["spec.nodeTemplate.metadata.labels[a]: Invalid value: 1: must be a string"])]
    #[case::null_is_absent(Kind::Machine, json!({"metadata": null, "spec": {"class": null}}), &[])]
    #[case::null_in_a_list_is_not(Kind::Machine, json!({"spec": {"nodeTemplate": {"spec": {"taints": [null]}}}}), &["spec.nodeTemplate.spec.taints[0]: Invalid value: \"\": must not be null"])]
    #[case::several_at_once(Kind::MachineSet, json!({"spec": {"replicas": "3", "selector": [], "template": {"spec": {"maxEvictRetries": 1.5}}}}),
        &["spec.replicas: Invalid value: \"3\": must be an integer", "spec.selector: Invalid value: []: must be an object", "spec.template.spec.maxEvictRetries: Invalid value: 1.5: must be an integer"])]
    #[case::too_wide(Kind::MachineSet, json!({"spec": {"replicas": 2_147_483_648_i64}}), &["spec.replicas: Invalid value: 2147483648: must fit a 32-bit integer"])]
    #[case::a_float_without_fraction_is_whole(Kind::MachineSet, json!({"spec": {"replicas": 3.0}}), &[])]
    fn a_wrong_type_is_found_with_its_path(#[case] kind: Kind, #[case] object: Value, #[case] expected: &[&str]) {
        let mut found = Findings::new();
        fields_have_their_types(kind, ApiVersion::V1alpha1, &Json::from(&object), &mut found);
        assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case::text(&Text)]
    #[case::boolean(&Boolean)]
    #[case::int32(&Int32)]
    #[case::int64(&Int64)]
    #[case::int_or_text(&IntOrText)]
    #[case::map(&Map)]
    #[case::text_map(&TextMap(TYPE))]
    #[case::list(&List(&Text))]
    #[case::list_of_maps(&List(&Map))]
    #[case::object(&METADATA)]
    fn the_quick_look_and_the_report_agree(#[case] shape: &Shape) {
        let values = [
            json!("x"),
            json!(true),
            json!(7),
            json!(2.5),
            json!(3.0),
            json!(2_147_483_648_i64),
            json!(1e300),
            json!([]),
            json!(["x"]),
            json!(["x", null]),
            json!([{}]),
            json!([5]),
            json!({}),
            json!({"a": "b"}),
            json!({"a": null}),
            json!({"a": 5}),
            json!({"name": 5}),
            json!({"labels": {"a": 5}}),
            json!({"labels": null, "name": "x"}),
            json!({"finalizers": [null]}),
            json!({"unknown": 5}),
        ];
        for value in &values {
            let value = Json::from(value);
            let mut found = Findings::new();
            shape.check(Node::of(&value), PathRef::new(""), &mut found);
            assert_eq!(shape.fits(&value), found.is_empty(), "{value:?}");
        }
    }
}
