//! The provider of a world: the virtual cloud, which outlives all processes, with a driver whose calls fail when the history
//! orders it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use driver_virtual::{Distribution, SimulationConfig, SimulationOptions, VirtualCloud, start};
use futures::FutureExt;
use jiff::Timestamp;
use machine_driver::{
    Capabilities, ClassRules, Code, CreatedVm, DeletedVm, Driver, DriverInfo, Findings, ListRequest, ListedVm,
    MachineClass, MachineRequest, OpContext, Owner, SameInstance, SecretData, Status, VmIdentity, VolumeIdsRequest,
    async_trait,
};
use machine_simulation::history::{self, Luck};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::book::Record;
use crate::support::one_thread::NAMESPACE;

/// The duration of a call that fails at once.
const REFUSAL: Duration = Duration::from_secs(1);
/// The time after which a VM from a creation with a lost reply becomes visible; shorter than the controllers wait for it.
const VISIBLE_LATE: Duration = Duration::from_secs(30);
/// The same time for a provider that breaks its promise.
const VISIBLE_TOO_LATE: Duration = Duration::from_secs(600);
/// A manager that detects the unresponsive target cluster creates no machine after this time.
const DETECTS_SILENCE: Duration = Duration::from_secs(5 * 60);

/// The provider spec of a class. All classes have one owner.
pub fn provider_spec() -> Value {
    json!({ "tags": { "kubernetes.io/cluster/whole": "1", "kubernetes.io/role/node": "1" } })
}

/// The provider. Clones share their state.
#[derive(Clone)]
pub struct Provider {
    info: DriverInfo,
    cloud: Arc<VirtualCloud>,
    weather: Arc<Mutex<ProviderFaults>>,
    book: Arc<OnceLock<Record>>,
    /// A class for listing VMs.
    class: Arc<MachineClass>,
}

/// The faults of the provider.
#[derive(Default)]
struct ProviderFaults {
    /// The outcomes of the next calls.
    lucks: VecDeque<Luck>,
    /// VMs that are not visible yet, by their machines.
    hidden: BTreeMap<String, Instant>,
    /// Machines whose VM stays invisible for longer than any controller waits.
    hidden_too_long: BTreeSet<String>,
    /// Whether deletions are confirmed but not executed.
    forgets: bool,
}

fn config(seed: u64) -> SimulationConfig {
    let mut config = SimulationConfig::without_latency();
    let secs = |seconds| Distribution::Constant(Duration::from_secs(seconds));
    config.seed = seed.max(1);
    config.latency.create = secs(2);
    config.latency.boot = secs(30);
    config.latency.ready = secs(5);
    config.latency.delete = secs(4);
    config.nodes.lease_interval = Duration::ZERO;
    config.nodes.ccm = true;
    config.nodes.status_period = Duration::ZERO;
    config.pods.termination_latency = Duration::from_secs(20);
    config
}

impl Provider {
    /// Starts the cloud. Its kubelets reach the API server through this client.
    pub async fn begin(seed: u64, promise: history::Provider, now: Timestamp, kubelets: kube::Client) -> Self {
        let options = SimulationOptions { defaults: config(seed), ..SimulationOptions::new(now) };
        let (cloud, tasks) = start(options, Some(kubelets), CancellationToken::new()).await.expect("the cloud begins");
        for task in tasks {
            tokio::spawn(task.run);
        }
        let capabilities = Capabilities {
            create_is_idempotent: promise == history::Provider::AnswersTheSame,
            lists_creation_time: true,
        };
        let info = DriverInfo { capabilities, ..cloud.info().clone() };
        let mut class = MachineClass { provider_spec: provider_spec(), ..MachineClass::default() };
        "virtual".clone_into(&mut class.provider);
        class.metadata.namespace = Some(NAMESPACE.to_owned());
        let (weather, book) = (Arc::default(), Arc::default());
        Self { info, cloud, weather, book, class: Arc::new(class) }
    }

    /// Sets the record of the calls.
    pub fn set_record(&self, book: &Record) {
        assert!(self.book.set(book.clone()).is_ok(), "a provider has one book");
    }

    /// The running VMs, including invisible ones.
    pub fn vms(&self) -> Vec<ListedVm> {
        let request = ListRequest { class: Arc::clone(&self.class), secret: SecretData::default() };
        let listed = self.cloud.list_machines(&OpContext::within(REFUSAL), request).now_or_never();
        // While the cloud loads its VMs, there are none.
        listed.and_then(Result::ok).unwrap_or_default()
    }

    /// Sets the outcome of a future call.
    pub fn next_call(&self, luck: Luck) {
        self.weather().lucks.push_back(luck);
    }

    /// From now on all calls succeed.
    pub fn clears(&self) {
        self.weather().lucks.clear();
    }

    /// From now on deletions are confirmed but not executed.
    pub fn forgets(&self) {
        self.weather().forgets = true;
    }

    fn weather(&self) -> MutexGuard<'_, ProviderFaults> {
        self.weather.lock().expect("no holder of the lock panics")
    }

    /// The outcome of the next call. An outcome for a creation stays until the next creation.
    fn luck(&self, is_creation: bool) -> Luck {
        let mut weather = self.weather();
        let fits = |luck: &Luck| is_creation || matches!(luck, Luck::Busy | Luck::Lost);
        let place = weather.lucks.iter().position(fits);
        place.and_then(|place| weather.lucks.remove(place)).unwrap_or(Luck::Good)
    }

    fn hide(&self, machine: &str, time: Duration) {
        let mut weather = self.weather();
        weather.hidden.insert(machine.to_owned(), Instant::now() + time);
        if time > VISIBLE_LATE {
            weather.hidden_too_long.insert(machine.to_owned());
        }
    }

    fn is_hidden(&self, machine: &str) -> bool {
        self.weather().hidden.get(machine).is_some_and(|until| Instant::now() < *until)
    }

    fn book(&self) -> &Record {
        self.book.get().expect("the record exists before the first process")
    }

    fn say(&self, what: &str, machine: &str, luck: Luck) {
        self.book().read().say(|| format!("  driver call {what} for {machine} ({luck:?})"));
    }
}

fn name(request: &MachineRequest) -> String {
    request.machine.metadata.name.clone().unwrap_or_default()
}

async fn fails<T>(code: Code) -> Result<T, Status> {
    sleep(REFUSAL).await;
    Err(Status::new(code, "a fault of the history"))
}

#[async_trait]
impl Driver for Provider {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn owner(&self, class: &MachineClass) -> Option<Owner> {
        self.cloud.owner(class)
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        self.cloud.validate(class, found);
    }

    fn missing_in_secret(&self, rules: Option<&ClassRules>, keys: &BTreeSet<String>) -> Vec<&'static str> {
        self.cloud.missing_in_secret(rules, keys)
    }

    fn inventory_key(&self, class: &MachineClass) -> String {
        self.cloud.inventory_key(class)
    }

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        self.cloud.same_instance(machine, node)
    }

    async fn create_machine(&self, cx: &OpContext, mut request: MachineRequest) -> Result<CreatedVm, Status> {
        let (machine, luck) = (name(&request), self.luck(true));
        self.say("create", &machine, luck);
        let has_one = self.vms().iter().any(|vm| vm.machine_name == machine);
        {
            let could_be_found = has_one && !self.weather().hidden_too_long.contains(&machine);
            let mut pages = self.book().read();
            let now = pages.now();
            pages.mirror.vm_is_ordered(&request, now);
            if pages.silent.is_some_and(|since| since.elapsed() > DETECTS_SILENCE) {
                pages.mirror.violated("a machine is made or given up while nobody sees the Nodes", || machine.clone());
            }
            if could_be_found && !self.info.capabilities.create_is_idempotent {
                pages.mirror.second_vm_is_ordered(&machine);
            }
        }
        match luck {
            Luck::Busy => return fails(Code::Unavailable).await,
            Luck::Full => return fails(Code::ResourceExhausted).await,
            Luck::Stillborn => {
                let class = Arc::make_mut(&mut request.class);
                class.provider_spec["sim"] = json!({ "outcomes": [{ "effect": "never-joins" }] });
            }
            Luck::ShownLate if !has_one => self.hide(&machine, VISIBLE_LATE),
            Luck::ShownTooLate if !has_one => self.hide(&machine, VISIBLE_TOO_LATE),
            _ => {}
        }
        let answer = self.cloud.create_machine(cx, request).await;
        match luck {
            Luck::Lost | Luck::ShownLate | Luck::ShownTooLate => fails(Code::DeadlineExceeded).await,
            _ => answer,
        }
    }

    async fn initialize_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let luck = self.luck(false);
        self.say("initialize", &name(&request), luck);
        match luck {
            Luck::Busy => fails(Code::Unavailable).await,
            _ => self.cloud.initialize_machine(cx, request).await,
        }
    }

    async fn delete_machine(&self, cx: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let (machine, luck) = (name(&request), self.luck(false));
        self.say("delete", &machine, luck);
        if luck == Luck::Busy {
            return fails(Code::Unavailable).await;
        }
        {
            let mut pages = self.book().read();
            let now = pages.now();
            pages.update_vms();
            pages.mirror.vm_deletion_is_ordered(&request, now);
        }
        if self.weather().forgets {
            return Ok(DeletedVm::default());
        }
        if request.machine.spec.provider_id.is_empty() && self.is_hidden(&machine) {
            return fails(Code::NotFound).await;
        }
        let answer = self.cloud.delete_machine(cx, request).await;
        if luck == Luck::Lost { fails(Code::DeadlineExceeded).await } else { answer }
    }

    async fn get_machine_status(&self, cx: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let (machine, luck) = (name(&request), self.luck(false));
        self.say("status", &machine, luck);
        match luck {
            Luck::Busy => fails(Code::Unavailable).await,
            Luck::Lost => fails(Code::DeadlineExceeded).await,
            _ if self.is_hidden(&machine) => fails(Code::NotFound).await,
            _ => self.cloud.get_machine_status(cx, request).await,
        }
    }

    async fn list_machines(&self, cx: &OpContext, request: ListRequest) -> Result<Vec<ListedVm>, Status> {
        let mut listed = self.cloud.list_machines(cx, request).await?;
        listed.retain(|vm| !self.is_hidden(&vm.machine_name));
        Ok(listed)
    }

    async fn get_volume_ids(&self, cx: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        self.cloud.get_volume_ids(cx, request).await
    }
}
