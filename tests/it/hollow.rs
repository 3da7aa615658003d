//! Definitions are replaced while objects are stored as v1beta1: the API server then shows hollow objects.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use machine_api::{
    kind::{ApiVersion, Kind},
    v1alpha1::{Machine, MachineDeployment},
};
use serde_json::json;

use crate::{
    dev, fleet,
    support::{
        ManagerOptions, Rig, Rights, TestManager,
        manager::{self, mcm},
        scratch::{count_ran, subfolder},
        wait::expect,
        wait_until,
    },
    versions::{qualified, serve_v1beta1},
};

/// A manager that watches the definitions reacts within this time. A manager that only polls them needs half a minute.
const AT_ONCE: Duration = Duration::from_secs(10);

async fn verbose(manager: &TestManager) -> String {
    manager.http("/readyz?verbose").await.1
}

/// The exit code and the output of a command.
async fn said(arguments: &[&str]) -> (i32, String) {
    let (code, output, errors) = manager::run(arguments, "").await;
    (code, output + &errors)
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_038_hollow_objects_cause_no_action_and_every_report_names_the_reason() {
    let Some(rig) = Rig::own("hollow::pk_038").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("hollow").await;
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 2, "c")).await.succeed();
    fleet::running_machines(&namespace, 2, Duration::from_secs(60)).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    let kubeconfig = format!("--kubeconfig={}", rig.manager_kubeconfig(&namespace, Rights::Everything).await.display());
    let (code, text) = said(&["migrate-storage", "--to=v1beta1", "--settle=3", &kubeconfig]).await;
    assert_eq!(code, 0, "{text}");
    let machines = || async { namespace.list(&qualified(Kind::Machine, ApiVersion::V1beta1)).await };
    wait_until("the fleet to be as specified", Duration::from_secs(60), || async {
        let machines = machines().await;
        expect(machines.len() == 2, || format!("{machines:#?}"))
    })
    .await;
    let before: Vec<_> = machines().await.iter().map(|machine| machine["metadata"]["uid"].clone()).collect();
    assert!(verbose(&manager).await.contains("[+]definitions ok"), "{}", verbose(&manager).await);

    // A deployment pipeline applies the default definitions.
    let definitions = rig.folder.join("definitions.yaml");
    std::fs::write(&definitions, mcm(&["manifests", "crds"])).expect("the rig's folder is writable");
    rig.kubectl(&["replace", "-f", definitions.to_str().expect("UTF-8")]).await.succeed();
    wait_until("the process to notice", AT_ONCE, || async {
        let report = verbose(&manager).await;
        expect(report.contains("[-]definitions failed: CustomResourceDefinition of Machine"), || report.clone())
    })
    .await;
    assert!(manager.http_get("/metrics").await.contains("mcm_definitions_hollow 1"));
    assert!(manager.log().contains("nothing is created, changed or deleted any more"), "{}", manager.log());
    let (code, text) = said(&["doctor", &kubeconfig, &format!("--namespace={}", namespace.name)]).await;
    assert!(code == 1 && text.contains("BAD     CustomResourceDefinition machines"), "{text}");
    assert!(text.contains("mcm manifests crds --serve v1beta1"), "{text}");
    // A newly started process does not treat hollow objects as complete either.
    manager.restart();
    manager.wait_until_ready().await;
    wait_until("the new process to notice", Duration::from_secs(60), || async {
        let report = verbose(&manager).await;
        expect(report.contains("[-]definitions failed") && report.contains("[-]view-"), || report.clone())
    })
    .await;

    // Follows the advice of the doctor. The pipeline gives up the fields that it owned.
    let url = format!("--webhook-url=https://127.0.0.1:{}", manager.secure_port);
    let advised = rig.folder.join("advised.yaml");
    std::fs::write(&advised, mcm(&["manifests", "crds", "--serve", "v1beta1", &url])).expect("the folder is writable");
    let file = advised.to_str().expect("UTF-8");
    rig.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", file]).await.succeed();
    restart_after_exit(&mut manager).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    wait_until("work to go on", Duration::from_secs(90), || async {
        let report = verbose(&manager).await;
        expect(report.contains("[+]definitions ok") && report.contains("[+]view-machines ok"), || report.clone())
    })
    .await;
    let after: Vec<_> = machines().await.iter().map(|machine| machine["metadata"]["uid"].clone()).collect();
    assert_eq!(before, after, "no machine is created or deleted:\n{}", manager.log());

    // Now only classes are hollow, so machines and deployments can be written without loss.
    std::fs::write(&definitions, default_definition(Kind::MachineClass)).expect("the rig's folder is writable");
    rig.kubectl(&["replace", "-f", definitions.to_str().expect("UTF-8")]).await.succeed();
    wait_until("the process to notice", AT_ONCE, || async {
        let report = verbose(&manager).await;
        expect(report.contains("[-]definitions failed: CustomResourceDefinition of MachineClass"), || report.clone())
    })
    .await;
    let deployments = qualified(Kind::MachineDeployment, ApiVersion::V1beta1);
    namespace.kubectl(&["scale", &deployments, "pool", "--replicas=3"]).await.succeed();
    let deleted = machines().await.swap_remove(0);
    let name = deleted["metadata"]["name"].as_str().expect("a machine has a name");
    let resource = qualified(Kind::Machine, ApiVersion::V1beta1);
    namespace.kubectl(&["delete", &resource, name, "--wait=false"]).await.succeed();
    rig.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", file]).await.succeed();
    restart_after_exit(&mut manager).await;
    wait_until("the changes of the meantime to be applied", Duration::from_secs(90), || async {
        let machines = machines().await;
        let running = machines.iter().filter(|machine| machine["status"]["phase"] == "Running").count();
        expect((machines.len(), running) == (3, 3), || format!("{machines:#?}\n{}", manager.log()))
    })
    .await;
    let after: Vec<_> = machines().await.iter().map(|machine| machine["metadata"]["uid"].clone()).collect();
    let stayed: Vec<_> = before.iter().filter(|uid| after.contains(uid)).collect();
    assert_eq!(stayed, [&before[1]], "{after:?}");
}

/// The definition of a kind as a deployment pipeline with the default definitions applies it.
fn default_definition(kind: Kind) -> String {
    let name = format!("name: {}.machine.sapcloud.io\n", kind.plural());
    let all = mcm(&["manifests", "crds"]);
    all.split("\n---\n").find(|document| document.contains(&name)).expect("every kind has a definition").to_owned()
}

/// A process that has read hollow objects ends and logs the reason. The next process starts without this state.
async fn restart_after_exit(manager: &mut TestManager) {
    assert_eq!(manager.wait(Duration::from_secs(90)), 1, "{}", manager.log());
    assert!(manager.log().contains("the one that is started in its place reads all anew"), "{}", manager.log());
    manager.restart();
    manager.wait_until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_038_mcm_dev_keeps_its_cluster_while_its_manager_restarts() {
    count_ran("hollow::pk_038_mcm_dev_keeps_its_cluster_while_its_manager_restarts");
    let folder = subfolder("hollow-dev");
    let (process, file) = dev::start(&folder, &["--example"]);
    let running = async |wanted: usize| {
        let client = dev::client(&file).await?;
        let kind = ApiResource::erase::<Machine>(&());
        let machines = Api::<DynamicObject>::namespaced_with(client, "default", &kind);
        let all = machines.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let running =
            all.iter().filter(|machine| machine.data["status"]["currentStatus"]["phase"] == "Running").count();
        expect((all.len(), running) == (wanted, wanted), || format!("{all:?}\n{}", process.log_tail()))
    };
    wait_until("the example to run", Duration::from_secs(90), || running(3)).await;
    let (code, text) =
        said(&["migrate-storage", "--to=v1beta1", "--settle=1", &format!("--kubeconfig={}", file.display())]).await;
    assert_eq!(code, 0, "{text}");

    let client = dev::client(&file).await.expect("the kubeconfig works");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = "machineclasses.machine.sapcloud.io";
    let conversion = definitions.get(name).await.expect("it is there").spec.conversion;
    let without = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
    definitions.patch(name, &PatchParams::default(), &Patch::Merge(without)).await.expect("nothing guards it");
    let says = async |text: &str| expect(process.log().contains(text), || process.log_tail());
    wait_until("the manager to notice", Duration::from_secs(60), || says("nothing is created, changed or deleted"))
        .await;
    let kind = ApiResource::erase::<MachineDeployment>(&());
    let deployments = Api::<DynamicObject>::namespaced_with(client, "default", &kind);
    let four = Patch::Merge(json!({"spec": {"replicas": 4}}));
    deployments.patch("example-deployment", &PatchParams::default(), &four).await.expect("deployments are whole");
    let with = json!({"spec": {"conversion": conversion}});
    definitions.patch(name, &PatchParams::default(), &Patch::Merge(with)).await.expect("it is as before");
    wait_until("the manager to end", Duration::from_secs(60), || says("reads all anew")).await;
    wait_until("the next one to make a machine", Duration::from_secs(90), || running(4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_037_the_storage_guard_keeps_the_converter_of_stored_objects() {
    let why = "the development server has no ValidatingAdmissionPolicies";
    let Some(rig) = Rig::own_real("hollow::pk_037", why).await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("guard").await;
    let serving = ManagerOptions { flags: vec!["--controllers=none".to_owned()], ..ManagerOptions::default() };
    let manager = TestManager::start(&rig, &namespace, &serving).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    rig.apply(&mcm(&["manifests", "storage-guard"])).await.succeed();
    let kubeconfig = format!("--kubeconfig={}", rig.manager_kubeconfig(&namespace, Rights::Everything).await.display());
    let (code, text) = said(&["migrate-storage", "--to=v1beta1", "--settle=1", &kubeconfig]).await;
    assert_eq!(code, 0, "{text}");

    let definitions = rig.folder.join("definitions.yaml");
    std::fs::write(&definitions, mcm(&["manifests", "crds"])).expect("the rig's folder is writable");
    let file = definitions.to_str().expect("UTF-8");
    wait_until("the guard to be in force", Duration::from_secs(30), || async {
        let answer = rig.kubectl(&["replace", "--dry-run=server", "-f", file]).await;
        expect(answer.stderr.matches("migrate-storage --to v1alpha1").count() == 4, || answer.stderr.clone())
    })
    .await;
    let unserve = r#"[{"op": "replace", "path": "/spec/versions/1/served", "value": false}]"#;
    let patch = ["patch", "crd", "machines.machine.sapcloud.io", "--type=json", "-p", unserve];
    assert!(rig.kubectl(&patch).await.fail().contains("migrate-storage --to v1alpha1"));
    // The default definitions can't be applied while the conversion has a webhook: the API server refuses them before it asks the guard.
    let mut unserved = rig.get("crd", "machines.machine.sapcloud.io").await;
    unserved["spec"]["versions"][1]["served"] = json!(false);
    unserved["metadata"] = json!({"name": "machines.machine.sapcloud.io"});
    unserved.as_object_mut().expect("an object").remove("status");
    let applied = rig.folder.join("unserved.json");
    std::fs::write(&applied, unserved.to_string()).expect("the rig's folder is writable");
    let applied = applied.to_str().expect("UTF-8");
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", applied];
    assert!(rig.kubectl(&apply).await.fail().contains("migrate-storage --to v1alpha1"));

    let (code, text) = said(&["migrate-storage", "--to=v1alpha1", "--settle=1", &kubeconfig]).await;
    assert_eq!(code, 0, "{text}");
    rig.kubectl(&patch).await.succeed();
    rig.kubectl(&[&apply[..], &["--dry-run=server"]].concat()).await.succeed();
    rig.kubectl(&["replace", "-f", file]).await.succeed();
}
