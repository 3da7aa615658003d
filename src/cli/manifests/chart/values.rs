//! The values of the chart: one struct with their types and defaults, and the schema made of it.
//!
//! The descriptions of the fields are the users' documentation, which [`super::reference`] writes. Source: spec/packaging §3.2.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    alert_values::Alerts,
    cluster_values::{Control, Target},
    flags::{self, ServeFlag},
    metric_values::{Dashboards, Metrics},
};

/// Pass-through fields of Kubernetes objects.
pub(super) type Fields = Map<String, Value>;
/// Labels and annotations. The API server refuses numbers and booleans in them, such as `1` without quotes.
pub(super) type Texts = BTreeMap<String, String>;

/// Values of the chart machine-controller-manager
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ChartValues {
    /// Affinity of the pods. Unset means that the pods prefer different hosts, and with webhooks.hostNetwork require them
    affinity: Fields,
    /// Alerts for the Prometheus operator
    alerts: Alerts,
    /// Rights for classes whose user data needs a bootstrap token, in kube-system of the cluster with the Nodes
    bootstrap_tokens: Switch,
    /// Certificates of the webhooks
    certificates: Certificates,
    /// The cluster with the machine objects, if it is not the one that the chart is installed in
    control: Control,
    /// Definitions of the four kinds
    crds: Crds,
    /// Dashboards for the sidecar of Grafana's chart
    dashboards: Dashboards,
    /// Further containers of the pod, for example drivers that serve a provider on a socket
    extra_containers: Vec<Fields>,
    /// Further environment variables of the container
    extra_env: Vec<Fields>,
    /// Further objects of the release
    extra_objects: Vec<Fields>,
    /// Further mounts of the container
    extra_volume_mounts: Vec<Fields>,
    /// Further volumes of the pod
    extra_volumes: Vec<Fields>,
    /// Flags of `mcm serve` by name, without dashes, such as machine-drain-timeout: 30m. A list repeats its flag
    #[schemars(schema_with = "flags_schema")]
    flags: Fields,
    /// Flow schemas, with which the API server keeps the manager's requests apart from those of all other clients
    flow_control: On,
    /// Values that a parent chart shares with all its charts; nothing here reads them
    global: Fields,
    /// Image of the container
    image: Image,
    /// Rights for machines that are pods in the namespace of the machine objects (provider local). With them the manager can make privileged
    /// pods there
    local_machines: Switch,
    /// Namespace of the machine objects; unset means the namespace of the release. It must exist
    #[schemars(regex(pattern = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"))]
    machine_namespace: String,
    /// Monitors of the Prometheus operator
    metrics: Metrics,
    /// Network policy of the pods
    network_policy: NetworkPolicy,
    /// Labels that the nodes of the pods must have
    node_selector: Texts,
    /// What this release installs, if the machine objects and the Nodes are in two clusters: all, control (the manager with everything
    /// of the cluster with the machine objects), or target (an account and its rights in the cluster with the Nodes, no pod)
    part: Part,
    /// Annotations of the pods
    pod_annotations: Texts,
    /// Labels of the pods, besides those of the chart
    pod_labels: Texts,
    /// Rules that the API server checks itself while no webhook answers
    policies: Switch,
    /// Priority of the pods
    priority: Priority,
    /// Number of pods. All serve admission; one of them, the leader, runs the controllers
    #[schemars(range(min = 0))]
    replicas: u32,
    /// Resources of the container
    resources: Fields,
    /// Namespaces that the webhooks cover: all, or only the namespace of the release, so that several namespaces can have a manager
    scope: Scope,
    /// Rights with which the virtual cloud simulates machines and their Nodes in this cluster
    simulation: Switch,
    /// The cluster with the Nodes
    target: Target,
    /// Seconds until a pod that ends is killed. Must be longer than the flags shutdown-delay-duration and shutdown-timeout and 5 s together
    #[schemars(range(min = 1))]
    termination_grace_period_seconds: u32,
    /// Tolerations of the pods
    tolerations: Vec<Fields>,
    /// Spread of the pods. A constraint without labelSelector gets the pods of the chart
    topology_spread_constraints: Vec<Fields>,
    /// A job of `helm uninstall`
    uninstall_guard: UninstallGuard,
    /// The version v1beta1 of the four kinds
    v1beta1: V1Beta1,
    /// Views such as `kubectl get machineoutlooks`, served through the API server. While a registered server is down, no namespace of the
    /// cluster can be deleted
    views: Switch,
    /// Admission webhooks
    webhooks: Webhooks,
}

impl Default for ChartValues {
    fn default() -> Self {
        let spread = json!({
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
            "matchLabelKeys": ["pod-template-hash"],
        });
        Self {
            affinity: Fields::new(),
            alerts: Alerts::default(),
            bootstrap_tokens: Switch::default(),
            certificates: Certificates::default(),
            control: Control::default(),
            crds: Crds::default(),
            dashboards: Dashboards::default(),
            extra_containers: Vec::new(),
            extra_env: Vec::new(),
            extra_objects: Vec::new(),
            extra_volume_mounts: Vec::new(),
            extra_volumes: Vec::new(),
            flags: Fields::new(),
            flow_control: On::default(),
            global: Fields::new(),
            image: Image::default(),
            local_machines: Switch::default(),
            machine_namespace: String::new(),
            metrics: Metrics::default(),
            network_policy: NetworkPolicy::default(),
            node_selector: Texts::new(),
            part: Part::All,
            pod_annotations: Texts::new(),
            pod_labels: Texts::new(),
            policies: Switch::default(),
            priority: Priority::default(),
            replicas: 2,
            resources: fields(json!({"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}})),
            scope: Scope::Cluster,
            simulation: Switch::default(),
            target: Target::default(),
            termination_grace_period_seconds: 60,
            tolerations: Vec::new(),
            topology_spread_constraints: vec![fields(spread)],
            uninstall_guard: UninstallGuard::default(),
            v1beta1: V1Beta1::default(),
            views: Switch::default(),
            webhooks: Webhooks::default(),
        }
    }
}

/// Something that is off by default.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Switch {
    /// Whether it is installed
    enabled: bool,
}

/// Something that is on by default.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct On {
    /// Whether it is installed. It is left out where the API server does not know it
    enabled: bool,
}

impl Default for On {
    fn default() -> Self {
        Self { enabled: true }
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct UninstallGuard {
    /// Whether `helm uninstall` fails while machines or finalizers of the manager are left in the namespace, and unregisters the webhooks
    /// before the manager ends
    enabled: bool,
}

impl Default for UninstallGuard {
    fn default() -> Self {
        Self { enabled: true }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum Part {
    All,
    Control,
    Target,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum Scope {
    Cluster,
    Namespace,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Image {
    /// Digest of the image; it wins over the tag
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    digest: String,
    /// When the kubelet pulls the image
    pull_policy: PullPolicy,
    /// Secrets with credentials of the registry, as in a pod
    pull_secrets: Vec<Fields>,
    /// Registry and name
    #[schemars(length(min = 1))]
    repository: String,
    /// Tag of the image; unset means the version of the chart
    tag: String,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            digest: String::new(),
            pull_policy: PullPolicy::IfNotPresent,
            pull_secrets: Vec::new(),
            repository: "machine-controller-manager".to_owned(),
            tag: String::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[allow(dead_code)] // choices of the schema; only the default is made
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Webhooks {
    /// Users whose requests are not sent to the webhooks and which admission treats as controllers, besides the service account
    controller_users: Vec<User>,
    /// Outcome of a creation while no webhook answers. Ignore is for objects that are created while the manager has 0 replicas
    create_failure_policy: FailurePolicy,
    /// Whether the webhook configurations are installed
    enabled: bool,
    /// Whether the pods use the network of their hosts, for API servers that reach no pods. The ports must be free on the hosts, and the
    /// namespace must allow it
    host_network: bool,
    /// Port of webhooks, conversion and views in the pod. Control planes that reach nodes on few ports only often allow 10250
    #[schemars(range(min = 1, max = 65535))]
    port: u16,
    /// Level of the rules that have two levels: compat (warn) or strict (deny)
    profile: Profile,
    /// Whether status writes of other users cause warnings
    status_webhook: bool,
    /// Outcome of an update while no webhook answers
    update_failure_policy: FailurePolicy,
    /// Base URL of the webhooks instead of the Service, for API servers that reach no Services
    #[schemars(regex(pattern = r#"^(https://[^\s"'{}\\?#@]+)?$"#))]
    url: String,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            controller_users: Vec::new(),
            create_failure_policy: FailurePolicy::Fail,
            enabled: true,
            host_network: false,
            port: 9443,
            profile: Profile::Compat,
            status_webhook: false,
            update_failure_policy: FailurePolicy::Ignore,
            url: String::new(),
        }
    }
}

/// Name of a user. It stands in CEL and in a flag.
#[derive(Clone, Debug, Serialize)]
struct User(String);

impl JsonSchema for User {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "User".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string", "pattern": r#"^[^\s"'{}\\,]+$"# })
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
enum FailurePolicy {
    Fail,
    Ignore,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum Profile {
    Compat,
    Strict,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Crds {
    /// Whether the definitions are part of the release. Exactly one release of a cluster should have them
    install: bool,
    /// Whether the definitions, and with them all machine objects, outlive the release
    keep: bool,
}

impl Default for Crds {
    fn default() -> Self {
        Self { install: true, keep: true }
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct V1Beta1 {
    /// Whether the API server serves v1beta1 beside v1alpha1. Then it needs the manager's conversion
    serve: bool,
    /// Version in which the API server stores objects. Set it to v1beta1 after `mcm migrate-storage --to v1beta1`
    stored: StoredVersion,
}

impl Default for V1Beta1 {
    fn default() -> Self {
        Self { serve: false, stored: StoredVersion::V1alpha1 }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum StoredVersion {
    V1alpha1,
    V1beta1,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Certificates {
    /// Issuer of cert-manager, with mode cert-manager; without a name the chart makes its own authority
    issuer_ref: IssuerRef,
    /// Who makes the certificate: self-managed (the manager), cert-manager, or files (the Secret of secretName)
    mode: CertificateMode,
    /// Secret with tls.crt and tls.key, with mode files
    secret_name: String,
}

impl Default for Certificates {
    fn default() -> Self {
        Self { issuer_ref: IssuerRef::default(), mode: CertificateMode::SelfManaged, secret_name: String::new() }
    }
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(dead_code)] // choices of the schema; only the default is made
enum CertificateMode {
    SelfManaged,
    CertManager,
    Files,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct IssuerRef {
    /// Group of the issuer
    group: String,
    /// Issuer or `ClusterIssuer`
    kind: String,
    /// Name of the issuer
    name: String,
}

impl Default for IssuerRef {
    fn default() -> Self {
        Self { group: "cert-manager.io".to_owned(), kind: "Issuer".to_owned(), name: String::new() }
    }
}

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct NetworkPolicy {
    /// Networks of the API servers in CIDR notation. Unset means that the webhook port accepts all callers, and ports 443 and 6443 of every
    /// address can be reached
    api_servers: Vec<Cidr>,
    /// Whether it is installed
    enabled: bool,
    /// Peers that may read health and metrics, as in a `NetworkPolicy`. Unset means none but the kubelet
    monitoring: Vec<Fields>,
    /// Rules for the way to the provider's API, as in the egress of a `NetworkPolicy`. Unset means port 443 of every address
    provider: Vec<Fields>,
}

/// A network in CIDR notation.
#[derive(Clone, Debug, Serialize)]
struct Cidr(String);

impl JsonSchema for Cidr {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cidr".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$" })
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Priority {
    /// Priority class of the pods; empty means none
    class_name: String,
    /// Whether a `ResourceQuota` allows the priority class in the namespace. Some clusters refuse the system's classes outside kube-system
    /// without one
    quota: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { class_name: "system-cluster-critical".to_owned(), quota: true }
    }
}

fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}

/// Stands for the flags, which are not types of Rust here.
fn flags_schema(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "object" })
}

/// The schema of the values, in the draft that all versions of Helm 3 know.
pub(super) fn schema(flags: &[ServeFlag]) -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<ChartValues>().to_value();
    let description = schema["properties"]["flags"]["description"].clone();
    schema["properties"]["flags"] = flags::schema(flags);
    schema["properties"]["flags"]["description"] = description;
    schema["properties"]["flags"]["default"] = json!({});
    schema
}

/// The default of every value.
pub(super) fn defaults() -> Value {
    // A value without maps of other keys than texts always has a JSON form.
    serde_json::to_value(ChartValues::default()).unwrap_or_default()
}

/// `values.schema.json`.
pub fn schema_json(flags: &[ServeFlag]) -> String {
    // JSON values always have a text form.
    let text = serde_json::to_string_pretty(&schema(flags)).unwrap_or_default();
    format!("{text}\n")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mistakes(values: &Value) -> Vec<String> {
        let schema = schema(&flags::of_serve());
        let validator = jsonschema::draft7::new(&schema).unwrap();
        validator.iter_errors(values).map(|error| format!("{} {error}", error.instance_path())).collect()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(mistakes(&defaults()), Vec::<String>::new());
    }

    #[rstest]
    #[case::an_unknown_key(json!({"replica": 3}), "replica")]
    #[case::an_unknown_key_below(json!({"webhooks": {"prot": 1}}), "prot")]
    #[case::an_unknown_flag(json!({"flags": {"machine-drain-time": "1h"}}), "machine-drain-time")]
    #[case::a_duration_without_unit(json!({"flags": {"machine-drain-timeout": "10"}}), "/flags/machine-drain-timeout")]
    #[case::a_number_for_a_duration(json!({"flags": {"machine-drain-timeout": 10}}), "/flags/machine-drain-timeout")]
    #[case::a_port(json!({"webhooks": {"port": 70000}}), "/webhooks/port")]
    #[case::a_port_of_a_flag(json!({"flags": {"compat-port": 70000}}), "/flags/compat-port")]
    #[case::a_part(json!({"part": "both"}), "/part")]
    #[case::a_digest(json!({"image": {"digest": "0".repeat(64)}}), "/image/digest")]
    #[case::a_url(json!({"webhooks": {"url": "http://host"}}), "/webhooks/url")]
    #[case::an_unknown_limit(json!({"alerts": {"thresholds": {"depth": 1}}}), "depth")]
    #[case::a_fraction_of_a_second(json!({"alerts": {"thresholds": {"rolloutStepSeconds": 1800.5}}}), "/alerts/thresholds/rolloutStepSeconds")]
    #[case::an_unknown_alert(json!({"alerts": {"without": ["MachineFail"]}}), "/alerts/without/0")]
    #[case::an_alert_that_is_not_left_out(json!({"alerts": {"with": ["Down"]}}), "/alerts/with/0")]
    #[case::a_job_with_a_quote(json!({"metrics": {"job": "a\"b"}}), "/metrics/job")]
    #[case::a_user_with_a_quote(json!({"webhooks": {"controllerUsers": ["o'neill"]}}), "/webhooks/controllerUsers/0")]
    fn pk_023_a_wrong_value_is_an_error_that_names_its_place(#[case] values: Value, #[case] place: &str) {
        let mistakes = mistakes(&values);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].contains(place), "{mistakes:?}");
    }
}
