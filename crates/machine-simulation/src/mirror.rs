//! A mirror of a cluster in which the whole program runs: the objects of its API server and the VMs of its provider, in
//! the form that the checks of this crate read. So both levels of histories use the same properties.
//!
//! A test reports every write of the API server in order ([`Mirror::stored`]), and every call of the driver. Edits of
//! users and events of Nodes are applied to a copy of the mirror; the differences become requests ([`Request`],
//! [`requests`]), and the resulting writes of the API server are reported as well.

mod requests;

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use machine_api::{
    names::label,
    v1alpha1::{Machine, MachineClass, MachineDeployment, MachineSet, controller_of},
};
use machine_controllers::{machine::observation::Call, set::preservation::NodePreserve};
use machine_driver::{ListedVm, MachineRequest};
use serde_json::Value;

use super::{
    api::{Api, Kind},
    checks::{Checks, Edited, Violation},
    cloud::{Cloud, Moment, Vm},
    edits,
    facts::{is_available, is_terminating},
    history::{Edit, Luck, NodeEvent, Setup},
    nodes,
    played::cloud::PendingCall,
    pods, rest, tampering,
};
use controller_runtime::key::Target;

pub use self::requests::Request;
pub use super::{
    calls::{CallFault, Fault},
    classes::{USER_DATA, WITHOUT_TOKEN},
    edits::CLASSES,
    pods::name_on as pod_on,
    refusals::Refused,
};

/// The mirror of a cluster, with its checks.
#[derive(Default)]
pub struct Mirror {
    api: Api,
    cloud: Cloud,
    checks: Checks,
    /// The edit that a user is about to make to the deployment.
    edited: Option<Edited>,
    /// Machines that users delete.
    by_users: BTreeSet<String>,
    /// Nodes that users select for an update.
    picked_by_users: BTreeSet<String>,
}

impl Mirror {
    /// The deployment at the start of a history, to be applied in this namespace.
    ///
    /// # Errors
    /// When the deployment can't be serialised.
    pub fn deployment(setup: Setup, namespace: &str) -> serde_json::Result<Value> {
        let mut deployment = edits::deployment(setup);
        deployment.metadata.namespace = Some(namespace.to_owned());
        requests::whole(&deployment)
    }

    /// Records that the API server has stored an object of this resource, or deleted it. Resources that no check reads
    /// are ignored.
    ///
    /// # Errors
    /// When the object can't be parsed as its kind.
    pub fn stored(
        &mut self,
        resource: &str,
        name: &str,
        object: Option<Value>,
        now: Timestamp,
    ) -> serde_json::Result<()> {
        match resource {
            "machines" => self.machine_is_stored(name, object, now)?,
            "machinesets" => {
                put::<MachineSet>(&mut self.api, name, object)?;
            }
            "machinedeployments" => {
                let before = put::<MachineDeployment>(&mut self.api, name, object)?;
                self.deployment_is_stored(name, before.as_deref());
            }
            "nodes" => {
                let before = put::<Node>(&mut self.api, name, object)?;
                self.node_is_stored(name, before.as_deref());
            }
            "pods" => {
                put::<Pod>(&mut self.api, name, object)?;
            }
            "machineclasses" => {
                put::<MachineClass>(&mut self.api, name, object)?;
            }
            "secrets" => {
                put::<Secret>(&mut self.api, name, object)?;
            }
            _ => return Ok(()),
        }
        self.api.changes += 1;
        self.checks.after_step(&self.api);
        Ok(())
    }

    fn machine_is_stored(&mut self, name: &str, object: Option<Value>, now: Timestamp) -> serde_json::Result<()> {
        let before = put::<Machine>(&mut self.api, name, object)?;
        let after = self.api.machines.get(name);
        let ends = |machine: &Machine| machine.metadata.deletion_timestamp.is_some();
        let Some(before) = before.filter(|before| !ends(before) && after.is_none_or(|after| ends(after))) else {
            return Ok(());
        };
        // The machine controller deletes a machine whose Node was deleted by someone else; a Node has the name of its
        // machine.
        let has_lost_node = self.api.nodes.get(name).is_none_or(|node| node.metadata.deletion_timestamp.is_some())
            && is_available(&before);
        if !has_lost_node && !self.by_users.contains(name) {
            let set = controller_of(&before.metadata).and_then(|owner| self.api.sets.get(&owner.name));
            if set.is_none_or(|set| set.metadata.deletion_timestamp.is_some()) {
                self.checks.ordered_with_its_set(name);
            }
            self.checks.set_deleted(
                (&self.api, now),
                (Some(&before), &NodePreserve::NoNode),
                &mut super::trace::Trace::default(),
            );
        }
        Ok(())
    }

    fn deployment_is_stored(&mut self, name: &str, before: Option<&MachineDeployment>) {
        let after = self.api.deployments.get(name);
        let ends = |one: &MachineDeployment| one.metadata.deletion_timestamp.is_some();
        let is_same = match (before, after) {
            (Some(before), Some(after)) => before.spec == after.spec && ends(before) == ends(after),
            _ => false,
        };
        if !is_same {
            let edited = self.edited.take().unwrap_or(Edited::Other);
            self.checks.edited(&self.api, edited);
        }
    }

    fn node_is_stored(&mut self, name: &str, before: Option<&Node>) {
        let is_picked = |node: &Node| {
            node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::SELECTED_FOR_UPDATE))
        };
        let is_picked_now = self.api.nodes.get(name).is_some_and(|node| is_picked(node));
        if is_picked_now && !before.is_some_and(is_picked) && !self.picked_by_users.remove(name) {
            self.checks.picked(&self.api, name);
        }
    }

    /// Sets the VMs of the provider; the Node of a VM has the name of its machine.
    pub fn vms_are(&mut self, listed: Vec<ListedVm>, now: Timestamp) {
        let vm = |one: ListedVm| {
            let made = one.created.unwrap_or(now);
            let (id, owner) = (one.provider_id, one.machine_name);
            (
                id.clone(),
                Vm { provider_id: id, node: owner.clone(), owner, made, shown: made, joins_at: Timestamp::MAX },
            )
        };
        self.cloud.vms = listed.into_iter().map(vm).collect();
    }

    /// Records that a driver is called to create a VM.
    pub fn vm_is_ordered(&mut self, request: &MachineRequest, now: Timestamp) {
        self.checks.vm_is_ordered(&self.api, request, now);
    }

    /// Records that a driver is called to create a VM for a machine that already has one in the provider's list, at a
    /// provider where a repeated creation makes another VM.
    pub fn second_vm_is_ordered(&mut self, machine: &str) {
        self.checks.violated("a second VM is made for a machine", || machine.to_owned());
    }

    /// Records that a driver is called to delete VMs.
    pub fn vm_deletion_is_ordered(&mut self, request: &MachineRequest, now: Timestamp) {
        let meta = &request.machine.metadata;
        // A deletion for a machine that exists is about a VM that it can't use. The collector's machines have no UID.
        let is_stale = meta.uid.is_some() && meta.deletion_timestamp.is_none();
        let call = PendingCall {
            call: if is_stale { Call::DeleteStale } else { Call::Delete },
            machine: Target::of(&*request.machine),
            provider_id: request.machine.spec.provider_id.clone(),
            began: now,
        };
        // The real provider answers the call; only the checks matter here.
        let _ = self.cloud.end(&call, Luck::Good, Moment { now, api: &self.api }, &mut self.checks);
    }

    /// Records a write of a process, and whether that process holds the lease.
    pub fn writes(&mut self, leads: bool) {
        self.checks.leads = leads;
        self.checks.acts();
    }

    /// The requests to the API server that make this edit; empty if there is nothing to edit.
    pub fn edit(&mut self, edit: Edit, now: Timestamp) -> Vec<Request> {
        let edited = if matches!(edit, Edit::Class(_)) { Edited::Template } else { Edited::Other };
        let asked = self.asked_by_users(|api, checks| {
            edits::apply(api, checks, edit, now);
        });
        let is_of_deployment = |one: &Request| matches!(one, Request::Change { resource, .. } | Request::Delete { resource, .. } if *resource == "machinedeployments");
        self.edited = asked.iter().any(is_of_deployment).then_some(edited);
        if !asked.is_empty() && self.edited.is_none() {
            self.checks.edited(&self.api, edited);
        }
        asked
    }

    /// Records that the API server has refused an edit.
    pub fn edit_is_refused(&mut self) {
        self.edited = None;
    }

    /// The requests for an event of a Node. Nodes do not join this way.
    pub fn node_event(&mut self, pick: u16, event: NodeEvent, now: Timestamp) -> Vec<Request> {
        if event == NodeEvent::Joins {
            return Vec::new();
        }
        let mut after = self.api.clone();
        nodes::happens(&mut after, &self.cloud, pick, event, now);
        requests::between(&self.api, &after)
    }

    /// The requests at the end of the random steps: the deployment is resumed, labels are restored, Nodes with running
    /// VMs are ready.
    pub fn clears(&mut self, now: Timestamp) -> Vec<Request> {
        self.edited = None;
        let mut after = self.api.clone();
        if let Some(name) = after.deployments.keys().next().cloned() {
            after.edit::<MachineDeployment>(&name, |deployment| deployment.spec.paused = false);
        }
        nodes::heal(&mut after, &self.cloud, now);
        tampering::mend_labels(&mut after);
        requests::between(&self.api, &after)
    }

    /// The requests of healthy agents: they update the Nodes that are ready for it, and failed Nodes are repaired.
    pub fn agents(&self) -> Vec<Request> {
        let mut after = self.api.clone();
        nodes::go_on_updating(&mut after);
        requests::between(&self.api, &after)
    }

    /// The requests of users at rest: users who select Nodes continue, and machines and sets without owner are deleted.
    pub fn tidies(&mut self, now: Timestamp) -> Vec<Request> {
        self.asked_by_users(|api, checks| {
            tampering::go_on_picking(api, checks);
            tampering::sweep(api, now);
        })
    }

    fn asked_by_users(&mut self, act: impl FnOnce(&mut Api, &mut Checks)) -> Vec<Request> {
        let mut after = self.api.clone();
        act(&mut after, &mut self.checks);
        let asked = requests::between(&self.api, &after);
        for request in &asked {
            match request {
                Request::Delete { resource: "machines", name } => {
                    self.by_users.insert(name.clone());
                }
                Request::Change { resource: "nodes", name, .. } => {
                    self.picked_by_users.insert(name.clone());
                }
                _ => {}
            }
        }
        asked
    }

    /// Schedulable Nodes without pods.
    pub fn nodes_without_pod(&self) -> Vec<String> {
        pods::free_nodes(&self.api)
    }

    /// Pods whose Nodes are gone.
    pub fn lost_pods(&self) -> Vec<String> {
        let is_lost = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            node.is_some_and(|node| !self.api.nodes.contains_key(node))
        };
        self.api.pods.iter().filter(|(_, pod)| is_lost(pod)).map(|(name, _)| name.clone()).collect()
    }

    /// The latest end of a preservation.
    pub fn kept_until(&self) -> Option<Timestamp> {
        let kept = |machine: &Arc<Machine>| Some(machine.status.current_status.preserve_expiry_time.as_ref()?.0);
        self.api.machines.values().filter(|machine| !is_terminating(machine)).filter_map(kept).max()
    }

    /// The differences between the cluster and its specification; empty if there are none.
    pub fn differences(&self) -> Vec<String> {
        rest::differences(&self.api, &self.cloud)
    }

    /// Everything is at rest: starts new bounds.
    pub fn at_rest(&mut self) {
        self.by_users.clear();
        self.picked_by_users.clear();
        self.checks.at_rest(&self.api);
    }

    /// Records a violation that the test has found; the first counts.
    pub fn violated(&mut self, rule: &'static str, text: impl FnOnce() -> String) {
        self.checks.violated(rule, text);
    }

    /// The first violation.
    pub fn violation(&self) -> Option<&Violation> {
        self.checks.violation.as_ref()
    }
}

/// Stores an object, or removes it; returns the previous one.
fn put<K: Kind>(api: &mut Api, name: &str, object: Option<Value>) -> serde_json::Result<Option<Arc<K>>> {
    Ok(match object {
        Some(object) => K::table_mut(api).insert(name.to_owned(), Arc::new(serde_json::from_value(object)?)),
        None => K::table_mut(api).remove(name),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::{Margin, Strategy};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// A deployment of one machine, with its set.
    fn one_wanted() -> Mirror {
        let mut mirror = Mirror::default();
        let strategy = Strategy::Rolling { surge: Margin::Machines(0), unavailable: Margin::Machines(1) };
        let deployment = Mirror::deployment(Setup { replicas: 1, strategy }, "ns").unwrap();
        mirror.stored("machinedeployments", "md", Some(deployment), NOW).unwrap();
        mirror.stored("machinesets", "set", Some(owned("set", "MachineDeployment", "md")), NOW).unwrap();
        mirror
    }

    fn owned(name: &str, kind: &str, owner: &str) -> Value {
        json!({ "metadata": { "name": name, "ownerReferences": [
            { "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": owner, "uid": owner, "controller": true },
        ] }, "spec": {} })
    }

    #[test]
    fn stored_objects_are_checked() {
        let mut mirror = one_wanted();
        for name in ["one", "two"] {
            assert_eq!(mirror.violation(), None);
            mirror.stored("machines", name, Some(owned(name, "MachineSet", "set")), NOW).unwrap();
        }
        assert_eq!(mirror.violation().map(|violation| violation.rule), Some("there are too many machines"));
    }

    #[test]
    fn a_stored_change_of_a_user_widens_the_bounds() {
        let mut mirror = one_wanted();
        let asked = mirror.edit(Edit::Scale(2), NOW);
        let patch = json!({ "spec": { "replicas": 2 } });
        let expected = Request::Change { resource: "machinedeployments", name: "md".to_owned(), part: "", patch };
        assert_eq!(asked, [expected]);
        let mut deployment = serde_json::to_value(&*mirror.api.deployments["md"]).unwrap();
        deployment["spec"]["replicas"] = json!(2);
        mirror.stored("machinedeployments", "md", Some(deployment), NOW).unwrap();
        for name in ["one", "two"] {
            mirror.stored("machines", name, Some(owned(name, "MachineSet", "set")), NOW).unwrap();
        }
        assert_eq!(mirror.violation(), None);
    }
}
