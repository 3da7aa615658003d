//! A release of the chart in the API server of a test, and the process of its Deployment outside of the cluster.
//!
//! No kubelet runs there. `mcm` starts with the arguments of the Deployment and the token of the chart's service account, and serves the
//! webhooks at a URL. The test reports the state of the Deployment and carries out the job of `helm uninstall`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{arguments, find};
use crate::support::{
    Rig,
    backend::Backend,
    cluster_object::{items, text},
    helm::{CHART, Helm, Outcome, objects},
    kubectl::Answer,
    manager::{SWIFT_CLOUD, mcm, request},
    ports::free_port,
    process::Process,
    wait::expect,
    wait_until,
};

/// The default namespace of the manifests.
pub const NAMESPACE: &str = "machine-controller-manager";
/// Name of the Deployment, the service account and much else.
pub const NAME: &str = "machine-controller-manager";
/// Name of the job of `helm uninstall` and of its service account.
pub const JOB: &str = "machine-controller-manager-uninstall";
pub const MCM: &str = env!("CARGO_BIN_EXE_mcm");
pub const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples");

/// A release, perhaps not installed yet.
#[derive(Clone)]
pub struct Release {
    pub rig: Arc<Rig>,
    helm: Helm,
    pub name: String,
    pub namespace: String,
    /// Port of the webhooks of its process.
    pub secure_port: u16,
}

impl Release {
    /// The release `mcm` in the default namespace of a cluster of its own. `None` without the programs.
    pub async fn in_own_cluster(test: &str) -> Option<Self> {
        let helm = Helm::find(test)?;
        let rig = Rig::own(&format!("chart::{test}")).await?;
        Some(Self::made(helm, rig).await)
    }

    /// The same for a test that can't run on the development server.
    pub async fn in_real_cluster(test: &str, why: &str) -> Option<Self> {
        let helm = Helm::find(test)?;
        let rig = Rig::own_real(&format!("chart::{test}"), why).await?;
        Some(Self::made(helm, rig).await)
    }

    /// The same in a certain cluster.
    pub async fn in_cluster(test: &str, rig: Arc<Rig>) -> Option<Self> {
        Some(Self::made(Helm::find(test)?, rig).await)
    }

    async fn made(helm: Helm, rig: Arc<Rig>) -> Self {
        let helm = helm.with_cluster(rig.admin_kubeconfig());
        let (name, namespace) = ("mcm".to_owned(), NAMESPACE.to_owned());
        let release = Self { rig, helm, name, namespace, secure_port: free_port() };
        release.make_namespace().await;
        release
    }

    /// A release in a further namespace of the same cluster.
    pub async fn in_namespace(&self, namespace: &str) -> Self {
        let release = Self { namespace: namespace.to_owned(), secure_port: free_port(), ..self.clone() };
        release.make_namespace().await;
        release
    }

    /// The same with another name.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    async fn make_namespace(&self) {
        self.rig.namespace_named(&self.namespace).await;
        let enforce = "pod-security.kubernetes.io/enforce=restricted";
        self.rig.kubectl(&["label", "namespace", &self.namespace, enforce]).await.succeed();
        if self.rig.backend() == Backend::Dev {
            self.grant_tokens().await;
        }
    }

    /// Runs helm with the chart and values, for example `install`.
    pub fn with_values(&self, verb: &str, values: &Value, further: &[&str]) -> Outcome {
        let file = self.helm.values(&format!("{}-{verb}", self.name), values);
        let line = [verb, self.name.as_str(), CHART, "--namespace", &self.namespace, "--values", &file];
        self.helm.run(&[&line[..], further].concat())
    }

    /// The flags with which an installation takes over objects that exist already.
    pub fn adopting(&self) -> &'static [&'static str] {
        self.helm.adopting()
    }

    /// Runs helm in the namespace of the release.
    pub fn helm(&self, arguments: &[&str]) -> Outcome {
        self.helm.run(&[arguments, &["--namespace", &self.namespace]].concat())
    }

    /// The manifests of the installed release.
    pub fn manifest(&self) -> String {
        self.helm(&["get", "manifest", &self.name]).expect("a release")
    }

    /// kubectl in the namespace of the release.
    pub async fn kubectl(&self, arguments: &[&str]) -> Answer {
        self.rig.kubectl(&[arguments, &["--namespace", &self.namespace]].concat()).await
    }

    /// Values with which the API server reaches the webhooks of the process, and with the rights of the virtual cloud.
    pub fn values(&self) -> Value {
        // The development server has no policies, which come with these rights.
        let has_policies = self.rig.backend() == Backend::Real;
        json!({
            "webhooks": {"url": format!("https://127.0.0.1:{}", self.secure_port)},
            "simulation": {"enabled": true}, "bootstrapTokens": {"enabled": has_policies},
        })
    }

    /// The rights of bootstrap tokens without their policies, for the development server.
    async fn grant_tokens(&self) {
        let flags = ["manifests", "rbac", "--bootstrap-tokens", "--namespace", &self.namespace];
        let mut granted = objects(&mcm(&flags));
        granted.retain(|object| object["metadata"]["namespace"] == "kube-system");
        self.rig.apply(&json!({"apiVersion": "v1", "kind": "List", "items": granted}).to_string()).await.succeed();
    }

    /// A kubeconfig with a token of a service account.
    pub async fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let token = self.kubectl(&["create", "token", account]).await.succeed();
        let raw = ["config", "view", "--raw", "--minify", "--output", "json"];
        let mut config = self.rig.kubectl(&raw).await.json();
        config["users"][0]["user"] = json!({"token": token.trim()});
        let path = self.rig.folder.join(format!("{}-{account}.kubeconfig", self.namespace));
        std::fs::write(&path, config.to_string()).expect("the rig's folder is writable");
        path
    }

    /// Starts the process of the Deployment, and does not wait for it.
    pub async fn start(&self) -> Outside {
        let kubeconfig = self.kubeconfig_of(NAME).await.display().to_string();
        let target = format!("--target-kubeconfig={kubeconfig}");
        self.start_with(&[("inClusterConfig", kubeconfig)], vec![target])
    }

    /// Puts what the kubelet would mount, and the namespace, in the place of its names in the flags of a container.
    fn put_in(&self, flags: &mut [String], mounted: &[(&str, String)]) {
        for flag in flags {
            *flag = flag.replace("$(POD_NAMESPACE)", &self.namespace);
            for (path, file) in mounted {
                *flag = flag.replace(path, file);
            }
        }
    }

    /// The same with these files in the place of paths in the Deployment, and with further flags.
    pub fn start_with(&self, mounted: &[(&str, String)], further: Vec<String>) -> Outside {
        let port = free_port();
        let mut flags = arguments(&objects(&self.manifest()));
        self.put_in(&mut flags, mounted);
        flags.extend(further);
        flags.extend([
            "--address=127.0.0.1".to_owned(),
            format!("--port={port}"),
            "--compat-port=0".to_owned(),
            "--secure-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.secure_port),
            "--shutdown-delay-duration=0s".to_owned(),
        ]);
        let name = format!("mcm-of-{}", self.namespace);
        let simulation = self.rig.folder.join(format!("{name}.simulation.yaml"));
        std::fs::write(&simulation, SWIFT_CLOUD.replace("impersonate: [AWS]\n", ""))
            .expect("the rig's folder is writable");
        flags.push(format!("--simulation-config={}", simulation.display()));
        Outside { process: Process::start(&self.rig.folder, &name, Path::new(MCM), &flags), port }
    }

    /// Starts the process of the Deployment, and waits until it is ready.
    pub async fn start_ready(&self) -> Outside {
        let outside = self.start().await;
        outside.wait_until_ready().await;
        outside
    }

    /// Every object of the release, as the API server has it.
    pub async fn state(&self) -> Vec<Value> {
        let file = self.rig.folder.join(format!("{}.manifest.yaml", self.namespace));
        std::fs::write(&file, self.manifest()).expect("the rig's folder is writable");
        let get = ["get", "-f", file.to_str().expect("UTF-8"), "--output", "json"];
        let mut state = items(&self.rig.kubectl(&get).await.json());
        // The leader renews its Leases all the time.
        for lease in state.iter_mut().filter(|object| object["kind"] == "Lease") {
            lease["spec"]["renewTime"] = Value::Null;
            lease["metadata"]["resourceVersion"] = Value::Null;
            lease["metadata"]["managedFields"] = Value::Null;
        }
        state
    }

    /// Waits until this number of machines is there and all of them run.
    pub async fn machines_running(&self, wanted: usize) {
        wait_until("the machines to run", Duration::from_secs(90), || async {
            let machines = self.rig.existing_namespace(&self.namespace).list("machines").await;
            let phases: Vec<&str> = machines.iter().map(|it| text(it, "/status/currentStatus/phase")).collect();
            expect(phases.len() == wanted && phases.iter().all(|phase| *phase == "Running"), || format!("{phases:?}"))
        })
        .await;
    }

    /// Applies the example, and waits for its machines.
    pub async fn run_example(&self) {
        self.rig.kubectl(&["apply", "--validate=strict", "-k", EXAMPLES]).await.succeed();
        self.machines_running(3).await;
    }

    /// Deletes the example, and waits until nothing of it is left.
    pub async fn delete_example(&self) {
        self.rig.kubectl(&["delete", "-k", EXAMPLES, "--timeout=120s"]).await.succeed();
        wait_until("the machines to be gone", Duration::from_secs(90), || async {
            let kinds = "machines,machinesets,machinedeployments,machineclasses";
            let left = self.kubectl(&["get", kinds, "--output", "name"]).await.succeed();
            expect(left.is_empty(), || left)
        })
        .await;
    }

    /// Asks the API server whether it would accept a machine with this priority. Only a webhook refuses a priority that is no number.
    pub async fn try_machine(&self, priority: &str) -> Answer {
        let machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "probe", "annotations": {"machinepriority.machine.sapcloud.io": priority}},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}},
        });
        let file = self.rig.folder.join(format!("{}-probe.json", self.namespace));
        std::fs::write(&file, machine.to_string()).expect("the rig's folder is writable");
        self.kubectl(&["create", "--dry-run=server", "-f", file.to_str().expect("UTF-8")]).await
    }

    /// Plays the Deployment controller, whose pods are all ready.
    pub async fn report_ready(&self) {
        let deployment = self.kubectl(&["get", "deployment", NAME, "--output", "json"]).await.json();
        let replicas = &deployment["spec"]["replicas"];
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "name": NAME, "uid": deployment["metadata"]["uid"], "controller": true,
        });
        let set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": NAME, "namespace": self.namespace, "ownerReferences": [owner],
                "labels": deployment["spec"]["template"]["metadata"]["labels"],
            },
            "spec": {
                "replicas": replicas, "selector": deployment["spec"]["selector"], "template": deployment["spec"]["template"],
            },
        });
        self.rig.apply(&set.to_string()).await.succeed();
        let counts = |further: Value| {
            let mut status = json!({"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas});
            status.as_object_mut().expect("a map").extend(further.as_object().expect("a map").clone());
            json!({"status": status})
        };
        let generation = &deployment["metadata"]["generation"];
        let of_set = counts(json!({"fullyLabeledReplicas": replicas, "observedGeneration": 1}));
        self.patch_status("replicaset", NAME, &of_set).await;
        // Helm 4 reads the conditions too.
        let condition =
            |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": ""});
        let conditions =
            [condition("Available", "MinimumReplicasAvailable"), condition("Progressing", "NewReplicaSetAvailable")];
        let of_deployment =
            counts(json!({"updatedReplicas": replicas, "observedGeneration": generation, "conditions": conditions}));
        self.patch_status("deployment", NAME, &of_deployment).await;
    }

    async fn patch_status(&self, resource: &str, name: &str, patch: &Value) {
        let patch = patch.to_string();
        let line = ["patch", resource, name, "--subresource=status", "--type=merge", "--patch", patch.as_str()];
        self.kubectl(&line).await.succeed();
    }

    /// Runs `helm uninstall`, and carries out its job under the token of the job's account.
    pub async fn uninstall(&self) -> (Outcome, Job) {
        self.uninstall_with(&[]).await
    }

    /// The same with these files in the place of kubeconfigs that are mounted into the job.
    pub async fn uninstall_with(&self, mounted: &[(&str, String)]) -> (Outcome, Job) {
        let release = self.clone();
        let helm = tokio::task::spawn_blocking(move || {
            let name = release.name.clone();
            release.helm(&["uninstall", &name, "--timeout=90s"])
        });
        let found = wait_until("the job of helm uninstall", Duration::from_secs(60), || async {
            let jobs = self.rig.existing_namespace(&self.namespace).list("jobs").await;
            let is_new =
                |job: &Value| job["metadata"]["deletionTimestamp"].is_null() && job["status"]["conditions"].is_null();
            jobs.into_iter()
                .find(|job| text(job, "/metadata/name") == JOB && is_new(job))
                .ok_or_else(|| "no job".to_owned())
        })
        .await;
        let job = self.carry_out(&found, mounted).await;
        (helm.await.expect("helm ends"), job)
    }

    async fn carry_out(&self, job: &Value, mounted: &[(&str, String)]) -> Job {
        let pod = &job["spec"]["template"]["spec"];
        let flags = pod["containers"][0]["args"].as_array().expect("arguments");
        let mut flags: Vec<String> = flags.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        self.put_in(&mut flags, mounted);
        if !flags.iter().any(|flag| flag.starts_with("--kubeconfig=")) {
            let account = text(pod, "/serviceAccountName");
            flags.push(format!("--kubeconfig={}", self.kubeconfig_of(account).await.display()));
        }
        let run = tokio::process::Command::new(MCM).args(flags).output().await.expect("mcm runs");
        let output = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        let now = text(job, "/metadata/creationTimestamp");
        let conditions = |types: [&str; 2]| {
            types.map(|name| json!({"type": name, "status": "True", "lastTransitionTime": now, "lastProbeTime": now}))
        };
        let status = if run.status.success() {
            json!({
                "startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions(["SuccessCriteriaMet", "Complete"]),
            })
        } else {
            json!({"startTime": now, "failed": 1, "conditions": conditions(["FailureTarget", "Failed"])})
        };
        self.patch_status("job", JOB, &json!({"status": status})).await;
        Job { code: run.status.code().unwrap_or(-1), output }
    }
}

/// The result of the job of `helm uninstall`.
#[derive(Debug)]
pub struct Job {
    pub code: i32,
    pub output: String,
}

/// The process of a Deployment, outside the cluster.
pub struct Outside {
    pub process: Process,
    pub port: u16,
}

impl Outside {
    pub async fn wait_until_ready(&self) {
        wait_until("mcm to be ready", Duration::from_secs(60), || async {
            match request(self.port, "GET", "/readyz?verbose", "").await {
                Ok((200, _)) => Ok(()),
                other => Err(format!("{other:?}\n{}", self.process.log_tail())),
            }
        })
        .await;
    }

    /// The process ends by itself within this time, as after a signal.
    pub fn ended_well(mut self, within: Duration) {
        assert_eq!(self.process.wait(within), 0, "{}", self.process.log_tail());
    }

    /// Ends the process as a kubelet does.
    pub fn end(mut self) {
        self.process.signal("TERM");
        self.process.wait(Duration::from_secs(60));
    }
}

/// Kind, namespace and name of every object of the cluster, except events and what API servers make for themselves.
pub async fn every_object(rig: &Rig) -> BTreeSet<String> {
    let resources = rig.kubectl(&["api-resources", "--verbs=list,get", "--output", "name", "--cached=false"]).await;
    let resources = resources.succeed();
    let resources: Vec<&str> = resources.lines().filter(|name| !name.starts_with("events")).collect();
    let list = ["get", &resources.join(","), "--all-namespaces", "--output", "json"];
    let found = rig.kubectl(&list).await.json();
    let is_automatic = |object: &Value| {
        // The Lease of a kubelet ends with its Node.
        let of_a_kubelet = object["kind"] == "Lease" && object["metadata"]["namespace"] == "kube-node-lease";
        of_a_kubelet || (object["kind"] == "APIService" && object["spec"]["service"].is_null())
    };
    let identity = |object: &Value| {
        format!("{} {}/{}", text(object, "/kind"), text(object, "/metadata/namespace"), text(object, "/metadata/name"))
    };
    items(&found).iter().filter(|object| !is_automatic(object)).map(identity).collect()
}

/// The webhook configurations of rendered or read objects have this CA bundle.
pub fn bundle(objects: &[Value]) -> Value {
    find(objects, "ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["caBundle"].clone()
}
