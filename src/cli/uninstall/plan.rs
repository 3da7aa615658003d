//! Decides what is removed from a cluster, and what stays because it belongs to another manager. Pure functions from an inventory to a
//! plan.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::inventory::{BINDINGS, Found, Inventory, NODES, POLICIES, Place, definition_of};
use crate::cli::{cluster_objects::API_SERVICES, webhook_scope::WebhookScope};
use machine_api::{
    kind::Kind,
    names::{self, finalizer, label},
};

/// The number of names in a line. Further names are only counted.
const NAMED: usize = 5;

/// One action of a plan.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Delete this object.
    Delete(Found),
    /// Stop serving v1beta1, so that no conversion webhook is needed.
    Unserve(Found),
    /// Remove our finalizer from this object.
    Release(Found, &'static str),
}

impl Action {
    pub(super) const fn found(&self) -> &Found {
        match self {
            Self::Delete(found) | Self::Unserve(found) | Self::Release(found, _) => found,
        }
    }

    /// The verb in an access review.
    pub(super) const fn verb(&self) -> &'static str {
        match self {
            Self::Delete(_) => "delete",
            Self::Unserve(_) | Self::Release(..) => "patch",
        }
    }

    /// The text for the terminal.
    pub(super) fn text(&self) -> String {
        let found = self.found();
        match self {
            Self::Delete(_) => match found.namespace() {
                Some(namespace) => format!("delete {} {namespace}/{}", found.resource.kind, found.name()),
                None => format!("delete {} {}", found.resource.kind, found.name()),
            },
            Self::Unserve(_) => {
                format!("stop serving v1beta1 of {} and remove its conversion webhook", found.name())
            }
            Self::Release(..) => format!("remove the finalizer from {} {}", found.resource.kind, found.name()),
        }
    }
}

/// All actions in their order, and the objects that remain.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Actions that are possible while the manager runs.
    pub(super) registrations: Vec<Action>,
    /// Actions that a running manager would undo.
    pub(super) after_stop: Vec<Action>,
    /// Machines with a VM.
    pub(super) virtual_machines: Vec<String>,
    /// Objects that remain unchanged, and why.
    pub(super) remaining: Vec<String>,
}

impl Plan {
    /// The part that is possible while the manager runs.
    pub(super) fn registrations_only(self) -> Self {
        Self { registrations: self.registrations, remaining: self.remaining, ..Self::default() }
    }
}

/// Why the plan can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Obstacle {
    /// The namespace has no objects of a manager, but the cluster has objects of another one.
    #[error(
        "nothing of a manager is in namespace {namespace}; nothing was done. What is in the cluster belongs elsewhere: \
         {others}. Correct --namespace, or --service-namespace if the manager's pods are in another namespace than the \
         machine objects"
    )]
    WrongNamespace {
        /// The namespace that was given.
        namespace: String,
        /// The objects and their owners.
        others: String,
    },
    /// Objects could not be read without the conversion webhook.
    #[error(
        "{definition}: objects may be stored as v1beta1 and could not be read without the conversion webhook; run `mcm \
         migrate-storage --to v1alpha1` first"
    )]
    StoredAsBeta {
        /// The definition.
        definition: String,
    },
    /// The machines' Nodes are in a cluster that no flag names.
    #[error(
        "none of the Nodes that machines of namespace {namespace} name ({nodes}) is in this cluster; nothing was done. Say \
         where they are with --target-kubeconfig FILE, or --target-kubeconfig none to leave the finalizer on them (a Node \
         with it can't be deleted)"
    )]
    NodesAreElsewhere {
        /// The namespace of the machines.
        namespace: String,
        /// Some of the Nodes.
        nodes: String,
    },
}

/// The cluster with the Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodesIn {
    /// No flag: the cluster with the machine objects, if it has their Nodes.
    Control,
    /// A cluster that a flag names.
    Another,
    /// No Node may be changed.
    Nowhere,
}

/// Makes the plan.
///
/// # Errors
/// When an action might affect another manager, or lose objects.
pub(super) fn plan(inventory: &Inventory, place: &Place, nodes_in: NodesIn) -> Result<Plan, Obstacle> {
    let mut plan = Plan::default();
    let mut others = Vec::new();
    for found in &inventory.registrations {
        match of_another(found, inventory, place) {
            None => plan.registrations.push(Action::Delete(found.clone())),
            Some(why) => others.push(format!("{} {}: {why}", found.resource.kind, found.name())),
        }
    }
    for found in &inventory.definitions {
        let definition = definition_of(&found.object);
        let client = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
        let converts_elsewhere = called_elsewhere(client, inventory, place).or_else(|| shared(inventory, place));
        if let Some(why) = converts_elsewhere {
            others.push(format!("conversion webhook of {}: {why}", found.name()));
        } else if definition["status"]["storedVersions"] != json!([names::V1ALPHA1]) {
            return Err(Obstacle::StoredAsBeta { definition: found.name().to_owned() });
        } else {
            plan.registrations.push(Action::Unserve(found.clone()));
        }
    }
    plan_guard(&mut plan, inventory, &mut others);
    let releasable = |found: &&Found| found.has_finalizer(finalizer::MACHINE);
    let release = |found: &Found, finalizer| Action::Release(found.clone(), finalizer);
    plan.after_stop.extend(inventory.objects.iter().filter(releasable).map(|found| release(found, finalizer::MACHINE)));
    plan.after_stop.extend(inventory.secrets.iter().map(|found| release(found, finalizer::SECRET)));
    release_nodes(&mut plan, inventory, place, nodes_in)?;
    if let Some(certificate) = &inventory.certificate {
        match shared(inventory, place) {
            None => plan.after_stop.push(Action::Delete(certificate.clone())),
            Some(why) => others.push(format!("{} {}: {why}", certificate.resource.kind, certificate.name())),
        }
    }
    if plan.registrations.is_empty() && plan.after_stop.is_empty() && !others.is_empty() {
        return Err(Obstacle::WrongNamespace { namespace: place.namespace.clone(), others: others.join("; ") });
    }
    plan.remaining.splice(0..0, others);
    plan.virtual_machines =
        inventory.objects.iter().filter(|found| has_vm(found)).map(|it| it.name().to_owned()).collect();
    plan.remaining.extend(inventory.remaining.iter().map(|(kind, names)| format!("{kind} {}", names.join(", "))));
    Ok(plan)
}

/// A manager whose conversion webhook is in use keeps the guard too. After an interrupted run, the guard may be the only object that
/// is left.
fn plan_guard(plan: &mut Plan, inventory: &Inventory, others: &mut Vec<String>) {
    let unserved = plan.registrations.iter().filter(|action| matches!(action, Action::Unserve(_))).count();
    let all_are_ours = unserved == inventory.definitions.len();
    let why = if !inventory.hollow.is_empty() {
        let hollow = some(inventory.hollow.iter().map(String::as_str).collect());
        format!("objects may be stored as v1beta1, which is not served ({hollow})")
    } else if all_are_ours && (unserved > 0 || others.is_empty()) {
        plan.registrations.extend(inventory.guard.iter().cloned().map(Action::Delete));
        return;
    } else {
        "it belongs to the manager that converts".to_owned()
    };
    let entries = inventory.guard.iter().map(|found| format!("{} {}: {why}", found.resource.kind, found.name()));
    if inventory.hollow.is_empty() { others.extend(entries) } else { plan.remaining.extend(entries) }
}

fn has_vm(found: &Found) -> bool {
    is_machine(found) && found.object.data["spec"]["providerID"].as_str().is_some_and(|id| !id.is_empty())
}

pub(super) fn is_machine(found: &Found) -> bool {
    found.resource.kind == Kind::Machine.as_str()
}

/// The reason why a registration belongs to another manager, or is shared with one.
fn of_another(found: &Found, inventory: &Inventory, place: &Place) -> Option<String> {
    let data = &found.object.data;
    let why = match found.resource {
        API_SERVICES => called_elsewhere(&data["spec"], inventory, place),
        POLICIES => exempts_another(data, place),
        // A binding belongs to the manager of its policy.
        BINDINGS => inventory
            .registrations
            .iter()
            .find(|policy| policy.resource == POLICIES && data["spec"]["policyName"] == policy.name())
            .and_then(|policy| exempts_another(&policy.object.data, place)),
        _ => {
            let webhooks = data["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
            webhooks.iter().find_map(|webhook| called_elsewhere(&webhook["clientConfig"], inventory, place))
        }
    };
    // A registration with the namespace in its name is not shared.
    why.or_else(|| (place.scope == WebhookScope::Cluster).then(|| shared(inventory, place)).flatten())
}

/// Why objects of the service namespace may be shared with another manager. `None` if they are not.
fn shared(inventory: &Inventory, place: &Place) -> Option<String> {
    let sharing = || some(inventory.sharing.iter().map(String::as_str).collect());
    (!inventory.sharing.is_empty()).then(|| {
        format!(
            "managers of other namespaces ({}) hold Leases and may run in namespace {} too; the last one that is \
             uninstalled removes it; delete it with kubectl if they run elsewhere",
            sharing(),
            place.service_namespace
        )
    })
}

/// The reason why a client configuration calls another manager. A Service names its namespace. A URL names no owner. It is ours if its
/// CA bundle is ours, or if a manager is installed in this namespace and in no other namespace.
fn called_elsewhere(client: &Value, inventory: &Inventory, place: &Place) -> Option<String> {
    if let Some(namespace) = client["service"]["namespace"].as_str() {
        return (namespace != place.service_namespace)
            .then(|| format!("it calls a Service of namespace {namespace}, not of {}", place.service_namespace));
    }
    let url = client["url"].as_str()?;
    let ours = inventory.certificate.as_ref().map(|secret| &secret.object.data["data"]["ca.crt"]);
    if ours.is_some_and(|ours| ours.as_str().is_some_and(|ours| !ours.is_empty()) && *ours == client["caBundle"]) {
        return None;
    }
    if !inventory.neighbours.is_empty() {
        let neighbours: Vec<&str> = inventory.neighbours.iter().map(String::as_str).collect();
        return Some(format!(
            "it calls {url}, which may be the manager of another namespace ({} hold Leases); delete it with kubectl if it \
             is not",
            neighbours.join(", ")
        ));
    }
    let is_installed = inventory.is_installed || inventory.certificate.is_some() || has_finalizers(inventory);
    (!is_installed).then(|| format!("it calls {url}, and nothing shows that this is a manager of this namespace"))
}

fn has_finalizers(inventory: &Inventory) -> bool {
    !inventory.secrets.is_empty() || inventory.objects.iter().any(|found| found.has_finalizer(finalizer::MACHINE))
}

/// The reason why a policy belongs to another manager. A policy exempts the service account of its manager.
fn exempts_another(policy: &Value, place: &Place) -> Option<String> {
    let account = format!(":{}", names::WEBHOOK_CONFIGURATION);
    let conditions = policy["spec"]["matchConditions"].as_array().into_iter().flatten();
    let expressions = conditions.filter_map(|condition| condition["expression"].as_str());
    let namespaces: BTreeSet<&str> = expressions
        .flat_map(|expression| expression.split("system:serviceaccount:").skip(1))
        .filter_map(|rest| rest.split('\'').next()?.strip_suffix(&account))
        .collect();
    (!namespaces.is_empty() && !namespaces.contains(place.service_namespace.as_str())).then(|| {
        let namespaces: Vec<&str> = namespaces.into_iter().collect();
        format!("it is of the manager in namespace {}", namespaces.join(", "))
    })
}

/// Plans the finalizers of Nodes that machines of this namespace name. Any other Node may belong to another manager.
fn release_nodes(plan: &mut Plan, inventory: &Inventory, place: &Place, nodes_in: NodesIn) -> Result<(), Obstacle> {
    let named: BTreeSet<&str> = inventory
        .objects
        .iter()
        .filter(|found| is_machine(found))
        .filter_map(|machine| machine.object.metadata.labels.as_ref()?.get(label::NODE).map(String::as_str))
        .filter(|node| !node.is_empty())
        .collect();
    let Some(nodes) = &inventory.nodes else {
        if !named.is_empty() {
            plan.remaining.push(format!("the finalizer of Nodes {}", some(named)));
        }
        return Ok(());
    };
    let is_there = nodes.iter().any(|node| named.contains(node.name()));
    if nodes_in == NodesIn::Control && !named.is_empty() && !is_there {
        return Err(Obstacle::NodesAreElsewhere { namespace: place.namespace.clone(), nodes: some(named) });
    }
    let ours = nodes.iter().filter(|node| node.has_finalizer(finalizer::NODE));
    let (released, foreign): (Vec<_>, Vec<_>) = ours.partition(|node| named.contains(node.name()));
    plan.after_stop.extend(released.into_iter().map(|node| Action::Release(node.clone(), finalizer::NODE)));
    if !foreign.is_empty() {
        let names = some(foreign.into_iter().map(Found::name).collect());
        plan.remaining
            .push(format!("the finalizer of Nodes that no machine of namespace {} names: {names}", place.namespace));
    }
    Ok(())
}

/// The first names, and the number of further ones.
pub(super) fn some(names: BTreeSet<&str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let first: Vec<&str> = names.into_iter().take(NAMED).collect();
    if more == 0 { first.join(", ") } else { format!("{} and {more} more", first.join(", ")) }
}

/// One action for each right that the plan needs: verb, resource and namespace.
pub(super) fn rights(plan: &Plan) -> Vec<&Action> {
    let mut needed: Vec<&Action> = Vec::new();
    for action in plan.registrations.iter().chain(&plan.after_stop) {
        let right =
            |action: &Action| (action.verb(), action.found().resource, action.found().namespace().map(str::to_owned));
        if needed.iter().all(|other| right(other) != right(action)) {
            needed.push(action);
        }
    }
    needed
}

/// Whether an action changes the cluster with the Nodes.
pub(super) fn is_in_target(action: &Action) -> bool {
    action.found().resource == NODES
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
