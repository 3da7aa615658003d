//! The part of a machine's pod that operators choose (spec/providers §8): a pod template, by default that of provider-local without the socket of
//! Docker.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};

/// The container that gets the image of the class.
pub const CONTAINER: &str = "node";
/// The volume that gets the Secret with the user data.
pub const USER_DATA_VOLUME: &str = "userdata";

/// The template of all pods of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTemplate {
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    spec: Map<String, Value>,
    container: usize,
    volume: usize,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTemplate(String);

impl std::fmt::Display for InvalidTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTemplate {}

impl PodTemplate {
    /// Reads a template in YAML: `metadata` with labels and annotations, and the `spec` of a pod.
    ///
    /// # Errors
    /// The first mistake, with its path.
    pub fn read(text: &str) -> Result<Self, InvalidTemplate> {
        let invalid = |message: String| InvalidTemplate(message);
        let template: Value =
            serde_saphyr::from_str(text).map_err(|error| invalid(format!("not readable as YAML: {error}")))?;
        serde_json::from_value::<PodTemplateSpec>(template.clone())
            .map_err(|error| invalid(format!("no template of a pod: {error}")))?;
        let map = |path: &str| template.pointer(path).and_then(Value::as_object).cloned().unwrap_or_default();
        let spec = map("/spec");
        let named = |list: &str, name: &str| {
            spec.get(list).and_then(Value::as_array)?.iter().position(|one| one["name"] == name)
        };
        let container = named("containers", CONTAINER)
            .ok_or_else(|| invalid(format!("spec.containers: no container is named {CONTAINER:?}")))?;
        let volume = named("volumes", USER_DATA_VOLUME)
            .filter(|index| spec["volumes"][*index]["secret"].is_object())
            .ok_or_else(|| invalid(format!("spec.volumes: no volume {USER_DATA_VOLUME:?} of type secret")))?;
        Ok(Self { labels: map("/metadata/labels"), annotations: map("/metadata/annotations"), spec, container, volume })
    }

    /// The labels of the template.
    pub fn labels(&self) -> Map<String, Value> {
        self.labels.clone()
    }

    /// The annotations of the template.
    pub fn annotations(&self) -> Map<String, Value> {
        self.annotations.clone()
    }

    /// The `spec` of a pod with this image and this Secret with the user data.
    pub fn spec(&self, image: &str, secret: &str) -> Value {
        let mut spec = Value::Object(self.spec.clone());
        spec["containers"][self.container]["image"] = Value::from(image);
        spec["volumes"][self.volume]["secret"]["secretName"] = Value::from(secret);
        spec
    }
}

impl Default for PodTemplate {
    /// The template of provider-local without the socket of Docker.
    fn default() -> Self {
        let spec = json!({
            "dnsPolicy": "Default",
            "containers": [{
                "name": CONTAINER,
                "imagePullPolicy": "IfNotPresent",
                "securityContext": {"privileged": true},
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"name": "vpn-shoot", "containerPort": 30123, "protocol": "TCP"}],
                "readinessProbe": {"exec": {"command":
                    ["sh", "-c", "/usr/bin/kubectl --kubeconfig /var/lib/kubelet/kubeconfig-real get no $NODE_NAME"]}},
                "volumeMounts": [
                    {"name": USER_DATA_VOLUME, "mountPath": "/etc/machine"},
                    {"name": "containerd", "mountPath": "/var/lib/containerd"},
                    {"name": "run", "mountPath": "/run"},
                    {"name": "modules", "mountPath": "/lib/modules", "readOnly": true},
                ],
            }],
            "volumes": [
                {"name": USER_DATA_VOLUME, "secret": {"defaultMode": 0o777}},
                {"name": "containerd", "emptyDir": {}},
                {"name": "run", "emptyDir": {"medium": "Memory"}},
                {"name": "modules", "hostPath": {"path": "/lib/modules"}},
            ],
        });
        let spec = spec.as_object().cloned().unwrap_or_default();
        Self { labels: Map::new(), annotations: Map::new(), spec, container: 0, volume: 0 }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_documentation_shows_the_default() {
        let documented = PodTemplate::read(include_str!("../../../docs/local-pod-template.yaml")).unwrap();
        assert_eq!(documented, PodTemplate::default());
    }

    #[test]
    fn a_pod_has_the_image_of_its_class_and_the_secret_of_its_machine() {
        let spec = PodTemplate::default().spec("node:1", "machine-m-userdata");
        assert_eq!(spec["containers"][0]["image"], "node:1");
        assert_eq!(spec["volumes"][0]["secret"], json!({"secretName": "machine-m-userdata", "defaultMode": 0o777}));
    }

    #[rstest]
    #[case::no_yaml("a: [", "not readable as YAML: ")]
    #[case::no_template("[1]", "no template of a pod: ")]
    #[case::another_type("spec: {containers: [{name: 4}]}", "no template of a pod: invalid type: integer `4`")]
    #[case::empty("{}", "spec.containers: no container is named \"node\"")]
    #[case::no_container("spec: {containers: [{name: main}]}", "spec.containers: no container is named \"node\"")]
    #[case::no_volume("spec: {containers: [{name: node}]}", "spec.volumes: no volume \"userdata\" of type secret")]
    #[case::another_volume(
        "spec: {containers: [{name: node}], volumes: [{name: userdata, emptyDir: {}}]}",
        "spec.volumes: no volume \"userdata\" of type secret"
    )]
    fn a_text_is_no_template(#[case] text: &str, #[case] begins: &str) {
        let error = PodTemplate::read(text).unwrap_err().to_string();
        assert!(error.starts_with(begins), "{error}");
    }
}
