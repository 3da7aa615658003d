//! What a rule is: a value that is declared once, beside the function that finds what breaks it.
//!
//! The list of rules ([`super::rules`]), the CEL of the definitions and of the policies, the reference `docs/rules.md` and the
//! check that every rule has a case read these values. `grep -rn MCH-7 crates docs` leads from an id to its declaration, which
//! stands on top of its function and holds the rest.

use kube_values::field::RuleId;

/// A rule of admission (spec/api-and-admission §5).
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its id, which findings carry.
    pub id: RuleId,
    /// What must hold, for the reference.
    pub demand: &'static str,
    /// What becomes of a request that breaks it.
    pub level: Level,
    /// When it only warns all the same.
    pub leniency: Leniency,
    /// What the original does with an object that breaks it.
    pub original: Original,
    /// Its twins in the definitions.
    pub crd_cel: &'static [CrdCel],
    /// Its twins in the policies.
    pub policy_cel: &'static [PolicyCel],
    /// The cases of `tests/fixtures/admission-cases.yaml` in which it finds something, or tests of this folder where no case can.
    pub cases: &'static [&'static str],
}

/// What becomes of a request that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It is refused.
    Refuse,
    /// It passes with a warning.
    Warn,
    /// It is refused or passes with a warning, by what was found.
    RefuseOrWarn,
}

/// When a rule that refuses only warns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// Never.
    None,
    /// In profile `compat`, with this text added.
    InCompat(&'static str),
    /// In v1alpha1 in every profile, with this text added; v1beta1 is always strict.
    InV1alpha1(&'static str),
    /// When the object asks to skip it; a transition rule, from which controllers are exempt.
    WhenSkipped,
}

/// What the original's own reconcile checks did with a mistake (spec/api-and-admission §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Original {
    /// It acted on such an object; so do our controllers.
    ActsOnIt,
    /// It refused to act on such an object, or its code cannot read it.
    RefusesIt,
}

/// A CEL rule of the definitions that says the same as a rule, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct CrdCel {
    /// The part of an object that holds the node.
    pub part: Part,
    /// The node below the part, such as `strategy`; the empty path is the part itself.
    pub node: &'static str,
    /// What must be true. `<field>` stands for the field of a setting.
    pub expression: &'static str,
    /// How a violation is classified.
    pub reason: Reason,
    /// What a violation says.
    pub message: &'static str,
    /// The field below the node that is at fault, if the node is an object.
    pub field_path: Option<&'static str>,
    /// For a setting of a type of strategy: the other type that has settings. The setting is not judged while that type is chosen.
    pub other_strategy: Option<&'static str>,
}

/// A part of an object that CEL rules sit on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The reference of a machine to its class.
    ClassReference,
    /// The specification of a set or deployment.
    ScaledSpec,
    /// The specification of a set.
    SetSpec,
    /// The specification of a deployment.
    DeploymentSpec,
    /// The node template of a class.
    ClassNodeTemplate,
}

/// How a violation of CEL is classified; the API server knows only these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A field is missing.
    Required,
    /// A value is wrong.
    Invalid,
    /// A field must not be there.
    Forbidden,
}

/// An expression of the policies that says the same as a rule, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyCel {
    /// What it judges, which says in which policy it is.
    pub subject: Subject,
    /// What must be true. `<name>` stands for the pattern of a qualified name, `<label>` for that of a label value.
    pub expression: &'static str,
    /// What a violation says.
    pub message: &'static str,
}

/// What an expression of the policies judges; there is one policy for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// What an object says: the variable of this name, unless it equals its stored counterpart `old_…`.
    Object(&'static str),
    /// A change of an object.
    Change,
    /// A change of a status.
    Status,
}

impl Rule {
    /// Whether an object may ask to skip it.
    pub fn is_skippable(&self) -> bool {
        self.leniency == Leniency::WhenSkipped
    }
}

const fn rule(id: &'static str, level: Level, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule {
        id: RuleId::declare(id),
        demand,
        level,
        leniency: Leniency::None,
        original: Original::ActsOnIt,
        crd_cel: &[],
        policy_cel: &[],
        cases,
    }
}

/// A rule that refuses.
pub const fn refuses(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    rule(id, Level::Refuse, demand, cases)
}

/// A rule that warns.
pub const fn warns(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    rule(id, Level::Warn, demand, cases)
}

/// A rule that refuses or warns.
pub const fn refuses_or_warns(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    rule(id, Level::RefuseOrWarn, demand, cases)
}

/// A rule that refuses, and that the original has too, or without which its code cannot read the object.
pub const fn original(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { original: Original::RefusesIt, ..refuses(id, demand, cases) }
}

/// A rule about a change that refuses, and that an object may ask to skip.
pub const fn skippable(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { leniency: Leniency::WhenSkipped, ..refuses(id, demand, cases) }
}

/// An expression of the policies over a variable.
pub const fn check(variable: &'static str, expression: &'static str, message: &'static str) -> PolicyCel {
    PolicyCel { subject: Subject::Object(variable), expression, message }
}

/// An expression of the policies over a change.
pub const fn transition(expression: &'static str, message: &'static str) -> PolicyCel {
    PolicyCel { subject: Subject::Change, expression, message }
}

/// A CEL rule over one value.
pub const fn value(part: Part, node: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    let (reason, field_path, other_strategy) = (Reason::Invalid, None, None);
    CrdCel { part, node, expression, reason, message, field_path, other_strategy }
}

/// A CEL rule over a part for a field in it.
pub const fn field(part: Part, field_path: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    CrdCel { field_path: Some(field_path), ..value(part, "", expression, message) }
}

/// The same where a field is missing.
pub const fn required(part: Part, field_path: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    CrdCel { reason: Reason::Required, ..field(part, field_path, expression, message) }
}
