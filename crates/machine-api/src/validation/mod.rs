//! The rules for machine objects: what is refused, what causes a warning, and when.
//!
//! Pure functions for untyped JSON ([`Json`]). The rules are in files by topic ([`metadata`], [`machine_spec`], [`selector`], …), with one small
//! function for each. This file has the request ([`ValidationRequest`]) and the order of the rules. `admission/` reads the reviews and writes the
//! answers. The rules of drivers come from [`Providers`], and facts about other objects from [`References`].
//! Source: spec/api-and-admission §3, §4, §5.

mod class;
mod conditions;
mod inheritance;
mod labels;
mod machine_spec;
mod metadata;
mod node;
mod node_template;
mod provider_schema;
mod references;
mod replicas;
mod residue;
mod rule;
mod rules;
mod selector;
mod status;
mod strategy;
mod transitions;
mod types;

/// Runs all static rules for one object, in profile `compat` and without drivers.
#[cfg(test)]
fn static_findings(kind: Kind, object: &Json<'_>) -> Findings {
    let policy = Policy::default();
    let request = ValidationRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change: Change::Create { new: object },
        namespace: Node::of(object).at(&["metadata", "namespace"]).text().unwrap_or_default(),
        user: User::default(),
        policy: &policy,
        providers: &NoProviders,
        references: &NoReferences,
    };
    let object = Object { kind, version: ApiVersion::V1alpha1, value: object };
    let mut found = Findings::new();
    static_rules(&object, &request, &mut found);
    metadata::rules(&object, None, &request, &mut found);
    rules::apply_profile(policy.profile, ApiVersion::V1alpha1, &mut found);
    found
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod cases_class;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod reference_tests;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

pub use self::{
    class::{CLS_6, Coverage, NoProviders, Providers},
    inheritance::{OwnerKey, controlling_owner},
    metadata::object_metadata_syntax,
    node::Node,
    provider_schema::{ProviderSchema, as_go_reads},
    references::{ClassFact, Holder, HolderFact, NoReferences, References, SecretFact, SelectingFact},
    rule::{CrdCel, Leniency, Level, Original, Part, PolicyCel, Reason, Rule, Subject},
    rules::{RULES, stops_controllers},
    selector::selects,
    status::status_findings,
    types::TYPE,
};
use super::{
    kind::{ApiVersion, Kind},
    names::annotation,
};
use kube_values::{
    field::{FieldPath, Findings, RuleId, Severity},
    json::Json,
};

/// How strict admission is for objects that the Go original accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// An object that works with the Go original causes at most a warning.
    #[default]
    Compat,
    /// Questionable objects are refused.
    Strict,
}

impl std::str::FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "compat" => Ok(Self::Compat),
            "strict" => Ok(Self::Strict),
            other => Err(format!("unknown admission profile {other:?}: want \"compat\" or \"strict\"")),
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Compat => "compat",
            Self::Strict => "strict",
        })
    }
}

/// The users that count as controllers. They are exempt from transition and reference rules (spec/api-and-admission §4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerUsers {
    /// User names.
    pub users: BTreeSet<String>,
    /// Groups.
    pub groups: BTreeSet<String>,
}

impl ControllerUsers {
    /// Only these users, without groups.
    pub fn named<S: Into<String>>(users: impl IntoIterator<Item = S>) -> Self {
        Self { users: users.into_iter().map(Into::into).collect(), groups: BTreeSet::new() }
    }

    fn contains(&self, user: &User<'_>) -> bool {
        self.users.contains(user.name) || user.groups.iter().any(|group| self.groups.contains(group.as_ref()))
    }
}

/// The controllers of Kubernetes that change metadata of foreign objects.
const EXEMPT_SYSTEM_USERS: [&str; 2] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];

/// The user of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct User<'a> {
    /// The user name. Empty if unknown.
    pub name: &'a str,
    /// Groups.
    pub groups: &'a [std::borrow::Cow<'a, str>],
}

/// The change of an object.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The object is created.
    Create {
        /// The new object.
        new: &'a Json<'a>,
    },
    /// The object is changed.
    Update {
        /// The stored object.
        old: &'a Json<'a>,
        /// The new object.
        new: &'a Json<'a>,
    },
    /// The object is deleted.
    Delete {
        /// The stored object. Some old API servers don't send it.
        old: Option<&'a Json<'a>>,
        /// Whether the dependents of the object are deleted too.
        dependents: Dependents,
    },
}

/// Whether the dependents of a deleted object are deleted too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependents {
    /// They are deleted too.
    #[default]
    Collected,
    /// They are kept (`propagationPolicy: Orphan`).
    Orphaned,
}

impl<'a> Change<'a> {
    /// The new object.
    pub const fn new_object(self) -> Option<&'a Json<'a>> {
        match self {
            Self::Create { new } | Self::Update { new, .. } => Some(new),
            Self::Delete { .. } => None,
        }
    }

    /// The stored object.
    pub const fn old_object(self) -> Option<&'a Json<'a>> {
        match self {
            Self::Create { .. } => None,
            Self::Update { old, .. } => Some(old),
            Self::Delete { old, .. } => old,
        }
    }
}

/// The settings of admission.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The profile.
    pub profile: Profile,
    /// The users that are exempt from transition rules.
    pub controllers: ControllerUsers,
}

/// A request, as the rules read it.
#[derive(Clone, Copy)]
pub struct ValidationRequest<'a> {
    /// The kind of the object.
    pub kind: Kind,
    /// The version of the object, which is also the version of the paths of findings.
    pub version: ApiVersion,
    /// The change of the object.
    pub change: Change<'a>,
    /// The namespace of the request.
    pub namespace: &'a str,
    /// The user of the request.
    pub user: User<'a>,
    /// The settings.
    pub policy: &'a Policy,
    /// The rules of the drivers.
    pub providers: &'a dyn Providers,
    /// Facts about other objects.
    pub references: &'a dyn References,
}

impl ValidationRequest<'_> {
    pub(crate) fn comes_from_controller(&self) -> bool {
        self.policy.controllers.contains(&self.user) || EXEMPT_SYSTEM_USERS.contains(&self.user.name)
    }

    /// The profile. v1beta1 is always strict, because no invalid object was ever stored in it.
    const fn profile(&self) -> Profile {
        match self.version {
            ApiVersion::V1alpha1 => self.policy.profile,
            ApiVersion::V1beta1 => Profile::Strict,
        }
    }
}

/// Checks a request and returns all problems (spec/api-and-admission §4.1, items 1 and 5 to 8).
pub fn validate(request: &ValidationRequest<'_>) -> Findings {
    judge(request, None)
}

/// Checks a new object together with the owner that [`controlling_owner`] returned. A mistake that both have causes a warning and not a refusal.
pub fn validate_child(request: &ValidationRequest<'_>, owner: &Json<'_>) -> Findings {
    judge(request, Some(owner))
}

fn judge(request: &ValidationRequest<'_>, owner: Option<&Json<'_>>) -> Findings {
    let mut found = Findings::new();
    let (old, new) = match request.change {
        Change::Delete { old, dependents } => {
            references::deletion_is_announced(request, old, dependents, &mut found);
            return found;
        }
        Change::Create { new } => (None, new),
        Change::Update { old, new } => (Some(old), new),
    };
    if let Some(old) = old {
        metadata::finalizer_stays(request, old, new, &mut found);
        if metadata::only_bookkeeping_differs(old, new) {
            return found;
        }
        if metadata::is_terminating(old) || metadata::is_terminating(new) {
            transitions::of_terminating(request, old, new, &mut found);
            honour_skips(new, &mut found);
            return found;
        }
    }
    let object = Object { kind: request.kind, version: request.version, value: new };
    let judge = |mut found: Findings| {
        static_rules(&object, request, &mut found);
        metadata::rules(&object, old, request, &mut found);
        residue::restores_nothing_wrong(request, new, old, &mut found);
        rules::apply_profile(request.profile(), request.version, &mut found);
        if let Some(owner) = owner {
            inheritance::forgive_mistakes_of_the_owner(request, owner, &mut found);
        }
        found
    };
    if let Some(old) = old {
        let mut judged = judge(Findings::new());
        if judged.denies() {
            // An update is not refused for mistakes of the stored object (spec/api-and-admission §4.2).
            let mut before = Findings::new();
            static_rules(&Object { value: old, ..object }, request, &mut before);
            rules::apply_profile(request.profile(), request.version, &mut before);
            judged = judged.forgiven(before).unwrap_or_else(judge);
            strategy::forgive_defaults_left_behind(old, new, &mut judged);
        }
        found.append(judged);
        transitions::rules(request, old, new, &mut found);
    } else {
        found.append(judge(Findings::counting()));
    }
    references::rules(request, &mut found);
    honour_skips(new, &mut found);
    found
}

/// The refusals that make a controller stop working on a stored object: refusals for which the Go original stops too, and values that can't be
/// read (spec/api-and-admission §3). Other objects that were stored before the rules existed keep working.
pub fn reconcile_findings(kind: Kind, object: &Json<'_>) -> Findings {
    let value = object;
    let object = Object { kind, version: ApiVersion::V1alpha1, value };
    let mut stopping = Findings::new();
    rules_that_stop_controllers(&object, &mut stopping);
    rules::apply_profile(Profile::Compat, ApiVersion::V1alpha1, &mut stopping);
    stopping.retain_denials(|rule| rules::stops_controllers(rule) && !selector::original_acts_on(value, rule));
    stopping
}

/// Does what [`reconcile_findings`] does, for a typed object. Its values have the right types, so only rules about the meaning of values can find
/// a problem.
pub fn reconcile_findings_of(kind: Kind, object: &impl Serialize) -> Findings {
    match serde_json::to_value(object) {
        Ok(object) => reconcile_findings(kind, &Json::from(&object)),
        Err(error) => {
            let mut found = Findings::new();
            found.invalid(types::TYPE.id, FieldPath::default(), Value::Null, error.to_string());
            found
        }
    }
}

/// An object during validation.
#[derive(Clone, Copy)]
struct Object<'a> {
    kind: Kind,
    version: ApiVersion,
    value: &'a Json<'a>,
}

impl<'a> Object<'a> {
    fn root(&self) -> Node<'a> {
        Node::of(self.value)
    }

    /// The machine specification of the object, and its path. `None` for a class.
    fn machine_spec(&self) -> Option<(Node<'a>, FieldPath)> {
        match self.kind {
            Kind::Machine => Some((self.root().get("spec"), FieldPath::new("spec"))),
            Kind::MachineSet | Kind::MachineDeployment => {
                Some((self.root().at(&["spec", "template", "spec"]), FieldPath::new("spec.template.spec")))
            }
            Kind::MachineClass => None,
        }
    }
}

fn static_rules(object: &Object<'_>, request: &ValidationRequest<'_>, found: &mut Findings) {
    types::fields_have_their_types(object.kind, object.version, object.value, found);
    match object.kind {
        Kind::Machine => machine_spec::rules(object, found),
        Kind::MachineSet => {
            replicas::rules(object, found);
            selector::rules(object, found);
            replicas::machine_class_is_not_used(object, found);
            machine_spec::template_rules(object, found);
            machine_spec::rules(object, found);
        }
        Kind::MachineDeployment => {
            replicas::rules(object, found);
            selector::rules(object, found);
            strategy::rules(object, found);
            machine_spec::template_rules(object, found);
            machine_spec::rules(object, found);
        }
        Kind::MachineClass => class::rules(object, request.namespace, request.providers, found),
    }
}

/// Runs the static rules that can stop a controller, and a few others. They run at each reconciliation of a changed object.
fn rules_that_stop_controllers(object: &Object<'_>, found: &mut Findings) {
    types::fields_have_their_types(object.kind, object.version, object.value, found);
    match object.kind {
        Kind::Machine => machine_spec::rules_that_stop_controllers(object, found),
        Kind::MachineSet => {
            replicas::rules(object, found);
            selector::rules(object, found);
            machine_spec::rules_that_stop_controllers(object, found);
        }
        Kind::MachineDeployment => {
            replicas::rules(object, found);
            selector::rules(object, found);
            strategy::rules(object, found);
            machine_spec::rules_that_stop_controllers(object, found);
        }
        Kind::MachineClass => class::rules_that_stop_controllers(object, found),
    }
}

/// Lets the object skip rules that it lists (spec/api-and-admission §4.3). Only transition rules can be skipped.
fn honour_skips(new: &Json<'_>, found: &mut Findings) {
    let skips = Node::of(new).at(&["metadata", "annotations"]).get(annotation::ADMISSION_SKIP).text();
    let Some(skips) = skips else { return };
    let asked: BTreeSet<RuleId> = metadata::skip_list(skips).filter_map(rules::named).map(|rule| rule.id).collect();
    for finding in found.iter_mut() {
        if finding.severity == Severity::Deny && rules::is_skippable(finding.rule) && asked.contains(&finding.rule) {
            finding.severity = Severity::Skipped;
        }
    }
}
