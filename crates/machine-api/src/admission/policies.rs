//! Optional `ValidatingAdmissionPolicies`: rules that apply while no webhook answers (spec/api-and-admission §6.3).
//!
//! The schemas of the definitions can check neither metadata nor the user. The API server can check these with three policies: the content of an
//! object (P-1), forbidden changes (P-2), and the user who writes a status (P-3, a warning only). Messages and rule ids are the same as in the
//! webhooks. The policies never block what the webhooks would allow: users of the controllers are exempt, each part of an object that was stored with
//! a mistake is forgiven, objects that are being deleted are ignored, and an expression that fails lets the request pass. The users are part of the
//! policies and not of a parameter object, because a missing parameter object would allow or deny all requests. The policies need an API server of
//! 1.30 or later.

mod expressions;

use serde_json::{Value, json};

use self::expressions::VARIABLES;
use super::manifests::{CONTENT_CHANGED, NOT_DELETING, Scope, WebhookManifests};
use crate::{
    kind::{ApiVersion, Kind},
    names,
    validation::{PolicyCel, RULES, Subject},
};
use kube_values::field::RuleId;

/// The suffixes of the names of the policies and of their bindings. The prefix is the name of the webhook configurations.
pub const SUFFIXES: [&str; 3] = ["static", "transitions", "status"];

/// One policy, before it becomes a manifest.
struct Policy<'a> {
    suffix: &'a str,
    operations: &'a [&'a str],
    resources: Vec<String>,
    actions: &'a [&'a str],
    conditions: Vec<Value>,
    variables: &'a [(&'a str, &'a str)],
    validations: Vec<Value>,
}

/// The policies with their bindings, for the users and the namespaces of the webhooks.
pub fn policies(manifests: &WebhookManifests) -> Vec<Value> {
    let own = || manifests.not_our_controllers().map(|expression| condition("not-our-controllers", &expression));
    let changed = format!("request.operation == 'CREATE' || ({CONTENT_CHANGED})");
    let kinds: Vec<String> = Kind::ALL.iter().map(|kind| kind.plural().to_owned()).collect();
    let with_own = |conditions: &[(&str, &str)]| {
        let rest = conditions.iter().map(|(name, expression)| condition(name, expression));
        own().into_iter().chain(rest).collect::<Vec<_>>()
    };
    let mut transitions = expressions_over(|subject| subject == Subject::Change);
    transitions.sort_by_key(|(rule, _)| *rule);
    let objects = expressions_over(|subject| matches!(subject, Subject::Object(_)));
    let written = expressions_over(|subject| subject == Subject::Status);
    let statuses = [Kind::Machine, Kind::MachineSet, Kind::MachineDeployment];
    let all = [
        Policy {
            suffix: SUFFIXES[0],
            operations: &["CREATE", "UPDATE"],
            resources: kinds.clone(),
            actions: &["Deny"],
            conditions: with_own(&[("not-deleting", NOT_DELETING), ("content-changed", &changed)]),
            variables: VARIABLES,
            validations: objects.iter().map(validation).collect(),
        },
        Policy {
            suffix: SUFFIXES[1],
            operations: &["UPDATE"],
            resources: kinds,
            actions: &["Deny"],
            conditions: with_own(&[
                ("not-a-system-controller", expressions::NOT_A_SYSTEM_CONTROLLER),
                ("content-changed", CONTENT_CHANGED),
            ]),
            variables: VARIABLES,
            validations: transitions.iter().map(validation).collect(),
        },
        Policy {
            suffix: SUFFIXES[2],
            operations: &["UPDATE"],
            resources: statuses.iter().map(|kind| format!("{}/status", kind.plural())).collect(),
            actions: &["Warn", "Audit"],
            conditions: with_own(&[("not-deleting", NOT_DELETING)]),
            variables: &[],
            validations: written.iter().map(validation).collect(),
        },
    ];
    all.iter().flat_map(|policy| [policy.manifest(manifests), policy.binding(manifests)]).collect()
}

impl Policy<'_> {
    fn name(&self, manifests: &WebhookManifests) -> String {
        format!("{}-{}", manifests.name(), self.suffix)
    }

    fn manifest(&self, manifests: &WebhookManifests) -> Value {
        let variable = |(name, expression): &(&str, &str)| json!({ "name": name, "expression": expression });
        let mut spec = json!({
            "failurePolicy": "Ignore",
            // With its defaults: the API server compares it as a whole, and a rendering that is applied again would differ.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [{
                    "apiGroups": [names::GROUP],
                    "apiVersions": [ApiVersion::V1alpha1.as_str()],
                    "operations": self.operations,
                    "resources": self.resources,
                    "scope": "Namespaced",
                }],
            },
            "matchConditions": self.conditions,
            "validations": self.validations,
        });
        if !self.variables.is_empty() {
            spec["variables"] = self.variables.iter().map(variable).collect();
        }
        self.object("ValidatingAdmissionPolicy", manifests, &spec)
    }

    fn binding(&self, manifests: &WebhookManifests) -> Value {
        let mut spec = json!({ "policyName": self.name(manifests), "validationActions": self.actions });
        if let Scope::Namespace(namespace) = &manifests.scope {
            let by_name = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]});
            spec["matchResources"] = json!({
                "matchPolicy": "Equivalent",
                "namespaceSelector": { "matchExpressions": [by_name] },
                "objectSelector": {},
            });
        }
        self.object("ValidatingAdmissionPolicyBinding", manifests, &spec)
    }

    fn object(&self, kind: &str, manifests: &WebhookManifests, spec: &Value) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {
                "name": self.name(manifests),
                "labels": { "app.kubernetes.io/name": names::WEBHOOK_CONFIGURATION },
            },
            "spec": spec,
        })
    }
}

fn condition(name: &str, expression: &str) -> Value {
    json!({ "name": name, "expression": expression })
}

/// The expressions of all rules with these subjects, in the order of the rules.
fn expressions_over(is_meant: impl Fn(Subject) -> bool) -> Vec<(RuleId, &'static PolicyCel)> {
    let all = RULES.iter().flat_map(|rule| rule.policy_cel.iter().map(|cel| (rule.id, cel)));
    all.filter(|(_, cel)| is_meant(cel.subject)).collect()
}

/// Makes a validation. Its message ends with the rule id, because the denial of a policy has no causes.
fn validation((rule, cel): &(RuleId, &PolicyCel)) -> Value {
    let expression = expressions::with_patterns(cel.expression);
    let expression = match cel.subject {
        Subject::Object(variable) => format!("variables.{variable} == variables.old_{variable} || ({expression})"),
        Subject::Change | Subject::Status => expression,
    };
    json!({ "expression": expression, "message": format!("{} ({rule})", cel.message) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_policy_has_a_binding_and_lets_the_controllers_through() {
        let all = policies(&WebhookManifests::in_namespace("mcm"));
        assert_eq!(all.len(), 6);
        for pair in all.chunks(2) {
            assert_eq!(pair[0]["metadata"]["name"], pair[1]["spec"]["policyName"]);
            assert_eq!(pair[0]["spec"]["failurePolicy"], "Ignore");
            let first = &pair[0]["spec"]["matchConditions"][0]["expression"];
            assert!(
                first.as_str().unwrap().contains("system:serviceaccount:mcm:machine-controller-manager"),
                "{first}"
            );
        }
        assert_eq!(all[5]["spec"]["validationActions"], json!(["Warn", "Audit"]));
    }

    #[test]
    fn a_policy_of_one_namespace_is_bound_to_it() {
        let scope = Scope::Namespace("shoot--a".to_owned());
        let all = policies(&WebhookManifests { scope, ..WebhookManifests::in_namespace("shoot--a") });
        assert_eq!(all[0]["metadata"]["name"], "machine-controller-manager-shoot--a-static");
        let values = &all[1]["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"];
        assert_eq!(*values, json!(["shoot--a"]));
    }

    #[test]
    fn expressions_read_variables_that_exist() {
        let variables: BTreeSet<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        for (rule, cel) in expressions_over(|_| true) {
            if let Subject::Object(name) = cel.subject {
                assert!(variables.contains(name) && variables.contains(format!("old_{name}").as_str()), "{name}");
            }
            for used in cel.expression.split("variables.").skip(1) {
                let name: String = used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                assert!(variables.contains(name.as_str()), "{rule}: {name}");
            }
        }
    }
}
