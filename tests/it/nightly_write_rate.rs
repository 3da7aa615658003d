//! The number of writes to a real API server during lasting refusals: a quota of zero, a policy, our own webhook without an answer, and budgets that
//! allow no eviction. The four run side by side, each with a manager whose writes are counted on the way to the API server. `write_rate` tests the
//! same for hours, on paused time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    guard,
    support::{
        Rig,
        cluster_object::{name, text},
        lying::{Liar, WriteAttempt},
        manager::mcm,
        ports,
        wait::expect,
        wait_until,
    },
    weather::{FLEET, PATIENCE, Weather, explanation, node_of, through},
    write_rate::Count,
};

/// Writes before this are not counted, because refused writes are repeated often at first.
const BEFORE: Duration = Duration::from_secs(120);
/// The time that is counted.
const COUNTED: Duration = Duration::from_secs(180);
/// The maximum of writes for an object in that time.
const MOST: usize = 5;
/// The maximum of evictions for a pod in that time: one every twenty seconds.
const MOST_EVICTIONS: usize = 10;

/// A manager whose writes are refused.
struct Refused {
    weather: Weather,
    liar: Liar,
    /// A text in the API server's refusal.
    said: &'static str,
}

impl Refused {
    async fn begins(rig: &Arc<Rig>, said: &'static str) -> Self {
        let (liar, kubeconfig) = rig.liar().await;
        let flags = through(&kubeconfig);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Self { weather: Weather::over(Arc::clone(rig), &flags).await, liar, said }
    }

    /// A deployment that has a set and no machine yet.
    async fn has_a_set(&self) {
        self.weather.want(0).await;
        wait_until("a set", PATIENCE, || async {
            let sets = self.weather.namespace.list("machinesets").await;
            expect(sets.len() == 1, || format!("{sets:?}"))
        })
        .await;
    }

    /// Waits until creations of machines are refused.
    async fn refuses(&self) {
        let probe = "{apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {name: probe}, spec: {class: {kind: \
                     MachineClass, name: weather}}}";
        let file = self.weather.rig.folder.join(format!("{}.probe.yaml", self.weather.namespace.name));
        std::fs::write(&file, probe).expect("the rig's folder is writable");
        let file = file.display().to_string();
        wait_until("machines to be refused", PATIENCE, || async {
            let answer = self.weather.namespace.kubectl(&["create", "--dry-run=server", "-f", &file]).await;
            expect(answer.stderr.contains(self.said), || answer.stderr + &answer.stdout)
        })
        .await;
    }

    async fn wants_machines(&self) {
        self.weather.namespace.kubectl(&["scale", "machinedeployment", FLEET, "--replicas=3"]).await.succeed();
        wait_until("the set to say so", PATIENCE, || async {
            let sets = self.weather.namespace.list("machinesets").await;
            let says = |set: &Value| set["status"]["machineSetCondition"].to_string().contains(self.said);
            expect(sets.iter().any(says), || format!("{sets:?}"))
        })
        .await;
    }

    fn counts(&self) -> Vec<WriteAttempt> {
        self.liar.take_attempts()
    }
}

/// A quota of zero machines, with the status of its controller.
async fn a_quota_of_nothing(refused: &Refused) {
    let resource = "count/machines.machine.sapcloud.io";
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "nothing" },
        "spec": { "hard": { resource: "0" } } });
    refused.weather.namespace.apply(&quota.to_string()).await.succeed();
    let counted = json!({ "status": { "hard": { resource: "0" }, "used": { resource: "0" } } }).to_string();
    let patch = ["patch", "resourcequota", "nothing", "--subresource=status", "--type=merge", "-p", counted.as_str()];
    refused.weather.namespace.kubectl(&patch).await.succeed();
}

/// A policy that refuses all machines of this namespace.
async fn a_policy(refused: &Refused) {
    let policy = format!("{}-refuses", refused.weather.namespace.name);
    let rule = json!({ "apiGroups": ["machine.sapcloud.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["machines"] });
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": refused.weather.namespace.name } });
    let manifest = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": policy },
            "spec": {
                "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": "false", "message": refused.said }],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": policy },
            "spec": { "policyName": policy, "validationActions": ["Deny"], "matchResources": { "namespaceSelector": here } },
        },
    ]});
    refused.weather.rig.apply(&manifest.to_string()).await.succeed();
}

/// Our own webhooks, registered for this namespace at a port without a server.
async fn our_own_webhook(refused: &Refused) {
    let url = format!("--webhook-url=https://127.0.0.1:{}", ports::free_port());
    let namespace = refused.weather.namespace.name.as_str();
    let manifests = mcm(&[
        "manifests",
        "webhooks",
        "--namespace",
        namespace,
        "--scope",
        "namespace",
        "--controller-users=nobody",
        &url,
    ]);
    refused.weather.rig.apply(&manifests).await.succeed();
}

/// A deleted machine whose pod has a budget that allows nothing.
async fn a_budget_that_allows_nothing(refused: &Refused) {
    refused.weather.want(1).await;
    let machine = refused.weather.clears_up(1).await.remove(0);
    guard::a_pod_on(&refused.weather.namespace, node_of(&machine)).await;
    refused.weather.namespace.kubectl(&["delete", "machine", name(&machine), "--wait=false"]).await.succeed();
    refused
        .weather
        .some_machine("the drain to be refused", |seen| {
            name(seen) == name(&machine) && explanation(seen).contains(refused.said)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: five minutes"]
async fn nightly_write_rate_of_what_is_refused() {
    const TEST: &str = "nightly_write_rate::what_is_refused";
    let Some(rig) = Rig::own_real(TEST, "it has quotas and policies").await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let [quota, policy, webhook, budget] = [
        Refused::begins(&rig, "exceeded quota").await,
        Refused::begins(&rig, "kept by the test").await,
        Refused::begins(&rig, "failed calling webhook").await,
        Refused::begins(&rig, guard::NAME).await,
    ];
    for refused in [&quota, &policy, &webhook] {
        refused.has_a_set().await;
    }
    a_quota_of_nothing(&quota).await;
    a_policy(&policy).await;
    our_own_webhook(&webhook).await;
    for refused in [&quota, &policy, &webhook] {
        refused.refuses().await;
    }
    futures::join!(
        quota.wants_machines(),
        policy.wants_machines(),
        webhook.wants_machines(),
        a_budget_that_allows_nothing(&budget)
    );
    let all = [quota, policy, webhook, budget];
    // The test measures rates, so real time must pass.
    tokio::time::sleep(BEFORE).await;
    let mut counts: Vec<Count> = all.iter().map(|refused| Count::after(&refused.counts())).collect();
    tokio::time::sleep(COUNTED).await;
    let mut faults = Vec::new();
    for (refused, count) in all.iter().zip(&mut counts) {
        count.of(&refused.counts());
        println!("{}: {:?}, evictions {:?}", refused.said, count.writes, count.evictions());
        let too_many = |counts: &BTreeMap<String, usize>, most: usize| -> Vec<String> {
            let many = counts.iter().filter(|(_, count)| **count > most);
            many.map(|(object, count)| format!("{}: {object} cost {count} writes", refused.said)).collect()
        };
        faults.extend(too_many(&count.writes, MOST));
        faults.extend(too_many(&count.evictions(), MOST_EVICTIONS));
        assert!(!refused.weather.manager.log().contains("panicked"));
    }
    assert!(faults.is_empty(), "in three minutes: {faults:#?}");
    assert!(!counts[3].evictions().is_empty(), "no eviction was tried");
    let pod = all[3].weather.namespace.get("pod", guard::NAME).await;
    assert_eq!(text(&pod, "/metadata/deletionTimestamp"), "", "the guarded pod stays");
}
