//! Rules for the metadata of all four kinds (spec/api-and-admission §5.1), and the exemptions that depend on metadata (§4.1 items 5 and 6).

use std::str::FromStr;

use kube_values::syntax;
use serde_json::Value;

use super::{
    Object, ValidationRequest, labels,
    node::Node,
    rule::{Rule, check, refuses, refuses_or_warns, warns},
    rules,
};
use crate::{
    kind::Kind,
    names::{annotation, finalizer, label},
};
use kube_values::{
    duration::GoDuration,
    field::{FieldPath, Findings, FirstFew, Located, RuleId, quoted},
    json::{Json, Members},
};

/// Values of the preserve annotation.
const PRESERVE_VALUES: [&str; 4] = ["auto-preserved", "false", "now", "when-failed"];
/// The maximum number of entries of cluster-autoscaler's list that are reported.
const ENTRIES_MAX: usize = 5;
/// The maximum length of the name of a deployment, so that the names of its machines are valid host names.
const DEPLOYMENT_NAME_MAX: usize = 51;
/// The maximum length of the name of a set, so that the names of its machines are valid host names.
const SET_NAME_MAX: usize = 57;
/// The longest host name, and the longest value of a label.
const HOST_NAME_MAX: usize = 63;

/// Runs all rules for the metadata of the object itself. Annotations are checked only if their value differs from `old`.
pub fn rules<'a>(
    object: &Object<'a>,
    old: Option<&'a Json<'a>>,
    request: &ValidationRequest<'_>,
    found: &mut Findings,
) {
    let annotations = |object: Node<'a>| object.at(&["metadata", "annotations"]);
    let (new, old_annotations) = (object.root(), annotations(Node::of_option(old)));
    let metadata = Metadata { kind: object.kind, new, annotations: annotations(new), old_annotations };
    priority_is_a_number(&metadata, found);
    preserve_value_is_known(&metadata, request, found);
    trigger_deletion_is_readable(&metadata, found);
    creation_timeout_is_a_duration(&metadata, found);
    times_are_times(&metadata, found);
    freeze_is_true(&metadata, found);
    if old.is_none() {
        name_leaves_room_for_machines(&metadata, found);
    }
    admission_annotations_are_known(&metadata, found);
}

/// The ids in the value of the skip annotation.
pub fn skip_list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|id| !id.is_empty())
}

/// Whether the object is being deleted.
pub fn is_terminating(object: &Json<'_>) -> bool {
    Node::of(object).at(&["metadata", "deletionTimestamp"]).is_present()
}

/// Whether an update changes only metadata that rules don't read (§4.1 item 5). The status is ignored, because a write of the main resource can't
/// change it.
pub fn only_bookkeeping_differs(old: &Json<'_>, new: &Json<'_>) -> bool {
    const BOOKKEEPING: [&str; 5] = ["finalizers", "ownerReferences", "managedFields", "resourceVersion", "generation"];
    let (Json::Object(old), Json::Object(new)) = (old, new) else { return old == new };
    same_members(old, new, |key| matches!(key, "metadata" | "status"))
        && match (old.get("metadata"), new.get("metadata")) {
            (Some(Json::Object(old)), Some(Json::Object(new))) => {
                same_members(old, new, |key| BOOKKEEPING.contains(&key))
            }
            (old, new) => old == new,
        }
}

/// Whether two objects have the same members, apart from ignored members.
fn same_members(left: &Members<'_>, right: &Members<'_>, does_not_count: impl Fn(&str) -> bool) -> bool {
    left.iter().all(|(key, value)| does_not_count(key) || right.get(key) == Some(value))
        && right.keys().all(|key| does_not_count(key) || left.contains_key(key))
}

pub const META_10: Rule = warns("META-10", "The finalizer is not removed by hand.", &["M8"]);

/// META-10: the finalizer of this program is not removed by hand.
pub fn finalizer_stays(request: &ValidationRequest<'_>, old: &Json<'_>, new: &Json<'_>, found: &mut Findings) {
    let has = |object: &Json<'_>| {
        Node::of(object).at(&["metadata", "finalizers"]).elements().iter().any(|name| *name == finalizer::MACHINE)
    };
    if !has(old) || has(new) || request.comes_from_controller() {
        return;
    }
    let path = FieldPath::new("metadata.finalizers");
    if !is_terminating(old) {
        found.warn(META_10.id, path, finalizer::MACHINE, "the controller will add it again");
    } else if request.kind == Kind::Machine {
        found.warn(META_10.id, path, finalizer::MACHINE, "the virtual machine may be orphaned");
    }
}

/// Checks the syntax of name, labels, annotations and finalizers of an object. API servers check this themselves. Callers without an API server,
/// such as `mcm validate`, need this check.
pub fn object_metadata_syntax(object: &Json<'_>, found: &mut Findings) {
    const RULE: RuleId = RuleId::declare("META");
    let path = FieldPath::new("metadata");
    let metadata = Node::of(object).get("metadata");
    match (metadata.get("name"), metadata.get("generateName")) {
        (Node::Absent, Node::Absent) => found.required(RULE, path.child("name"), "name or generateName is required"),
        (name, prefix) => {
            for objection in name.text().map(syntax::dns1123_subdomain).unwrap_or_default() {
                found.invalid(RULE, path.child("name"), name.value_or_null(), objection);
            }
            // The generated part follows the prefix, so that the prefix may end with a dash or dot.
            let prefix_name = prefix.text().map(|prefix| format!("{prefix}x"));
            for objection in prefix_name.as_deref().map(syntax::dns1123_subdomain).unwrap_or_default() {
                found.invalid(RULE, path.child("generateName"), prefix.value_or_null(), objection);
            }
        }
    }
    labels::labels_are_wellformed(RULE, metadata.get("labels"), path.place().child("labels"), found);
    labels::annotations_are_wellformed(RULE, metadata.get("annotations"), path.place().child("annotations"), found);
    for (index, finalizer) in metadata.get("finalizers").elements().iter().enumerate() {
        for objection in finalizer.as_str().map(syntax::qualified_name).unwrap_or_default() {
            found.invalid(RULE, path.child("finalizers").index(index), finalizer, objection);
        }
    }
}

struct Metadata<'a> {
    kind: Kind,
    new: Node<'a>,
    annotations: Node<'a>,
    old_annotations: Node<'a>,
}

impl<'a> Metadata<'a> {
    fn annotation(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key).text().filter(|value| self.old_annotations.get(key).text() != Some(value))
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        self.new.get("metadata").get("labels").get(key).text()
    }
}

fn path_of_annotation(key: &str) -> FieldPath {
    FieldPath::new("metadata.annotations").key(key)
}

pub const META_1: Rule = Rule {
    policy_cel: &[check(
        "priority",
        "!variables.is_machine || variables.priority == '' || variables.priority.matches('^[+-]?[0-9]{1,19}$')",
        "metadata.annotations[machinepriority.machine.sapcloud.io]: must be an integer",
    )],
    ..refuses(
        "META-1",
        "The priority of a machine is an integer.",
        &["V56a", "V56b", "V56c", "V57", "V58a", "V58b", "V58c", "V59"],
    )
};

/// META-1: the priority is a number in the syntax of Go's `Atoi`. An empty priority means the default.
fn priority_is_a_number(metadata: &Metadata<'_>, found: &mut Findings) {
    let value = metadata.annotation(annotation::MACHINE_PRIORITY).filter(|value| !value.is_empty());
    let Some(value) = value.filter(|_| metadata.kind == Kind::Machine) else { return };
    if i64::from_str(value).is_err() {
        let path = path_of_annotation(annotation::MACHINE_PRIORITY);
        found.invalid(META_1.id, path, value, "must be an integer");
    }
}

pub const META_2: Rule = Rule {
    policy_cel: &[check(
        "preserve",
        "!variables.is_machine || variables.preserve in ['', 'auto-preserved', 'false', 'now', 'when-failed']",
        "metadata.annotations[node.machine.sapcloud.io/preserve]: supported values: \"auto-preserved\", \"false\", \"now\", \"when-failed\"",
    )],
    ..refuses_or_warns(
        "META-2",
        "The annotation that preserves a machine holds one of its words.",
        &["V60", "V61", "V62", "V65"],
    )
};

pub const META_3: Rule = warns("META-3", "The word `auto-preserved` is left to the set controller.", &["V63", "V64"]);

/// META-2 and META-3: the preserve annotation has one of four values. One of them is reserved for a controller.
fn preserve_value_is_known(metadata: &Metadata<'_>, request: &ValidationRequest<'_>, found: &mut Findings) {
    let Some(value) = metadata.annotation(annotation::PRESERVE).filter(|_| metadata.kind == Kind::Machine) else {
        return;
    };
    let path = path_of_annotation(annotation::PRESERVE);
    match value {
        "" => found.warn(META_2.id, path, value, "empty value has no effect; remove the annotation"),
        "auto-preserved" if !request.comes_from_controller() => {
            let detail = "is reserved for the MachineSet controller; it counts against autoPreserveFailedMachineMax";
            found.warn(META_3.id, path, value, detail);
        }
        value if PRESERVE_VALUES.contains(&value) => {}
        other => found.not_supported(META_2.id, path, other, &PRESERVE_VALUES),
    }
}

pub const META_4: Rule = warns("META-4", "The autoscaler's list of machines to delete can be read.", &["V67", "V68"]);

/// META-4: cluster-autoscaler's list of machines to delete can be parsed. Never refused, because cluster-autoscaler changes the replicas in the same
/// request.
fn trigger_deletion_is_readable(metadata: &Metadata<'_>, found: &mut Findings) {
    let Some(value) = metadata.annotation(annotation::TRIGGER_DELETION) else { return };
    if metadata.kind != Kind::MachineDeployment || value.is_empty() {
        return;
    }
    let mut reported = 0;
    for entry in value.split(',') {
        // The entry comes last, because the end of a long warning is cut off.
        let objection = match entry.split_once('~') {
            Some((name, time)) if !name.is_empty() && is_rfc3339(time) => continue,
            None if !entry.is_empty() => "without time",
            _ => "ignored, not <machine>~<time>",
        };
        if reported < ENTRIES_MAX {
            let detail = format!("{objection}: {}", quoted(entry));
            found.warn(META_4.id, path_of_annotation(annotation::TRIGGER_DELETION), Value::Null, detail);
        } else {
            found.leave_out_warning(META_4.id);
        }
        reported += 1;
    }
}

pub const META_5: Rule = Rule {
    policy_cel: &[check(
        "creation_timeout",
        r"variables.is_class || variables.creation_timeout == '' || variables.creation_timeout.matches('^[+]?(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$') && variables.creation_timeout.matches('[1-9]')",
        "metadata.annotations[node.machine.sapcloud.io/effective-creation-timeout]: must be a duration such as \"30s\", \"10m\" or \"1h30m\", greater than 0",
    )],
    ..refuses("META-5", "The effective creation timeout is a duration above zero.", &["V66a", "V66b", "V66c"])
};

/// META-5: the effective creation timeout is a duration above zero.
fn creation_timeout_is_a_duration(metadata: &Metadata<'_>, found: &mut Findings) {
    let Some(value) = metadata.annotation(annotation::EFFECTIVE_CREATION_TIMEOUT) else { return };
    if metadata.kind == Kind::MachineClass {
        return;
    }
    let path = path_of_annotation(annotation::EFFECTIVE_CREATION_TIMEOUT);
    match GoDuration::from_str(value) {
        Err(error) => found.invalid(META_5.id, path, value, error.to_string()),
        Ok(duration) if duration <= GoDuration::ZERO => {
            found.invalid(META_5.id, path, value, "must be greater than 0");
        }
        Ok(_) => {}
    }
}

pub const META_6: Rule =
    warns("META-6", "The times that controllers exchange in annotations are RFC 3339 times.", &["META-6"]);

/// META-6: times in annotations of controllers are RFC 3339 times.
fn times_are_times(metadata: &Metadata<'_>, found: &mut Findings) {
    for key in [annotation::MARKED_FOR_DELETION_TIME, annotation::LAST_REPLICA_CHANGE_BY_SCALER] {
        if let Some(value) = metadata.annotation(key).filter(|value| !is_rfc3339(value)) {
            let detail = "is not an RFC 3339 time and will be ignored";
            found.warn(META_6.id, path_of_annotation(key), value, detail);
        }
    }
}

pub const META_7: Rule = warns("META-7", "The label `freeze` has the value `True` or is absent.", &["V112"]);

/// META-7: only the value `True` freezes.
fn freeze_is_true(metadata: &Metadata<'_>, found: &mut Findings) {
    if !matches!(metadata.kind, Kind::MachineSet | Kind::MachineDeployment) {
        return;
    }
    if let Some(value) = metadata.label(label::FREEZE).filter(|value| *value != "True") {
        let path = FieldPath::new("metadata.labels").key(label::FREEZE);
        found.warn(META_7.id, path, value, "only the value \"True\" freezes the object");
    }
}

pub const META_9: Rule =
    warns("META-9", "The name leaves room for the names that are made of it.", &["META-9", "META-9b"]);

/// META-9: the name of a machine, and the names generated from this name, are valid host names.
fn name_leaves_room_for_machines(metadata: &Metadata<'_>, found: &mut Findings) {
    let generated =
        "generated machine names may exceed 63 characters, which many providers and host names do not allow";
    let own = "the name of a machine with more than 63 characters can't be the value of a label, as its bootstrap \
               token needs it, nor a host name";
    let (max, detail) = match metadata.kind {
        Kind::MachineDeployment => (DEPLOYMENT_NAME_MAX, generated),
        Kind::MachineSet => (SET_NAME_MAX, generated),
        Kind::Machine => (HOST_NAME_MAX, own),
        Kind::MachineClass => return,
    };
    if let Some(name) = metadata.new.at(&["metadata", "name"]).text().filter(|name| name.len() > max) {
        found.warn(META_9.id, FieldPath::new("metadata.name"), name, detail);
    }
}

pub const META_11: Rule = refuses(
    "META-11",
    "Annotations for admission are known, and the rules that they skip may be skipped.",
    &["V138", "V139"],
);

/// META-11: annotations for admission are known.
fn admission_annotations_are_known(metadata: &Metadata<'_>, found: &mut Findings) {
    for (key, _) in metadata.annotations.texts() {
        if !key.starts_with(annotation::ADMISSION_PREFIX) {
            continue;
        }
        let Some(value) = metadata.annotation(key) else { continue };
        let path = path_of_annotation(key);
        match key {
            annotation::INJECT_CA => {}
            annotation::ADMISSION_SKIP => {
                let mut objections = FirstFew::default();
                for id in skip_list(value).filter(|id| !rules::named(id).is_some_and(Rule::is_skippable)) {
                    objections.add(|| match rules::named(id) {
                        Some(_) => {
                            let others = rules::skippable_ids().map(RuleId::as_str).collect::<Vec<_>>().join(", ");
                            format!("rule {id} cannot be skipped; those that can are {others}")
                        }
                        None => format!("unknown rule {}", quoted(id)),
                    });
                }
                if !objections.is_empty() {
                    found.invalid(META_11.id, path, value, objections.joined("; "));
                }
            }
            _ => found.invalid(META_11.id, path, value, "unknown annotation"),
        }
    }
}

fn is_rfc3339(text: &str) -> bool {
    text.contains(['T', 't']) && jiff::Timestamp::from_str(text).is_ok()
}
