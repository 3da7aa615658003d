use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    super::testing::{self, World},
    *,
};
use crate::extension::testing::whole;
use kube_values::field::Findings;
use machine_api::v1alpha1::Machine;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, MachineRequest, Measured, OpContext,
    Registry, Status as DriverStatus, VmIdentity, VolumeIdsRequest,
};
use mcm_metrics::Metrics;

/// A provider with the given VMs and slow lists.
pub(in crate::extension::views) struct Provider {
    info: DriverInfo,
    vms: Mutex<Vec<ListedVm>>,
    fails: Mutex<Option<DriverStatus>>,
    lists: AtomicUsize,
}

impl Provider {
    pub(in crate::extension::views) fn listing(vms: &[(&str, &str)]) -> Arc<Self> {
        let vm = |(id, name): &(&str, &str)| ListedVm {
            provider_id: format!("cloud:///{id}"),
            machine_name: (*name).to_owned(),
            created: Some(testing::dawn()),
        };
        Arc::new(Self {
            info: DriverInfo {
                name: "cloud",
                providers: vec!["cloud".to_owned()],
                schema: None,
                capabilities: Capabilities::default(),
            },
            vms: Mutex::new(vms.iter().map(vm).collect()),
            fails: Mutex::default(),
            lists: AtomicUsize::new(0),
        })
    }

    pub(in crate::extension::views) fn world(self: &Arc<Self>) -> World {
        let mut drivers = Registry::new();
        let driver: Arc<dyn Driver> = Arc::<Self>::clone(self);
        drivers.register(&driver);
        World::with_drivers(drivers).completed()
    }

    fn asked(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Driver for Provider {
    fn info(&self) -> &DriverInfo {
        &self.info
    }
    fn validate(&self, _: &MachineClass, _: &mut Findings) {}
    async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, DriverStatus> {
        unreachable!("a view makes nothing")
    }
    async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, DriverStatus> {
        unreachable!("a view deletes nothing")
    }
    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, DriverStatus> {
        unreachable!("a view asks about no single VM")
    }
    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, DriverStatus> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let fails = self.fails.lock().unwrap().clone();
        fails.map_or_else(|| Ok(self.vms.lock().unwrap().clone()), Err)
    }
    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, DriverStatus> {
        unreachable!("a view asks about no volumes")
    }
}

fn running(name: &str) -> Machine {
    testing::machine(
        name,
        json!({
            "metadata": { "labels": { "node": name } },
            "spec": { "providerID": format!("cloud:///{name}") },
            "status": { "currentStatus": { "phase": "Running", "lastUpdateTime": testing::ago(60) } },
        }),
    )
}

async fn list(world: &World, freshness: Freshness) -> Listing {
    let view = ProviderMachineView::new(&world.sources);
    let listing = view.list(None, freshness).await.unwrap();
    for row in &listing.rows {
        testing::conforming(&view, row);
    }
    listing
}

fn objects(listing: &Listing) -> Vec<Value> {
    listing.rows.iter().map(whole).collect()
}

fn states(listing: &Listing) -> BTreeMap<String, String> {
    let text = |row: &Value, at: &str| row.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    objects(listing).iter().map(|row| (text(row, "/providerID"), text(row, "/state"))).collect()
}

#[tokio::test(start_paused = true)]
async fn of_two_machines_with_one_vm_the_owner_is_shown() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    let mut twin = running("twin");
    twin.spec.provider_id = "cloud:///a".to_owned();
    world.add_machine(twin);
    world.add_node("a", "a");
    let listing = list(&world, Freshness::Recent).await;
    let row = &objects(&listing)[0];
    assert_eq!((&row["machineRef"]["name"], &row["nodeRef"]["name"]), (&json!("a"), &json!("a")));
}

#[tokio::test(start_paused = true)]
async fn each_vm_and_each_machine_without_one_has_a_row() {
    let provider = Provider::listing(&[("a", "a"), ("x", "gone"), ("b2", "b"), ("b", "b"), ("c", "c")]);
    let world = provider.world();
    world.add_machine(running("a"));
    world.add_machine(running("b"));
    world.add_machine(running("lost"));
    world.add_machine(testing::machine("c", json!({})));
    world.add_node("a", "a");
    let listing = list(&world, Freshness::Recent).await;
    let expected = [
        ("cloud:///a", "Owned"),
        ("cloud:///b", "Owned"),
        ("cloud:///b2", "Duplicate"),
        ("cloud:///c", "Owned"),
        ("cloud:///lost", "Missing"),
        ("cloud:///x", "Orphan"),
    ];
    assert_eq!(states(&listing), expected.map(|(id, state)| (id.to_owned(), state.to_owned())).into());
    let row = |id: &str| objects(&listing).into_iter().find(|row| row["providerID"] == id).unwrap();
    assert_eq!(row("cloud:///a")["nodeRef"]["name"], "a");
    assert_eq!(row("cloud:///a")["status"]["source"], "live");
    assert_eq!(row("cloud:///lost")["metadata"]["name"], "lost.missing");
    let orphan = row("cloud:///x");
    assert_eq!(orphan["orphan"]["reason"], "no machine gone exists");
    assert_eq!(orphan["orphan"].get("willBeDeletedAfter"), None, "orphans are not deleted here");
    assert_eq!(orphan.get("machineRef"), None);
    assert_eq!(orphan["metadata"]["labels"]["views.machine.sapcloud.io/state"], "Orphan");
    assert!(listing.warnings.is_empty());

    let name = orphan["metadata"]["name"].as_str().unwrap();
    let one = whole(&ProviderMachineView::new(&world.sources).get("ns", name, Freshness::Any).await.unwrap().object);
    assert_eq!((one["providerID"].as_str(), &one["metadata"]["uid"]), (Some("cloud:///x"), &orphan["metadata"]["uid"]));
}

#[tokio::test(start_paused = true)]
async fn xa_151_however_many_ask_the_provider_is_asked_once() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    futures::future::join_all((0..100).map(|_| list(&world, Freshness::Recent))).await;
    assert_eq!(provider.asked(), 1);
    list(&world, Freshness::Any).await;
    tokio::time::advance(Duration::from_secs(27)).await;
    list(&world, Freshness::Recent).await;
    assert_eq!(provider.asked(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    list(&world, Freshness::Any).await;
    assert_eq!(provider.asked(), 1);
    list(&world, Freshness::Recent).await;
    assert_eq!(provider.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_on_an_old_list_is_looked_for_on_a_new_one() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    list(&world, Freshness::Recent).await;
    world.sources.views.machines.delete(&running("a"));
    provider.vms.lock().unwrap().clear();
    tokio::time::advance(Duration::from_secs(12)).await;
    assert_eq!(states(&list(&world, Freshness::Any).await).len(), 1, "the list in memory");
    assert_eq!(states(&list(&world, Freshness::Recent).await).len(), 0);
    assert_eq!(provider.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_went_with_its_machine_is_no_orphan_on_an_older_list() {
    let provider = Provider::listing(&[("a", "a"), ("x", "gone")]);
    let world = provider.world();
    world.add_machine(running("a"));
    assert_eq!(states(&list(&world, Freshness::Recent).await)["cloud:///a"], "Owned");
    provider.vms.lock().unwrap().remove(0);
    world.sources.views.machines.delete(&running("a"));
    // The provider may not be asked again yet.
    let listing = list(&world, Freshness::Recent).await;
    let expected = [("cloud:///a", "Unknown"), ("cloud:///x", "Orphan")];
    assert_eq!(states(&listing), expected.map(|(id, state)| (id.to_owned(), state.to_owned())).into());
    let doubtful = objects(&listing).into_iter().find(|row| row["providerID"] == "cloud:///a").unwrap();
    assert_eq!(
        (doubtful.get("orphan"), &doubtful["status"]["incomplete"][0]["reason"]),
        (None, &json!("ListOutdated"))
    );
    let fleet = super::super::FleetView::new(&world.sources).get("ns", "ns", Freshness::Recent).await.unwrap();
    let fleet = whole(&fleet.object);
    assert_eq!(fleet["machines"]["orphans"], 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(states(&list(&world, Freshness::Recent).await).len(), 1);
    assert_eq!(provider.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_before_the_answer_leaves_no_empty_list() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    let gone = tokio::time::timeout(Duration::from_secs(1), list(&world, Freshness::Recent)).await;
    assert!(gone.is_err());
    let listing = list(&world, Freshness::Recent).await;
    assert_eq!(states(&listing)["cloud:///a"], "Unknown");
    assert!(listing.warnings[0].contains("NotAnswered"), "{:?}", listing.warnings);
    let view = ProviderMachineView::new(&world.sources);
    assert_eq!(view.get("ns", "x", Freshness::Recent).await.unwrap_err().code, 503, "not known is not absent");
}

#[tokio::test(start_paused = true)]
async fn xa_150_a_failed_list_is_reported_and_shows_no_machine_as_missing() {
    let provider = Provider::listing(&[]);
    *provider.fails.lock().unwrap() = Some(DriverStatus::new(Code::Unauthenticated, "who are you"));
    let world = provider.world();
    world.add_machine(running("a"));
    let listing = list(&world, Freshness::Recent).await;
    assert_eq!(states(&listing), [("cloud:///a".to_owned(), "Unknown".to_owned())].into());
    assert_eq!(objects(&listing)[0]["status"]["incomplete"][0]["reason"], "Unauthenticated");
    assert!(listing.warnings[0].starts_with("class c is not complete: Unauthenticated"), "{:?}", listing.warnings);
    let view = ProviderMachineView::new(&world.sources);
    let refused = view.get("ns", "nobody", Freshness::Recent).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after), (503, Some(10)));
    assert_eq!(provider.asked(), 1, "not again within ten seconds");
}

#[tokio::test(start_paused = true)]
async fn the_last_list_is_kept_for_ten_minutes() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    list(&world, Freshness::Recent).await;
    *provider.fails.lock().unwrap() = Some(DriverStatus::new(Code::Unavailable, "down"));
    for (after, state) in [(300, "Owned"), (301, "Unknown")] {
        tokio::time::advance(Duration::from_secs(after)).await;
        let listing = list(&world, Freshness::Recent).await;
        assert_eq!(states(&listing)["cloud:///a"], state, "{listing:?}");
        assert_eq!(objects(&listing)[0]["status"]["source"], "cached");
        assert_eq!(listing.warnings.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_that_can_t_be_used_is_reported_beside_the_others() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_class("strange", json!({ "provider": "nowhere" }));
    world.add_machine(running("a"));
    let mut other = running("b");
    other.spec.class.name = "strange".to_owned();
    world.add_machine(other);
    let listing = list(&world, Freshness::Recent).await;
    assert_eq!(states(&listing)["cloud:///a"], "Owned");
    assert_eq!(states(&listing)["cloud:///b"], "Unknown");
    assert!(listing.warnings[0].starts_with("class strange"), "{:?}", listing.warnings);
    let row = objects(&listing).into_iter().find(|row| row["providerID"] == "cloud:///b").unwrap();
    assert_eq!(row["status"]["incomplete"][0]["reason"], "ClassNotUsable");
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_a_missing_class_names_the_class() {
    let world = Provider::listing(&[]).world();
    let mut machine = running("a");
    machine.spec.class.name = "typo".to_owned();
    world.add_machine(machine);
    let listing = list(&world, Freshness::Recent).await;
    assert_eq!(states(&listing)["cloud:///a"], "Unknown");
    assert_eq!(objects(&listing)[0]["status"]["incomplete"][0]["reason"], "ClassNotFound");
    assert!(listing.warnings[0].starts_with("class typo is not complete: ClassNotFound"), "{:?}", listing.warnings);
}

#[tokio::test(start_paused = true)]
async fn classes_of_one_inventory_cost_one_call() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_class("twin", json!({}));
    world.add_class("stranger", json!({ "providerSpec": { "region": "far" } }));
    world.add_machine(running("a"));
    let listing = list(&world, Freshness::Recent).await;
    assert_eq!((provider.asked(), objects(&listing).len()), (2, 1), "one VM, however many list it");
    assert_eq!(states(&listing)["cloud:///a"], "Owned");
}

#[tokio::test(start_paused = true)]
async fn the_fleet_counts_orphans_only_where_a_list_is_known() {
    let provider = Provider::listing(&[("x", "gone")]);
    let world = provider.world();
    let fleet = super::super::FleetView::new(&world.sources);
    let orphans = |answer: Answer| whole(&answer.object)["machines"].get("orphans").cloned();
    assert_eq!(orphans(fleet.get("ns", "ns", Freshness::Recent).await.unwrap()), None);
    assert_eq!(provider.asked(), 0);
    list(&world, Freshness::Recent).await;
    assert_eq!(orphans(fleet.get("ns", "ns", Freshness::Recent).await.unwrap()), Some(json!(1)));
}

#[test]
fn names_are_names_of_objects() {
    for (vm, expected) in [("Web_1", "web-1."), ("", "vm."), ("-a..b-", "a.b."), (&"x".repeat(300), &*"x".repeat(240))]
    {
        let name = object_name(vm, "cloud:///1");
        assert!(name.starts_with(expected) && name.len() <= 253, "{name}");
    }
    assert_ne!(object_name("a", "1"), object_name("a", "2"));
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_orphan_loop_is_not_asked_for_again() {
    let provider = Provider::listing(&[("a", "a")]);
    let world = provider.world();
    world.add_machine(running("a"));
    let class = world.sources.views.classes.get(&ObjectKey::new("ns", "c")).unwrap();
    let vms = provider.vms.lock().unwrap().clone();
    world.sources.inventories.learn(&class, &vms);
    assert_eq!(states(&list(&world, Freshness::Recent).await)["cloud:///a"], "Owned");
    assert_eq!(provider.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn th_31_names_of_a_hostile_provider_harm_no_reader() {
    let long = "x".repeat(10 << 10);
    let hostile = ["../x", "a/../../b", "\u{1b}[2J\u{7}", "\0\n\r", long.as_str(), "", "\u{202e}gpj"];
    let vms: Vec<(&str, &str)> = hostile.iter().map(|name| (*name, *name)).collect();
    let provider = Provider::listing(&vms);
    let world = provider.world();
    let listing = list(&world, Freshness::Recent).await;
    let objects = objects(&listing);
    let names: BTreeSet<&str> = objects.iter().filter_map(|row| row["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), hostile.len(), "each has its own name: {names:?}");
    for name in &names {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        assert!(name.len() <= 253 && name.chars().all(is_plain), "{name}");
        assert!(
            name.split('.').all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')),
            "{name}"
        );
        // Each listed object can be read by its name.
        let view = ProviderMachineView::new(&world.sources);
        assert!(view.get("ns", name, Freshness::Any).await.is_ok(), "{name}");
    }
    for row in &objects {
        for text in ["/vmName", "/providerID", "/orphan/reason"] {
            let text = row.pointer(text).and_then(Value::as_str).unwrap_or_default();
            assert!(!text.chars().any(char::is_control) && text.len() <= 1024, "{text:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn th_32_a_secret_in_a_provider_s_message_is_redacted() {
    let provider = Provider::listing(&[]);
    let refusal = DriverStatus::new(Code::Unauthenticated, "user root with password hunter2-and-more is unknown");
    *provider.fails.lock().unwrap() = Some(refusal);
    let (driver, metrics) = (Arc::<Provider>::clone(&provider), Metrics::new(Arc::new(|| Duration::ZERO)).unwrap());
    let measured: Arc<dyn Driver> = Arc::new(Measured::new(driver, metrics).of_cluster(Some("shoot".to_owned())));
    let mut drivers = Registry::new();
    drivers.register(&measured);
    let world = World::with_drivers(drivers).completed();
    world.add_class(
        "c",
        json!({ "metadata": { "resourceVersion": "2" }, "secretRef": { "name": "s", "namespace": "ns" } }),
    );
    world.sources.views.secrets.apply(testing::object(
        json!({ "metadata": { "name": "s", "namespace": "ns", "uid": "s-uid", "resourceVersion": "1" },
                "data": { "password": "aHVudGVyMi1hbmQtbW9yZQ==" } }),
        &json!({}),
    ));
    world.add_machine(running("a"));
    let listing = list(&world, Freshness::Recent).await;
    let text = format!("{listing:?}");
    assert!(text.contains("password <redacted> is unknown") && !text.contains("hunter2"), "{text}");
}
