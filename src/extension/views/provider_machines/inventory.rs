//! What providers list, asked rarely and kept for a while.
//!
//! One snapshot per inventory: what a driver lists with the same credentials and the same key. One call at a time per
//! inventory and at most every ten seconds, whatever is asked; a few inventories at once. A list that fails leaves the last
//! snapshot standing for some minutes, with a word about it. Source: spec/extension-apiserver §1.2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use super::{super::common::Incomplete, claims::Claims};
use crate::extension::view::Freshness;
use controller_runtime::{clock::SharedClock, key::ObjectKey};
use machine_api::v1alpha1::MachineClass;
use machine_controllers::{
    safety::collector::{access_to, list},
    snapshots::MachineSnapshot,
    times::since,
    views::{BY_NAMESPACE, ControlViews},
};
use machine_driver::{Driver, ListedVm, Registry, SecretData};

/// How inventories are kept.
#[derive(Clone, Copy, Debug)]
pub struct InventorySettings {
    /// `--inventory-max-age`: an older snapshot is refreshed when somebody asks for a recent one.
    pub max_age: Duration,
    /// Calls of one inventory are at least so far apart.
    pub least_gap: Duration,
    /// How long a provider may take.
    pub deadline: Duration,
    /// How long a snapshot is shown while newer ones fail.
    pub kept: Duration,
    /// Inventories that are asked at once.
    pub at_once: usize,
}

impl Default for InventorySettings {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(30),
            least_gap: Duration::from_secs(10),
            deadline: Duration::from_secs(20),
            kept: Duration::from_secs(10 * 60),
            at_once: 8,
        }
    }
}

/// What makes an inventory one and the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    provider: String,
    kind: String,
    /// Names and versions of the Secrets.
    secrets: Vec<(String, Option<String>)>,
    /// What the driver calls it.
    key: String,
}

/// What a provider listed.
#[derive(Clone, Debug)]
pub struct ListedVms {
    /// The VMs.
    pub vms: Arc<Vec<ListedVm>>,
    /// Identities of those that no machine had when the provider was asked. Others may have gone with their machines since.
    pub nobodys: Arc<BTreeSet<String>>,
    /// When.
    pub taken: Timestamp,
}

impl ListedVms {
    fn of(vms: Vec<ListedVm>, machines: &[MachineSnapshot], taken: Timestamp) -> Self {
        let nobodys = Claims::of(machines).nobodys(&vms);
        Self { vms: Arc::new(vms), nobodys: Arc::new(nobodys), taken }
    }
}

/// Where a snapshot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The provider was asked for this answer.
    Live,
    /// It was asked before.
    Cached,
}

impl Origin {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Cached => "cached",
        }
    }
}

/// How old a snapshot may be. Whatever is wanted, a provider is asked again only after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Any.
    Any,
    /// Not older than `--inventory-max-age`.
    Recent,
    /// As new as may be.
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

/// An inventory as it is known.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The classes it is of, by name.
    pub classes: Vec<Arc<MachineClass>>,
    /// The last snapshot, if it is not too old.
    pub snapshot: Option<ListedVms>,
    /// Where it comes from.
    pub origin: Origin,
    /// Why there is no newer one.
    pub trouble: Option<Incomplete>,
}

/// What is known of a provider that was asked and not waited for: reason and message.
const UNANSWERED: (&str, &str) =
    ("NotAnswered", "the provider had not answered yet when whoever asked it had gone; it is asked again shortly");

/// What is remembered of an inventory.
#[derive(Clone, Debug, Default)]
struct Slot {
    last: Option<ListedVms>,
    asked: Option<Timestamp>,
    /// Reason and message of the last call, if it failed.
    failure: Option<(String, String)>,
}

/// What to do about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Take what is known.
    Take,
    /// Ask the provider.
    Ask,
}

/// Whether the provider is asked.
fn deed(slot: &Slot, wanted: Wanted, settings: &InventorySettings, now: Timestamp) -> Deed {
    let is_recent = |snapshot: &ListedVms| match wanted {
        Wanted::Any => true,
        Wanted::Recent => since(now, snapshot.taken) <= settings.max_age,
        Wanted::Newest => false,
    };
    let is_too_soon = slot.asked.is_some_and(|asked| since(now, asked) < settings.least_gap);
    if is_too_soon || slot.last.as_ref().is_some_and(is_recent) { Deed::Take } else { Deed::Ask }
}

/// What a class is asked through.
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
    slots: Mutex<BTreeMap<Identity, Arc<AsyncMutex<Slot>>>>,
    calls: Semaphore,
}

impl Inventories {
    /// Nothing has been asked yet.
    pub fn new(views: ControlViews, drivers: Registry, clock: SharedClock, settings: InventorySettings) -> Self {
        let calls = Semaphore::new(settings.at_once.max(1));
        Self { views, drivers, clock, settings, slots: Mutex::default(), calls }
    }

    /// The inventories of these classes, and what keeps classes from having one.
    pub async fn of(
        &self,
        classes: &[Arc<MachineClass>],
        wanted: Wanted,
    ) -> (Vec<Inventory>, Vec<(Arc<MachineClass>, Incomplete)>) {
        let mut groups: BTreeMap<Identity, (Vec<Arc<MachineClass>>, Access)> = BTreeMap::new();
        let mut unusable = Vec::new();
        for class in classes {
            match access_to(class, &self.drivers, &self.views) {
                Ok((driver, secret)) => {
                    let identity = self.identity(class, &*driver);
                    groups
                        .entry(identity)
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
        self.forget_others(&groups, classes);
        let asked = groups.into_iter().map(|(identity, (classes, access))| self.one(identity, classes, access, wanted));
        (join_all(asked).await, unusable)
    }

    /// What a provider has just listed for somebody else.
    pub fn learn(&self, class: &MachineClass, vms: &[ListedVm]) {
        let Ok(driver) = self.drivers.driver_for(&class.provider) else { return };
        let slot = Arc::clone(lock(&self.slots).entry(self.identity(class, &**driver)).or_default());
        // Somebody who asks at this moment learns as much.
        if let Ok(mut slot) = slot.try_lock() {
            let taken = self.clock.now();
            let snapshot = ListedVms::of(vms.to_vec(), &self.machines_beside(class), taken);
            *slot = Slot { last: Some(snapshot), asked: Some(taken), failure: None };
        }
    }

    /// What is known without asking anybody.
    pub fn known(&self) -> Vec<ListedVms> {
        let slots: Vec<Arc<AsyncMutex<Slot>>> = lock(&self.slots).values().cloned().collect();
        // One that is being asked at the moment is not waited for.
        slots.iter().filter_map(|slot| slot.try_lock().ok()?.last.clone()).collect()
    }

    fn machines_beside(&self, class: &MachineClass) -> Vec<MachineSnapshot> {
        self.views.machines.by_index(BY_NAMESPACE, &class.namespace().unwrap_or_default())
    }

    fn identity(&self, class: &MachineClass, driver: &dyn Driver) -> Identity {
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
        Identity { provider: class.provider.clone(), kind, secrets, key: driver.inventory_key(class) }
    }

    /// An inventory that no class has any more is not kept; one that other classes have is none of this question.
    fn forget_others(
        &self,
        wanted: &BTreeMap<Identity, (Vec<Arc<MachineClass>>, Access)>,
        asked: &[Arc<MachineClass>],
    ) {
        if asked.len() == self.views.classes.len() {
            lock(&self.slots).retain(|identity, _| wanted.contains_key(identity));
        }
    }

    async fn one(
        &self,
        identity: Identity,
        classes: Vec<Arc<MachineClass>>,
        access: Access,
        wanted: Wanted,
    ) -> Inventory {
        let slot = Arc::clone(lock(&self.slots).entry(identity).or_default());
        // Whoever comes while somebody asks waits for that answer.
        let mut slot = slot.lock().await;
        let mut origin = Origin::Cached;
        if deed(&slot, wanted, &self.settings, self.clock.now()) == Deed::Ask
            && let Some(class) = classes.first()
        {
            self.ask(&mut slot, class, &access).await;
            origin = Origin::Live;
        }
        let now = self.clock.now();
        if slot.failure.is_some() {
            slot.last.take_if(|last| since(now, last.taken) > self.settings.kept);
        }
        let names: Vec<String> = classes.iter().map(|class| class.name_any()).collect();
        let trouble = slot
            .failure
            .as_ref()
            .map(|(reason, message)| Incomplete::new(format!("class {}", names.join(", ")), reason.clone(), message));
        let is_live = origin == Origin::Live && trouble.is_none();
        let origin = if is_live { Origin::Live } else { Origin::Cached };
        Inventory { classes, snapshot: slot.last.clone(), origin, trouble }
    }

    async fn ask(&self, slot: &mut Slot, class: &Arc<MachineClass>, access: &Access) {
        // The semaphore is never closed; without a permit the calls would only be less bounded.
        let _permit = self.calls.acquire().await.ok();
        let asked = self.clock.now();
        slot.asked = Some(asked);
        // Whoever asks may go before the answer comes; then nothing is known, which is no empty list.
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    #[case::nothing_is_known(slot(None, None), Wanted::Any, Deed::Ask)]
    #[case::anything_will_do(slot(Some(-3600), Some(-3600)), Wanted::Any, Deed::Take)]
    #[case::young_enough(slot(Some(-30), Some(-30)), Wanted::Recent, Deed::Take)]
    #[case::the_newest(slot(Some(-10), Some(-10)), Wanted::Newest, Deed::Ask)]
    #[case::the_newest_of_just_now(slot(Some(-9), Some(-9)), Wanted::Newest, Deed::Take)]
    #[case::too_old(slot(Some(-31), Some(-31)), Wanted::Recent, Deed::Ask)]
    #[case::too_old_but_just_asked_in_vain(slot(Some(-300), Some(-9)), Wanted::Recent, Deed::Take)]
    #[case::nothing_known_but_just_asked_in_vain(slot(None, Some(-9)), Wanted::Any, Deed::Take)]
    #[case::asked_in_vain_a_while_ago(slot(None, Some(-10)), Wanted::Recent, Deed::Ask)]
    fn a_provider_is_asked(#[case] slot: Slot, #[case] wanted: Wanted, #[case] expected: Deed) {
        assert_eq!(deed(&slot, wanted, &InventorySettings::default(), at(0)), expected);
    }
}
