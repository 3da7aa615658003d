//! The commands that mend what the checks find. Each is one line for a shell with `mcm` and `kubectl`.

use kube_values::json::Json;
use machine_api::{
    names::{self, annotation},
    validation::Node,
};
use serde_json::{Value, json};

use super::checks::Read;
use crate::cli::webhook_scope::WebhookScope;

/// How `kubectl apply` takes over the fields of manifests.
const APPLY: &str = "kubectl apply --server-side --force-conflicts -f -";

/// The flags of `mcm manifests` for the installation of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Namespace of the machine objects.
    pub namespace: String,
    /// The namespaces that the webhooks cover.
    pub scope: WebhookScope,
    /// Namespace of the manager: that of the webhooks' Service.
    pub home: String,
    /// URL of the webhooks, if they have no Service.
    url: Option<String>,
}

impl Installed {
    /// An installation whose webhook configurations were read.
    pub fn of(namespace: &str, scope: WebhookScope, configurations: &[&Read]) -> Self {
        let clients = configurations.iter().flat_map(|read| match read {
            Read::There(object) => object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default(),
            Read::Missing | Read::Refused(_) => &[],
        });
        let clients: Vec<&Value> = clients.map(|entry| &entry["clientConfig"]).collect();
        let text = |pointer: &str| clients.iter().find_map(|client| client.pointer(pointer)?.as_str());
        Self {
            namespace: namespace.to_owned(),
            scope,
            home: text("/service/namespace").unwrap_or(namespace).to_owned(),
            url: text("/url").map(base_of),
        }
    }

    /// The command that installs a part of the manifests again, with these further flags.
    pub fn apply(&self, part: &str, further: &str) -> String {
        let mut words = vec!["mcm", "manifests", part, "--namespace", &self.namespace];
        if self.home != self.namespace {
            words.extend(["--service-namespace", &self.home]);
        }
        if self.scope == WebhookScope::Namespace {
            words.extend(["--scope", "namespace"]);
        }
        if let Some(url) = self.url.as_deref().filter(|_| part != "rbac") {
            words.extend(["--webhook-url", url]);
        }
        if !further.is_empty() {
            words.push(further);
        }
        format!("{} | {APPLY}", words.join(" "))
    }

    /// The command that starts the manager's pods again.
    pub fn restart(&self) -> String {
        format!("kubectl -n {} rollout restart deployment/{}", self.home, names::WEBHOOK_CONFIGURATION)
    }

    /// The command that lets pods of the manager run.
    pub fn run_replicas(&self) -> String {
        format!("kubectl -n {} scale deployment/{} --replicas=2", self.home, names::WEBHOOK_CONFIGURATION)
    }
}

/// The part of a webhook's URL before the path of ours.
fn base_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let path = rest.find('/').map(|slash| &rest[slash..]).unwrap_or_default();
    let own = path.rfind('/').map(|slash| &path[..slash]).unwrap_or_default();
    format!("{scheme}://{}{own}", &rest[..rest.len() - path.len()])
}

/// The command that lets the manager write the `caBundle` of an object again, if an annotation forbids it.
pub fn allow_injection(resource: &str, name: &str, object: &Value) -> Option<String> {
    let read = Json::from(object);
    let annotations = Node::of(&read).at(&["metadata", "annotations"]);
    (annotations.get(annotation::INJECT_CA).text() == Some("false"))
        .then(|| format!("kubectl annotate {resource} {name} {}-", annotation::INJECT_CA))
}

/// The command that removes a finalizer from an object, if it has it. It fails when the finalizers have changed meanwhile.
pub fn remove_finalizer(target: &str, object: &Value, finalizer: &str) -> Option<String> {
    let all = object["metadata"]["finalizers"].as_array()?;
    let place = all.iter().position(|present| present == finalizer)?;
    let path = format!("/metadata/finalizers/{place}");
    let patch = json!([{"op": "test", "path": path, "value": finalizer}, {"op": "remove", "path": path}]);
    Some(format!("kubectl patch {target} --type=json -p '{patch}'"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn configuration(client: &Value) -> Read {
        Read::There(json!({"webhooks": [{"name": "a", "clientConfig": client}]}))
    }

    #[rstest]
    #[case::a_service(
        json!({"service": {"namespace": "there", "name": "s"}}),
        "there",
        "mcm manifests webhooks --namespace ns --service-namespace there | kubectl apply --server-side --force-conflicts -f -"
    )]
    #[case::a_url(
        json!({"url": "https://127.0.0.1:9443/validate"}),
        "ns",
        "mcm manifests webhooks --namespace ns --webhook-url https://127.0.0.1:9443 | \
         kubectl apply --server-side --force-conflicts -f -"
    )]
    #[case::a_url_with_a_path(
        json!({"url": "https://h/mcm/validate"}),
        "ns",
        "mcm manifests webhooks --namespace ns --webhook-url https://h/mcm | \
         kubectl apply --server-side --force-conflicts -f -"
    )]
    fn manifests_are_made_for_the_same_clients(#[case] client: Value, #[case] home: &str, #[case] command: &str) {
        let installed = Installed::of("ns", WebhookScope::Cluster, &[&Read::Missing, &configuration(&client)]);
        assert_eq!((installed.home.as_str(), installed.apply("webhooks", "")), (home, command.to_owned()));
    }

    #[test]
    fn a_finalizer_is_removed_only_where_it_was_seen() {
        let object = json!({"metadata": {"finalizers": ["a", "ours"]}});
        let command = remove_finalizer("node n", &object, "ours").unwrap();
        assert_eq!(
            command,
            r#"kubectl patch node n --type=json -p '[{"op":"test","path":"/metadata/finalizers/1","value":"ours"},{"op":"remove","path":"/metadata/finalizers/1"}]'"#
        );
        assert_eq!(remove_finalizer("node n", &object, "other"), None);
    }

    #[rstest]
    #[case::forbidden("false", Some("kubectl annotate crd c admission.machine.sapcloud.io/inject-ca-"))]
    #[case::allowed("true", None)]
    fn an_annotation_that_forbids_injection_is_removed(#[case] value: &str, #[case] expected: Option<&str>) {
        let object = json!({"metadata": {"annotations": {annotation::INJECT_CA: value}}});
        assert_eq!(allow_injection("crd", "c", &object).as_deref(), expected);
    }
}
