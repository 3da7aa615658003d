//! The Helm chart: what it renders for a table of value sets, and what it refuses.
//!
//! Source: spec/packaging §3. Other files install it: [`released`] is a release, its process and its job.

mod adopted;
mod base;
mod cases;
mod cluster;
mod from_go;
mod neighbours;
mod priority;
mod ready;
mod released;
mod two_clusters;
mod uninstalled;

use std::{collections::BTreeSet, ffi::OsString};

use clap::Parser;
use machine_controller_manager::{
    cli::{Cli, Command, serve::validate::HostInfo},
    settings::Settings,
};
use rstest::rstest;
use serde_json::{Value, json};

use self::cases::Case;
use crate::support::{
    cluster_object::text,
    helm::{CHART, Helm, OPERATORS, objects},
    manager::mcm,
};

/// The kinds of objects that follow from code.
const GENERATED: [&str; 14] = [
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "PrometheusRule",
    "Role",
    "RoleBinding",
    "Secret",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];
const CHART_LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"];
const CHART_ANNOTATIONS: [&str; 2] = ["helm.sh/resource-policy", "cert-manager.io/inject-ca-from"];

fn rendered(helm: &Helm, case: &Case) -> Vec<Value> {
    let text = helm.template(case.name, case.namespace, &case.values, &OPERATORS);
    objects(&text.unwrap_or_else(|error| panic!("{}: {error}", case.name)))
}

/// An object without what only a chart has.
fn plain(mut object: Value) -> Value {
    for (field, keys) in [("labels", &CHART_LABELS[..]), ("annotations", &CHART_ANNOTATIONS)] {
        let entries = object["metadata"].get_mut(field).and_then(Value::as_object_mut);
        let Some(entries) = entries else { continue };
        entries.retain(|key, _| !keys.contains(&key.as_str()));
        if entries.is_empty() {
            object["metadata"].as_object_mut().expect("metadata").remove(field);
        }
    }
    object
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn arguments(objects: &[Value]) -> Vec<String> {
    let container = &find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let list = container["args"].as_array().expect("arguments");
    list.iter().map(|argument| argument.as_str().expect("a text").to_owned()).collect()
}

/// The settings of the process that the Deployment starts.
fn settings(objects: &[Value], namespace: &str) -> Settings {
    let arguments = arguments(objects).into_iter().map(|argument| argument.replace("$(POD_NAMESPACE)", namespace));
    let line = std::iter::once("mcm".to_owned()).chain(arguments).map(OsString::from);
    let Command::Serve(args) = Cli::try_parse_from(line).expect("the flags exist").command else {
        panic!("the pod runs mcm serve")
    };
    let host = HostInfo { host_name: "pod".to_owned(), pod_namespace: Some(namespace.to_owned()) };
    args.validate(&host).expect("the flags are valid")
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let text = std::fs::read_to_string(format!("{CHART}/Chart.yaml")).expect("readable");
    let chart = objects(&text).remove(0);
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

#[test]
fn pk_020_every_value_set_is_linted_rendered_and_valid_for_kubernetes() {
    let Some(helm) = Helm::find("pk_020") else { return };
    let cases = cases::all();
    assert!(cases.len() >= 20);
    for case in cases {
        let values = helm.values(case.name, &case.values);
        let lint = helm.run(&["lint", "--strict", CHART, "--namespace", case.namespace, "--values", &values]);
        assert!(lint.is_ok(), "{}: {lint:?}", case.name);
        let text = helm.template(case.name, case.namespace, &case.values, &OPERATORS).expect("rendered before");
        let valid = helm.conform(case.name, &text);
        assert!(valid.as_ref().is_ok_and(|summary| summary.contains("Skipped: 0")), "{}: {valid:?}", case.name);
    }
}

#[test]
fn pk_021_what_follows_from_code_equals_the_output_of_mcm_manifests() {
    let Some(helm) = Helm::find("pk_021") else { return };
    for case in cases::all() {
        let by_name = |object: &Value| {
            format!("{} {}/{}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
        };
        let mut in_chart: Vec<Value> = rendered(&helm, &case).into_iter().map(plain).collect();
        let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        let is_extra = |object: &Value| text(object, "/metadata/name") == "extra";
        in_chart.retain(|object| GENERATED.contains(&text(object, "/kind")) && !is_hook(object) && !is_extra(object));
        let mut printed = Vec::new();
        for command in &case.commands {
            let machines = case.values["machineNamespace"].as_str().unwrap_or(case.namespace);
            let namespaces = ["--namespace", machines, "--service-namespace", case.namespace];
            let printed_here = mcm(&[&["manifests"], command.as_slice(), &namespaces].concat());
            printed.extend(objects(&printed_here));
        }
        in_chart.sort_by_key(by_name);
        printed.sort_by_key(by_name);
        let names = |objects: &[Value]| objects.iter().map(by_name).collect::<Vec<_>>();
        if case.commands.is_empty() {
            // Both clusters are elsewhere: the account has no rights here.
            assert_eq!(
                names(&in_chart),
                ["\"ServiceAccount\" \"mcm\"/\"machine-controller-manager\""],
                "{}",
                case.name
            );
            continue;
        }
        assert_eq!(names(&in_chart), names(&printed), "{}", case.name);
        for (one, other) in in_chart.iter().zip(&printed) {
            assert_eq!(one, other, "{}: {}", case.name, by_name(one));
        }
    }
}

#[test]
fn every_object_has_the_labels_of_the_chart_and_a_namespaced_one_its_namespace() {
    let Some(helm) = Helm::find("every_object_has_the_labels") else { return };
    for case in cases::all() {
        let extra = |object: &Value| object["metadata"]["name"] == "extra";
        for object in rendered(&helm, &case).iter().filter(|object| !extra(object)) {
            for label in CHART_LABELS {
                assert!(object["metadata"]["labels"][label].is_string(), "{}: {label}: {object}", case.name);
            }
        }
    }
}

#[test]
fn definitions_outlive_the_release_unless_the_values_say_otherwise() {
    let Some(helm) = Helm::find("definitions_outlive") else { return };
    for (keep, wanted) in [(true, json!("keep")), (false, Value::Null)] {
        let text = helm.template("keep", "mcm", &json!({"crds": {"keep": keep}}), &[]).expect("rendered");
        let objects = objects(&text);
        let definition = find(&objects, "CustomResourceDefinition");
        assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], wanted);
    }
}

#[rstest]
#[case::an_unknown_key(json!({"replica": 3}), "replica")]
#[case::an_unknown_flag(json!({"flags": {"machine-drain-time": "1h"}}), "flags")]
#[case::a_duration_without_unit(json!({"flags": {"machine-drain-timeout": "10"}}), "machine-drain-timeout")]
#[case::a_port(json!({"webhooks": {"port": 70000}}), "webhooks")]
#[case::a_part(json!({"part": "both"}), "part")]
#[case::a_digest(json!({"image": {"digest": "0".repeat(64)}}), "digest")]
#[case::a_flag_of_the_chart(json!({"flags": {"secure-port": 1}}), "flags.secure-port: the chart sets this flag; set webhooks.port")]
#[case::control_without_target(json!({"part": "control"}), "target.mode:")]
#[case::no_kubeconfig(json!({"target": {"mode": "kubeconfig"}}), "target.kubeconfig.secretName:")]
#[case::no_namespace(json!({"machineNamespace": "Machines"}), "machineNamespace")]
#[case::an_unread_kubeconfig(json!({"target": {"kubeconfig": {"secretName": "a"}}}), "target.mode:")]
#[case::machine_objects_elsewhere(json!({"part": "target", "control": {"kubeconfig": {"secretName": "a"}}}), "part:")]
#[case::an_authority_for_elsewhere(json!({"certificates": {"mode": "cert-manager"}, "control": {"kubeconfig": {"secretName": "a"}}}), "certificates.mode:")]
#[case::no_files(json!({"certificates": {"mode": "files"}}), "certificates.secretName:")]
#[case::unread_files(json!({"certificates": {"secretName": "a"}}), "certificates.mode:")]
#[case::stored_but_not_served(json!({"v1beta1": {"stored": "v1beta1"}}), "v1beta1.serve:")]
#[case::many_leaders(json!({"flags": {"leader-elect": false}}), "flags.leader-elect:")]
#[case::views_of_no_pod(
    json!({"replicas": 0, "views": {"enabled": true}, "webhooks": {"url": "https://mcm.example.org"}}), "views.enabled:")]
#[case::webhooks_of_no_pod(json!({"part": "control", "replicas": 0, "target": {"mode": "none"}}), "webhooks.url:")]
#[case::conversion_by_no_pod(
    json!({"replicas": 0, "v1beta1": {"serve": true}, "webhooks": {"createFailurePolicy": "Ignore"}}), "webhooks.url:")]
#[case::a_label_that_is_a_number(json!({"dashboards": {"labels": {"grafana_dashboard": 1}}}), "grafana_dashboard")]
#[case::an_annotation_that_is_a_boolean(json!({"podAnnotations": {"sidecar.istio.io/inject": false}}), "podAnnotations")]
#[case::a_collector_with_a_password(json!({"flags": {"tracing-endpoint": "http://user:secret@collector:4318"}}), "tracing-endpoint")]
#[case::one_port_twice(json!({"webhooks": {"port": 10258}}), "webhooks.port:")]
fn pk_023_wrong_values_fail_with_their_path_before_anything_is_installed(#[case] values: Value, #[case] path: &str) {
    let Some(helm) = Helm::find("pk_023") else { return };
    let error = helm.template("wrong", "mcm", &values, &[]).expect_err("refused");
    assert!(error.contains(path), "{error}");
}

#[test]
fn the_flags_of_the_values_reach_the_process_as_they_are_written() {
    let Some(helm) = Helm::find("the_flags_of_the_values") else { return };
    let objects = rendered(&helm, &cases::everything());
    let arguments = arguments(&objects);
    for wanted in [
        "--machine-drain-timeout=30m",
        "--max-admission-bytes=16777216",
        "--kube-api-qps=0.5",
        "--controllers=*",
        "--controllers=-machinesafetyorphanvms",
        "--standby-caches=false",
        "--v=2",
        "--extension-apiserver=true",
        "--cert-mode=files",
    ] {
        assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}: {arguments:?}");
    }
    settings(&objects, "mcm");
}

#[test]
fn every_deployment_starts_a_process_with_valid_flags() {
    let Some(helm) = Helm::find("every_deployment") else { return };
    for case in cases::all() {
        let objects = rendered(&helm, &case);
        if case.values["part"] != "target" {
            settings(&objects, case.namespace);
        }
    }
}

#[test]
fn pk_031_pods_read_the_kubeconfigs_of_other_clusters() {
    let Some(helm) = Helm::find("pk_031") else { return };
    let mut values = json!({
        "control": {"kubeconfig": {"secretName": "one", "key": "config"}},
        "target": {"mode": "kubeconfig", "kubeconfig": {"secretName": "two"}},
    });
    let rendered = objects(&helm.template("elsewhere", "mcm", &values, &[]).expect("rendered"));
    let flags = arguments(&rendered);
    for flag in [
        "--control-kubeconfig=/kubeconfigs/control/config",
        "--target-kubeconfig=/kubeconfigs/target/kubeconfig",
        "--kubeconfig-reload=exit",
    ] {
        assert!(flags.iter().any(|known| known == flag), "{flag}: {flags:?}");
    }
    let pod = &find(&rendered, "Deployment")["spec"]["template"]["spec"];
    for (name, secret) in [("control", "one"), ("target", "two")] {
        let volume =
            json!({"name": format!("{name}-kubeconfig"), "secret": {"secretName": secret, "defaultMode": 0o440}});
        assert!(pod["volumes"].as_array().is_some_and(|all| all.contains(&volume)), "{pod:#}");
        let mount = json!({
            "name": format!("{name}-kubeconfig"), "mountPath": format!("/kubeconfigs/{name}"), "readOnly": true,
        });
        let mounts = &pod["containers"][0]["volumeMounts"];
        assert!(mounts.as_array().is_some_and(|all| all.contains(&mount)), "{pod:#}");
    }
    let is_of_objects =
        |object: &&Value| ["CustomResourceDefinition", "Lease", "ClusterRole"].contains(&text(object, "/kind"));
    assert_eq!(rendered.iter().find(is_of_objects), None, "they are in the other clusters");
    values["flags"] = json!({"kubeconfig-reload": "never"});
    let flags = arguments(&objects(&helm.template("elsewhere", "mcm", &values, &[]).expect("rendered")));
    assert_eq!(
        flags.iter().filter(|flag| flag.starts_with("--kubeconfig-reload")).collect::<Vec<_>>(),
        ["--kubeconfig-reload=never"]
    );
    // The cluster with the machine objects gets a release of its own.
    let there = json!({
        "part": "control", "replicas": 0, "target": {"mode": "none"}, "webhooks": {"url": "https://mcm.example.org"},
    });
    let rendered = objects(&helm.template("there", "mcm", &there, &[]).expect("rendered"));
    for kind in ["CustomResourceDefinition", "ValidatingWebhookConfiguration", "Lease", "ServiceAccount", "Role"] {
        find(&rendered, kind);
    }
    assert_eq!(find(&rendered, "Deployment")["spec"]["replicas"], 0);
    let without_pods = json!({"replicas": 0, "webhooks": {"createFailurePolicy": "Ignore"}});
    helm.template("stopped", "mcm", &without_pods, &[]).expect("objects can be created without a pod");
}

#[test]
fn pk_032_without_a_target_cluster_no_right_on_its_objects_is_rendered() {
    let Some(helm) = Helm::find("pk_032") else { return };
    let values =
        json!({"target": {"mode": "none"}, "bootstrapTokens": {"enabled": true}, "simulation": {"enabled": true}});
    let objects = objects(&helm.template("none", "mcm", &values, &[]).expect("rendered"));
    let of_target = [
        "nodes",
        "nodes/status",
        "pods",
        "pods/eviction",
        "pods/status",
        "persistentvolumes",
        "persistentvolumeclaims",
        "volumeattachments",
        "poddisruptionbudgets",
    ];
    for object in &objects {
        for rule in object["rules"].as_array().into_iter().flatten() {
            for resource in rule["resources"].as_array().into_iter().flatten() {
                assert!(!of_target.iter().any(|name| resource == name), "{}: {rule}", object["metadata"]["name"]);
            }
        }
    }
    assert!(arguments(&objects).contains(&"--target-kubeconfig=none".to_owned()));
    assert!(matches!(settings(&objects, "mcm").target, machine_controller_manager::settings::TargetCluster::None));
}

fn ports(value: &Value, field: &str) -> BTreeSet<i64> {
    value.as_array().into_iter().flatten().filter_map(|port| port[field].as_i64()).collect()
}

#[test]
fn pk_034_pk_039_the_webhook_port_is_the_same_everywhere_and_pods_of_a_hosts_network_are_apart() {
    let Some(helm) = Helm::find("pk_034") else { return };
    for host_network in [false, true] {
        let values =
            json!({"webhooks": {"port": 10250, "hostNetwork": host_network}, "networkPolicy": {"enabled": true}});
        let objects = objects(&helm.template("port", "mcm", &values, &[]).expect("rendered"));
        let pod = &find(&objects, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["ports"][0], json!({"name": "webhooks", "containerPort": 10250}));
        assert_eq!(settings(&objects, "mcm").secure.expect("a listener").port(), 10250);
        assert_eq!(find(&objects, "Service")["spec"]["ports"][0]["targetPort"], "webhooks");
        let policy = &find(&objects, "NetworkPolicy")["spec"];
        assert_eq!(ports(&policy["ingress"][0]["ports"], "port"), BTreeSet::from([10250]));
        assert_eq!(pod["hostNetwork"], if host_network { json!(true) } else { Value::Null });
        let required = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(required.is_array(), host_network, "two pods of one host would want the same ports");
    }
}

#[rstest]
#[case::by_default(json!({}))]
#[case::one_listener(json!({"compat-port": 0}))]
#[case::other_ports(json!({"port": 8080, "compat-port": 8081}))]
#[case::the_same_port_twice(json!({"port": 10259}))]
fn pk_035_the_network_policy_names_each_port_of_the_process_and_no_other(#[case] flags: Value) {
    let Some(helm) = Helm::find("pk_035") else { return };
    let values = json!({"flags": flags, "networkPolicy": {"enabled": true, "monitoring": [{"podSelector": {}}]}});
    let objects = objects(&helm.template("policy", "mcm", &values, &[]).expect("rendered"));
    let settings = settings(&objects, "mcm");
    let http =
        [Some(settings.http.port), settings.http.compat_port].into_iter().flatten().map(|port| i64::from(port.get()));
    let listening: BTreeSet<i64> = http.chain(settings.secure.map(|address| i64::from(address.port()))).collect();
    let rules = find(&objects, "NetworkPolicy")["spec"]["ingress"].as_array().expect("rules").clone();
    let allowed: BTreeSet<i64> = rules.iter().flat_map(|rule| ports(&rule["ports"], "port")).collect();
    assert_eq!(allowed, listening);
}

#[test]
fn pk_035_callers_and_scrapers_are_restricted_by_the_values() {
    let Some(helm) = Helm::find("pk_035") else { return };
    let ingress = |policy: Value| {
        let mut values = json!({"networkPolicy": policy});
        values["networkPolicy"]["enabled"] = json!(true);
        let objects = objects(&helm.template("policy", "mcm", &values, &[]).expect("rendered"));
        find(&objects, "NetworkPolicy")["spec"]["ingress"].clone()
    };
    let open = ingress(json!({}));
    assert_eq!((open.as_array().map(Vec::len), open[0].get("from")), (Some(1), None), "no scraper is let in unasked");
    let closed = ingress(json!({"apiServers": ["192.0.2.0/24"], "monitoring": [{"podSelector": {}}]}));
    assert_eq!(closed[0]["from"], json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]));
    assert_eq!(closed[1]["from"], json!([{"podSelector": {}}]));
}

#[rstest]
#[case::an_old_kubernetes(json!({}), &["--kube-version=1.29.9"], "kubeVersion: >=1.30")]
#[case::no_operator_for_pods(json!({"metrics": {"podMonitor": {"enabled": true}}}), &[], "metrics: this cluster has no monitoring.coreos.com/v1")]
#[case::no_operator_for_services(json!({"metrics": {"serviceMonitor": {"enabled": true}}}), &[], "metrics: this cluster has no monitoring.coreos.com/v1")]
#[case::no_operator_for_alerts(json!({"alerts": {"enabled": true}}), &[], "alerts: this cluster has no monitoring.coreos.com/v1")]
#[case::no_cert_manager(json!({"certificates": {"mode": "cert-manager"}}), &[], "certificates.mode: this cluster has no cert-manager.io/v1")]
fn pk_040_what_a_cluster_lacks_is_said_in_a_sentence(
    #[case] values: Value,
    #[case] flags: &[&str],
    #[case] sentence: &str,
) {
    let Some(helm) = Helm::find("pk_040") else { return };
    let error = helm.template("lacks", "mcm", &values, flags).expect_err("refused");
    assert!(error.contains(sentence), "{error}");
}

#[test]
fn pk_040_the_oldest_kubernetes_that_the_chart_names_gets_every_object_and_definitions_that_fit_it() {
    let Some(helm) = Helm::find("pk_040") else { return };
    let render = |version: &str| {
        let case = cases::everything();
        let version = format!("--kube-version={version}");
        let flags = [OPERATORS[0], OPERATORS[1], &version];
        objects(&helm.template("versions", "mcm", &case.values, &flags).expect("rendered"))
    };
    let (old, new) = (render("1.30.0"), render("1.37.0"));
    assert_eq!(old, render("1.32.99"));
    assert_eq!(new, render("1.33.0"));
    let (definitions, others): (Vec<_>, Vec<_>) =
        old.iter().zip(&new).partition(|(object, _)| object["kind"] == "CustomResourceDefinition");
    assert!(others.iter().all(|(old, new)| old == new));
    assert_eq!((old.len(), definitions.len()), (new.len(), 4));
    let rules = |definition: &Value| definition.to_string().matches("x-kubernetes-validations").count();
    for (old, new) in definitions {
        assert_eq!(old["metadata"]["name"], new["metadata"]["name"]);
        assert!(rules(old) < rules(new), "{}", old["metadata"]["name"]);
    }
}

#[test]
fn pk_041_no_object_is_larger_than_256_kib() {
    let Some(helm) = Helm::find("pk_041") else { return };
    for object in rendered(&helm, &cases::everything()) {
        let size = object.to_string().len();
        assert!(size <= 256 * 1024, "{} {}: {size} bytes", object["kind"], object["metadata"]["name"]);
    }
}
