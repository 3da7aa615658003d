//! `machineoutlooks`: the reason for the state of a machine, and the next steps.
//!
//! The machine controller's observation and decision of this moment are rendered and not carried out. Source: spec/extension-apiserver §1.3.

mod shape;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use self::shape::{BlockerView, DeadlineView, MachineOutlook, NextEffect, Operation, OwnerView, Status, TargetView};
use super::{
    Sources,
    common::{not_ready, right_to_read, scrubbed, seconds},
    describe::{Names, age_column, column, name_column, text_or_null, wide},
};
use crate::extension::{
    blocking,
    rows::{self, Renderer, Row},
    view::{Answer, Description, Freshness, Listing, Question, SourceRight, View},
};
use controller_runtime::{
    key::ObjectKey,
    snapshot::{self, Snapshot as _},
    store::Store,
};
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

/// Approximate heap memory of a snapshot: names, versions, and answers of a driver. The objects that it refers to are shared with the
/// stores.
const HEAP_BYTES: usize = 1024;

/// The view `machineoutlooks`.
pub struct OutlookView {
    sources: Sources,
    renderer: Arc<Renderer<MachineOutlook>>,
}

impl OutlookView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            column("Phase", "string", "Phase of the machine.", |outlook: &MachineOutlook| {
                outlook.phase.as_str().into()
            }),
            column("Stage", "string", "Where the machine stands.", |outlook| outlook.stage.into()),
            column("Next", "string", "What the machine controller does next.", next_cell),
            column("Blocked by", "string", "Whom the machine waits for.", blocker_cell),
            column("Deadline", "string", "What happens first unless the machine gets on.", deadline_cell),
            wide(column("Node", "string", "Node of the machine.", |outlook| text_or_null(&outlook.node_name))),
            age_column(),
        ];
        let renderer =
            NAMES.describe(columns, &[("phase", |outlook| &outlook.phase), ("stage", |outlook| outlook.stage)]);
        Self { sources: sources.clone(), renderer }
    }

    fn ready(&self) -> Result<(), ApiStatus> {
        self.sources.outlooks.missing().map_or(Ok(()), |missing| Err(not_ready(missing)))
    }

    /// The status of answers that are computed now.
    fn status(&self, now: Timestamp) -> Arc<Status> {
        let leads = (self.sources.is_leading)();
        Arc::new(Status {
            observed_at: rfc3339(now),
            computed_by: if leads { "leader" } else { "standby" },
            controllers_running: leads && self.sources.outlooks.has_controller(),
            incomplete: Vec::new(),
        })
    }
}

/// A machine at one moment, with its set and its deployment.
struct Snapshot {
    sighting: Sighting,
    set: Option<SetSnapshot>,
    deployment: Option<DeploymentSnapshot>,
    status: Arc<Status>,
}

impl rows::Snapshot for Snapshot {
    type Body = MachineOutlook;

    fn metadata(&self) -> Metadata<'_> {
        self.machine().metadata()
    }

    fn body(&self) -> Cow<'_, MachineOutlook> {
        let outlook = self.sighting.outlook();
        let seen = &outlook.seen;
        Cow::Owned(MachineOutlook {
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
            next_effects: next_effects(&outlook),
            blockers: outlook.blockers().iter().map(blocker).collect(),
            owners: self.owners(),
            node_name: seen.node_label().to_owned(),
            status: (*self.status).clone(),
        })
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Observation>() + HEAP_BYTES
    }
}

impl Snapshot {
    fn of(sources: &Sources, machine: &MachineSnapshot, now: Timestamp, status: Arc<Status>) -> Self {
        let set = controller_of(machine.metadata(), &sources.views.sets);
        let deployment = set.as_ref().and_then(|set| controller_of(set.metadata(), &sources.views.deployments));
        Self { sighting: sources.outlooks.sight(machine, now), set, deployment, status }
    }

    fn machine(&self) -> &MachineSnapshot {
        &self.sighting.seen.machine
    }

    /// The set and the deployment.
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

/// The controller of an object. `None` if the store has no object of this name and UID.
fn controller_of<S: snapshot::Snapshot>(metadata: Metadata<'_>, store: &Store<S>) -> Option<S> {
    let owner = metadata.controller()?;
    let found = store.get(&ObjectKey::new(metadata.namespace, owner.name.clone()))?;
    (found.uid() == owner.uid).then_some(found)
}

fn next_cell(outlook: &MachineOutlook) -> Value {
    outlook.next_effects.first().map(|next| next.effect.as_str()).into()
}

fn blocker_cell(outlook: &MachineOutlook) -> Value {
    outlook.blockers.first().map(|blocker| blocker.reason.as_str()).into()
}

fn deadline_cell(outlook: &MachineOutlook) -> Value {
    let first = outlook.deadlines.iter().min_by_key(|deadline| &deadline.at);
    first.map(|first| format!("{} in {}", first.name, first.remaining)).into()
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

/// The effects of the plan, and the time of the next look.
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

/// Name and object of an effect. `None` for an effect that changes only the memory of this process.
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
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        right_to_read(Kind::Machine.plural(), question)
    }

    async fn get(&self, namespace: &str, name: &str, _freshness: Freshness) -> Result<Answer, ApiStatus> {
        self.ready()?;
        let machine = self.sources.views.machines.get(&ObjectKey::new(namespace, name));
        let machine = machine.ok_or_else(|| NAMES.not_found(name))?;
        let now = self.sources.clock.now();
        let object = self.renderer.row(Snapshot::of(&self.sources, &machine, now, self.status(now)));
        Ok(Answer { object, warnings: Vec::new() })
    }

    async fn list(&self, namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        self.ready()?;
        let store = &self.sources.views.machines;
        let machines = match namespace {
            Some(namespace) => store.by_index(BY_NAMESPACE, namespace),
            None => store.snapshot(),
        };
        let now = self.sources.clock.now();
        let (sources, renderer, status) = (self.sources.clone(), Arc::clone(&self.renderer), self.status(now));
        let row = move |machine: &MachineSnapshot| -> Arc<dyn Row> {
            renderer.row(Snapshot::of(&sources, machine, now, Arc::clone(&status)))
        };
        Ok(Listing { rows: blocking::each(&machines, row).await?, warnings: Vec::new() })
    }
}
