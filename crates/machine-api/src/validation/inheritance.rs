//! Children of an owner with stored mistakes: mistakes that a machine or set copies from its owner are warnings, not refusals.
//!
//! Objects that were stored before admission existed must keep working. For sets this includes new machines, and the controllers copy the template of
//! a set with its mistakes. A finding for a new child is forgiven only if its controlling owner exists, has the kind, name and UID of the owner
//! reference, and has the *same* value at the corresponding place. The functions are pure. The caller finds the stored owner. Source:
//! spec/api-and-admission §4.2.

use kube_values::syntax;

use super::{Change, ValidationRequest, node::Node, selector::SEL_6};
use crate::{
    kind::{ApiVersion, Kind},
    names::{GROUP, label},
};
use kube_values::{
    field::{FieldPath, Findings, RuleId, Severity},
    json::{Json, Members},
};

/// The identity of the controlling owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerKey {
    /// `MachineSet` or `MachineDeployment`.
    pub kind: Kind,
    /// The namespace of the owner and the child.
    pub namespace: String,
    /// The name of the owner.
    pub name: String,
    /// The UID of the owner. Another object with the same name is another owner.
    pub uid: String,
}

impl OwnerKey {
    /// Whether this object is the owner.
    pub fn names(&self, object: &Json<'_>) -> bool {
        let text = |field| Node::of(object).at(&["metadata", field]).text();
        text("name") == Some(&self.name) && text("namespace") == Some(&self.namespace) && text("uid") == Some(&self.uid)
    }
}

/// The owner in the owner reference of a new object, if the owner can be the source of its content: the set of a machine, or the deployment of a set.
/// Only for v1alpha1, because controllers create children only in v1alpha1.
pub fn controlling_owner(request: &ValidationRequest<'_>) -> Option<OwnerKey> {
    let Change::Create { new } = request.change else { return None };
    let kind = match request.kind {
        Kind::Machine => Kind::MachineSet,
        Kind::MachineSet => Kind::MachineDeployment,
        Kind::MachineDeployment | Kind::MachineClass => return None,
    };
    let references = Node::of(new).at(&["metadata", "ownerReferences"]).elements();
    let controller = references.iter().map(Node::of).find(|reference| reference.get("controller").is_true())?;
    let text = |field| controller.get(field).text().filter(|text| !text.is_empty());
    let group = text("apiVersion")?.split_once('/')?.0;
    let is_ours = request.version == ApiVersion::V1alpha1 && group == GROUP && text("kind") == Some(kind.as_str());
    let key = || -> Option<OwnerKey> {
        let (name, uid) = (text("name")?.to_owned(), text("uid")?.to_owned());
        // Both become part of a URL. Only valid names are used, so that the URL can't be changed.
        let is_label = !request.namespace.contains('.') && is_name(request.namespace);
        (is_label && is_name(&name)).then(|| OwnerKey { kind, namespace: request.namespace.to_owned(), name, uid })
    };
    is_ours.then(key).flatten()
}

/// Whether the text is a valid name of an object or namespace.
fn is_name(text: &str) -> bool {
    text.len() <= 253 && syntax::dns1123_subdomain(text).is_empty()
}

/// Forgives the refusals of a new object where its owner has the same value.
pub fn forgive_mistakes_of_the_owner(request: &ValidationRequest<'_>, owner: &Json<'_>, found: &mut Findings) {
    let Some(key) = controlling_owner(request).filter(|key| key.names(owner)) else { return };
    let Some(child) = request.change.new_object().map(Node::of) else { return };
    let is_inherited = |rule, path: &FieldPath| is_inherited(key.kind, child, Node::of(owner), rule, path);
    for finding in found.iter_mut().filter(|finding| finding.denies()) {
        if is_inherited(finding.rule, &finding.error.path) {
            finding.severity = Severity::Existing;
        }
    }
    found.forgive_left_out(is_inherited);
}

fn is_inherited(owner_kind: Kind, child: Node<'_>, owner: Node<'_>, rule: RuleId, path: &FieldPath) -> bool {
    // SEL-6 is the only rule that reads two places.
    let second = if rule == SEL_6.id { Some("spec.selector") } else { None };
    let mut places = second.into_iter().chain([path.as_str()]);
    places.all(|path| {
        let Some(place) = Place::parse(path) else { return false };
        // A path that ends with a key must have a value, except if the key itself looks like a path.
        let is_there = |value: Node<'_>| !path.ends_with(']') || !matches!(value, Node::Absent);
        let own = place.of(child);
        is_there(own) && place.in_owner(owner_kind).iter().any(|counterpart| alike(own, counterpart.of(owner)))
    })
}

/// The names on the path to a value. A list is compared as a whole, because rules compare its elements with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place<'a>(Vec<&'a str>);

impl<'a> Place<'a> {
    /// Parses the path of a finding. `None` if the path is ambiguous.
    fn parse(path: &'a str) -> Option<Self> {
        let (mut names, mut rest) = (Vec::new(), path);
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let (key, after) = inside.split_once(']')?;
                if key.bytes().all(|byte| byte.is_ascii_digit()) {
                    break;
                }
                names.push(key);
                rest = after;
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                names.push(&rest[..end]);
                rest = &rest[end..];
            }
            rest = match rest.strip_prefix('.') {
                Some("") => return None,
                Some(more) => more,
                None if rest.is_empty() || rest.starts_with('[') => rest,
                None => return None,
            };
        }
        Some(Self(names))
    }

    fn of<'b>(&self, object: Node<'b>) -> Node<'b> {
        object.at(&self.0)
    }

    /// The places of the owner where the value of the child comes from. Annotations come from the template of the owner or from the owner.
    fn in_owner(&self, owner: Kind) -> Vec<Self> {
        let below = |root: &[&'a str], names: &[&'a str]| Self([root, names].concat());
        match (owner, self.0.as_slice()) {
            (Kind::MachineSet, ["spec", inside @ ..]) => vec![below(&["spec", "template", "spec"], inside)],
            (Kind::MachineDeployment, ["spec", field, ..])
                if ["selector", "template", "minReadySeconds", "autoPreserveFailedMachineMax"].contains(field) =>
            {
                vec![self.clone()]
            }
            (Kind::MachineSet | Kind::MachineDeployment, ["metadata", "annotations", _]) => {
                vec![below(&["spec", "template"], &self.0), self.clone()]
            }
            (Kind::MachineSet | Kind::MachineDeployment, ["metadata", "labels" | "finalizers", ..]) => {
                vec![below(&["spec", "template"], &self.0)]
            }
            _ => Vec::new(),
        }
    }
}

/// Whether two values are equal, without the hash of the template, which controllers add to selectors and labels.
fn alike(own: Node<'_>, owners: Node<'_>) -> bool {
    match (own, owners) {
        (Node::Absent, Node::Absent) => true,
        (Node::Is(own), Node::Is(owners)) => same_but_for_the_hash(own, owners),
        _ => false,
    }
}

fn same_but_for_the_hash(own: &Json<'_>, owners: &Json<'_>) -> bool {
    match (own, owners) {
        (Json::Object(own), Json::Object(owners)) => {
            let count = |members: &Members<'_>| members.iter().filter(|(key, value)| !is_hash(key, value)).count();
            count(own) == count(owners)
                && own
                    .iter()
                    .filter(|(key, value)| !is_hash(key, value))
                    .all(|(key, value)| owners.get(key).is_some_and(|theirs| same_but_for_the_hash(value, theirs)))
        }
        (Json::List(own), Json::List(owners)) => {
            own.len() == owners.len()
                && own.iter().zip(owners.iter()).all(|(own, theirs)| same_but_for_the_hash(own, theirs))
        }
        _ => own == owners,
    }
}

/// Whether this label is a valid template hash. An invalid hash is a mistake of its own.
fn is_hash(key: &str, value: &Json<'_>) -> bool {
    key == label::MACHINE_TEMPLATE_HASH && value.as_str().is_some_and(|value| syntax::label_value(value).is_empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{
        super::{NoProviders, NoReferences, Policy, User, fixtures, validate, validate_child},
        *,
    };

    const UID: &str = "7d3a5b1e-0000-4000-8000-000000000001";

    fn merged(kind: Kind, patches: &[Value]) -> Value {
        let mut object = fixtures::object(kind, &json!({}));
        for patch in patches {
            json_patch::merge(&mut object, patch);
        }
        object
    }

    fn owned_by(kind: &str, name: &str, uid: &str) -> Value {
        let reference = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": true});
        json!({"metadata": {"ownerReferences": [reference]}})
    }

    /// The set `s1` with this template.
    fn set(template: &Value) -> Value {
        merged(Kind::MachineSet, &[json!({"metadata": {"uid": UID}, "spec": {"template": template}})])
    }

    fn machine(patch: Value) -> Value {
        merged(Kind::Machine, &[owned_by("MachineSet", "s1", UID), patch])
    }

    /// The number of refusals with the owner, and whether there were refusals without the owner.
    fn judge(kind: Kind, version: ApiVersion, child: &Value, owner: &Value) -> (usize, bool) {
        let (child, owner, policy) = (Json::from(child), Json::from(owner), Policy::default());
        let request = ValidationRequest {
            kind,
            version,
            change: Change::Create { new: &child },
            namespace: "default",
            user: User::default(),
            policy: &policy,
            providers: &NoProviders,
            references: &NoReferences,
        };
        (validate_child(&request, &owner).denied(), validate(&request).denies())
    }

    const BAD: &str = "KernelDeadlock, ReadonlyFilesystem";

    #[rstest]
    #[case::the_template_has_the_same(json!({"spec": {"nodeConditions": BAD}}), json!({"spec": {"nodeConditions": BAD}}), 0)]
    #[case::another_wrong_value(json!({"spec": {"nodeConditions": "A, C"}}), json!({"spec": {"nodeConditions": BAD}}), 1)]
    #[case::a_template_that_is_right(json!({"spec": {"nodeConditions": BAD}}), json!({"spec": {"nodeConditions": "A"}}), 1)]
    #[case::one_of_two(json!({"spec": {"nodeConditions": BAD, "healthTimeout": "0s"}}), json!({"spec": {"nodeConditions": BAD}}), 1)]
    #[case::both(json!({"spec": {"nodeConditions": BAD, "healthTimeout": "0s"}}), json!({"spec": {"nodeConditions": BAD, "healthTimeout": "0s"}}), 0)]
    #[case::labels_of_nodes(
        json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"bad key!": "x"}}}}}),
        json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"bad key!": "x"}}}}}), 0)]
    #[case::other_labels_of_nodes(
        json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"bad key!": "x", "b": "c"}}}}}),
        json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"bad key!": "x"}}}}}), 1)]
    #[case::taints_as_a_whole(
        json!({"spec": {"nodeTemplate": {"spec": {"taints": [{"key": "k", "effect": "NoRun"}]}}}}),
        json!({"spec": {"nodeTemplate": {"spec": {"taints": [{"key": "k", "effect": "NoRun"}]}}}}), 0)]
    #[case::the_same_taint_beside_another(
        json!({"spec": {"nodeTemplate": {"spec": {"taints": [{"key": "k", "effect": "NoRun"}]}}}}),
        json!({"spec": {"nodeTemplate": {"spec": {"taints": [{"key": "k", "effect": "NoRun"}, {"key": "l", "effect": "NoSchedule"}]}}}}), 1)]
    #[case::annotations_of_the_template(
        json!({"metadata": {"annotations": {"machinepriority.machine.sapcloud.io": "high"}}}),
        json!({"metadata": {"annotations": {"machinepriority.machine.sapcloud.io": "high"}}}), 0)]
    fn a_machine_of_a_set(#[case] patch: Value, #[case] template: Value, #[case] refusals: usize) {
        assert_eq!(judge(Kind::Machine, ApiVersion::V1alpha1, &machine(patch), &set(&template)), (refusals, true));
    }

    /// The Go controllers copy this annotation from the set to its machines.
    #[rstest]
    #[case::the_same("abc", 0)]
    #[case::another("0s", 1)]
    fn an_annotation_that_is_copied(#[case] value: &str, #[case] refusals: usize) {
        let patch = |value: &str| json!({"metadata": {"annotations": {"node.machine.sapcloud.io/effective-creation-timeout": value}}});
        let set = merged(Kind::MachineSet, &[json!({"metadata": {"uid": UID}}), patch(value)]);
        let judged = judge(Kind::Machine, ApiVersion::V1alpha1, &machine(patch("abc")), &set);
        assert_eq!(judged, (refusals, true));
    }

    fn says(value: &str) -> Value {
        json!({"spec": {"nodeConditions": value}})
    }

    #[rstest]
    #[case::the_owner(owned_by("MachineSet", "s1", UID), 0)]
    #[case::a_foreign_uid(owned_by("MachineSet", "s1", "other"), 1)]
    #[case::another_name(owned_by("MachineSet", "s2", UID), 1)]
    #[case::another_kind(owned_by("MachineDeployment", "s1", UID), 1)]
    #[case::no_owner(json!({}), 1)]
    #[case::an_owner_that_does_not_control(
        json!({"metadata": {"ownerReferences": [{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "s1", "uid": UID}]}}), 1)]
    #[case::a_kind_of_another_group(
        json!({"metadata": {"ownerReferences": [{"apiVersion": "example.com/v1", "kind": "MachineSet", "name": "s1", "uid": UID, "controller": true}]}}), 1)]
    fn only_the_owner_that_is_named_counts(#[case] reference: Value, #[case] refusals: usize) {
        let child = merged(Kind::Machine, &[reference, says(BAD)]);
        assert_eq!(judge(Kind::Machine, ApiVersion::V1alpha1, &child, &set(&says(BAD))), (refusals, true));
    }

    #[test]
    fn an_owner_in_another_namespace_is_none() {
        let mut elsewhere = set(&says(BAD));
        elsewhere["metadata"]["namespace"] = json!("elsewhere");
        assert_eq!(judge(Kind::Machine, ApiVersion::V1alpha1, &machine(says(BAD)), &elsewhere), (1, true));
    }

    /// Both objects have the hash that controllers add, and a selector with expressions that the template does not match.
    #[rstest]
    #[case::the_deployment_has_the_same(json!({"spec": {"nodeConditions": BAD}}), json!({}), 0)]
    #[case::replicas_are_its_own(json!({}), json!({"spec": {"replicas": -1}}), 1)]
    #[case::a_template_of_its_own(json!({"spec": {"nodeConditions": BAD}}), says_in_template("A, C"), 1)]
    fn a_set_of_a_deployment(#[case] template: Value, #[case] more: Value, #[case] refusals: usize) {
        let template = json!({"spec": {"template": template}});
        let deployment = merged(
            Kind::MachineDeployment,
            &[json!({"metadata": {"uid": UID}}), template.clone(), json!({"spec": {"replicas": 3}})],
        );
        let hash = json!({"machine-template-hash": "1234"});
        let hashed = json!({"spec": {"selector": {"matchLabels": hash}, "template": {"metadata": {"labels": hash}}}});
        let set = merged(Kind::MachineSet, &[owned_by("MachineDeployment", "d1", UID), template, hashed, more]);
        let judged = judge(Kind::MachineSet, ApiVersion::V1alpha1, &set, &deployment);
        assert_eq!(judged, (refusals, true));
    }

    fn bad_labels(keys: std::ops::Range<usize>) -> Value {
        let labels: serde_json::Map<_, _> = keys.map(|number| (format!("bad key {number}!"), json!("x"))).collect();
        json!({"spec": {"nodeTemplate": {"metadata": {"labels": labels}}}})
    }

    /// More mistakes than an answer lists.
    #[rstest]
    #[case::all_are_the_owners(0..300, json!({}), 0)]
    #[case::one_is_its_own(0..301, json!({}), 1)]
    #[case::one_is_its_own_elsewhere(0..300, json!({"spec": {"healthTimeout": "0s"}}), 1)]
    fn many_mistakes_of_the_owner(#[case] keys: std::ops::Range<usize>, #[case] more: Value, #[case] least: usize) {
        let (child, owner) = (merged(Kind::Machine, &[machine(bad_labels(keys)), more]), set(&bad_labels(0..300)));
        let (denied, _) = judge(Kind::Machine, ApiVersion::V1alpha1, &child, &owner);
        assert!(denied >= least && (denied > 0) == (least > 0), "{denied}");
        let nobodys = judge(Kind::Machine, ApiVersion::V1alpha1, &child, &set(&json!({}))).0;
        assert!(nobodys >= 300, "{nobodys}");
    }

    #[rstest]
    #[case::fifty_and_one_annotation(50)]
    #[case::many_and_one_annotation(300)]
    fn a_mistake_that_comes_after_many(#[case] number: usize) {
        let annotation = json!({"metadata": {"annotations": {"machinepriority.machine.sapcloud.io": "high"}}});
        let both = merged(Kind::Machine, &[machine(bad_labels(0..number)), annotation.clone()]);
        let mut template = bad_labels(0..number);
        json_patch::merge(&mut template, &annotation);
        assert_eq!(judge(Kind::Machine, ApiVersion::V1alpha1, &both, &set(&template)).0, 0);
    }

    #[test]
    fn a_key_that_looks_like_a_path_is_not_read_as_absent() {
        let label = json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"x].y[z": 5}}}}});
        assert!(judge(Kind::Machine, ApiVersion::V1alpha1, &machine(label), &set(&json!({}))).0 > 0);
    }

    fn says_in_template(value: &str) -> Value {
        json!({"spec": {"template": says(value)}})
    }

    #[test]
    fn a_selector_that_does_not_fit_is_compared_with_both_its_places() {
        let expression = |value: &str| json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": [value]}]}}});
        let hash = json!({"machine-template-hash": "1234"});
        let hashed = json!({"spec": {"selector": {"matchLabels": hash}, "template": {"metadata": {"labels": hash}}}});
        let deployment = merged(Kind::MachineDeployment, &[json!({"metadata": {"uid": UID}}), expression("x")]);
        let set = |value: &str| {
            merged(Kind::MachineSet, &[owned_by("MachineDeployment", "d1", UID), expression(value), hashed.clone()])
        };
        assert_eq!(judge(Kind::MachineSet, ApiVersion::V1alpha1, &set("x"), &deployment), (0, true));
        assert_eq!(judge(Kind::MachineSet, ApiVersion::V1alpha1, &set("y"), &deployment), (1, true));
    }

    /// No invalid object was ever stored in v1beta1.
    #[test]
    fn v1beta1_forgives_nothing() {
        let child = merged(
            Kind::Machine,
            &[owned_by("MachineSet", "s1", UID), json!({"spec": {"lifecycle": {"drainTimeout": "x"}}})],
        );
        let owner = set(&json!({"spec": {"lifecycle": {"drainTimeout": "x"}}}));
        assert!(judge(Kind::Machine, ApiVersion::V1beta1, &child, &owner).0 > 0);
    }

    #[rstest]
    #[case::fields("spec.class.name", &["spec", "class", "name"])]
    #[case::a_key_with_dots("metadata.annotations[a.b/c]", &["metadata", "annotations", "a.b/c"])]
    #[case::a_field_behind_a_key("a[b].c", &["a", "b", "c"])]
    #[case::a_list_is_taken_whole("spec.taints[3].key", &["spec", "taints"])]
    #[case::a_key_that_is_cut("a[b", &[])]
    #[case::a_key_with_brackets("a[b]c]", &[])]
    fn a_path_is_read(#[case] path: &str, #[case] names: &[&str]) {
        assert_eq!(Place::parse(path).map(|place| place.0).unwrap_or_default(), names);
    }

    #[rstest]
    #[case::of_a_name("s1", true)]
    #[case::a_query("?x", false)]
    #[case::a_path("a/b", false)]
    #[case::a_way_up("..", false)]
    #[case::a_fragment("s1#x", false)]
    #[case::an_escape("s1%2fb", false)]
    fn an_owner_is_only_read_by_a_valid_name(#[case] name: &str, #[case] expected: bool) {
        let child = merged(Kind::Machine, &[owned_by("MachineSet", name, UID)]);
        let child = Json::from(&child);
        let policy = super::super::Policy::default();
        let request = |namespace| ValidationRequest {
            kind: Kind::Machine,
            version: ApiVersion::V1alpha1,
            change: Change::Create { new: &child },
            namespace,
            user: super::super::User::default(),
            policy: &policy,
            providers: &super::super::NoProviders,
            references: &super::super::NoReferences,
        };
        assert_eq!(controlling_owner(&request("default")).is_some(), expected);
        assert_eq!(controlling_owner(&request("ns/secrets?")), None);
    }
}
