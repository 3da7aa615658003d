//! Puts definitions, webhook configurations and the example into the cluster, as `kubectl apply` would.

use std::time::Duration;

use anyhow::{Context, bail};
use http::Request;
use serde_json::Value;

use crate::{
    admission::manifests::{Client, WebhookManifests},
    api::crd::{Converter, CrdOptions, V1Beta1, definitions},
    cli::documents::parse_documents,
};

const EXAMPLE: [&str; 2] = [
    include_str!("../../../deploy/examples/machineclass-virtual.yaml"),
    include_str!("../../../deploy/examples/machinedeployment.yaml"),
];
const MANAGER: &str = "mcm-dev";
/// How long the webhooks may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Definitions with v1beta1 served, and the webhooks, reached at a URL.
pub(super) async fn manifests(client: &kube::Client, webhooks: &str) -> anyhow::Result<()> {
    let options = CrdOptions { v1beta1: V1Beta1::Served(Converter::Url(webhooks.to_owned())), ..CrdOptions::default() };
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

/// Waits until the manager has written the authority of its certificate into everything that calls it.
pub(super) async fn webhooks_answer(client: &kube::Client) -> anyhow::Result<()> {
    let paths = [
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ];
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut ready = true;
        for path in paths {
            let text = client.request_text(Request::get(path).body(Vec::new())?).await?;
            ready &= text.matches("\"clientConfig\"").count() <= text.matches("\"caBundle\"").count();
        }
        if ready {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            bail!("the webhooks do not answer after {} s; run with -v 1 to see why", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A class of the virtual cloud and a deployment of it.
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

async fn apply(client: &kube::Client, collection: &str, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let request = Request::patch(format!("{collection}/{name}?fieldManager={MANAGER}&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())?;
    client.request_text(request).await.with_context(|| format!("cannot apply {collection}/{name}"))?;
    Ok(())
}
