//! Managers of several namespaces with one set of definitions, as on a Gardener seed.

use crate::support::{ManagerOptions, Rig, TestManager, manager::mcm};

/// Each manager has its own certificate authority. With a shared configuration, the webhooks of only one manager could work at a time.
#[tokio::test(flavor = "multi_thread")]
async fn each_namespace_may_have_a_manager_with_webhooks_and_rights_of_its_own() {
    let Some(rig) = Rig::own("neighbours::each_namespace_may_have_a_manager").await else { return };
    rig.install_crds().await;
    let options = ManagerOptions { flags: vec!["--webhook-scope=namespace".to_owned()], ..ManagerOptions::default() };
    let mut managers = Vec::new();
    for name in ["shoot-one", "shoot-two"] {
        let namespace = rig.namespace(name).await;
        let manager = TestManager::start(&rig, &namespace, &options).await;
        manager.register_webhooks_of("namespace", &rig, &namespace).await;
        let rights =
            mcm(&["manifests", "rbac", "--simulation", "--scope", "namespace", "--namespace", &namespace.name]);
        rig.apply(&rights).await.succeed();
        managers.push((namespace, manager));
    }
    for (namespace, manager) in &managers {
        manager.register_webhooks_of("namespace", &rig, namespace).await;
        let user = format!("--as=system:serviceaccount:{}:machine-controller-manager", namespace.name);
        let configuration = |of: &str| format!("mutatingwebhookconfigurations/machine-controller-manager-{of}");
        for (of, _) in &managers {
            let answer = rig.kubectl(&["auth", "can-i", "patch", &configuration(&of.name), &user]).await;
            let wanted = if of.name == namespace.name { "yes" } else { "no" };
            assert_eq!(answer.stdout.trim(), wanted, "{} on {}: {}", namespace.name, of.name, answer.stderr);
        }
        for verb in ["delete", "create"] {
            let answer = rig.kubectl(&["auth", "can-i", verb, "nodes", &user]).await;
            assert_eq!(answer.stdout.trim(), "yes", "{verb} nodes from {}: {}", namespace.name, answer.stderr);
        }
    }
}
