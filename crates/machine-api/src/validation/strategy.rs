//! Rules for the strategy of a deployment (spec/api-and-admission §5.3, STR-1 to STR-13 and REP-2).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::{
    Object,
    node::Node,
    rule::{CrdCel, Leniency, Part, Rule, check, original, refuses, refuses_or_warns, value},
};
use kube_values::{
    field::{FieldPath, Findings, Severity},
    int_or_percent::{IntOrPercent, InvalidIntOrPercent, NOT_A_PERCENTAGE, Rounding},
    json::Json,
};

const TYPES: [&str; 3] = ["InPlaceUpdate", "Recreate", "RollingUpdate"];
const ORCHESTRATION_TYPES: [&str; 2] = ["Auto", "Manual"];

/// The CEL rule for a setting of one type of strategy.
const fn setting(
    other_strategy: &'static str,
    field_path: &'static str,
    expression: &'static str,
    message: &'static str,
) -> CrdCel {
    let plain = value(Part::DeploymentSpec, "strategy", expression, message);
    CrdCel { field_path: Some(field_path), other_strategy: Some(other_strategy), ..plain }
}

/// The CEL rules for both margins of both types.
const fn margins_are(expression: &'static str, message: &'static str) -> [CrdCel; 4] {
    [
        setting("InPlaceUpdate", ".rollingUpdate.maxSurge", expression, message),
        setting("InPlaceUpdate", ".rollingUpdate.maxUnavailable", expression, message),
        setting("RollingUpdate", ".inPlaceUpdate.maxSurge", expression, message),
        setting("RollingUpdate", ".inPlaceUpdate.maxUnavailable", expression, message),
    ]
}

/// Runs all rules of a strategy.
pub fn rules(object: &Object<'_>, found: &mut Findings) {
    let spec = object.root().get("spec");
    let strategy = spec.get("strategy");
    let path = FieldPath::new("spec.strategy");
    if !matches!(strategy, Node::Mistyped) && strategy.value().is_none_or(Json::is_object) {
        type_is_known(strategy, &path, found);
        settings_of_the_type_are_there(strategy, &path, found);
        settings_of_other_types_are_not(strategy, &path, found);
        let replicas = spec.get("replicas");
        if may_be_chosen(strategy, "RollingUpdate") {
            margins(strategy.get("rollingUpdate"), &path.child("rollingUpdate"), replicas, found);
        }
        if may_be_chosen(strategy, "InPlaceUpdate") {
            margins(strategy.get("inPlaceUpdate"), &path.child("inPlaceUpdate"), replicas, found);
            orchestration_type_is_chosen(strategy, &path, found);
        }
    }
    rollback_is_deprecated(spec, found);
}

/// Whether the settings of this type apply: the type is chosen, or no known type is chosen.
fn may_be_chosen(strategy: Node<'_>, owner: &str) -> bool {
    strategy.get("type").text().filter(|name| TYPES.contains(name)).is_none_or(|chosen| chosen == owner)
}

pub const STR_1: Rule = original("STR-1", "The type of the strategy is known.", &["V88", "V109", "V110"]);

pub const STR_2: Rule = Rule {
    policy_cel: &[check(
        "strategy",
        "object.kind != 'MachineDeployment' || variables.strategy.?type.orValue('') != '' || !has(variables.strategy.inPlaceUpdate)",
        "spec.strategy.type: must be set when inPlaceUpdate is specified",
    )],
    ..original("STR-2", "The type is set where there are settings for updates in place.", &["V104"])
};

/// STR-1 and STR-2.
fn type_is_known(strategy: Node<'_>, path: &FieldPath, found: &mut Findings) {
    match strategy.get("type").text_or_empty() {
        Some("") if strategy.get("inPlaceUpdate").is_present() => {
            found.required(STR_2.id, path.child("type"), "must be set when inPlaceUpdate is specified");
        }
        Some(name) if !TYPES.contains(&name) => found.not_supported(STR_1.id, path.child("type"), name, &TYPES),
        Some(_) | None => {}
    }
}

pub const STR_3: Rule = Rule {
    policy_cel: &[check(
        "strategy",
        "variables.strategy.?type.orValue('') != 'RollingUpdate' || has(variables.strategy.rollingUpdate)",
        "spec.strategy.rollingUpdate: RollingUpdate parameter cannot be nil for rolling update strategy",
    )],
    ..original(
        "STR-3",
        "There are settings for a rolling update where that is the type.",
        &["str_3_settings_of_a_rolling_update"],
    )
};

pub const STR_4: Rule = Rule {
    policy_cel: &[check(
        "strategy",
        "variables.strategy.?type.orValue('') != 'InPlaceUpdate' || has(variables.strategy.inPlaceUpdate)",
        "spec.strategy.inPlaceUpdate: InPlaceUpdate parameter cannot be nil for in-place update strategy",
    )],
    ..original(
        "STR-4",
        "There are settings for updates in place where that is the type.",
        &["str_4_settings_of_an_update_in_place"],
    )
};

/// STR-3 and STR-4.
fn settings_of_the_type_are_there(strategy: Node<'_>, path: &FieldPath, found: &mut Findings) {
    match strategy.get("type").text() {
        Some("RollingUpdate") if strategy.get("rollingUpdate").is_absent() => {
            let detail = "RollingUpdate parameter cannot be nil for rolling update strategy";
            found.required(STR_3.id, path.child("rollingUpdate"), detail);
        }
        Some("InPlaceUpdate") if strategy.get("inPlaceUpdate").is_absent() => {
            let detail = "InPlaceUpdate parameter cannot be nil for in-place update strategy";
            found.required(STR_4.id, path.child("inPlaceUpdate"), detail);
        }
        _ => {}
    }
}

pub const STR_5: Rule = Rule {
    leniency: Leniency::InCompat(""),
    ..refuses(
        "STR-5",
        "There are no settings of another type.",
        &["V89", "V90", "V90s", "V90b", "V90c", "V90e", "V90f", "V90g"],
    )
};

/// STR-5: settings of a type that is not chosen have no effect. Checked only if the chosen type is known.
fn settings_of_other_types_are_not(strategy: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let Some(chosen) = strategy.get("type").text().filter(|name| TYPES.contains(name)) else { return };
    for (settings, owner) in [("rollingUpdate", "RollingUpdate"), ("inPlaceUpdate", "InPlaceUpdate")] {
        if chosen != owner && strategy.get(settings).is_present() {
            let detail = format!("may not be specified when strategy `type` is '{chosen}'");
            let inputs = (chosen, strategy.get(settings).value());
            found.given(&inputs).forbidden(STR_5.id, path.child(settings), detail);
        }
    }
}

/// Forgives the defaults of a rolling update when the object changes to another type. A server-side apply can't remove these defaults, because no
/// field manager owns them.
pub fn forgive_defaults_left_behind(old: &Json<'_>, new: &Json<'_>, found: &mut Findings) {
    let settings = |object| Node::of(object).at(&["spec", "strategy", "rollingUpdate"]);
    let is_default = |settings: Node<'_>| settings.value_or_null() == json!({"maxSurge": 1, "maxUnavailable": 0});
    if !is_default(settings(old)) || !is_default(settings(new)) {
        return;
    }
    for finding in found.iter_mut().filter(|finding| finding.rule == STR_5.id && finding.denies()) {
        finding.severity = Severity::Existing;
    }
}

pub const STR_9: Rule = Rule {
    // Gardener distributes the percentage of a worker pool over its zones, and the result can be more than 100 %.
    leniency: Leniency::InV1alpha1("; it counts as 100%"),
    ..refuses("STR-9", "No more than 100% may be unavailable.", &["V95", "V95s", "V95b", "V96"])
};

/// STR-6 to STR-11 and REP-2 for one pair of `maxSurge` and `maxUnavailable`.
fn margins(settings: Node<'_>, path: &FieldPath, replicas: Node<'_>, found: &mut Findings) {
    if settings.members().is_none() {
        return;
    }
    let surge = margin(settings, "maxSurge", path, found);
    let unavailable = margin(settings, "maxUnavailable", path, found);
    if let Some(IntOrPercent::Percent(101..)) = unavailable {
        let value = settings.get("maxUnavailable").value_or_null();
        found.invalid(STR_9.id, path.child("maxUnavailable"), value, "must not be greater than 100%");
    }
    if let (Some(surge), Some(unavailable)) = (surge, unavailable) {
        rollout_can_progress(surge, unavailable, settings, path, found);
    }
    if let (Some(surge), Some(replicas)) = (surge, replicas.integer_or_zero()) {
        surged_replicas_can_be_counted(surge, replicas, settings, found);
    }
}

pub const STR_6: Rule = Rule {
    policy_cel: &[check(
        "strategy",
        "[['rollingUpdate', 'InPlaceUpdate'], ['inPlaceUpdate', 'RollingUpdate']].all(s, variables.strategy.?type.orValue('') in ['Recreate', s[1]] || !(s[0] in variables.strategy) || ['maxSurge', 'maxUnavailable'].all(f, f in variables.strategy[s[0]]))",
        "spec.strategy: maxSurge and maxUnavailable must be specified",
    )],
    ..original("STR-6", "Both margins are set.", &["str_6_a_margin"])
};

pub const STR_7: Rule = Rule {
    crd_cel: &margins_are("type(self<field>) == int || self<field>.matches('^[0-9]+%$')", NOT_A_PERCENTAGE),
    ..original(
        "STR-7",
        "A margin is an integer or a percentage.",
        &["V90d", "V91", "V92", "V93a", "V93c", "V93d", "V93e", "V110", "V114"],
    )
};

pub const STR_8: Rule = Rule {
    crd_cel: &margins_are("type(self<field>) != int || self<field> >= 0", "must be greater than or equal to 0"),
    ..refuses("STR-8", "A margin is not negative.", &["V93b", "V94"])
};

pub const STR_10: Rule = original("STR-10", "A margin fits a 32-bit integer.", &["V100"]);

/// STR-6, STR-7, STR-8, STR-10: a number or percentage, parsed as the rollout parses it. STR-8 checks the sign of a percentage, because the
/// controllers of the Go original accept a negative percentage like a negative number.
fn margin(settings: Node<'_>, field: &str, path: &FieldPath, found: &mut Findings) -> Option<IntOrPercent> {
    let value = match settings.get(field) {
        Node::Absent => {
            found.required(STR_6.id, path.child(field), "must be specified");
            return None;
        }
        Node::Mistyped => return None,
        Node::Is(value) => value,
    };
    let parsed = match (value, super::node::integer(value)) {
        (Json::Text(text), _) => IntOrPercent::try_from(&IntOrString::String(text.clone().into_owned())),
        (_, Some(number)) => i32::try_from(number).map(IntOrPercent::Count).map_err(|_| InvalidIntOrPercent::TooLarge),
        (_, None) => return None,
    };
    let path = || path.child(field);
    match parsed {
        Err(error) => {
            let rule = match error {
                InvalidIntOrPercent::NotAPercentage => STR_7.id,
                InvalidIntOrPercent::TooLarge => STR_10.id,
            };
            found.invalid(rule, path(), value, error.to_string());
            None
        }
        Ok(_) if value.as_str().is_some_and(|text| text.starts_with(['+', '-'])) => {
            found.invalid(STR_8.id, path(), value, NOT_A_PERCENTAGE);
            None
        }
        Ok(margin) if margin.is_negative() => {
            found.invalid(STR_8.id, path(), value, "must be greater than or equal to 0");
            None
        }
        Ok(margin) => Some(margin),
    }
}

pub const STR_11: Rule = Rule {
    leniency: Leniency::InCompat("; it is treated as 1"),
    ..refuses("STR-11", "The margins are not both zero.", &["V97", "V97s", "V98", "V98s", "V99"])
};

/// STR-11: `maxSurge` and `maxUnavailable` must not both be zero. The profile decides whether this refuses or warns.
fn rollout_can_progress(
    surge: IntOrPercent,
    unavailable: IntOrPercent,
    settings: Node<'_>,
    path: &FieldPath,
    found: &mut Findings,
) {
    if surge.is_zero() && unavailable.is_zero() {
        let value = settings.get("maxUnavailable").value_or_null();
        let inputs = (settings.get("maxSurge").value(), settings.get("maxUnavailable").value());
        let detail = "may not be 0 when `maxSurge` is 0";
        found.given(&inputs).invalid(STR_11.id, path.child("maxUnavailable"), value, detail);
    }
}

pub const REP_2: Rule = refuses("REP-2", "The replicas and the surge together fit a 32-bit integer.", &["V101"]);

/// REP-2: the number of all machines of a rollout fits into 32 bits.
fn surged_replicas_can_be_counted(surge: IntOrPercent, replicas: i64, settings: Node<'_>, found: &mut Findings) {
    let Ok(wanted) = i32::try_from(replicas) else { return };
    if wanted > 0 && wanted.checked_add(surge.resolve(wanted, Rounding::Up)).is_none() {
        let path = FieldPath::new("spec.replicas");
        let inputs = (replicas, settings.get("maxSurge").value());
        let detail = "replicas plus maxSurge must not exceed 2147483647";
        found.given(&inputs).invalid(REP_2.id, path, replicas, detail);
    }
}

pub const STR_12: Rule = Rule {
    crd_cel: &[setting(
        "RollingUpdate",
        ".inPlaceUpdate.orchestrationType",
        "self<field> in ['', 'Auto', 'Manual']",
        "supported values: \"Auto\", \"Manual\"",
    )],
    policy_cel: &[check(
        "strategy",
        "variables.strategy.?type.orValue('') in ['Recreate', 'RollingUpdate'] || !has(variables.strategy.inPlaceUpdate) || variables.strategy.inPlaceUpdate.?orchestrationType.orValue('') != ''",
        "spec.strategy.inPlaceUpdate.orchestrationType: must be one of \"Auto\", \"Manual\"",
    )],
    ..original("STR-12", "The type of orchestration is set and known.", &["V102", "V103"])
};

/// STR-12.
fn orchestration_type_is_chosen(strategy: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let settings = strategy.get("inPlaceUpdate");
    if settings.members().is_none() {
        return;
    }
    let path = || path.child("inPlaceUpdate").child("orchestrationType");
    match settings.get("orchestrationType").text_or_empty() {
        Some("") => found.required(STR_12.id, path(), "must be one of \"Auto\", \"Manual\""),
        Some(name) if !ORCHESTRATION_TYPES.contains(&name) => {
            found.not_supported(STR_12.id, path(), name, &ORCHESTRATION_TYPES);
        }
        Some(_) | None => {}
    }
}

pub const STR_13: Rule =
    refuses_or_warns("STR-13", "The deprecated field `rollbackTo` is not used.", &["V107", "V108"]);

/// STR-13.
fn rollback_is_deprecated(spec: Node<'_>, found: &mut Findings) {
    let rollback = spec.get("rollbackTo");
    if !rollback.is_present() {
        return;
    }
    let path = FieldPath::new("spec.rollbackTo");
    if let Some(revision) = rollback.get("revision").integer().filter(|revision| *revision < 0) {
        found.invalid(STR_13.id, path.child("revision"), revision, "must be greater than or equal to 0");
    }
    found.warn(STR_13.id, path, Value::Null, "is deprecated; apply the earlier template again, or use mcm rollback");
}
