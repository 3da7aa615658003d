//! Stand-ins for the two halves of the Go original. They write as it does: whole objects by PUT, from types that drop unknown fields, the status
//! separately, with the names of its field managers and with its texts (spec/machine-controller §1.8 and §6, spec/deployment-and-set §6;
//! `tests/fixtures/go` contains objects that the original wrote).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::cluster_object::{has_finalizer, name, number, text};

pub const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";
const NODE_FINALIZER: &str = "node.machine.sapcloud.io/machine-controller";
const PRIORITY: &str = "machinepriority.machine.sapcloud.io";
/// The pause between two passes.
const PAUSE: Duration = Duration::from_millis(150);

/// A running half; dropping this value ends it.
pub struct GoHalf {
    task: JoinHandle<()>,
    sick: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for GoHalf {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Names a half; the name of its Lease follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Sets,
    Machines,
}

impl Which {
    const fn program(self) -> &'static str {
        match self {
            Self::Sets => "machine-controller-manager",
            Self::Machines => "machine-controller",
        }
    }
}

impl GoHalf {
    /// Starts the half in a namespace, with its Lease.
    pub fn start(which: Which, client: Client, namespace: &str) -> Self {
        let sick: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let half = Half { client, namespace: namespace.to_owned(), which, sick: Arc::clone(&sick) };
        let task = tokio::spawn(async move {
            loop {
                // A failed step is repeated in the next pass, as a conflict is.
                let _ = half.renew().await;
                let _ = half.pass().await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { task, sick }
    }

    /// From now on the machine's node is unhealthy for longer than the timeout.
    pub fn make_unhealthy(&self, machine: &str) {
        self.sick.lock().expect("no holder of the lock panics").insert(machine.to_owned());
    }
}

struct Half {
    client: Client,
    namespace: String,
    which: Which,
    sick: Arc<Mutex<BTreeSet<String>>>,
}

type Done = kube::Result<()>;

impl Half {
    fn api(&self, group: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let version = if group == "machine.sapcloud.io" { "v1alpha1" } else { "v1" };
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        match kind {
            "Node" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
        }
    }

    fn machines(&self) -> Api<DynamicObject> {
        self.api("machine.sapcloud.io", "Machine", "machines")
    }

    fn sets(&self) -> Api<DynamicObject> {
        self.api("machine.sapcloud.io", "MachineSet", "machinesets")
    }

    fn nodes(&self) -> Api<DynamicObject> {
        self.api("", "Node", "nodes")
    }

    /// The field manager, which is the program's name.
    fn manager(&self) -> PostParams {
        PostParams { field_manager: Some(self.which.program().to_owned()), ..PostParams::default() }
    }

    async fn renew(&self) -> Done {
        let leases = self.api("coordination.k8s.io", "Lease", "leases");
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let name = self.which.program();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": "go-host", "leaseDurationSeconds": 15, "leaseTransitions": 0, "acquireTime": time, "renewTime": time},
        });
        match leases.get_opt(name).await? {
            None => leases.create(&self.manager(), &object(&lease)).await.map(drop),
            Some(held) => {
                let mut held = value(&held);
                held["spec"]["renewTime"] = time.into();
                leases.replace(name, &self.manager(), &object(&held)).await.map(drop)
            }
        }
    }

    async fn pass(&self) -> Done {
        match self.which {
            Which::Machines => {
                for machine in self.machines().list(&ListParams::default()).await? {
                    let _ = self.machine(known(&machine)).await;
                }
            }
            Which::Sets => {
                for set in self.sets().list(&ListParams::default()).await? {
                    let _ = self.set(known(&set)).await;
                }
            }
        }
        Ok(())
    }

    async fn put(&self, machine: &Value) -> kube::Result<Value> {
        let put = self.machines().replace(name(machine), &self.manager(), &object(machine)).await?;
        Ok(known(&put))
    }

    /// Writes the whole status by PUT.
    async fn put_status(&self, machine: &Value, phase: &str, operation: [&str; 3]) -> Done {
        let mut machine = machine.clone();
        let [kind, state, description] = operation;
        let now = now();
        let mut current = json!({"lastUpdateTime": now, "phase": phase});
        if phase == "Pending" {
            current["timeoutActive"] = true.into();
        }
        machine["status"]["currentStatus"] = current;
        machine["status"]["lastOperation"] =
            json!({"description": description, "lastUpdateTime": now, "state": state, "type": kind});
        self.machines().replace_status(name(&machine), &self.manager(), &object(&machine)).await.map(drop)
    }

    async fn machine(&self, mut machine: Value) -> Done {
        let own = name(&machine).to_owned();
        if machine.pointer("/metadata/deletionTimestamp").is_some() {
            return self.end(&machine).await;
        }
        if !has_finalizer(&machine, FINALIZER) {
            let mut all = machine["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            all.push(FINALIZER.into());
            machine["metadata"]["finalizers"] = all.into();
            return self.put(&machine).await.map(drop);
        }
        if text(&machine, "/spec/providerID").is_empty() {
            machine["metadata"]["labels"]["node"] = own.clone().into();
            if text(&machine["metadata"]["annotations"], &format!("/{PRIORITY}")).is_empty() {
                machine["metadata"]["annotations"][PRIORITY] = "3".into();
            }
            machine["spec"]["providerID"] = format!("metal:///{own}").into();
            let machine = self.put(&machine).await?;
            self.put_status(&machine, "Pending", ["Create", "Processing", "Creating machine on cloud provider"])
                .await?;
            return self.register(&own).await;
        }
        let is_sick = self.sick.lock().expect("no holder of the lock panics").contains(&own);
        match text(&machine, "/status/currentStatus/phase") {
            "Pending" => {
                let mut node = known(&self.nodes().get(&own).await?);
                node["metadata"]["labels"]["node.gardener.cloud/machine-name"] = own.clone().into();
                node["metadata"]["finalizers"] = json!([NODE_FINALIZER]);
                self.nodes().replace(&own, &self.manager(), &object(&node)).await?;
                machine["status"]["conditions"] = json!([ready("True")]);
                let joined = format!("Machine {own} successfully joined the cluster in 1.257159844s");
                self.put_status(&machine, "Running", ["Create", "Successful", &joined]).await
            }
            "Running" if is_sick => {
                machine["status"]["conditions"] = json!([ready("Unknown")]);
                let text =
                    format!("Machine {own} is unhealthy - changing MachineState to Unknown. Node conditions: [Ready]");
                self.put_status(&machine, "Unknown", ["HealthCheck", "Processing", &text]).await
            }
            "Unknown" => {
                let text = format!(
                    "Machine {own} health checks failing since last 10m0s minutes. Updating machine phase to Failed. Node \
                     Conditions: [Ready]"
                );
                self.put_status(&machine, "Failed", ["HealthCheck", "Failed", &text]).await
            }
            _ => Ok(()),
        }
    }

    /// The VM's kubelet registers its Node.
    async fn register(&self, own: &str) -> Done {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": own}, "spec": {"providerID": format!("metal:///{own}")}});
        self.nodes().create(&PostParams::default(), &object(&node)).await?;
        let status = Patch::Merge(json!({"status": {"conditions": [ready("True")]}}));
        self.nodes().patch_status(own, &PatchParams::default(), &status).await.map(drop)
    }

    /// Performs one stage of a deletion per pass.
    async fn end(&self, machine: &Value) -> Done {
        const STAGES: [&str; 5] = [
            "Set machine status to termination. Now, getting VM Status",
            "Machine deletion in process. VM with matching ID found. Initiate node drain",
            "Drain successful. . Initiate VM deletion",
            "Deletion of VM is successful. Initiate node object deletion",
            "Label \"node\" found, node deleted. Initiate machine object finalizer removal",
        ];
        let own = name(machine);
        let described = text(machine, "/status/lastOperation/description");
        let next = STAGES.iter().position(|stage| *stage == described).map_or(0, |stage| stage + 1);
        if next == 4 {
            let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            for gone in [
                self.nodes().patch(own, &PatchParams::default(), &released).await.map(drop),
                self.nodes().delete(own, &DeleteParams::default()).await.map(drop),
            ] {
                if let Err(error) = gone
                    && !matches!(&error, kube::Error::Api(status) if status.code == 404)
                {
                    return Err(error);
                }
            }
        }
        if let Some(stage) = STAGES.get(next) {
            return self.put_status(machine, "Terminating", ["Delete", "Processing", stage]).await;
        }
        let mut machine = machine.clone();
        machine["metadata"]["finalizers"] = json!([]);
        self.put(&machine).await.map(drop)
    }

    async fn set(&self, mut set: Value) -> Done {
        let own = name(&set).to_owned();
        let of_set = |machine: &Value| text(machine, "/metadata/ownerReferences/0/uid") == text(&set, "/metadata/uid");
        let all = self.machines().list(&ListParams::default()).await?;
        let claimed: Vec<Value> = all.iter().map(known).filter(of_set).collect();
        if set.pointer("/metadata/deletionTimestamp").is_some() {
            for machine in &claimed {
                self.terminate(machine).await?;
            }
            if claimed.is_empty() {
                set["metadata"]["finalizers"] = json!([]);
                self.sets().replace(&own, &self.manager(), &object(&set)).await?;
            }
            return Ok(());
        }
        let is_active = |machine: &&Value| text(machine, "/status/currentStatus/phase") != "Terminating";
        let mut active: Vec<&Value> = claimed.iter().filter(is_active).collect();
        let want = usize::try_from(number(&set, "/spec/replicas")).unwrap_or_default();
        for _ in active.len()..want {
            let machine = machine_of(&set);
            self.machines().create(&self.manager(), &object(&machine)).await?;
        }
        if active.len() >= want {
            let priority = |machine: &Value| {
                let priority =
                    machine["metadata"]["annotations"][PRIORITY].as_str().and_then(|value| value.parse().ok());
                priority.unwrap_or(3)
            };
            active.sort_by_key(|machine: &&Value| priority(machine));
            let (surplus, kept) = active.split_at(active.len() - want);
            let failed = kept.iter().filter(|machine| text(machine, "/status/currentStatus/phase") == "Failed");
            for machine in surplus.iter().chain(failed) {
                self.terminate(machine).await?;
            }
        }
        let count = |phase: &str| claimed.iter().filter(|m| text(m, "/status/currentStatus/phase") == phase).count();
        set["status"] = json!({
            "availableReplicas": count("Running"), "fullyLabeledReplicas": claimed.len(),
            "lastOperation": {"lastUpdateTime": now()}, "observedGeneration": set["metadata"]["generation"],
            "readyReplicas": count("Running"), "replicas": claimed.len(),
        });
        self.sets().replace_status(&own, &self.manager(), &object(&set)).await.map(drop)
    }

    /// Deletes a machine and then overwrites its status at once, whatever the status contains.
    async fn terminate(&self, machine: &Value) -> Done {
        if machine.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(());
        }
        self.machines().delete(name(machine), &DeleteParams::default()).await?;
        for _ in 0..10 {
            let Some(newest) = self.machines().get_opt(name(machine)).await? else { break };
            let operation = ["Delete", "Processing", "Deleting machine from cloud provider"];
            if self.put_status(&known(&newest), "Terminating", operation).await.is_ok() {
                break;
            }
        }
        Ok(())
    }
}

/// The fields of an object that the Go types contain.
fn known(object: &DynamicObject) -> Value {
    let mut value = value(object);
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("machineConditions");
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for map in ["labels", "annotations"] {
            metadata.entry(map).or_insert_with(|| json!({}));
        }
    }
    value
}

/// The machine that a set creates from its template.
fn machine_of(set: &Value) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {
            "generateName": format!("{}-", name(set)),
            "labels": set["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [{
                "apiVersion": "machine.sapcloud.io/v1alpha1", "blockOwnerDeletion": true, "controller": true, "kind": "MachineSet",
                "name": name(set), "uid": set["metadata"]["uid"],
            }],
        },
        "spec": set["spec"]["template"]["spec"],
    })
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}

fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn ready(status: &str) -> Value {
    let reason = if status == "True" { "KubeletReady" } else { "NodeStatusUnknown" };
    json!({"lastHeartbeatTime": now(), "lastTransitionTime": now(), "reason": reason, "status": status, "type": "Ready"})
}
