//! The service account controller: the service account `default` of every namespace.
//!
//! The account is created after its namespace, and again after its deletion, but not in a namespace that is being deleted.
//! Source: spec/extension-apiserver §6.1.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::requests::{Refusal, Requests};
use crate::{
    object::{self, text},
    store::{Collection, key},
};

/// The account of pods without another account.
const DEFAULT: &str = "default";

/// Whether accounts are created in a namespace.
fn takes_accounts(namespace: &Value) -> bool {
    text(namespace, "/status/phase") == "Active" && !object::is_deleting(namespace)
}

impl Requests {
    /// Whether a namespace has no account and is not being deleted.
    pub(super) fn lacks_account(&self, namespace: &str) -> bool {
        let store = &self.server.store;
        let takes =
            store.get(&Collection::new("", "namespaces"), namespace).is_some_and(|found| takes_accounts(&found.value));
        takes && store.get(&Collection::new("", "serviceaccounts"), &key(Some(namespace), DEFAULT)).is_none()
    }

    /// Creates the account of a namespace.
    pub(super) async fn create_account(&self, namespace: &str) -> Result<(), Refusal> {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        // These errors need no retry: the account was created by another client, or the namespace was deleted.
        let settled = [StatusCode::CONFLICT, StatusCode::NOT_FOUND];
        match self.send(Method::POST, &path, "application/json", &account).await {
            Err(refusal) if !settled.contains(&refusal.status) => Err(refusal),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;
    use crate::{
        stand_ins::StandIn,
        testing::{Cluster, ask, cluster, exists},
    };

    #[rstest]
    #[case::active(json!({"status": {"phase": "Active"}}), true)]
    #[case::terminating(json!({"status": {"phase": "Terminating"}}), false)]
    #[case::deleted_a_moment_ago(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Active"}}), false
    )]
    #[case::nothing_known(json!({}), false)]
    fn which_namespaces_take_accounts(#[case] namespace: Value, #[case] takes: bool) {
        assert_eq!(takes_accounts(&namespace), takes);
    }

    const ACCOUNT: &str = "/api/v1/namespaces/a/serviceaccounts/default";

    async fn with_namespace(without: impl IntoIterator<Item = StandIn>) -> Cluster {
        let cluster = cluster(without);
        ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.unwrap();
        cluster
    }

    #[tokio::test(start_paused = true)]
    async fn every_namespace_has_its_account() {
        let cluster = with_namespace([]).await;
        for namespace in ["a", "default", "kube-system", "kube-public", "kube-node-lease"] {
            exists(&cluster, &format!("/api/v1/namespaces/{namespace}/serviceaccounts/default")).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_account_is_created_again() {
        let cluster = with_namespace([]).await;
        let first = exists(&cluster, ACCOUNT).await;
        ask(&cluster, "DELETE", ACCOUNT, &Value::Null).await.unwrap();
        let second = exists(&cluster, ACCOUNT).await;
        assert_ne!(object::uid(&first), object::uid(&second));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_being_deleted_gets_no_account_and_is_deleted() {
        let cluster = with_namespace([]).await;
        exists(&cluster, ACCOUNT).await;
        let held = json!({"metadata": {"name": "m", "finalizers": ["example.com/hold"]}});
        let map = "/api/v1/namespaces/a/configmaps/m";
        ask(&cluster, "POST", "/api/v1/namespaces/a/configmaps", &held).await.unwrap();
        ask(&cluster, "DELETE", "/api/v1/namespaces/a", &Value::Null).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ask(&cluster, "GET", ACCOUNT, &Value::Null).await.unwrap_err(), 404);
        ask(&cluster, "GET", map, &Value::Null).await.expect("the namespace waits for the finalizer");
        ask(&cluster, "PATCH", map, &json!({"metadata": {"finalizers": null}})).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&cluster, "GET", "/api/v1/namespaces/a", &Value::Null).await.unwrap_err(), 404);
    }

    #[tokio::test(start_paused = true)]
    async fn no_accounts_are_created_when_the_controller_is_off() {
        let cluster = with_namespace([StandIn::DefaultAccounts]).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ask(&cluster, "GET", ACCOUNT, &Value::Null).await.unwrap_err(), 404);
    }

    #[tokio::test(start_paused = true)]
    async fn a_creation_that_a_webhook_refuses_is_retried() {
        const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let cluster = cluster([]);
        cluster.server.answer_webhooks("webhooks.example.com:443", std::sync::Arc::new(|_, _| (500, Vec::new())));
        let refuses = json!({"metadata": {"name": "w"}, "webhooks": [{
            "name": "w.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://webhooks.example.com:443/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["serviceaccounts"]}],
        }]});
        ask(&cluster, "POST", WEBHOOKS, &refuses).await.unwrap();
        ask(&cluster, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ask(&cluster, "GET", ACCOUNT, &Value::Null).await.unwrap_err(), 404);
        ask(&cluster, "DELETE", &format!("{WEBHOOKS}/w"), &Value::Null).await.unwrap();
        exists(&cluster, ACCOUNT).await;
    }
}
