//! The webhook configurations that send reviews to this program.
//!
//! Source: spec/api-and-admission §10 and decisions 34 and 36 for names, policies and conditions. The conditions are CEL expressions that keep
//! requests away. The CA bundle is not in the manifests, because the process writes it itself.

use serde_json::{Map, Value, json};

use crate::{
    kind::{ApiVersion, Kind},
    names,
    webhooks::{Client, Endpoint, Webhook},
};

/// Whether a field changed that rules read. The API server keeps requests that only change finalizers, owner references or managed fields.
pub(super) const CONTENT_CHANGED: &str = "object.?spec != oldObject.?spec || object.metadata.?labels != oldObject.metadata.?labels || object.metadata.?annotations != oldObject.metadata.?annotations || ['provider','providerSpec','secretRef','credentialsSecretRef','nodeTemplate'].exists(f, object[?f] != oldObject[?f])";

/// Whether the object is not being deleted. The API server keeps requests for objects that are.
pub(super) const NOT_DELETING: &str = "!has(object.metadata.deletionTimestamp)";

/// The namespaces whose objects are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces.
    Cluster,
    /// One namespace. The names of the configurations contain it, so that several installations can exist side by side.
    Namespace(String),
}

/// The API server's treatment of a request while no webhook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It lets the request pass.
    Ignore,
    /// It refuses the request.
    Fail,
}

impl FailurePolicy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Fail => "Fail",
        }
    }
}

/// Whether status writes are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWebhook {
    /// Status writes are not checked.
    LeaveOut,
    /// Status writes are checked, and answered with warnings only.
    Install,
}

/// Whether the API server knows `matchConditions` (1.28 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchConditions {
    /// The API server knows them.
    Supported,
    /// The API server doesn't know them. Then every policy is `Ignore`: otherwise a process that is down would block its own clean-up.
    Unsupported,
}

/// The webhook that checks creations.
pub const CREATE_WEBHOOK: &str = "create.validate.machine.sapcloud.io";
/// The webhook that checks updates.
pub const UPDATE_WEBHOOK: &str = "update.validate.machine.sapcloud.io";

/// Settings of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookManifests {
    /// How the API server reaches this program.
    pub client: Client,
    /// The namespaces whose objects are checked.
    pub scope: Scope,
    /// Users whose requests are not checked.
    pub controller_users: Vec<String>,
    /// The failure policy for creations.
    pub create_failure_policy: FailurePolicy,
    /// The failure policy for updates.
    pub update_failure_policy: FailurePolicy,
    /// Whether status writes are checked.
    pub status_webhook: StatusWebhook,
    /// Whether the API server knows `matchConditions`.
    pub match_conditions: MatchConditions,
}

impl WebhookManifests {
    /// The default settings for a process with the default names in a namespace.
    pub fn in_namespace(namespace: &str) -> Self {
        let service = names::WEBHOOK_CONFIGURATION;
        Self {
            client: Client::Service { namespace: namespace.to_owned(), name: service.to_owned() },
            scope: Scope::Cluster,
            controller_users: vec![format!("system:serviceaccount:{namespace}:{service}")],
            create_failure_policy: FailurePolicy::Fail,
            update_failure_policy: FailurePolicy::Ignore,
            status_webhook: StatusWebhook::LeaveOut,
            match_conditions: MatchConditions::Supported,
        }
    }

    /// Both configurations.
    pub fn all(&self) -> [Value; 2] {
        [self.mutating(), self.validating()]
    }

    /// The mutating configuration. Its policy is always `Ignore`, because the controllers apply the defaults too.
    pub fn mutating(&self) -> Value {
        let changed = format!("request.operation == 'CREATE' || ({CONTENT_CHANGED})");
        let mut webhook = self.webhook(
            "mutate.machine.sapcloud.io",
            Endpoint::Mutate,
            &["CREATE", "UPDATE"],
            FailurePolicy::Ignore,
            5,
            &[("not-deleting", NOT_DELETING), ("changed", &changed)],
        );
        webhook.insert("reinvocationPolicy".to_owned(), json!("IfNeeded"));
        self.configuration("MutatingWebhookConfiguration", &[webhook])
    }

    /// The validating configuration. By default a creation fails without an answer and an update passes. Deletions and status writes always pass
    /// without an answer.
    pub fn validating(&self) -> Value {
        let (create, update) = (self.create_failure_policy, self.update_failure_policy);
        let mut webhooks = vec![
            self.webhook(CREATE_WEBHOOK, Endpoint::Validate, &["CREATE"], create, 5, &[]),
            self.webhook(
                UPDATE_WEBHOOK,
                Endpoint::Validate,
                &["UPDATE"],
                update,
                5,
                &[("content-changed", CONTENT_CHANGED)],
            ),
            self.webhook(
                "delete.validate.machine.sapcloud.io",
                Endpoint::Validate,
                &["DELETE"],
                FailurePolicy::Ignore,
                2,
                &[],
            ),
        ];
        if self.status_webhook == StatusWebhook::Install {
            let name = "status.validate.machine.sapcloud.io";
            webhooks.push(self.webhook(name, Endpoint::ValidateStatus, &["UPDATE"], FailurePolicy::Ignore, 2, &[]));
        }
        self.configuration("ValidatingWebhookConfiguration", &webhooks)
    }

    /// The name of both configurations.
    pub fn name(&self) -> String {
        match &self.scope {
            Scope::Cluster => names::WEBHOOK_CONFIGURATION.to_owned(),
            Scope::Namespace(namespace) => format!("{}-{namespace}", names::WEBHOOK_CONFIGURATION),
        }
    }

    fn configuration(&self, kind: &str, webhooks: &[Map<String, Value>]) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {
                "name": self.name(),
                "labels": { "app.kubernetes.io/name": names::WEBHOOK_CONFIGURATION },
            },
            "webhooks": webhooks,
        })
    }

    fn webhook(
        &self,
        name: &str,
        endpoint: Endpoint,
        operations: &[&str],
        failure_policy: FailurePolicy,
        timeout_seconds: u32,
        conditions: &[(&str, &str)],
    ) -> Map<String, Value> {
        let resources: Vec<String> = match endpoint {
            Endpoint::Mutate | Endpoint::Validate => Kind::ALL.iter().map(|kind| kind.plural().to_owned()).collect(),
            Endpoint::ValidateStatus => [Kind::Machine, Kind::MachineSet, Kind::MachineDeployment]
                .iter()
                .map(|kind| format!("{}/status", kind.plural()))
                .collect(),
        };
        let failure_policy = match self.match_conditions {
            MatchConditions::Supported => failure_policy,
            MatchConditions::Unsupported => FailurePolicy::Ignore,
        };
        let mut webhook = Map::new();
        let mut set = |key: &str, value: Value| webhook.insert(key.to_owned(), value);
        set("name", json!(name));
        set("admissionReviewVersions", json!(["v1"]));
        set("clientConfig", self.client.config(Webhook::Admission(endpoint)));
        set("failurePolicy", json!(failure_policy.as_str()));
        set("matchPolicy", json!("Equivalent"));
        set("sideEffects", json!("None"));
        set("timeoutSeconds", json!(timeout_seconds));
        set(
            "rules",
            json!([{
                "apiGroups": [names::GROUP],
                "apiVersions": [ApiVersion::V1alpha1.as_str(), ApiVersion::V1beta1.as_str()],
                "operations": operations,
                "resources": resources,
                "scope": "Namespaced",
            }]),
        );
        if let Scope::Namespace(namespace) = &self.scope {
            let by_name = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]});
            set("namespaceSelector", json!({ "matchExpressions": [by_name] }));
        }
        let conditions = self.conditions(conditions);
        if !conditions.is_empty() {
            set("matchConditions", Value::Array(conditions));
        }
        webhook
    }

    fn conditions(&self, conditions: &[(&str, &str)]) -> Vec<Value> {
        if self.match_conditions == MatchConditions::Unsupported {
            return Vec::new();
        }
        let own = self.not_our_controllers().map(|expression| ("not-our-controllers", expression));
        let rest = conditions.iter().map(|(name, expression)| (*name, (*expression).to_owned()));
        let condition = |(name, expression): (&str, String)| json!({ "name": name, "expression": expression });
        own.into_iter().chain(rest).map(condition).collect()
    }

    /// The condition that keeps requests of the controllers away. `None` if there are no controller users.
    pub(super) fn not_our_controllers(&self) -> Option<String> {
        let users: Vec<_> = self.controller_users.iter().map(|user| cel_string(user)).collect();
        (!users.is_empty()).then(|| format!("!(request.userInfo.username in [{}])", users.join(", ")))
    }
}

/// A text as a CEL literal.
fn cel_string(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn webhook<'a>(configuration: &'a Value, name: &str) -> &'a Value {
        let webhooks = configuration["webhooks"].as_array().unwrap();
        webhooks.iter().find(|webhook| webhook["name"] == name).unwrap()
    }

    fn condition_names(webhook: &Value) -> Vec<&str> {
        let conditions = webhook["matchConditions"].as_array();
        conditions.into_iter().flatten().map(|condition| condition["name"].as_str().unwrap()).collect()
    }

    #[rstest]
    #[case::creations_need_an_answer("create.validate.machine.sapcloud.io", "Fail", 5, &["not-our-controllers"])]
    #[case::updates_do_not("update.validate.machine.sapcloud.io", "Ignore", 5, &["not-our-controllers", "content-changed"])]
    #[case::deletions_do_not("delete.validate.machine.sapcloud.io", "Ignore", 2, &["not-our-controllers"])]
    #[case::nor_does_the_status("status.validate.machine.sapcloud.io", "Ignore", 2, &["not-our-controllers"])]
    fn every_operation_has_its_own_policy(
        #[case] name: &str,
        #[case] policy: &str,
        #[case] seconds: u32,
        #[case] conditions: &[&str],
    ) {
        let manifests =
            WebhookManifests { status_webhook: StatusWebhook::Install, ..WebhookManifests::in_namespace("mcm") };
        let configuration = manifests.validating();
        let webhook = webhook(&configuration, name);
        assert_eq!(webhook["failurePolicy"], policy);
        assert_eq!(webhook["timeoutSeconds"], seconds);
        assert_eq!(condition_names(webhook), conditions);
        assert_eq!(webhook["sideEffects"], "None");
    }

    #[test]
    fn defaults_are_requested_for_changes_of_live_objects_by_users() {
        let configuration = WebhookManifests::in_namespace("mcm").mutating();
        let webhook = webhook(&configuration, "mutate.machine.sapcloud.io");
        assert_eq!(condition_names(webhook), ["not-our-controllers", "not-deleting", "changed"]);
        assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
        assert_eq!(
            webhook["matchConditions"][0]["expression"],
            "!(request.userInfo.username in ['system:serviceaccount:mcm:machine-controller-manager'])"
        );
    }

    #[test]
    fn one_namespace_has_its_own_configurations() {
        let scope = Scope::Namespace("shoot--a".to_owned());
        let configuration = WebhookManifests { scope, ..WebhookManifests::in_namespace("shoot--a") }.mutating();
        assert_eq!(configuration["metadata"]["name"], "machine-controller-manager-shoot--a");
        let selector = &configuration["webhooks"][0]["namespaceSelector"]["matchExpressions"][0];
        assert_eq!(*selector, json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["shoot--a"]}));
    }

    #[test]
    fn an_address_replaces_the_service() {
        let client = Client::Url("https://127.0.0.1:9443/".to_owned());
        let configuration = WebhookManifests { client, ..WebhookManifests::in_namespace("mcm") }.validating();
        assert_eq!(configuration["webhooks"][0]["clientConfig"], json!({"url": "https://127.0.0.1:9443/validate"}));
    }

    #[test]
    fn an_old_api_server_gets_no_conditions_and_only_the_policy_ignore() {
        let match_conditions = MatchConditions::Unsupported;
        let manifests = WebhookManifests { match_conditions, ..WebhookManifests::in_namespace("mcm") };
        for configuration in manifests.all() {
            for webhook in configuration["webhooks"].as_array().unwrap() {
                assert_eq!(webhook["failurePolicy"], "Ignore");
                assert_eq!(webhook.get("matchConditions"), None);
            }
        }
    }

    #[rstest]
    #[case("alice", "'alice'")]
    #[case("o'neill\\x", "'o\\'neill\\\\x'")]
    fn a_user_name_cannot_leave_its_quotes(#[case] user: &str, #[case] literal: &str) {
        assert_eq!(cel_string(user), literal);
    }

    /// Tools that manage machine objects while the manager has 0 replicas need creations to pass.
    #[test]
    fn creations_and_updates_pass_without_an_answer_if_configured() {
        let policies = |create_failure_policy, update_failure_policy| {
            let usual = WebhookManifests::in_namespace("mcm");
            let validating = WebhookManifests { create_failure_policy, update_failure_policy, ..usual }.validating();
            [CREATE_WEBHOOK, UPDATE_WEBHOOK].map(|name| {
                let webhooks = validating["webhooks"].as_array().unwrap();
                webhooks.iter().find(|webhook| webhook["name"] == name).unwrap()["failurePolicy"].clone()
            })
        };
        assert_eq!(policies(FailurePolicy::Fail, FailurePolicy::Ignore), ["Fail", "Ignore"]);
        assert_eq!(policies(FailurePolicy::Ignore, FailurePolicy::Fail), ["Ignore", "Fail"]);
    }
}
