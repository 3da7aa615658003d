//! The values of the chart for clusters other than the one that it is installed in: with the machine objects, and with the Nodes.

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Control {
    /// Kubeconfig of the cluster with the machine objects; unset means this cluster. With it the release has no definitions, rights and
    /// webhooks for machine objects: a release in the other cluster with part control and 0 replicas has them
    kubeconfig: Kubeconfig,
}

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Target {
    /// Kubeconfig of the cluster with the Nodes, with mode kubeconfig
    kubeconfig: Kubeconfig,
    /// Where the Nodes are: same (this cluster), kubeconfig (the cluster of the kubeconfig), or none (no Node, pod or volume is touched)
    mode: TargetMode,
}

#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum TargetMode {
    #[default]
    Same,
    Kubeconfig,
    None,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Kubeconfig {
    /// Key of the Secret
    #[schemars(length(min = 1))]
    key: String,
    /// Secret in the namespace of the release
    secret_name: String,
}

impl Default for Kubeconfig {
    fn default() -> Self {
        Self { key: "kubeconfig".to_owned(), secret_name: String::new() }
    }
}
