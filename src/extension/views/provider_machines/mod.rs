//! `providermachines`: the VMs at the providers, compared with the machines.
//!
//! [`inventory`] has the lists of the providers, and [`states`] the state of each VM. Nothing is deleted here: the safety module decides
//! about orphans. Source: spec/extension-apiserver §1.2.

pub mod claims;
pub mod inventory;
mod shape;
mod states;
#[cfg(test)]
pub(super) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use self::{
    claims::{Claims, identity},
    inventory::{Inventory, ListedVms, Origin, Wanted},
    shape::{ClassRef, MachineRef, NodeRef, Orphan, ProviderMachine, Status},
    states::{Listed, State, deleted_after, state_of_machine, state_of_vm},
};
use super::{
    Sources,
    common::{Incomplete, hex, metadata, not_ready, right_to_list, scrubbed, seconds, warning},
    describe::{Names, age_column, column, name_column, wide},
};
use crate::extension::{
    rows::{Field, Renderer, Row},
    view::{Answer, Description, Freshness, Listing, Question, SourceRight, View},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_protocol::{request::Verb, status::ApiStatus};
use machine_api::{kind::Kind, names::label, v1alpha1::MachineClass};
use machine_controllers::{
    machine::observation::{Freeze, condition, shared_instance::first_owner},
    safety::orphans::{Claim, Instances, Suspicion},
    snapshots::MachineSnapshot,
    times::{rfc3339, since},
    views::BY_NAMESPACE,
};
use machine_driver::{ListedVm, same_instance::instance_key};

const NAMES: Names =
    Names { kind: "ProviderMachine", plural: "providermachines", short: "pvm", verbs: &[Verb::Get, Verb::List] };
/// Label with the name of the class.
const CLASS_LABEL: &str = "machine.sapcloud.io/class";
/// Label with the state.
const STATE_LABEL: &str = "views.machine.sapcloud.io/state";
/// Longest name of an object without the suffix that makes the name unique.
const LONGEST_NAME: usize = 240;
/// Seconds after which another request may succeed when the provider's list is missing.
const RETRY_AFTER: u32 = 10;

/// The view `providermachines`.
pub struct ProviderMachineView {
    sources: Sources,
    renderer: Arc<Renderer<ProviderMachine>>,
}

impl ProviderMachineView {
    /// The view from these sources.
    pub fn new(sources: &Sources) -> Self {
        let columns = vec![
            name_column(),
            wide(column("Provider ID", "string", "Identity of the VM at the provider.", |vm: &ProviderMachine| {
                vm.provider_id.as_str().into()
            })),
            column("Class", "string", "Class that lists the VM.", |vm| vm.class.name.as_str().into()),
            column("State", "string", "Whether a machine has the VM.", |vm| vm.state.into()),
            column("Machine", "string", "The machine.", |vm| {
                vm.machine_ref.as_ref().map(|machine| machine.name.as_str()).into()
            }),
            column("Node", "string", "The machine's Node.", |vm| {
                vm.node_ref.as_ref().map(|node| node.name.as_str()).into()
            }),
            age_column(),
        ];
        let fields: [Field<ProviderMachine>; 4] = [
            ("state", |vm| vm.state),
            ("class.name", |vm| &vm.class.name),
            ("machineRef.name", |vm| vm.machine_ref.as_ref().map_or("", |machine| &machine.name)),
            ("providerID", |vm| &vm.provider_id),
        ];
        Self { sources: sources.clone(), renderer: NAMES.describe(columns, &fields) }
    }

    /// The rows of all VMs and machines, and the missing inputs. If an older list has a VM without a machine, the provider is asked
    /// again, unless the last call is too recent.
    async fn rows(&self, freshness: Freshness) -> Result<(Vec<ProviderMachine>, Vec<Incomplete>), ApiStatus> {
        if let Some(missing) = self.sources.outlooks.missing() {
            return Err(not_ready(missing));
        }
        let classes: Vec<Arc<MachineClass>> = self
            .sources
            .views
            .classes
            .snapshot()
            .into_iter()
            .filter(|class| class.namespace() == self.sources.namespace)
            .collect();
        let mut inputs = self.inputs(&classes, freshness.into()).await;
        let mut rows = inputs.rows();
        let is_doubtful = |row: &ProviderMachine| row.is_orphaned && row.status.source == Origin::Cached.as_str();
        if freshness == Freshness::Recent && rows.iter().any(is_doubtful) {
            inputs = self.inputs(&classes, Wanted::Newest).await;
            rows = inputs.rows();
        }
        let incomplete = inputs.incomplete();
        Ok((rows, incomplete))
    }

    fn row(&self, row: ProviderMachine) -> Arc<dyn Row> {
        self.renderer.row((row.metadata.clone(), row))
    }

    async fn inputs(&self, classes: &[Arc<MachineClass>], wanted: Wanted) -> Inputs<'_> {
        let (inventories, unusable) = self.sources.inventories.of(classes, wanted).await;
        Inputs::of(&self.sources, inventories, unusable)
    }
}

/// The inputs of the rows.
struct Inputs<'a> {
    sources: &'a Sources,
    now: Timestamp,
    inventories: Vec<Inventory>,
    unusable: Vec<(Arc<MachineClass>, Incomplete)>,
    machines: Vec<MachineSnapshot>,
    claims: Claims,
    /// Missing classes of machines with a VM.
    missing_classes: BTreeSet<String>,
    /// Machines by the instance of their VM. An instance has several machines if the ends of their ids are equal.
    by_vm: BTreeMap<String, Vec<MachineSnapshot>>,
    /// Number of inventories that list a VM.
    listed: BTreeMap<String, usize>,
    /// Number of VMs that are listed for a machine.
    namesakes: BTreeMap<String, usize>,
}

impl<'a> Inputs<'a> {
    fn of(sources: &'a Sources, inventories: Vec<Inventory>, unusable: Vec<(Arc<MachineClass>, Incomplete)>) -> Self {
        // The machines are read after the lists, so that a VM of a new machine is no orphan.
        let machines = sources.views.machines.by_index(BY_NAMESPACE, &sources.namespace);
        let mut by_vm = BTreeMap::<String, Vec<MachineSnapshot>>::new();
        for machine in &machines {
            if let Some(instance) = instance_key(machine.provider_id()) {
                by_vm.entry(instance).or_default().push(machine.clone());
            }
        }
        let (mut listed, mut vms_of) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
        for snapshot in inventories.iter().filter_map(|inventory| inventory.snapshot.as_ref()) {
            for vm in &*snapshot.vms {
                let id = identity(&vm.provider_id);
                vms_of.entry(vm.machine_name.clone()).or_default().insert(id.clone());
                *listed.entry(id).or_default() += 1;
            }
        }
        let namesakes = vms_of.into_iter().map(|(name, vms)| (name, vms.len())).collect();
        let now = sources.clock.now();
        let claims = Claims::of(&machines);
        let missing_classes = missing_classes(by_vm.values().flatten(), &inventories, &unusable);
        Self { sources, now, inventories, unusable, machines, claims, missing_classes, by_vm, listed, namesakes }
    }

    fn incomplete(&self) -> Vec<Incomplete> {
        let failed = self.inventories.iter().filter_map(|inventory| inventory.failure.clone());
        let unusable = self.unusable.iter().map(|(_, why)| why.clone());
        failed.chain(unusable).chain(self.missing_classes.iter().map(|class| no_such_class(class))).collect()
    }

    fn rows(&self) -> Vec<ProviderMachine> {
        let (mut listed, mut ids) = (BTreeSet::new(), Vec::new());
        let mut rows = Vec::new();
        for inventory in &self.inventories {
            let Some(snapshot) = &inventory.snapshot else { continue };
            for vm in &*snapshot.vms {
                // A VM on several lists has one row.
                ids.push(vm.provider_id.as_str());
                if listed.insert(identity(&vm.provider_id)) {
                    rows.push(self.row_of_vm(inventory, snapshot, vm));
                }
            }
        }
        let by_class = self.lists_by_class();
        let instances: Instances = ids.into_iter().collect();
        for machine in &self.machines {
            if machine.provider_id().is_empty() || instances.may_include(machine.provider_id()) {
                continue;
            }
            let inventory = by_class.get(machine.class_ref().name.as_str()).copied();
            let list = inventory
                .and_then(|inventory| inventory.snapshot.as_ref().filter(|_| inventory.failure.is_none()))
                .map(|snapshot| snapshot.taken);
            if let Some(state) = state_of_machine(machine, list) {
                rows.push(self.row_of_machine(machine, state, inventory));
            }
        }
        rows
    }

    fn lists_by_class(&self) -> BTreeMap<&str, &Inventory> {
        let mut all = BTreeMap::new();
        for inventory in &self.inventories {
            for class in &inventory.classes {
                all.insert(class.metadata.name.as_deref().unwrap_or_default(), inventory);
            }
        }
        all
    }

    fn row_of_vm(&self, inventory: &Inventory, snapshot: &ListedVms, vm: &ListedVm) -> ProviderMachine {
        let id = identity(&vm.provider_id);
        let named = instance_key(&vm.provider_id).and_then(|instance| self.by_vm.get(&instance));
        let of_instance = named.and_then(|twins| first_owner(twins).or_else(|| twins.first()));
        let machine = of_instance.or_else(|| self.claims.machine(&vm.machine_name));
        let claim = self.claims.on(vm);
        let is_several = |count: Option<&usize>| count.is_some_and(|count| *count > 1);
        let listed = Listed {
            has_namesakes: is_several(self.namesakes.get(&vm.machine_name)),
            is_shared: is_several(self.listed.get(&id)),
            was_orphaned: snapshot.orphans.contains(&id),
        };
        let state = state_of_vm(&claim, listed);
        let class = class_of(inventory, machine);
        let row = self.row(&object_name(&vm.machine_name, &vm.provider_id), &vm.provider_id, vm.created, state, &class);
        let mut status = self.status(Some(inventory));
        if state == State::Unknown {
            status.incomplete.push(if claim.is_orphaned() {
                outdated(&class, "the VM's machine has gone")
            } else {
                Incomplete::new(format!("class {class}"), "NoMachineNamed", "the provider does not say whose the VM is")
            });
        }
        let is_orphan = claim.is_orphaned() && state != State::Unknown;
        ProviderMachine {
            vm_name: scrubbed(&vm.machine_name),
            node_ref: machine.filter(|_| state == State::Owned).and_then(|machine| self.node_of(machine)),
            machine_ref: machine.map(machine_ref),
            orphan: is_orphan.then(|| self.orphan(inventory, vm, &claim)),
            status,
            is_orphaned: claim.is_orphaned(),
            ..row
        }
    }

    fn row_of_machine(
        &self,
        machine: &MachineSnapshot,
        state: State,
        inventory: Option<&Inventory>,
    ) -> ProviderMachine {
        let name = format!("{}.{}", machine.name(), state.as_str().to_lowercase());
        let created = machine.created();
        let class = machine.class_ref().name.as_str();
        let row = self.row(&name, machine.provider_id(), created, state, class);
        let mut status = self.status(inventory);
        if state == State::Unknown && status.incomplete.is_empty() {
            status.incomplete.push(self.why_unknown(class));
        }
        ProviderMachine { node_ref: self.node_of(machine), machine_ref: Some(machine_ref(machine)), status, ..row }
    }

    /// The reason why the state of a machine of this class is unknown although no list has failed.
    fn why_unknown(&self, class: &str) -> Incomplete {
        let is_same = |(known, _): &&(Arc<MachineClass>, Incomplete)| known.metadata.name.as_deref() == Some(class);
        if let Some((_, why)) = self.unusable.iter().find(is_same) {
            why.clone()
        } else if self.missing_classes.contains(class) {
            no_such_class(class)
        } else {
            outdated(class, "the machine has changed")
        }
    }

    fn row(
        &self,
        name: &str,
        provider_id: &str,
        created: Option<Timestamp>,
        state: State,
        class: &str,
    ) -> ProviderMachine {
        let key = ObjectKey::new(self.sources.namespace.clone(), name);
        let labels = [(CLASS_LABEL, class), (STATE_LABEL, state.as_str())];
        ProviderMachine {
            metadata: ObjectMeta {
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..metadata(NAMES.kind, &key, provider_id, created.unwrap_or(self.now))
            },
            class: ClassRef { kind: Kind::MachineClass.as_str().to_owned(), name: class.to_owned() },
            provider_id: scrubbed(provider_id),
            vm_name: String::new(),
            state: state.as_str(),
            machine_ref: None,
            node_ref: None,
            orphan: None,
            status: self.status(None),
            is_orphaned: false,
        }
    }

    fn node_of(&self, machine: &MachineSnapshot) -> Option<NodeRef> {
        let name = machine.labels().get(label::NODE).filter(|name| !name.is_empty())?;
        let node = self.sources.outlooks.nodes().and_then(|nodes| nodes.get(&ObjectKey::cluster_scoped(name.clone())));
        let ready = node.as_ref().and_then(|node| condition(node.conditions(), "Ready"));
        let ready = ready.map_or("Unknown", |ready| ready.status.as_str());
        Some(NodeRef { name: name.clone(), ready: ready.to_owned() })
    }

    fn orphan(&self, inventory: &Inventory, vm: &ListedVm, claim: &Claim) -> Orphan {
        let collector = self.sources.collector.as_ref();
        let suspected = collector.and_then(|collector| {
            inventory
                .classes
                .iter()
                .filter_map(|class| collector.suspects_of(&ObjectKey::of(&**class)).get(&vm.provider_id).copied())
                .min_by_key(|suspicion| suspicion.at())
        });
        let seen = inventory.snapshot.as_ref().map_or(self.now, |snapshot| snapshot.taken);
        let suspicion = suspected.unwrap_or(Suspicion::Since(seen));
        let acts = (self.sources.is_leading)() && self.sources.outlooks.freeze() == Freeze::Flowing;
        let last = collector
            .filter(|_| acts)
            .map(|collector| deleted_after(vm.created, suspicion, &collector.guards(), self.now));
        let reason = match claim {
            Claim::OtherVm(other) => format!("machine {} has another VM: {other}", vm.machine_name),
            Claim::Leaving => format!("machine {} is being deleted and has several VMs", vm.machine_name),
            _ => format!("no machine {} exists", vm.machine_name),
        };
        Orphan { since: rfc3339(suspicion.at()), will_be_deleted_after: last.map(rfc3339), reason: scrubbed(&reason) }
    }

    fn status(&self, inventory: Option<&Inventory>) -> Status {
        let taken = inventory.and_then(|inventory| inventory.snapshot.as_ref()).map(|snapshot| snapshot.taken);
        let is_live = inventory.is_some_and(|inventory| inventory.origin == Origin::Live);
        Status {
            observed_at: rfc3339(self.now),
            snapshot_age: seconds(taken.map(|taken| since(self.now, taken)).unwrap_or_default()),
            source: if is_live { Origin::Live } else { Origin::Cached }.as_str(),
            incomplete: inventory.and_then(|inventory| inventory.failure.clone()).into_iter().collect(),
        }
    }
}

/// The classes of these machines that do not exist.
fn missing_classes<'a>(
    machines: impl Iterator<Item = &'a MachineSnapshot>,
    inventories: &[Inventory],
    unusable: &[(Arc<MachineClass>, Incomplete)],
) -> BTreeSet<String> {
    let listed = inventories.iter().flat_map(|inventory| &inventory.classes);
    let known: BTreeSet<String> =
        listed.chain(unusable.iter().map(|(class, _)| class)).map(|class| class.name_any()).collect();
    let wanted: BTreeSet<&str> = machines.map(|machine| machine.class_ref().name.as_str()).collect();
    wanted.into_iter().filter(|class| !known.contains(*class)).map(str::to_owned).collect()
}

/// The missing input for a class that does not exist.
fn no_such_class(class: &str) -> Incomplete {
    Incomplete::new(
        format!("class {class}"),
        "ClassNotFound",
        "there is no such class, so that no provider can be asked",
    )
}

/// The missing input for a list that is older than a change.
fn outdated(class: &str, what: &str) -> Incomplete {
    let message = format!("{what} since the provider was asked; ask again in ten seconds");
    Incomplete::new(format!("class {class}"), "ListOutdated", &message)
}

/// The class of the machine if the inventory has it, otherwise the first class of the inventory.
fn class_of(inventory: &Inventory, machine: Option<&MachineSnapshot>) -> String {
    let names: Vec<String> = inventory.classes.iter().map(|class| class.name_any()).collect();
    let own = machine.map(|machine| machine.class_ref().name.clone()).filter(|name| names.contains(name));
    own.or_else(|| names.into_iter().next()).unwrap_or_default()
}

fn machine_ref(machine: &MachineSnapshot) -> MachineRef {
    MachineRef {
        name: machine.name().to_owned(),
        uid: machine.uid().to_owned(),
        phase: machine.phase().as_str().to_owned(),
        deletion_timestamp: machine.metadata().deleting_since.map(rfc3339),
    }
}

/// The name of the object: the name of the VM in allowed characters, and eight digits of a digest of its provider ID. It is stable for
/// the life of the VM.
fn object_name(vm: &str, provider_id: &str) -> String {
    let plain: String = vm
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' })
        .take(LONGEST_NAME)
        .collect();
    // A part between dots must not be empty, and must not begin or end with a hyphen.
    let parts: Vec<&str> =
        plain.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty()).collect();
    let plain = if parts.is_empty() { "vm".to_owned() } else { parts.join(".") };
    let digest = ring::digest::digest(&ring::digest::SHA256, provider_id.as_bytes());
    format!("{plain}.{}", hex(&digest.as_ref()[..4]))
}

fn warnings(incomplete: &[Incomplete]) -> Vec<String> {
    incomplete.iter().map(Incomplete::warning).collect()
}

/// 503 for an object that may exist: the list of a provider is missing.
fn not_known(name: &str, incomplete: &[Incomplete]) -> ApiStatus {
    let why: Vec<&str> = incomplete.iter().map(|missing| missing.source.as_str()).collect();
    let message = format!("it can't be told whether {name:?} exists: no list of {}", why.join(", "));
    ApiStatus::new(503, "ServiceUnavailable", warning(&message)).retry_after(RETRY_AFTER)
}

#[async_trait]
impl View for ProviderMachineView {
    fn description(&self) -> &Description {
        &self.renderer.description
    }

    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight> {
        right_to_list(Kind::Machine.plural(), question)
    }

    async fn get(&self, namespace: &str, name: &str, freshness: Freshness) -> Result<Answer, ApiStatus> {
        if namespace != self.sources.namespace {
            return Err(NAMES.not_found(name));
        }
        let (rows, incomplete) = self.rows(freshness).await?;
        match rows.into_iter().find(|row| row.metadata.name.as_deref() == Some(name)) {
            Some(row) => {
                let warnings = warnings(&row.status.incomplete);
                Ok(Answer { object: self.row(row), warnings })
            }
            None if incomplete.is_empty() => Err(NAMES.not_found(name)),
            None => Err(not_known(name, &incomplete)),
        }
    }

    async fn list(&self, namespace: Option<&str>, freshness: Freshness) -> Result<Listing, ApiStatus> {
        if namespace.is_some_and(|namespace| namespace != self.sources.namespace) {
            return Ok(Listing::default());
        }
        let (rows, incomplete) = self.rows(freshness).await?;
        let rows = rows.into_iter().map(|row| self.row(row)).collect();
        Ok(Listing { rows, warnings: warnings(&incomplete) })
    }
}
