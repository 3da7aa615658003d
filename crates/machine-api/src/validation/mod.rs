//! The rules over machine objects: what is refused, what is warned about, and when.
//!
//! Pure functions over untyped JSON ([`Json`]). The rules stand in files by topic ([`metadata`], [`machine_spec`], [`selector`], …),
//! one small function each; this file holds the question ([`ValidationRequest`]) and the order in which it is answered.
//! How the question arrives and the answer leaves is the business of `admission/`; the driver's own rules come in through
//! [`Providers`], facts about other objects through [`References`].
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

/// All static rules over one object, by the profile `compat`, without drivers.
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

/// How strict admission is with what the original accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Whatever worked with the original is at most warned about.
    #[default]
    Compat,
    /// What is questionable is refused.
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

/// Who counts as a controller: exempt from transition and reference rules (spec/api-and-admission §4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerUsers {
    /// User names.
    pub users: BTreeSet<String>,
    /// Groups.
    pub groups: BTreeSet<String>,
}

impl ControllerUsers {
    /// These users and no group.
    pub fn named<S: Into<String>>(users: impl IntoIterator<Item = S>) -> Self {
        Self { users: users.into_iter().map(Into::into).collect(), groups: BTreeSet::new() }
    }

    fn contains(&self, user: &User<'_>) -> bool {
        self.users.contains(user.name) || user.groups.iter().any(|group| self.groups.contains(group.as_ref()))
    }
}

/// Kubernetes' own controllers that rewrite metadata of foreign objects.
const EXEMPT_SYSTEM_USERS: [&str; 2] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct User<'a> {
    /// User name; empty when nobody is known.
    pub name: &'a str,
    /// Groups.
    pub groups: &'a [std::borrow::Cow<'a, str>],
}

/// What is about to happen to an object.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// It is made.
    Create {
        /// As it is to be.
        new: &'a Json<'a>,
    },
    /// It is changed.
    Update {
        /// As it is stored.
        old: &'a Json<'a>,
        /// As it is to be.
        new: &'a Json<'a>,
    },
    /// It is deleted.
    Delete {
        /// As it is stored; some legacy deletions don't tell.
        old: Option<&'a Json<'a>>,
        /// What becomes of the objects that it owns.
        dependents: Dependents,
    },
}

/// What becomes of the objects that a deleted object owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependents {
    /// They are deleted too.
    #[default]
    Collected,
    /// They are left behind (`propagationPolicy: Orphan`).
    Orphaned,
}

impl<'a> Change<'a> {
    /// The object as it is to be.
    pub const fn new_object(self) -> Option<&'a Json<'a>> {
        match self {
            Self::Create { new } | Self::Update { new, .. } => Some(new),
            Self::Delete { .. } => None,
        }
    }

    /// The object as it is stored.
    pub const fn old_object(self) -> Option<&'a Json<'a>> {
        match self {
            Self::Create { .. } => None,
            Self::Update { old, .. } => Some(old),
            Self::Delete { old, .. } => old,
        }
    }
}

/// What the answer depends on beside the request: settings of the process.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// How strict.
    pub profile: Profile,
    /// Who is exempt from transition rules.
    pub controllers: ControllerUsers,
}

/// A question to the rules.
#[derive(Clone, Copy)]
pub struct ValidationRequest<'a> {
    /// Kind of the object.
    pub kind: Kind,
    /// Version it is written in; paths of findings are those of this version.
    pub version: ApiVersion,
    /// What happens to it.
    pub change: Change<'a>,
    /// Namespace of the request.
    pub namespace: &'a str,
    /// Who asks.
    pub user: User<'a>,
    /// Settings.
    pub policy: &'a Policy,
    /// The drivers' own rules.
    pub providers: &'a dyn Providers,
    /// What is known of other objects.
    pub references: &'a dyn References,
}

impl ValidationRequest<'_> {
    pub(crate) fn comes_from_controller(&self) -> bool {
        self.policy.controllers.contains(&self.user) || EXEMPT_SYSTEM_USERS.contains(&self.user.name)
    }

    /// Version v1beta1 has no stored past that would need leniency.
    const fn profile(&self) -> Profile {
        match self.version {
            ApiVersion::V1alpha1 => self.policy.profile,
            ApiVersion::V1beta1 => Profile::Strict,
        }
    }
}

/// Answers a question: all that is wrong or suspicious, at once (spec/api-and-admission §4.1, items 1 and 5 to 8).
pub fn validate(request: &ValidationRequest<'_>) -> Findings {
    judge(request, None)
}

/// The same for a new object of which the owner is known that [`controlling_owner`] names: what both say alike is warned
/// about instead of refused.
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
            inheritance::forgive_what_the_owner_says(request, owner, &mut found);
        }
        found
    };
    if let Some(old) = old {
        let mut judged = judge(Findings::new());
        if judged.denies() {
            // An update is not refused for what was wrong before (spec/api-and-admission §4.2).
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

/// The refusals for which a controller must not act on a stored object: those the original refused to act on too, and
/// values that cannot be read (spec/api-and-admission §3). Anything else that was stored before the rules existed goes
/// on working.
pub fn reconcile_findings(kind: Kind, object: &Json<'_>) -> Findings {
    let value = object;
    let object = Object { kind, version: ApiVersion::V1alpha1, value };
    let mut stopping = Findings::new();
    rules_that_stop_controllers(&object, &mut stopping);
    rules::apply_profile(Profile::Compat, ApiVersion::V1alpha1, &mut stopping);
    stopping.retain_denials(|rule| rules::stops_controllers(rule) && !selector::original_acts_on(value, rule));
    stopping
}

/// The same for a typed object. What cannot be decoded never gets here, so that only the rules about meaning can find
/// anything.
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

/// An object under inspection.
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

    /// The machine specification in it and its path; a class has none.
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

/// Those of the static rules that may stop a controller, and few others: they run in each pass over a changed object.
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

/// Lets pass what the object asks to skip (spec/api-and-admission §4.3); only transition rules can be skipped.
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
