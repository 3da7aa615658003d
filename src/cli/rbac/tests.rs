//! Tests of the RBAC objects.

use rstest::rstest;

use super::{grants::CONTROL, *};

#[test]
fn readers_may_only_read_and_create_plans() {
    let verbs = READERS.iter().flat_map(|(_, _, grants)| grants.iter()).flat_map(|grant| grant.verbs);
    assert!(verbs.into_iter().all(|verb| matches!(*verb, "get" | "list" | "create")));
    let roles = reader_roles();
    assert_eq!(roles[0]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    assert_eq!(roles[2]["metadata"]["labels"], json!({ APP_LABEL: NAME }));
}

#[rstest]
#[case::with_their_own_webhooks(WebhookScope::Namespace, "one")]
#[case::beside_the_default_namespace(WebhookScope::Cluster, DEFAULT_NAMESPACE)]
fn installations_of_two_namespaces_share_no_object(#[case] scope: WebhookScope, #[case] first: &str) {
    let objects = |namespace| {
        let installation =
            Installation { namespace, service_namespace: namespace, scope, half: None, cluster: RightsIn::Both };
        let views = views_manifests(namespace);
        let [local, simulation] = [local_machine_manifests(&installation), simulation_manifests(&installation)];
        [manifests(&installation), simulation, token_manifests(&installation), local, views].concat()
    };
    let identity = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"])
    };
    let (one, two) = (objects(first), objects("two"));
    for object in &one {
        assert!(two.iter().all(|other| identity(other) != identity(object)), "{}", identity(object));
    }
}

#[test]
fn a_manager_of_one_namespace_may_patch_its_own_registrations() {
    let objects = manifests(&Installation {
        namespace: "one",
        service_namespace: "one",
        scope: WebhookScope::Namespace,
        half: None,
        cluster: RightsIn::Both,
    });
    let registrations = objects.iter().find(|object| object["metadata"]["name"] == format!("{NAME}-registrations-one"));
    assert_eq!(registrations.unwrap()["rules"][0]["resourceNames"], json!(["machine-controller-manager-one"]));
}

#[test]
fn no_role_may_create_secrets_where_it_may_read_them() {
    let in_own_namespaces = CONTROL.iter().chain(CERTIFICATE).chain(SIMULATION_STATE);
    for grant in in_own_namespaces.filter(|grant| grant.resources.contains(&"secrets")) {
        assert!(!grant.verbs.contains(&"create"), "{}", grant.why);
    }
    let objects = manifests(&Installation {
        namespace: "mcm",
        service_namespace: "mcm",
        scope: WebhookScope::Cluster,
        half: None,
        cluster: RightsIn::Both,
    });
    let secret = objects.iter().find(|object| object["kind"] == "Secret").expect("the certificate Secret");
    assert_eq!((&secret["metadata"]["name"], secret.get("data")), (&json!(names::CERTIFICATE_SECRET), None));
    assert!(
        objects.iter().all(|object| object["metadata"]["namespace"] != TOKEN_NAMESPACE),
        "only token_manifests has such objects"
    );
}

#[test]
fn a_policy_restricts_secrets_in_the_target_cluster_to_bootstrap_tokens() {
    let objects = token_manifests(&Installation {
        namespace: "one",
        service_namespace: "one",
        scope: WebhookScope::Cluster,
        half: None,
        cluster: RightsIn::Both,
    });
    let [_, bound, policy, binding] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!(bound["metadata"]["namespace"], TOKEN_NAMESPACE);
    let of_account = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
    assert!(of_account.contains("system:serviceaccount:one:machine-controller-manager"), "{of_account}");
    assert_eq!(policy["metadata"]["name"], binding["spec"]["policyName"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
}

#[test]
fn the_rights_of_two_clusters_are_together_those_of_one() {
    let objects = |cluster| {
        let scope = WebhookScope::Cluster;
        let installation = Installation { namespace: "mcm", service_namespace: "mcm", scope, half: None, cluster };
        [manifests(&installation), token_manifests(&installation), simulation_manifests(&installation)].concat()
    };
    let [both, control, target] = [RightsIn::Both, RightsIn::Control, RightsIn::Target].map(objects);
    assert!(both.iter().all(|object| control.contains(object) || target.contains(object)));
    let shared: Vec<_> = control.iter().filter(|object| target.contains(object)).collect();
    assert!(shared.iter().all(|object| object["kind"] == "ServiceAccount"), "{shared:?}");
    let text = serde_json::to_string(&control).unwrap();
    for right in ["nodes", "pods", "persistentvolumes", "volumeattachments", "poddisruptionbudgets", "kube-system"] {
        assert!(!text.contains(&format!("{right:?}")), "{right} belongs to the target cluster");
    }
}

#[test]
fn rights_for_machines_as_pods_are_granted_only_on_request_and_in_one_namespace() {
    let of = |cluster| {
        let scope = WebhookScope::Cluster;
        let installation = Installation { namespace: "mcm", service_namespace: "home", scope, half: None, cluster };
        (local_machine_manifests(&installation), manifests(&installation))
    };
    let (objects, usual) = of(RightsIn::Both);
    assert_eq!(objects.iter().map(|object| object["kind"].clone()).collect::<Vec<_>>(), ["Role", "RoleBinding"]);
    assert!(objects.iter().all(|object| object["metadata"]["namespace"] == "mcm"));
    assert_eq!(objects[1]["subjects"][0]["namespace"], "home");
    assert!(usual.iter().all(|object| !objects.contains(object)));
    assert_eq!(of(RightsIn::Target).0, Vec::<Value>::new());
}

#[test]
fn the_account_of_another_namespace_gets_the_rights_in_the_namespace_of_the_machine_objects() {
    let objects = manifests(&Installation {
        namespace: "machines",
        service_namespace: "home",
        scope: WebhookScope::Cluster,
        half: None,
        cluster: RightsIn::Both,
    });
    let place = |kind: &str, name: &str| {
        let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
        found.map(|object| object["metadata"]["namespace"].clone())
    };
    assert_eq!(place("ServiceAccount", NAME), Some(json!("home")));
    assert_eq!(place("Secret", names::CERTIFICATE_SECRET), Some(json!("home")));
    assert_eq!(place("Role", NAME), Some(json!("machines")));
    assert_eq!(place("Role", &format!("{NAME}-certificate")), Some(json!("home")));
    assert_eq!(place("ClusterRole", &format!("{NAME}-target-machines")), Some(Value::Null));
    for subject in objects.iter().filter_map(|object| object["subjects"].get(0)) {
        assert_eq!(subject["namespace"], "home");
    }
}

#[test]
fn every_role_is_bound_to_the_service_account() {
    let objects = manifests(&Installation {
        namespace: "mcm",
        service_namespace: "mcm",
        scope: WebhookScope::Cluster,
        half: None,
        cluster: RightsIn::Both,
    });
    let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
    assert_eq!(of_kind("Role"), of_kind("RoleBinding"));
    assert_eq!(of_kind("ClusterRole"), of_kind("ClusterRoleBinding"));
    assert!(objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding").all(|object| {
        object["subjects"] == json!([{ "kind": "ServiceAccount", "name": NAME, "namespace": "mcm" }])
    }));
}
