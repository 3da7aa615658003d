//! Applies definitions, webhook configurations, the registration of the views and the example to the cluster, like `kubectl apply`.

use std::time::Duration;

use anyhow::{Context, bail};
use controller_runtime::{error::ApiError, objects::call};
use http::Request;
use machine_api::{
    admission::manifests::WebhookManifests,
    crd::{CrdOptions, V1Beta1, definitions},
    names,
    webhooks::Client,
};
use serde_json::{Value, json};

use crate::cli::{
    documents::parse_documents,
    manifests::views::{ViewsManifests, views_for_readers},
};

const EXAMPLE: [&str; 2] = [
    include_str!("../../../deploy/examples/machineclass-virtual.yaml"),
    include_str!("../../../deploy/examples/machinedeployment.yaml"),
];
const MANAGER: &str = "mcm-dev";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Deadline until webhooks and views answer.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Applies definitions that serve v1beta1, and webhook configurations for a URL.
pub(super) async fn manifests(client: &kube::Client, webhooks: &str) -> anyhow::Result<()> {
    let options = CrdOptions { v1beta1: V1Beta1::Served(Client::Url(webhooks.to_owned())), ..CrdOptions::default() };
    for definition in definitions(&options) {
        apply(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    }
    let manifests = WebhookManifests {
        client: Client::Url(webhooks.to_owned()),
        controller_users: Vec::new(),
        ..WebhookManifests::in_namespace(super::NAMESPACE)
    };
    let [mutating, validating] = manifests.all();
    let base = "/apis/admissionregistration.k8s.io/v1";
    apply(client, &format!("{base}/mutatingwebhookconfigurations"), &mutating).await?;
    apply(client, &format!("{base}/validatingwebhookconfigurations"), &validating).await
}

/// Registers the views of a manager at a port of this host, with the same manifests as in any cluster.
pub(super) async fn views(client: &kube::Client, port: u16) -> anyhow::Result<()> {
    let manifests = ViewsManifests {
        namespace: super::NAMESPACE.to_owned(),
        service: names::WEBHOOK_CONFIGURATION.to_owned(),
        port,
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": manifests.service, "namespace": manifests.namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    apply(client, &format!("/api/v1/namespaces/{}/services", manifests.namespace), &service).await?;
    for object in views_for_readers(&manifests) {
        let collection = match object["kind"].as_str().unwrap_or_default() {
            "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "APIService" => API_SERVICES,
            other => bail!("the manifests of the views hold a {other}"),
        };
        apply(client, collection, &object).await?;
    }
    Ok(())
}

/// Removes the registration of an earlier run with the same data, because no server answers it.
pub(super) async fn no_views(client: &kube::Client) -> anyhow::Result<()> {
    let request = Request::delete(format!("{API_SERVICES}/{}", names::API_SERVICE)).body(Vec::new())?;
    match call(client.request_text(request)).await {
        Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => Ok(()),
        deleted => deleted.map(drop).context("cannot delete the registration of the views"),
    }
}

/// Waits until the manager has written the authority of its certificate into all `caBundle` fields.
pub(super) async fn webhooks_answer(client: &kube::Client) -> anyhow::Result<()> {
    let paths = [
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ];
    until("the webhooks do not answer", async || {
        let mut ready = true;
        for path in paths {
            let text = call(client.request_text(Request::get(path).body(Vec::new())?)).await?;
            ready &= text.matches("\"clientConfig\"").count() <= text.matches("\"caBundle\"").count();
        }
        Ok(ready)
    })
    .await
}

/// Waits until the API server forwards requests for views to the manager.
pub(super) async fn views_answer(client: &kube::Client) -> anyhow::Result<()> {
    until("the views are not available", async || {
        let path = format!("{API_SERVICES}/{}", names::API_SERVICE);
        let object: Value = call(client.request(Request::get(path).body(Vec::new())?)).await?;
        let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition["type"] == "Available" && condition["status"] == "True"))
    })
    .await
}

async fn until(problem: &str, holds: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    while !holds().await? {
        if tokio::time::Instant::now() > deadline {
            bail!("{problem} after {} s; run with -v 1 to see why", READY_WITHIN.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Applies a class of the virtual cloud and a deployment of it.
pub(super) async fn example(client: &kube::Client) -> anyhow::Result<()> {
    for text in EXAMPLE {
        for document in parse_documents("example", text)? {
            let object = &document.value;
            let path = match object["kind"].as_str().unwrap_or_default() {
                "Secret" => "/api/v1/namespaces/default/secrets",
                "MachineClass" => "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machineclasses",
                "MachineDeployment" => "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments",
                other => bail!("the example holds a {other}"),
            };
            apply(client, path, object).await?;
        }
    }
    Ok(())
}

/// The name of any deployment, if there is one.
pub(super) async fn some_deployment(client: &kube::Client) -> anyhow::Result<Option<String>> {
    let path = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments?limit=1";
    let list: Value = call(client.request(Request::get(path).body(Vec::new())?)).await?;
    Ok(list["items"][0]["metadata"]["name"].as_str().map(str::to_owned))
}

async fn apply(client: &kube::Client, collection: &str, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let request = Request::patch(format!("{collection}/{name}?fieldManager={MANAGER}&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())?;
    call(client.request_text(request)).await.with_context(|| format!("cannot apply {collection}/{name}"))?;
    Ok(())
}
