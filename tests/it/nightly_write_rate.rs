//! The number of writes that lasting refusals cost a real API server. Four causes run side by side: a quota of zero, a policy, our own webhook
//! without a server, and budgets that allow no eviction. Each has its own manager, and a proxy counts the manager's writes. `write_rate` measures the
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
    weather::{FLEET, TIMEOUT, Weather, explanation, node_of, through},
    write_rate::Count,
};

/// Writes are not counted in this time, because a refused request is repeated often at first.
const BEFORE: Duration = Duration::from_secs(120);
/// The time in which writes are counted.
const COUNTED: Duration = Duration::from_secs(180);
/// The highest allowed number of writes per object in that time.
const MOST: usize = 5;
/// The highest allowed number of evictions per pod in that time: one every twenty seconds.
const MOST_EVICTIONS: usize = 10;

/// A manager whose requests are refused.
struct Refused {
    weather: Weather,
    liar: Liar,
    /// Words of the API server's refusal.
    refusal_text: &'static str,
}

impl Refused {
    async fn begins(rig: &Arc<Rig>, refusal_text: &'static str) -> Self {
        let (liar, kubeconfig) = rig.liar().await;
        let flags = through(&kubeconfig);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Self { weather: Weather::over(Arc::clone(rig), &flags).await, liar, refusal_text }
    }

    /// Creates a deployment with a set and without machines.
    async fn has_a_set(&self) {
        self.weather.want(0).await;
        wait_until("a set", TIMEOUT, || async {
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
        wait_until("machines to be refused", TIMEOUT, || async {
            let answer = self.weather.namespace.kubectl(&["create", "--dry-run=server", "-f", &file]).await;
            expect(answer.stderr.contains(self.refusal_text), || answer.stderr + &answer.stdout)
        })
        .await;
    }

    async fn scale_out_and_wait_for_refusal(&self) {
        self.weather.namespace.kubectl(&["scale", "machinedeployment", FLEET, "--replicas=3"]).await.succeed();
        wait_until("the set's condition to contain the refusal", TIMEOUT, || async {
            let sets = self.weather.namespace.list("machinesets").await;
            let says = |set: &Value| set["status"]["machineSetCondition"].to_string().contains(self.refusal_text);
            expect(sets.iter().any(says), || format!("{sets:?}"))
        })
        .await;
    }

    fn counts(&self) -> Vec<WriteAttempt> {
        self.liar.take_attempts()
    }
}

/// A quota of zero machines, with the status that the quota controller would write.
async fn a_quota_of_zero(refused: &Refused) {
    let resource = "count/machines.machine.sapcloud.io";
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "nothing" },
        "spec": { "hard": { resource: "0" } } });
    refused.weather.namespace.apply(&quota.to_string()).await.succeed();
    let counted = json!({ "status": { "hard": { resource: "0" }, "used": { resource: "0" } } }).to_string();
    let patch = ["patch", "resourcequota", "nothing", "--subresource=status", "--type=merge", "-p", counted.as_str()];
    refused.weather.namespace.kubectl(&patch).await.succeed();
}

/// A policy that refuses all machines in this namespace.
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
                "validations": [{ "expression": "false", "message": refused.refusal_text }],
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

/// Our own webhooks, registered for this namespace with a port on which no server listens.
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

/// A deleted machine whose pod has a budget that allows no eviction.
async fn a_budget_without_evictions(refused: &Refused) {
    refused.weather.want(1).await;
    let machine = refused.weather.wait_until_healthy(1).await.remove(0);
    guard::a_pod_on(&refused.weather.namespace, node_of(&machine)).await;
    refused.weather.namespace.kubectl(&["delete", "machine", name(&machine), "--wait=false"]).await.succeed();
    refused
        .weather
        .wait_for_machine("the drain to be refused", |seen| {
            name(seen) == name(&machine) && explanation(seen).contains(refused.refusal_text)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: five minutes"]
async fn nightly_write_rate_of_refused_requests() {
    const TEST: &str = "nightly_write_rate::nightly_write_rate_of_refused_requests";
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
    a_quota_of_zero(&quota).await;
    a_policy(&policy).await;
    our_own_webhook(&webhook).await;
    for refused in [&quota, &policy, &webhook] {
        refused.refuses().await;
    }
    futures::join!(
        quota.scale_out_and_wait_for_refusal(),
        policy.scale_out_and_wait_for_refusal(),
        webhook.scale_out_and_wait_for_refusal(),
        a_budget_without_evictions(&budget)
    );
    let all = [quota, policy, webhook, budget];
    // The test measures rates, so real time has to pass.
    tokio::time::sleep(BEFORE).await;
    let mut counts: Vec<Count> = all.iter().map(|refused| Count::after(&refused.counts())).collect();
    tokio::time::sleep(COUNTED).await;
    let mut faults = Vec::new();
    for (refused, count) in all.iter().zip(&mut counts) {
        count.of(&refused.counts());
        println!("{}: {:?}, evictions {:?}", refused.refusal_text, count.writes, count.evictions());
        let too_many = |counts: &BTreeMap<String, usize>, most: usize| -> Vec<String> {
            let many = counts.iter().filter(|(_, count)| **count > most);
            many.map(|(object, count)| format!("{}: {object} cost {count} writes", refused.refusal_text)).collect()
        };
        faults.extend(too_many(&count.writes, MOST));
        faults.extend(too_many(&count.evictions(), MOST_EVICTIONS));
        assert!(!refused.weather.manager.log().contains("panicked"));
    }
    assert!(faults.is_empty(), "in three minutes: {faults:#?}");
    assert!(!counts[3].evictions().is_empty(), "no eviction is tried");
    let pod = all[3].weather.namespace.get("pod", guard::NAME).await;
    assert_eq!(text(&pod, "/metadata/deletionTimestamp"), "", "the guarded pod stays");
}
