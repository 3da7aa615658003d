//! `machineoutlooks`: why a machine is as it is, and what happens next.
//!
//! What the machine controller would see and decide now, rendered and never done. Source: spec/extension-apiserver §1.3.

use std::{num::NonZeroUsize, sync::Arc, thread::available_parallelism};

use async_trait::async_trait;
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    Sources, Standing,
    common::{Incomplete, metadata_of, not_ready, right_to_read, scrubbed, seconds},
    describe::{Names, age_column, column, computed, name_column, wide},
};
use crate::{
    api::{
        duration::GoDuration,
        kind::Kind,
        v1alpha1::{LastOperation, Machine, controller_of},
    },
    cluster::key::ObjectKey,
    controllers::{
        machine::{
            observation::{Call, NodeStep, Observation, since},
            outlook::{Blocker, Outlook},
            plan::{Effect, Next},
            status_change::rfc3339,
            waiting::{Told, after},
        },
        views::{BY_NAMESPACE, ControlViews},
    },
    extension::view::{Answer, Description, Freshness, Listing, Question, SourceRight, View},
    protocol::{request::Verb, status::ApiStatus},
};

const NAMES: Names =
    Names { kind: "MachineOutlook", plural: "machineoutlooks", short: "mco", verbs: &[Verb::Get, Verb::List] };
/// So many are computed in one go. A longer list is shared among the processors, beside the other work of the process.
const AT_ONCE: usize = 256;

/// Why a machine is as it is, and what the machine controller would do next. Name, labels and age are those of the machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineOutlook {
    /// Phase of the machine.
    phase: String,
    /// Where the machine stands on its way: Create, Join, Run, Unhealthy, Fail, `InPlace`, Preserved, Frozen, or a stage of
    /// its deletion: `GetVmStatus`, Drain, `DeleteVolumeAttachments`, `DeleteVm`, `DeleteNode`, `RemoveFinalizer`.
    stage: &'static str,
    /// What was last done about the machine.
    last_operation: Operation,
    /// What happens to the machine, and when, unless it gets on before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deadlines: Vec<DeadlineView>,
    /// What the machine controller would do now, in order, and when it looks again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next_effects: Vec<NextEffect>,
    /// Whom the machine waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blockers: Vec<BlockerView>,
    /// Who owns the machine, from its set upwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    owners: Vec<OwnerView>,
    /// Name of the machine's Node.
    #[serde(skip_serializing_if = "String::is_empty")]
    node_name: String,
    /// How the answer came about.
    status: Status,
}

/// What was last done about a machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Operation {
    /// What it was.
    r#type: String,
    /// Where it stands.
    state: String,
    /// The provider's code, if it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    error_code: String,
    /// When that was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_update_time: Option<String>,
}

/// A moment at which something happens.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeadlineView {
    /// What is limited: creation, health, drain, `inPlace`, preserve, `pvDetach`, `pvReattach`.
    name: &'static str,
    /// When.
    at: String,
    /// How long from now; zero when it has passed.
    remaining: GoDuration,
    /// What happens then.
    on_expiry: &'static str,
}

/// Something that would be done.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NextEffect {
    /// What.
    effect: String,
    /// To which object.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetView>,
    /// When: now, or at the time in `at`.
    when: &'static str,
    /// The time, unless it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

/// An object that something would be done to.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct TargetView {
    /// Its kind.
    kind: &'static str,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    /// Its name.
    name: String,
}

/// Whom a machine waits for.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BlockerView {
    /// Why, in one word in CamelCase.
    reason: String,
    /// The same in a sentence.
    message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// What ends the wait.
    resolved_by: String,
}

/// An owner of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct OwnerView {
    /// `MachineSet` or `MachineDeployment`.
    kind: String,
    /// Its name.
    name: String,
    /// Machines that it wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    desired: Option<i32>,
}

/// How an outlook came about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// When it was computed.
    observed_at: String,
    /// leader: by the process that acts, which knows of calls under way; standby: by another, from the stored objects alone.
    computed_by: &'static str,
    /// Whether the process that computed it works on machines.
    controllers_running: bool,
    /// Inputs that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete: Vec<Incomplete>,
}

/// The view `machineoutlooks`.
pub struct OutlookView {
    sources: Sources,
    /// Parts of lists that are computed at once, whoever asks.
    processors: Arc<Semaphore>,
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
            processors: Arc::new(Semaphore::new(available_parallelism().map_or(1, NonZeroUsize::get))),
            description: NAMES.describe::<MachineOutlook>(columns, &[("phase", ".phase"), ("stage", ".stage")]),
        }
    }

    fn ready(&self) -> Result<(), ApiStatus> {
        self.sources.outlooks.missing().map_or(Ok(()), |missing| Err(not_ready(missing)))
    }

    /// The outlooks of some machines, computed where it holds up nobody.
    async fn share(&self, machines: &[Arc<Machine>], now: Timestamp) -> Result<Vec<Value>, ApiStatus> {
        // The semaphore is never closed; without a permit the work would only be less bounded.
        let permit = Arc::clone(&self.processors).acquire_owned().await.ok();
        let (sources, machines) = (self.sources.clone(), machines.to_vec());
        let work = tokio::task::spawn_blocking(move || {
            let told = all_of(&sources, &machines, now);
            drop(permit);
            told
        });
        match work.await {
            Ok(told) => told,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ApiStatus::internal("the process is ending")),
            },
        }
    }
}

/// The outlooks of these machines.
fn all_of(sources: &Sources, machines: &[Arc<Machine>], now: Timestamp) -> Result<Vec<Value>, ApiStatus> {
    machines.iter().map(|machine| of(sources, machine, now)).collect()
}

fn of(sources: &Sources, machine: &Arc<Machine>, now: Timestamp) -> Result<Value, ApiStatus> {
    let outlook = sources.outlooks.of(machine, now);
    let leads = (sources.standing)() == Standing::Leader;
    let running = leads && sources.outlooks.has_controller();
    let told = rendered(&outlook, &sources.views, if leads { "leader" } else { "standby" }, running);
    NAMES.object(&metadata_of(&**machine), &told)
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

fn rendered(outlook: &Outlook, views: &ControlViews, computed_by: &'static str, running: bool) -> MachineOutlook {
    let seen = &outlook.seen;
    let machine = &*seen.machine;
    MachineOutlook {
        phase: seen.phase().as_str().to_owned(),
        stage: outlook.stage().as_str(),
        last_operation: operation(&machine.status.last_operation),
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
        owners: owners(machine, views),
        node_name: seen.node_label().to_owned(),
        status: Status {
            observed_at: rfc3339(seen.now),
            computed_by,
            controllers_running: running,
            incomplete: Vec::new(),
        },
    }
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
    let told = Told::read(&blocker.message);
    BlockerView {
        reason: blocker.reason.clone(),
        message: scrubbed(&blocker.message),
        since: told.since.or(blocker.since).map(rfc3339),
        resolved_by: scrubbed(told.ended_by.unwrap_or(told.on)),
    }
}

/// The set, and the deployment above it.
fn owners(machine: &Machine, views: &ControlViews) -> Vec<OwnerView> {
    let namespace = machine.namespace().unwrap_or_default();
    let Some(owner) = controller_of(&machine.metadata) else { return Vec::new() };
    let set = views.sets.get(&ObjectKey::new(namespace.clone(), owner.name.clone()));
    let set = set.filter(|set| set.metadata.uid.as_deref() == Some(&owner.uid));
    let mut all = vec![OwnerView {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        desired: set.as_ref().map(|set| set.spec.replicas),
    }];
    if let Some(above) = set.as_ref().and_then(|set| controller_of(&set.metadata)) {
        let deployment = views.deployments.get(&ObjectKey::new(namespace, above.name.clone()));
        let deployment = deployment.filter(|found| found.metadata.uid.as_deref() == Some(&above.uid));
        all.push(OwnerView {
            kind: above.kind.clone(),
            name: above.name.clone(),
            desired: deployment.map(|deployment| deployment.spec.replicas),
        });
    }
    all
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
        let namespace = seen.machine.namespace().unwrap_or_default();
        Some(TargetView { kind: "Machine", namespace, name: seen.name().to_owned() })
    };
    let of_node = || Some(node(seen.node_label())).filter(|node| !node.name.is_empty());
    Some(match effect {
        Effect::PatchMachine { .. } => ("PatchMachine", machine()),
        Effect::PatchStatus(_) => ("PatchMachineStatus", machine()),
        Effect::RemoveMachineFinalizer => ("RemoveMachineFinalizer", machine()),
        Effect::DeleteMachine => ("DeleteMachine", machine()),
        Effect::PatchNode { step: NodeStep::Cordon, .. } => ("CordonNode", of_node()),
        Effect::PatchNode { .. } => ("PatchNode", of_node()),
        Effect::AddNodeCondition(_) | Effect::SetNodeCondition { .. } | Effect::PatchNodeStatus(_) => {
            ("PatchNodeStatus", of_node())
        }
        Effect::RemoveNodeFinalizer => ("RemoveNodeFinalizer", of_node()),
        Effect::DeleteNode { .. } => ("DeleteNode", of_node()),
        Effect::DeleteAttachment { name, .. } => (
            "DeleteVolumeAttachment",
            Some(TargetView { kind: "VolumeAttachment", namespace: String::new(), name: name.clone() }),
        ),
        Effect::EnsureToken => ("EnsureBootstrapToken", None),
        Effect::DeleteToken => ("DeleteBootstrapToken", None),
        Effect::Start(call) => (call_name(*call), None),
        Effect::Warn { .. } | Effect::Tell { .. } => ("RecordEvent", machine()),
        Effect::RereadMachine | Effect::RereadNode | Effect::LookForNode | Effect::Remember(_) | Effect::Measure(_) => {
            return None;
        }
    })
}

const fn call_name(call: Call) -> &'static str {
    match call {
        Call::Status => "GetVmStatus",
        Call::Create => "CreateVm",
        Call::Initialize => "InitializeVm",
        Call::Delete => "DeleteVm",
        Call::DeleteStale => "DeleteStaleVm",
    }
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
        let object = of(&self.sources, &machine, self.sources.clock.now())?;
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
        let items = if machines.len() <= AT_ONCE {
            all_of(&self.sources, &machines, now)?
        } else {
            try_join_all(machines.chunks(AT_ONCE).map(|some| self.share(some, now)))
                .await?
                .into_iter()
                .flatten()
                .collect()
        };
        Ok(Listing { items, warnings: Vec::new() })
    }
}

#[cfg(test)]
#[path = "outlooks_tests.rs"]
mod tests;
