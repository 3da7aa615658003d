//! A cache of the lists of providers.
//!
//! There is one list per inventory. Classes share an inventory if a driver lists the same VMs for them: with the same credentials
//! and the same key. Each inventory is listed at most every ten seconds, with one call at a time, and a few inventories are listed
//! at once. After a failed call the last list is still shown for some minutes, with the reason of the failure. Source: spec/extension-apiserver §1.2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use super::{super::common::Incomplete, claims::Claims};
use crate::extension::view::Freshness;
use controller_runtime::{clock::SharedClock, key::ObjectKey, lock};
use machine_api::v1alpha1::MachineClass;
use machine_controllers::{
    safety::collector::{access_to, list},
    snapshots::MachineSnapshot,
    times::since,
    views::{BY_NAMESPACE, ControlViews},
};
use machine_driver::{Driver, ListedVm, Registry, SecretData};

/// Settings of the cache.
#[derive(Clone, Copy, Debug)]
pub struct InventorySettings {
    /// `--inventory-max-age`: the greatest age of a recent list.
    pub max_age: Duration,
    /// Shortest time between two calls for one inventory.
    pub min_interval: Duration,
    /// Deadline of a call.
    pub deadline: Duration,
    /// How long the last list is shown while calls fail.
    pub retention: Duration,
    /// Maximum number of concurrent calls.
    pub parallel: usize,
}

impl Default for InventorySettings {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(30),
            min_interval: Duration::from_secs(10),
            deadline: Duration::from_secs(20),
            retention: Duration::from_secs(10 * 60),
            parallel: 8,
        }
    }
}

/// The key of an inventory: classes with equal keys share one list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InventoryKey {
    provider: String,
    kind: String,
    /// Names and versions of the Secrets.
    secrets: Vec<(String, Option<String>)>,
    /// The key that the driver gives.
    key: String,
}

/// The list of a provider.
#[derive(Clone, Debug)]
pub struct ListedVms {
    /// The VMs.
    pub vms: Arc<Vec<ListedVm>>,
    /// Identities of the VMs that no machine had when the provider was asked.
    pub orphans: Arc<BTreeSet<String>>,
    /// The time of the call.
    pub taken: Timestamp,
}

impl ListedVms {
    fn of(vms: Vec<ListedVm>, machines: &[MachineSnapshot], taken: Timestamp) -> Self {
        let orphans = Claims::of(machines).orphans(&vms);
        Self { vms: Arc::new(vms), orphans: Arc::new(orphans), taken }
    }
}

/// The origin of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The provider was asked for this answer.
    Live,
    /// The list is from an earlier call.
    Cached,
}

impl Origin {
    /// The name of the origin.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Cached => "cached",
        }
    }
}

/// The greatest age of a list. For every variant, there is a shortest time between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Any age.
    Any,
    /// Not older than `--inventory-max-age`.
    Recent,
    /// As new as possible.
    Newest,
}

impl From<Freshness> for Wanted {
    fn from(freshness: Freshness) -> Self {
        match freshness {
            Freshness::Any => Self::Any,
            Freshness::Recent => Self::Recent,
        }
    }
}

/// The known state of an inventory.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The classes of the inventory.
    pub classes: Vec<Arc<MachineClass>>,
    /// The last list, if it is not too old.
    pub snapshot: Option<ListedVms>,
    /// The origin of the list.
    pub origin: Origin,
    /// The reason why there is no newer list.
    pub failure: Option<Incomplete>,
}

/// Reason and message for a call whose caller has gone before the answer.
const UNANSWERED: (&str, &str) =
    ("NotAnswered", "the provider had not answered yet when whoever asked it had gone; it is asked again shortly");

/// The cache entry of an inventory.
#[derive(Clone, Debug, Default)]
struct Slot {
    last: Option<ListedVms>,
    asked: Option<Timestamp>,
    /// Reason and message of the last call, if it failed.
    failure: Option<(String, String)>,
}

/// Whether the provider is asked for a new list.
fn needs_call(slot: &Slot, wanted: Wanted, settings: &InventorySettings, now: Timestamp) -> bool {
    let is_recent = |snapshot: &ListedVms| match wanted {
        Wanted::Any => true,
        Wanted::Recent => since(now, snapshot.taken) <= settings.max_age,
        Wanted::Newest => false,
    };
    let is_too_soon = slot.asked.is_some_and(|asked| since(now, asked) < settings.min_interval);
    !is_too_soon && !slot.last.as_ref().is_some_and(is_recent)
}

/// The driver and the credentials of an inventory.
struct Access {
    driver: Arc<dyn Driver>,
    secret: SecretData,
}

/// All inventories of a process.
pub struct Inventories {
    views: ControlViews,
    drivers: Registry,
    clock: SharedClock,
    settings: InventorySettings,
    slots: Mutex<BTreeMap<InventoryKey, Arc<AsyncMutex<Slot>>>>,
    calls: Semaphore,
}

impl Inventories {
    /// An empty cache.
    pub fn new(views: ControlViews, drivers: Registry, clock: SharedClock, settings: InventorySettings) -> Self {
        let calls = Semaphore::new(settings.parallel.max(1));
        Self { views, drivers, clock, settings, slots: Mutex::default(), calls }
    }

    /// The inventories of these classes, and the classes that can't be used.
    pub async fn of(
        &self,
        classes: &[Arc<MachineClass>],
        wanted: Wanted,
    ) -> (Vec<Inventory>, Vec<(Arc<MachineClass>, Incomplete)>) {
        let mut groups: BTreeMap<InventoryKey, (Vec<Arc<MachineClass>>, Access)> = BTreeMap::new();
        let mut unusable = Vec::new();
        for class in classes {
            match access_to(class, &self.drivers, &self.views) {
                Ok((driver, secret)) => {
                    let key = self.key(class, &*driver);
                    groups
                        .entry(key)
                        .or_insert_with(|| (Vec::new(), Access { driver, secret }))
                        .0
                        .push(Arc::clone(class));
                }
                Err(why) => {
                    let source = format!("class {}", class.name_any());
                    unusable.push((Arc::clone(class), Incomplete::new(source, "ClassNotUsable", &why)));
                }
            }
        }
        self.remove_unused(&groups, classes);
        let inventories = groups.into_iter().map(|(key, (classes, access))| self.one(key, classes, access, wanted));
        (join_all(inventories).await, unusable)
    }

    /// Takes over a list that another part of the process has just received from the provider.
    pub fn learn(&self, class: &MachineClass, vms: &[ListedVm]) {
        let Ok(driver) = self.drivers.driver_for(&class.provider) else { return };
        let slot = Arc::clone(lock(&self.slots).entry(self.key(class, &**driver)).or_default());
        // The holder of the lock receives a list of the same moment.
        if let Ok(mut slot) = slot.try_lock() {
            let taken = self.clock.now();
            let snapshot = ListedVms::of(vms.to_vec(), &self.machines_beside(class), taken);
            *slot = Slot { last: Some(snapshot), asked: Some(taken), failure: None };
        }
    }

    /// The lists in memory. No provider is asked.
    pub fn known(&self) -> Vec<ListedVms> {
        let slots: Vec<Arc<AsyncMutex<Slot>>> = lock(&self.slots).values().cloned().collect();
        // A slot is skipped while its provider is being asked.
        slots.iter().filter_map(|slot| slot.try_lock().ok()?.last.clone()).collect()
    }

    fn machines_beside(&self, class: &MachineClass) -> Vec<MachineSnapshot> {
        self.views.machines.by_index(BY_NAMESPACE, &class.namespace().unwrap_or_default())
    }

    fn key(&self, class: &MachineClass, driver: &dyn Driver) -> InventoryKey {
        let own = class.namespace().unwrap_or_default();
        let references = [&class.secret_ref, &class.credentials_secret_ref];
        let mut secrets: Vec<(String, Option<String>)> = references
            .into_iter()
            .flatten()
            .map(|reference| {
                let namespace = if reference.namespace.is_empty() { &own } else { &reference.namespace };
                let key = ObjectKey::new(namespace.clone(), reference.name.clone());
                let version = self.views.secrets.get(&key).and_then(|secret| secret.resource_version());
                (key.to_string(), version)
            })
            .collect();
        secrets.sort();
        let kind = MachineClass::kind(&()).into_owned();
        InventoryKey { provider: class.provider.clone(), kind, secrets, key: driver.inventory_key(class) }
    }

    /// Removes inventories without a class. A request for some of the classes removes nothing.
    fn remove_unused(
        &self,
        wanted: &BTreeMap<InventoryKey, (Vec<Arc<MachineClass>>, Access)>,
        asked: &[Arc<MachineClass>],
    ) {
        if asked.len() == self.views.classes.len() {
            lock(&self.slots).retain(|key, _| wanted.contains_key(key));
        }
    }

    async fn one(
        &self,
        key: InventoryKey,
        classes: Vec<Arc<MachineClass>>,
        access: Access,
        wanted: Wanted,
    ) -> Inventory {
        let slot = Arc::clone(lock(&self.slots).entry(key).or_default());
        // A request during a call waits here for the answer of the call.
        let mut slot = slot.lock().await;
        let mut origin = Origin::Cached;
        if needs_call(&slot, wanted, &self.settings, self.clock.now())
            && let Some(class) = classes.first()
        {
            self.ask(&mut slot, class, &access).await;
            origin = Origin::Live;
        }
        let now = self.clock.now();
        if slot.failure.is_some() {
            slot.last.take_if(|last| since(now, last.taken) > self.settings.retention);
        }
        let names: Vec<String> = classes.iter().map(|class| class.name_any()).collect();
        let failure = slot
            .failure
            .as_ref()
            .map(|(reason, message)| Incomplete::new(format!("class {}", names.join(", ")), reason.clone(), message));
        let is_live = origin == Origin::Live && failure.is_none();
        let origin = if is_live { Origin::Live } else { Origin::Cached };
        Inventory { classes, snapshot: slot.last.clone(), origin, failure }
    }

    async fn ask(&self, slot: &mut Slot, class: &Arc<MachineClass>, access: &Access) {
        // The semaphore is never closed. Without a permit the calls would only be less bounded.
        let _permit = self.calls.acquire().await.ok();
        let asked = self.clock.now();
        slot.asked = Some(asked);
        // The caller may go before the answer comes. Then the list is unknown, and not empty.
        slot.failure = Some((UNANSWERED.0.to_owned(), UNANSWERED.1.to_owned()));
        let machines = self.machines_beside(class);
        match list(&*access.driver, class, &access.secret, self.settings.deadline).await {
            Ok(vms) => {
                slot.last = Some(ListedVms::of(vms, &machines, asked));
                slot.failure = None;
            }
            Err(status) => slot.failure = Some((status.code.as_str().to_owned(), status.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn slot(taken: Option<i64>, asked: Option<i64>) -> Slot {
        let last = taken.map(|taken| ListedVms::of(Vec::new(), &[], at(taken)));
        Slot { last, asked: asked.map(at), failure: None }
    }

    #[rstest]
    #[case::nothing_is_known(slot(None, None), Wanted::Any, true)]
    #[case::anything_will_do(slot(Some(-3600), Some(-3600)), Wanted::Any, false)]
    #[case::young_enough(slot(Some(-30), Some(-30)), Wanted::Recent, false)]
    #[case::the_newest(slot(Some(-10), Some(-10)), Wanted::Newest, true)]
    #[case::the_newest_of_just_now(slot(Some(-9), Some(-9)), Wanted::Newest, false)]
    #[case::too_old(slot(Some(-31), Some(-31)), Wanted::Recent, true)]
    #[case::too_old_but_just_asked_in_vain(slot(Some(-300), Some(-9)), Wanted::Recent, false)]
    #[case::nothing_known_but_just_asked_in_vain(slot(None, Some(-9)), Wanted::Any, false)]
    #[case::asked_in_vain_a_while_ago(slot(None, Some(-10)), Wanted::Recent, true)]
    fn a_provider_is_asked(#[case] slot: Slot, #[case] wanted: Wanted, #[case] expected: bool) {
        assert_eq!(needs_call(&slot, wanted, &InventorySettings::default(), at(0)), expected);
    }
}
