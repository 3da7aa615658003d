//! The type of a rule: a value that is declared once, next to the function that finds violations.
//!
//! These values are used by the list of rules ([`super::rules`]), the CEL of definitions and policies, the reference `docs/rules.md`, and the check
//! that every rule has a case. `grep -rn MCH-7 crates docs` finds the declaration of a rule by its id. The declaration is above the function and has
//! everything else.

use kube_values::field::RuleId;

/// A rule of admission (spec/api-and-admission §5).
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The id in findings.
    pub id: RuleId,
    /// The demand of the rule, as a sentence in docs/rules.md.
    pub demand: &'static str,
    /// The outcome for a request that violates the rule.
    pub level: Level,
    /// The cases in which the rule only warns.
    pub leniency: Leniency,
    /// The behaviour of the Go original for an object that violates the rule.
    pub original: Original,
    /// The CEL of the rule in the definitions.
    pub crd_cel: &'static [CrdCel],
    /// The CEL of the rule in the policies.
    pub policy_cel: &'static [PolicyCel],
    /// The cases of `tests/fixtures/admission-cases.yaml` with findings of the rule, or tests of this folder if no case is possible.
    pub cases: &'static [&'static str],
}

/// The outcome for a request that violates a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The request is refused.
    Refuse,
    /// The request passes with a warning.
    Warn,
    /// The request is refused or passes with a warning, depending on the finding.
    RefuseOrWarn,
}

/// The cases in which a refusing rule only warns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// Never.
    None,
    /// In profile `compat`, with this text in addition.
    InCompat(&'static str),
    /// In v1alpha1 in every profile, with this text in addition. v1beta1 is always strict.
    InV1alpha1(&'static str),
    /// When the object asks to skip the rule. This is for transition rules, from which controllers are exempt.
    WhenSkipped,
}

/// The behaviour of the Go original's reconciliation for an object with a mistake (spec/api-and-admission §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Original {
    /// The Go original reconciled the object, and so do our controllers.
    ActsOnIt,
    /// The Go original did not reconcile the object, or its code can't read it.
    RefusesIt,
}

/// A CEL rule of the definitions that checks the same as a rule, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct CrdCel {
    /// The part of an object with the node.
    pub part: Part,
    /// The node below the part, such as `strategy`. The empty path is the part itself.
    pub node: &'static str,
    /// The expression that must be true. `<field>` is replaced by the field of a setting.
    pub expression: &'static str,
    /// The reason of a violation.
    pub reason: Reason,
    /// The message of a violation.
    pub message: &'static str,
    /// The field with the mistake below the node, if the node is an object.
    pub field_path: Option<&'static str>,
    /// For a setting of a strategy type: the other type with settings. The setting is not checked while the other type is chosen.
    pub other_strategy: Option<&'static str>,
}

/// A part of an object with CEL rules.
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

/// The reason of a violation of CEL. The API server has only these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A field is missing.
    Required,
    /// A value is invalid.
    Invalid,
    /// A field must not be set.
    Forbidden,
}

/// An expression of the policies that checks the same as a rule, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyCel {
    /// The subject of the check. It selects the policy.
    pub subject: Subject,
    /// The expression that must be true. `<name>` is replaced by the pattern of a qualified name, `<label>` by the pattern of a label value.
    pub expression: &'static str,
    /// The message of a violation.
    pub message: &'static str,
}

/// The subject of an expression of the policies. There is one policy for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The content of an object: the variable with this name, unless it is equal to its stored value `old_…`.
    Object(&'static str),
    /// A change of an object.
    Change,
    /// A change of a status.
    Status,
}

impl Rule {
    /// Whether an object may ask to skip the rule.
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

/// A rule that refuses, and that the Go original has too or without which its code can't read the object.
pub const fn original(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { original: Original::RefusesIt, ..refuses(id, demand, cases) }
}

/// A rule for a change that refuses, and that an object may ask to skip.
pub const fn skippable(id: &'static str, demand: &'static str, cases: &'static [&'static str]) -> Rule {
    Rule { leniency: Leniency::WhenSkipped, ..refuses(id, demand, cases) }
}

/// An expression of the policies for a variable.
pub const fn check(variable: &'static str, expression: &'static str, message: &'static str) -> PolicyCel {
    PolicyCel { subject: Subject::Object(variable), expression, message }
}

/// An expression of the policies for a change.
pub const fn transition(expression: &'static str, message: &'static str) -> PolicyCel {
    PolicyCel { subject: Subject::Change, expression, message }
}

/// A CEL rule for one value.
pub const fn value(part: Part, node: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    let (reason, field_path, other_strategy) = (Reason::Invalid, None, None);
    CrdCel { part, node, expression, reason, message, field_path, other_strategy }
}

/// A CEL rule for a part, with the field of the mistake.
pub const fn field(part: Part, field_path: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    CrdCel { field_path: Some(field_path), ..value(part, "", expression, message) }
}

/// A CEL rule for a part, with the missing field.
pub const fn required(part: Part, field_path: &'static str, expression: &'static str, message: &'static str) -> CrdCel {
    CrdCel { reason: Reason::Required, ..field(part, field_path, expression, message) }
}
