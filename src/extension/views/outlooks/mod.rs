//! `machineoutlooks`: why a machine is as it is, and what happens next.
//!
//! What the machine controller would see and decide now, rendered and never done. Source: spec/extension-apiserver §1.3.

mod shape;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use self::shape::{BlockerView, DeadlineView, MachineOutlook, NextEffect, Operation, OwnerView, Status, TargetView};
use super::{
    Sources, Standing,
    common::{metadata_of, not_ready, right_to_read, scrubbed, seconds},
    describe::{Names, age_column, column, computed, name_column, wide},
    processors::Processors,
};
use crate::extension::{
    rows::{Rows, Seen},
    view::{Answer, Description, Freshness, Listing, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};
use kube_protocol::{request::Verb, status::ApiStatus};
use machine_api::{kind::Kind, v1alpha1::LastOperation};
use machine_controllers::{
    machine::{
        act::{Touched, name_of, touched},
        observation::Observation,
        outlook::{Blocker, Outlook, Sighting},
        plan::{Effect, Next},
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, Metadata, SetSnapshot},
    times::{after, rfc3339, since},
    views::BY_NAMESPACE,
};

const NAMES: Names =
    Names { kind: "MachineOutlook", plural: "machineoutlooks", short: "mco", verbs: &[Verb::Get, Verb::List] };

/// The view `machineoutlooks`.
pub struct OutlookView {
    sources: Sources,
    processors: Processors,
    description: Description,
}

impl OutlookView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            column("Phase", "string", ".phase", "Phase of the machine."),
            column("Stage", "string", ".stage", "Where the machine stands."),
            computed("Next", "string", next_cell, "What the machine controller does next."),
            column("Blocked by", "string", ".blockers[0].reason", "Whom the machine waits for."),
            computed("Deadline", "string", deadline_cell, "What happens first unless the machine gets on."),
            wide(column("Node", "string", ".nodeName", "Node of the machine.")),
            age_column(),
        ];
        Self {
            sources: sources.clone(),
            processors: Processors::default(),
            description: NAMES.describe::<MachineOutlook>(columns, &[("phase", ".phase"), ("stage", ".stage")]),
        }
    }

    fn ready(&self) -> Result<(), ApiStatus> {
        self.sources.outlooks.missing().map_or(Ok(()), |missing| Err(not_ready(missing)))
    }

    /// Who answers now.
    fn teller(&self) -> Teller {
        let leads = (self.sources.standing)() == Standing::Leader;
        Teller {
            computed_by: if leads { "leader" } else { "standby" },
            running: leads && self.sources.outlooks.has_controller(),
        }
    }
}

/// Who tells of machines.
#[derive(Clone, Copy)]
struct Teller {
    computed_by: &'static str,
    running: bool,
}

/// A machine as it is seen at one moment, with those above it.
struct SeenMachine {
    sighting: Sighting,
    set: Option<SetSnapshot>,
    deployment: Option<DeploymentSnapshot>,
}

impl SeenMachine {
    fn now(sources: &Sources, machine: &MachineSnapshot, now: Timestamp) -> Self {
        let set = above(machine.metadata(), &sources.views.sets);
        let deployment = set.as_ref().and_then(|set| above(set.metadata(), &sources.views.deployments));
        Self { sighting: sources.outlooks.sight(machine, now), set, deployment }
    }

    fn machine(&self) -> &MachineSnapshot {
        &self.sighting.seen.machine
    }

    fn told(&self, by: Teller) -> Result<Value, ApiStatus> {
        let outlook = self.sighting.outlook();
        NAMES.object(&metadata_of(self.machine().metadata()), &self.rendered(&outlook, by))
    }

    fn rendered(&self, outlook: &Outlook, by: Teller) -> MachineOutlook {
        let seen = &outlook.seen;
        MachineOutlook {
            phase: seen.phase().as_str().to_owned(),
            stage: outlook.stage().as_str(),
            last_operation: operation(seen.machine.last_operation()),
            deadlines: outlook
                .deadlines()
                .into_iter()
                .map(|deadline| DeadlineView {
                    name: deadline.name,
                    at: rfc3339(deadline.at),
                    remaining: seconds(since(deadline.at, seen.now)),
                    on_expiry: deadline.on_expiry,
                })
                .collect(),
            next_effects: next_effects(outlook),
            blockers: outlook.blockers().iter().map(blocker).collect(),
            owners: self.owners(),
            node_name: seen.node_label().to_owned(),
            status: Status {
                observed_at: rfc3339(seen.now),
                computed_by: by.computed_by,
                controllers_running: by.running,
                incomplete: Vec::new(),
            },
        }
    }

    /// The set, and the deployment above it.
    fn owners(&self) -> Vec<OwnerView> {
        let view =
            |owner: &OwnerReference, desired| OwnerView { kind: owner.kind.clone(), name: owner.name.clone(), desired };
        let Some(owner) = self.machine().controller() else { return Vec::new() };
        let mut all = vec![view(owner, self.set.as_ref().map(SetSnapshot::replicas))];
        if let Some(owner) = self.set.as_ref().and_then(|set| set.controller()) {
            all.push(view(owner, self.deployment.as_ref().map(DeploymentSnapshot::replicas)));
        }
        all
    }
}

/// The controller of an object, unless the store knows another one of its name.
fn above<S: Snapshot>(metadata: Metadata<'_>, store: &Store<S>) -> Option<S> {
    let owner = metadata.controller()?;
    let found = store.get(&ObjectKey::new(metadata.namespace, owner.name.clone()))?;
    (found.uid() == owner.uid).then_some(found)
}

/// The machines of a list as they are seen at one moment.
struct SeenMachines {
    machines: Arc<[SeenMachine]>,
    by: Teller,
    processors: Processors,
}

/// What a sighting holds for itself alone beside its own size, roughly: names, versions, what a driver has answered. The objects
/// that it was made from are shared with the stores.
const HELD: usize = 1024;

#[async_trait]
impl Seen for SeenMachines {
    fn len(&self) -> usize {
        self.machines.len()
    }

    fn key(&self, place: usize) -> ObjectKey {
        self.machines[place].machine().key()
    }

    fn outline(&self, place: usize) -> Value {
        let seen = &self.machines[place];
        let metadata = seen.machine().metadata();
        let outlook = seen.sighting.outlook();
        json!({
            "metadata": { "name": metadata.name, "namespace": metadata.namespace, "labels": metadata.labels },
            "phase": outlook.seen.phase().as_str(),
            "stage": outlook.stage().as_str(),
        })
    }

    fn bytes(&self) -> usize {
        self.machines.len() * (size_of::<SeenMachine>() + size_of::<Observation>() + HELD)
    }

    async fn tell(&self, places: &[usize]) -> Result<Vec<Value>, ApiStatus> {
        let (machines, by) = (Arc::clone(&self.machines), self.by);
        let told = self.processors.each(places, move |place| machines[*place].told(by)).await?;
        told.into_iter().collect()
    }
}

fn next_cell(object: &Value) -> Value {
    let next = &object["nextEffects"][0];
    next["effect"].as_str().map_or(Value::Null, |effect| Value::from(effect.to_owned()))
}

fn deadline_cell(object: &Value) -> Value {
    let all = object["deadlines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first = all.iter().min_by_key(|deadline| deadline["at"].as_str().unwrap_or_default());
    first.map_or(Value::Null, |first| {
        let text = |field: &str| first[field].as_str().unwrap_or_default().to_owned();
        Value::from(format!("{} in {}", text("name"), text("remaining")))
    })
}

fn operation(last: &LastOperation) -> Operation {
    Operation {
        r#type: last.operation.as_str().to_owned(),
        state: last.state.as_str().to_owned(),
        error_code: last.error_code.clone(),
        last_update_time: last.last_update_time.as_ref().map(|time| rfc3339(time.0)),
    }
}

fn blocker(blocker: &Blocker) -> BlockerView {
    BlockerView {
        reason: blocker.reason.clone(),
        message: scrubbed(&blocker.message),
        since: blocker.since.map(rfc3339),
        resolved_by: blocker.resolved_by.as_deref().map(scrubbed),
    }
}

/// What the plan would do, and when it looks again.
fn next_effects(outlook: &Outlook) -> Vec<NextEffect> {
    let seen = &outlook.seen;
    let now = |effect: &str, target| NextEffect { effect: effect.to_owned(), target, when: "now", at: None };
    let mut all: Vec<NextEffect> =
        outlook.plan.effects.iter().filter_map(|effect| named(effect, seen)).map(|(name, to)| now(name, to)).collect();
    match &outlook.plan.next {
        Next::StepDrain(order) => all.push(now("DrainNode", Some(node(&order.node)))),
        Next::LookAgain(wait, why) => all.push(NextEffect {
            effect: format!("LookAgain ({why})"),
            target: None,
            when: "at",
            at: Some(rfc3339(after(seen.now, *wait))),
        }),
        Next::Again | Next::Settled | Next::AwaitCall | Next::TakePermit => {}
    }
    all
}

fn node(name: &str) -> TargetView {
    TargetView { kind: "Node", namespace: String::new(), name: name.to_owned() }
}

/// The effect's name and object; `None` for what only this process remembers.
fn named(effect: &Effect, seen: &Observation) -> Option<(&'static str, Option<TargetView>)> {
    let machine = || {
        let namespace = seen.machine.namespace().to_owned();
        Some(TargetView { kind: "Machine", namespace, name: seen.name().to_owned() })
    };
    let of_node = || Some(node(seen.node_label())).filter(|node| !node.name.is_empty());
    let target = match touched(effect)? {
        Touched::Machine | Touched::MachineStatus | Touched::Event => machine(),
        Touched::Node | Touched::NodeStatus => of_node(),
        Touched::Attachment(name) => {
            Some(TargetView { kind: "VolumeAttachment", namespace: String::new(), name: name.to_owned() })
        }
        Touched::Token | Touched::Vm => None,
    };
    Some((name_of(effect)?, target))
}

#[async_trait]
impl View for OutlookView {
    fn description(&self) -> &Description {
        &self.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        right_to_read(Kind::Machine.plural(), question)
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        self.ready()?;
        let machine = self.sources.views.machines.get(&ObjectKey::new(namespace, name));
        let machine = machine.ok_or_else(|| NAMES.not_found(name))?;
        let object = SeenMachine::now(&self.sources, &machine, self.sources.clock.now()).told(self.teller())?;
        Ok(Answer { object, warnings: Vec::new() })
    }

    async fn list(&self, namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        self.ready()?;
        let store = &self.sources.views.machines;
        let machines = match namespace {
            Some(namespace) => store.by_index(BY_NAMESPACE, namespace),
            None => store.snapshot(),
        };
        let (now, sources) = (self.sources.clock.now(), self.sources.clone());
        let see = move |machine: &MachineSnapshot| SeenMachine::now(&sources, machine, now);
        let machines = self.processors.each(&machines, see).await?;
        let seen = SeenMachines { machines: machines.into(), by: self.teller(), processors: self.processors.clone() };
        Ok(Listing { rows: Rows::seen(Arc::new(seen)), warnings: Vec::new() })
    }
}
