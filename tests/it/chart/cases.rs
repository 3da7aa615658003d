//! Value sets of the chart, each with the `mcm manifests` commands that print the same objects.

use serde_json::{Value, json};

/// A value set.
pub struct Case {
    pub name: &'static str,
    pub namespace: &'static str,
    pub values: Value,
    /// Commands of `mcm manifests`. `--namespace` is added.
    pub commands: Vec<Vec<&'static str>>,
}

const DEFAULT: &str = "machine-controller-manager";

fn case(name: &'static str, namespace: &'static str, values: Value, commands: &[&[&'static str]]) -> Case {
    Case { name, namespace, values, commands: commands.iter().map(|command| command.to_vec()).collect() }
}

/// All value sets.
#[allow(clippy::too_many_lines)] // a table
pub fn all() -> Vec<Case> {
    let usual: &[&[&str]] = &[&["crds"], &["rbac"], &["webhooks"]];
    let url = "https://192.0.2.1:9443";
    vec![
        case("defaults", DEFAULT, json!({}), usual),
        case("another-namespace", "shoot--a", json!({}), usual),
        case("a-namespace-like-a-number", "123", json!({}), usual),
        case(
            "scope-namespace",
            "shoot--a",
            json!({"scope": "namespace"}),
            &[&["crds"], &["rbac", "--scope=namespace"], &["webhooks", "--scope=namespace"]],
        ),
        case(
            "scope-namespace-in-the-default-namespace",
            DEFAULT,
            json!({"scope": "namespace", "crds": {"install": false}}),
            &[&["rbac", "--scope=namespace"], &["webhooks", "--scope=namespace"]],
        ),
        case(
            "url",
            "mcm",
            json!({"webhooks": {"url": format!("{url}/")}}),
            &[&["crds"], &["rbac"], &["webhooks", "--webhook-url=https://192.0.2.1:9443/"]],
        ),
        case(
            "v1beta1",
            "mcm",
            json!({"v1beta1": {"serve": true}}),
            &[&["crds", "--serve=v1beta1"], &["storage-guard"], &["rbac"], &["webhooks"]],
        ),
        case(
            "v1beta1-stored",
            "mcm",
            json!({"v1beta1": {"serve": true, "stored": "v1beta1"}}),
            &[&["crds", "--serve=v1beta1", "--stored=v1beta1"], &["storage-guard"], &["rbac"], &["webhooks"]],
        ),
        case(
            "v1beta1-by-url",
            "mcm",
            json!({"v1beta1": {"serve": true}, "webhooks": {"url": url}, "crds": {"keep": false}}),
            &[
                &["crds", "--serve=v1beta1", "--webhook-url=https://192.0.2.1:9443"],
                &["storage-guard"],
                &["rbac"],
                &["webhooks", "--webhook-url=https://192.0.2.1:9443"],
            ],
        ),
        case(
            "policies",
            DEFAULT,
            json!({"policies": {"enabled": true}}),
            &[&["crds"], &["rbac"], &["webhooks"], &["policies"]],
        ),
        case(
            "policies-of-one-namespace-with-users",
            "mcm",
            json!({"policies": {"enabled": true}, "scope": "namespace", "webhooks": {"controllerUsers": ["alice", "system:serviceaccount:a:b"]}}),
            &[
                &["crds"],
                &["rbac", "--scope=namespace"],
                &["webhooks", "--scope=namespace", USERS],
                &["policies", "--scope=namespace", USERS],
            ],
        ),
        case(
            "outcomes",
            "mcm",
            json!({"webhooks": {
                "statusWebhook": true, "createFailurePolicy": "Ignore", "updateFailurePolicy": "Fail", "profile": "strict",
            }}),
            &[
                &["crds"],
                &["rbac"],
                &["webhooks", "--status-webhook", "--create-failure-policy=ignore", "--update-failure-policy=fail"],
            ],
        ),
        case(
            "no-webhooks",
            "mcm",
            json!({"webhooks": {"enabled": false}, "crds": {"install": false}, "flowControl": {"enabled": false}}),
            &[&["rbac"]],
        ),
        case(
            "views",
            "mcm",
            json!({"views": {"enabled": true}, "scope": "namespace"}),
            &[&["crds"], &["rbac", "--scope=namespace"], &["webhooks", "--scope=namespace"], &["apiservice"]],
        ),
        case(
            "simulation-and-tokens",
            DEFAULT,
            json!({
                "simulation": {"enabled": true}, "bootstrapTokens": {"enabled": true}, "localMachines": {"enabled": true},
                "flags": {"enable-simulation": true},
            }),
            &[&["crds"], &["rbac", "--simulation", "--bootstrap-tokens", "--local-machines"], &["webhooks"]],
        ),
        case(
            "target-none",
            "mcm",
            json!({"target": {"mode": "none"}, "bootstrapTokens": {"enabled": true}, "simulation": {"enabled": true}}),
            &[&["crds"], &["rbac", "--cluster=control", "--simulation"], &["webhooks"]],
        ),
        case(
            "part-control",
            "mcm",
            json!({"part": "control", "target": {"mode": "kubeconfig", "kubeconfig": {"secretName": "target"}}}),
            &[&["crds"], &["rbac", "--cluster=control"], &["webhooks"]],
        ),
        case(
            "part-target",
            "mcm",
            json!({"part": "target", "bootstrapTokens": {"enabled": true}, "simulation": {"enabled": true}}),
            &[&["rbac", "--cluster=target", "--bootstrap-tokens", "--simulation"]],
        ),
        case(
            "machine-objects-elsewhere",
            "mcm",
            json!({"control": {"kubeconfig": {"secretName": "control"}}, "alerts": {"enabled": true}}),
            &[&["rbac", "--cluster=target"], &["alerts"]],
        ),
        case(
            "both-clusters-elsewhere",
            "mcm",
            json!({
                "control": {"kubeconfig": {"secretName": "control", "key": "config"}}, "bootstrapTokens": {"enabled": true},
                "target": {"mode": "kubeconfig", "kubeconfig": {"secretName": "target"}}, "simulation": {"enabled": true},
            }),
            &[],
        ),
        case(
            "half-of-machines",
            "mcm",
            json!({"flags": {"half": "machine-controller"}}),
            &[&["crds"], &["rbac", "--half=machine-controller"], &["webhooks"]],
        ),
        case(
            "half-of-deployments-of-one-namespace",
            "mcm",
            json!({"flags": {"half": "machine-controller-manager"}, "scope": "namespace", "replicas": 1}),
            &[
                &["crds"],
                &["rbac", "--half=machine-controller-manager", "--scope=namespace"],
                &["webhooks", "--scope=namespace"],
            ],
        ),
        case(
            "host-network",
            "mcm",
            json!({
                "webhooks": {"port": 10250, "hostNetwork": true}, "networkPolicy": {"enabled": true, "monitoring": [{"podSelector": {}}]},
                "image": {"repository": "registry.example.org/mcm", "digest": format!("sha256:{}", "0a".repeat(32))},
                "flags": {"port": 11258, "compat-port": 0},
            }),
            usual,
        ),
        case(
            "files",
            "mcm",
            json!({"certificates": {"mode": "files", "secretName": "tls"}, "priority": {"className": "", "quota": false}}),
            usual,
        ),
        case(
            "machine-namespace",
            "mcm",
            json!({
                "machineNamespace": "shoot--a", "bootstrapTokens": {"enabled": true}, "simulation": {"enabled": true},
                "alerts": {"enabled": true}, "policies": {"enabled": true}, "views": {"enabled": true}, "scope": "namespace",
            }),
            &[
                &["crds"],
                &["rbac", "--scope=namespace", "--simulation", "--bootstrap-tokens"],
                &["webhooks", "--scope=namespace"],
                &["policies", "--scope=namespace"],
                &["apiservice"],
                &["alerts"],
            ],
        ),
        case(
            "the-default-namespace-for-machines",
            "mcm",
            json!({"machineNamespace": DEFAULT, "v1beta1": {"serve": true}, "certificates": {"mode": "cert-manager"}}),
            &[&["crds", "--serve=v1beta1"], &["storage-guard"], &["rbac"], &["webhooks"]],
        ),
        case(
            "alerts",
            DEFAULT,
            json!({"alerts": {"enabled": true}}),
            &[&["crds"], &["rbac"], &["webhooks"], &["alerts"]],
        ),
        case(
            "dashboards",
            DEFAULT,
            json!({"dashboards": {"enabled": true}}),
            &[&["crds"], &["rbac"], &["webhooks"], &["dashboards"]],
        ),
        case(
            "alerts-with-limits",
            "mcm",
            json!({
                "replicas": 3, "metrics": {"job": "second"},
                "alerts": {
                    "enabled": true, "runbookUrl": "https://runbooks.example.org/", "with": ["WebhookUnreachable"],
                    "without": ["MachineFailed", "CertificateExpiring"],
                    "thresholds": {"queueDepth": 2_000_000, "failedShare": 0.35, "rolloutStepSeconds": 600},
                },
            }),
            &[
                &["crds"],
                &["rbac"],
                &["webhooks"],
                &[
                    "alerts",
                    "--job=second",
                    "--runbook-url=https://runbooks.example.org/",
                    "--with-alerts=WebhookUnreachable",
                    "--without-alerts=MachineFailed,CertificateExpiring",
                    "--alert-threshold=replicas=3",
                    "--alert-threshold=queueDepth=2000000",
                    "--alert-threshold=failedShare=0.35",
                    "--alert-threshold=rolloutStepSeconds=600",
                ],
            ],
        ),
        everything(),
    ]
}

const USERS: &str =
    "--controller-users=system:serviceaccount:mcm:machine-controller-manager,alice,system:serviceaccount:a:b";

/// Everything that can be on at the same time.
pub fn everything() -> Case {
    case(
        "everything",
        "mcm",
        json!({
            "v1beta1": {"serve": true}, "policies": {"enabled": true}, "views": {"enabled": true},
            "simulation": {"enabled": true}, "bootstrapTokens": {"enabled": true},
            "certificates": {"mode": "cert-manager", "issuerRef": {"name": "own", "kind": "ClusterIssuer"}},
            "metrics": {
                "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
                "serviceMonitor": {"enabled": true, "interval": "1m"},
            },
            "alerts": {"enabled": true}, "dashboards": {"enabled": true},
            "networkPolicy": {
                "enabled": true, "apiServers": ["192.0.2.0/24", "2001:db8::/32"],
                "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
                "provider": [{"ports": [{"port": 443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}],
            },
            "webhooks": {"statusWebhook": true, "controllerUsers": ["alice"]},
            "flags": {
                "machine-drain-timeout": "30m", "max-admission-bytes": 16_777_216, "kube-api-qps": 0.5,
                "controllers": ["*", "-machinesafetyorphanvms"], "logging-format": "json", "standby-caches": false, "v": 2,
            },
            "tolerations": [{"operator": "Exists"}], "nodeSelector": {"kubernetes.io/os": "linux"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            ]}}},
            "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "image": {"pullSecrets": [{"name": "registry"}]},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            "extraVolumes": [{"name": "socket", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "socket", "mountPath": "/socket"}],
            "extraContainers": [{"name": "driver", "image": "driver:1"}],
            "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}, "data": {"a": "b"}}],
        }),
        &[
            &["crds", "--serve=v1beta1"],
            &["storage-guard"],
            &["rbac", "--simulation", "--bootstrap-tokens"],
            &[
                "webhooks",
                "--status-webhook",
                "--controller-users=system:serviceaccount:mcm:machine-controller-manager,alice",
            ],
            &["policies", "--controller-users=system:serviceaccount:mcm:machine-controller-manager,alice"],
            &["apiservice"],
            &["alerts"],
            &["dashboards"],
        ],
    )
}
