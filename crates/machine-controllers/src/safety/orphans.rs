//! Decides which VMs of a class are orphans, and which of them are deleted now.
//!
//! A VM is an orphan when the API server itself says twice, at least a minute apart, that its machine does not exist or
//! has another VM. Nothing follows from the absence of a VM on the provider's list: an empty, partial or failed list
//! proves nothing. Source: spec/machine-controller §9.1, decision 14.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use machine_api::v1alpha1::MachinePhase;
use machine_driver::same_instance::{are_in_two_zones, instance_key};
use serde::Serialize;

use crate::{machine::plan::deletion_stage::DeletionStage, snapshots::MachineSnapshot, times::after};

/// Version of the observation's serialised form.
pub const OBSERVATION_VERSION: u32 = 2;
/// Name of the rule by which orphans are deleted.
pub const RULE: &str = "orphan-vm";

/// The limits of deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Guards {
    /// Time between the first verdict and the deletion.
    pub confirm_after: Duration,
    /// Time between a failed deletion and the next one of the same VM.
    pub retry_after: Duration,
    /// Minimum age of a VM that is deleted, if the provider reports the age.
    pub least_age: Duration,
    /// Maximum number of VMs deleted in one pass over a class.
    pub deletions: usize,
    /// Maximum number of machines read from the API server in one pass over a class.
    pub reads: usize,
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            confirm_after: Duration::from_secs(60),
            retry_after: Duration::from_secs(5 * 60),
            least_age: Duration::from_secs(5 * 60),
            deletions: 10,
            reads: 50,
        }
    }
}

/// The relation between a listed VM and its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Claim {
    /// The machine has this VM.
    Own,
    /// The machine may be about to get this VM.
    InCreation,
    /// The machine is being deleted, and its driver does not know which of several VMs it has. All of them are deleted.
    Leaving,
    /// The machine has another VM.
    OtherVm(String),
    /// The machine has another VM, which is not on the list. A list that spells the id of the machine's VM in a new way
    /// looks the same, so the two ids may name one VM.
    Respelled(String),
    /// The machine does not exist.
    Nobody,
    /// The provider does not report the VM's machine.
    Unnamed,
    /// The provider does not report the VM's id. A deletion without an id would delete any VM with the machine's name.
    Unidentified,
    /// The API server was not asked or did not answer.
    Unknown,
}

/// The claim of the VM's machine on the VM; `None` means that the machine does not exist.
pub fn claim(provider_id: &str, machine: Option<&MachineSnapshot>) -> Claim {
    let Some(machine) = machine else { return Claim::Nobody };
    let own = machine.provider_id();
    let in_creation = matches!(machine.phase(), MachinePhase::Unset | MachinePhase::CrashLoopBackOff);
    if may_be_same_vm(own, provider_id) {
        Claim::Own
    } else if own.is_empty() && is_left_with_several_vms(machine) {
        Claim::Leaving
    } else if own.is_empty() || in_creation {
        Claim::InCreation
    } else {
        Claim::OtherVm(own.to_owned())
    }
}

/// The code of a driver that has found several VMs for one machine (spec §9.1).
const SEVERAL_VMS: &str = "OutOfRange";

/// Whether the driver has reported several VMs in the machine's last operation.
pub fn tells_of_several_vms(machine: &MachineSnapshot) -> bool {
    machine.last_operation().description.contains(SEVERAL_VMS)
}

/// Whether the deletion of the machine has finished its drain and fails because the driver finds several VMs with the
/// machine's name.
fn is_left_with_several_vms(machine: &MachineSnapshot) -> bool {
    machine.is_deleting()
        && DeletionStage::of(machine) == Some(DeletionStage::DeleteVm)
        && tells_of_several_vms(machine)
}

/// Instances by their provider ids, in any spelling.
#[derive(Clone, Debug, Default)]
pub struct Instances(BTreeMap<String, Vec<String>>);

impl<'i> FromIterator<&'i str> for Instances {
    fn from_iter<I: IntoIterator<Item = &'i str>>(ids: I) -> Self {
        let mut all = Self::default();
        for id in ids {
            if let Some(instance) = instance_key(id) {
                all.0.entry(instance).or_default().push(id.to_owned());
            }
        }
        all
    }
}

impl Instances {
    /// Whether one of them may be the instance of this id.
    pub fn may_include(&self, id: &str) -> bool {
        let alike = instance_key(id).and_then(|instance| self.0.get(&instance));
        alike.is_some_and(|alike| alike.iter().any(|one| may_be_same_vm(one, id)))
    }
}

/// The claim on a listed VM according to the stores. `held` are the instances of all machines; `machine` is the machine with the
/// name in the list.
pub fn claim_in_stores(vm: &machine_driver::ListedVm, held: &Instances, machine: Option<&MachineSnapshot>) -> Claim {
    if vm.provider_id.is_empty() {
        Claim::Unidentified
    } else if held.may_include(&vm.provider_id) {
        Claim::Own
    } else if vm.machine_name.is_empty() {
        Claim::Unnamed
    } else {
        claim(&vm.provider_id, machine)
    }
}

/// Whether two ids may name the same VM. Providers spell their ids in different letter cases in different APIs (Azure),
/// and users copy the id of a Node into a machine with a zone or a slash missing; such a difference must never make an
/// orphan (decisions.md 44). In doubt the ids count as equal: a VM too many costs money, a VM too few costs pods. Only zones of
/// GCE prove that equal names mean two VMs.
fn may_be_same_vm(one: &str, other: &str) -> bool {
    instance_key(one) == instance_key(other) && !are_in_two_zones(one, other)
}

impl Claim {
    /// Whether the VM is an orphan.
    pub fn is_orphaned(&self) -> bool {
        match self {
            Self::Nobody | Self::OtherVm(_) | Self::Leaving => true,
            Self::Own | Self::InCreation | Self::Respelled(_) | Self::Unnamed | Self::Unidentified | Self::Unknown => {
                false
            }
        }
    }

    /// The claim on the VM with this id, given the instances on the provider's list. A list shows one zone, so that it lacks the
    /// machine's VM in another one.
    #[must_use]
    pub fn on_list_of(self, listed: &Instances, vm: &str) -> Self {
        match self {
            Self::OtherVm(own) if !listed.may_include(&own) && !are_in_two_zones(&own, vm) => Self::Respelled(own),
            claim => claim,
        }
    }

    /// The fault of the list's entry because of which the VM is kept. `machine` is the machine with the name in the list.
    ///
    /// The VM of a machine that is being deleted may be gone from the list while the deletion waits for its volumes, which the list of some providers
    /// shows. That is no fault.
    pub fn doubt(&self, machine: Option<&MachineSnapshot>) -> Option<String> {
        match self {
            Self::Respelled(_) if machine.is_some_and(MachineSnapshot::is_deleting) => None,
            Self::Unnamed => Some("the entry has no machine's name".to_owned()),
            Self::Unidentified => Some("the entry has no provider id".to_owned()),
            Self::Respelled(own) => Some(format!(
                "its machine has {own}, which the list lacks: the list may spell the id of one VM in another way"
            )),
            Self::Own | Self::InCreation | Self::Leaving | Self::OtherVm(_) | Self::Nobody | Self::Unknown => None,
        }
    }
}

/// A VM on the provider's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVm {
    /// Its provider id.
    pub provider_id: String,
    /// The machine for which it was made.
    pub machine: String,
    /// When it was made, if the provider reports that.
    pub created: Option<Timestamp>,
    /// The claim of its machine.
    pub claim: Claim,
}

/// The last event because of which a VM is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Suspicion {
    /// The first verdict, at this time.
    Since(Timestamp),
    /// A failed deletion, at this time.
    DeletionFailed(Timestamp),
}

impl Suspicion {
    /// The time of the event.
    pub const fn at(self) -> Timestamp {
        match self {
            Self::Since(at) | Self::DeletionFailed(at) => at,
        }
    }

    /// The time between the event and the next deletion.
    const fn pause(self, guards: &Guards) -> Duration {
        match self {
            Self::Since(_) => guards.confirm_after,
            Self::DeletionFailed(_) => guards.retry_after,
        }
    }

    /// The time of the next deletion, independent of the age of the VM.
    fn due(self, guards: &Guards) -> Timestamp {
        after(self.at(), self.pause(guards))
    }
}

/// Everything that the decision about one class depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the decision.
    pub now: Timestamp,
    /// The VMs that the provider listed.
    pub vms: Vec<ListedVm>,
    /// The suspicion of each suspected VM, by provider id.
    pub suspects: BTreeMap<String, Suspicion>,
    /// The limits of deletions.
    pub guards: Guards,
}

/// A VM to delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deletion {
    /// Its provider id.
    pub provider_id: String,
    /// The machine for which it was made.
    pub machine: String,
    /// Name of the rule.
    pub rule: &'static str,
}

/// The result of the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The suspected VMs from now on.
    pub suspects: BTreeMap<String, Suspicion>,
    /// The VMs to delete.
    pub deletions: Vec<Deletion>,
    /// Time until the next pass if there are suspects; otherwise the period decides.
    pub next: Option<Duration>,
}

/// The provider ids of the VMs whose machines are read from the API server. `vms` have the claims from the stores.
///
/// Half of the reads are for suspected VMs, those whose deletion is due first, and half for the others, in the provider's order. Reads that one half
/// does not need are for the other half. Thus suspects that can't be deleted do not keep other VMs from being suspected, and a crowd of other VMs does
/// not keep suspects from being confirmed.
pub fn to_be_confirmed(vms: &[ListedVm], suspects: &BTreeMap<String, Suspicion>, guards: &Guards) -> Vec<String> {
    let suspicious = vms.iter().map(|vm| (suspects.get(&vm.provider_id), vm)).filter(|(_, vm)| vm.claim.is_orphaned());
    let (mut suspected, others): (Vec<_>, Vec<_>) = suspicious.partition(|(since, _)| since.is_some());
    suspected.sort_by_key(|(suspicion, _)| suspicion.map(|suspicion| suspicion.due(guards)));
    let for_others = others.len().min(guards.reads.saturating_sub(suspected.len()).max(guards.reads / 2));
    suspected.truncate(guards.reads - for_others);
    suspected.into_iter().chain(others.into_iter().take(for_others)).map(|(_, vm)| vm.provider_id.clone()).collect()
}

/// Decides which VMs are suspected, and which of them are deleted. The claims come from the API server, not from the stores.
///
/// Those whose deletion has been due for the longest time are deleted first. A failed deletion is tried again after a pause, so that VMs that can't be
/// deleted neither keep the others from being deleted nor cost the provider requests in every pass.
pub fn decide(seen: &Observation) -> Plan {
    let mut plan = Plan::default();
    let mut ready: Vec<(Suspicion, &ListedVm)> = Vec::new();
    for vm in &seen.vms {
        // A suspicion from the future is from before the clock was set back; it starts again.
        let suspected = seen.suspects.get(&vm.provider_id).copied().filter(|suspicion| suspicion.at() <= seen.now);
        let suspicion = match (&vm.claim, suspected) {
            // Without an answer a suspicion is neither confirmed nor cleared.
            (Claim::Unknown, Some(suspicion)) => {
                plan.suspects.insert(vm.provider_id.clone(), suspicion);
                plan.look_again_within(seen.guards.confirm_after);
                continue;
            }
            (claim, suspicion) if claim.is_orphaned() => suspicion.unwrap_or(Suspicion::Since(seen.now)),
            _ => continue,
        };
        plan.suspects.insert(vm.provider_id.clone(), suspicion);
        let wait = still_to_wait(vm.created, suspicion, &seen.guards, seen.now);
        if wait.is_zero() {
            ready.push((suspicion, vm));
        } else {
            plan.look_again_within(wait);
        }
    }
    if ready.len() > seen.guards.deletions {
        plan.look_again_within(seen.guards.confirm_after);
    }
    // The sort is stable: VMs that are due at the same time stay in the order of the list.
    ready.sort_by_key(|(suspicion, _)| suspicion.due(&seen.guards));
    let deletion = |(_, vm): (Suspicion, &ListedVm)| Deletion {
        provider_id: vm.provider_id.clone(),
        machine: vm.machine.clone(),
        rule: RULE,
    };
    plan.deletions = ready.into_iter().take(seen.guards.deletions).map(deletion).collect();
    plan
}

/// The time until an orphan may be deleted; `created` is when it was made, if the provider reports that.
pub fn still_to_wait(created: Option<Timestamp>, suspicion: Suspicion, guards: &Guards, now: Timestamp) -> Duration {
    let remaining = |since: Timestamp, length: Duration| {
        // A time in the future comes from differing clocks; then the whole length is waited.
        length.saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default())
    };
    let pause = remaining(suspicion.at(), suspicion.pause(guards));
    let age = created.map(|created| remaining(created, guards.least_age)).unwrap_or_default();
    pause.max(age)
}

impl Plan {
    fn look_again_within(&mut self, wait: Duration) {
        self.next = Some(self.next.map_or(wait, |next| next.min(wait)));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
    use rstest::rstest;

    use super::*;
    use machine_api::names::stage_text;
    use machine_api::v1alpha1::Machine;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_suspicion_of_before_the_clock_was_set_back_begins_anew() {
        let look = |suspects: BTreeMap<String, Suspicion>, second: i64| {
            let vm =
                ListedVm { provider_id: "p".to_owned(), machine: "m".to_owned(), created: None, claim: Claim::Nobody };
            let guards = Guards { confirm_after: Duration::from_secs(60), ..Guards::default() };
            decide(&Observation { version: OBSERVATION_VERSION, now: at(second), vms: vec![vm], suspects, guards })
        };
        let before = look(BTreeMap::new(), 7200);
        let set_back = look(before.suspects, 0);
        assert_eq!((set_back.deletions.len(), set_back.next), (0, Some(Duration::from_secs(60))));
        assert_eq!(look(set_back.suspects, 60).deletions.len(), 1);
    }

    fn machine(phase: MachinePhase, provider_id: &str) -> Machine {
        let mut machine = Machine::default();
        provider_id.clone_into(&mut machine.spec.provider_id);
        machine.status.current_status.phase = phase;
        machine
    }

    fn several() -> String {
        format!("code = [OutOfRange] {}", stage_text::DELETE_VM)
    }

    fn leaving(provider_id: &str, says: &str) -> Machine {
        let mut machine = machine(MachinePhase::Terminating, provider_id);
        machine.metadata.deletion_timestamp = Some(Time(at(0)));
        says.clone_into(&mut machine.status.last_operation.description);
        machine
    }

    #[rstest]
    #[case::mc_241_no_machine_at_all(None, Claim::Nobody)]
    #[case::mc_242_the_machine_has_it(Some(machine(MachinePhase::Running, "cloud:///v")), Claim::Own)]
    #[case::as_its_node_spells_it(Some(machine(MachinePhase::Running, "cloud://region/zone/v")), Claim::Own)]
    #[case::in_another_case_of_letters(Some(machine(MachinePhase::Running, "Cloud:///V")), Claim::Own)]
    #[case::mc_243_a_machine_in_creation(
        Some(machine(MachinePhase::CrashLoopBackOff, "cloud:///w")),
        Claim::InCreation
    )]
    #[case::a_new_machine(Some(machine(MachinePhase::Unset, "")), Claim::InCreation)]
    #[case::it_leaves_and_names_none_of_several(Some(leaving("", &several())), Claim::Leaving)]
    #[case::its_node_may_still_be_drained(Some(leaving("", &format!("code = [OutOfRange] {}", stage_text::GET_VM_STATUS))), Claim::InCreation)]
    #[case::it_leaves_and_may_have_only_this_one(
        Some(leaving("", &format!("code = [Internal] {}", stage_text::DELETE_VM))),
        Claim::InCreation
    )]
    #[case::it_stays_and_names_none_of_several(
        Some(Machine { metadata: ObjectMeta::default(), ..leaving("", &several()) }),
        Claim::InCreation
    )]
    #[case::it_leaves_with_this_one(Some(leaving("cloud:///v", &several())), Claim::Own)]
    #[case::mc_244_it_has_another_one(Some(machine(MachinePhase::Running, "cloud:///w")), Claim::OtherVm("cloud:///w".to_owned()))]
    #[case::mc_245_pending_without_identity(Some(machine(MachinePhase::Pending, "")), Claim::InCreation)]
    #[case::a_failed_one_without_identity(Some(machine(MachinePhase::Failed, "")), Claim::InCreation)]
    #[case::one_that_is_deleted_and_has_another(Some(machine(MachinePhase::Terminating, "cloud:///w")), Claim::OtherVm("cloud:///w".to_owned()))]
    fn a_machine_claims_its_vm(#[case] machine: Option<Machine>, #[case] expected: Claim) {
        assert_eq!(claim("cloud:///v", machine.map(Into::into).as_ref()), expected);
    }

    #[rstest]
    #[case::a_new_spelling(machine(MachinePhase::Running, "cloud:///w"), true)]
    #[case::its_vm_has_been_deleted(leaving("cloud:///w", ""), false)]
    fn a_machine_whose_vm_is_not_listed_causes_doubt(#[case] machine: Machine, #[case] expected: bool) {
        let machine: MachineSnapshot = machine.into();
        let claim = claim("cloud:///v", Some(&machine)).on_list_of(&Instances::default(), "cloud:///v");
        assert_eq!(claim, Claim::Respelled("cloud:///w".to_owned()), "the VM is kept");
        assert_eq!(claim.doubt(Some(&machine)).is_some(), expected);
    }

    #[rstest]
    #[case::another_zone("gce:///p/z-1/m", "gce:///p/z-2/m", &["gce:///p/z-1/m"], Claim::OtherVm("gce:///p/z-2/m".to_owned()))]
    #[case::a_project_by_its_number("gce:///123/z-1/m", "gce:///p/z-1/m", &["gce:///123/z-1/m"], Claim::Own)]
    #[case::a_zone_is_missing("gce:///p/z-1/m", "gce:///p/m", &["gce:///p/z-1/m"], Claim::Own)]
    #[case::as_its_node_spells_it("gce:///p/z-1/m", "gce://p/z-1/m", &["gce:///p/z-1/m"], Claim::Own)]
    #[case::another_cloud_s_ids("cloud:///a/m", "cloud:///b/m", &["cloud:///a/m"], Claim::Own)]
    fn a_vm_with_the_name_of_a_machine_in_another_zone_is_no_machine_s(
        #[case] vm: &str,
        #[case] own: &str,
        #[case] listed: &[&str],
        #[case] expected: Claim,
    ) {
        let machine: MachineSnapshot = machine(MachinePhase::Running, own).into();
        let listed: Instances = listed.iter().copied().collect();
        let entry =
            machine_driver::ListedVm { provider_id: vm.to_owned(), machine_name: "m".to_owned(), created: None };
        let held: Instances = [own].into_iter().collect();
        assert_eq!(claim_in_stores(&entry, &held, Some(&machine)).on_list_of(&listed, vm), expected);
        assert_eq!(claim(vm, Some(&machine)).on_list_of(&listed, vm), expected, "as the API server shows it");
    }

    fn vm(id: &str, claim: Claim) -> ListedVm {
        ListedVm { provider_id: id.to_owned(), machine: "m".to_owned(), created: None, claim }
    }

    /// A suspicion that began `seconds` ago.
    fn since(seconds: i64) -> Suspicion {
        Suspicion::Since(at(-seconds))
    }

    /// An orphan that has been suspected for `suspected` seconds and was made `made` seconds ago.
    fn decided(suspected: Option<i64>, made: Option<i64>, claim: Claim) -> Plan {
        let listed = ListedVm { created: made.map(|age| at(-age)), ..vm("v", claim) };
        decide(&Observation {
            version: OBSERVATION_VERSION,
            now: at(0),
            vms: vec![listed],
            suspects: suspected.map(|seconds| ("v".to_owned(), since(seconds))).into_iter().collect(),
            guards: Guards::default(),
        })
    }

    #[rstest]
    #[case::the_first_verdict_deletes_nothing(decided(None, None, Claim::Nobody), 0, 1, Some(60))]
    #[case::mc_241_two_verdicts_a_minute_apart(decided(Some(60), None, Claim::Nobody), 1, 1, None)]
    #[case::too_close_together(decided(Some(59), None, Claim::Nobody), 0, 1, Some(1))]
    #[case::mc_244_another_vm(decided(Some(60), None, Claim::OtherVm("w".to_owned())), 1, 1, None)]
    #[case::too_young(decided(Some(60), Some(100), Claim::Nobody), 0, 1, Some(200))]
    #[case::old_enough(decided(Some(60), Some(300), Claim::Nobody), 1, 1, None)]
    #[case::made_in_the_future_by_the_provider_s_clock(decided(Some(60), Some(-120), Claim::Nobody), 0, 1, Some(300))]
    #[case::acquitted_in_between(decided(Some(60), None, Claim::InCreation), 0, 0, None)]
    #[case::mc_242_claimed(decided(None, None, Claim::Own), 0, 0, None)]
    #[case::mc_249_the_api_server_is_silent(decided(Some(600), None, Claim::Unknown), 0, 1, Some(60))]
    #[case::never_asked_about(decided(None, None, Claim::Unknown), 0, 0, None)]
    #[case::an_entry_without_a_name(decided(Some(600), None, Claim::Unnamed), 0, 0, None)]
    fn an_orphan_is_deleted_after_two_verdicts(
        #[case] plan: Plan,
        #[case] deletions: usize,
        #[case] suspects: usize,
        #[case] next_seconds: Option<u64>,
    ) {
        assert_eq!((plan.deletions.len(), plan.suspects.len()), (deletions, suspects), "{plan:?}");
        assert_eq!(plan.next, next_seconds.map(Duration::from_secs), "{plan:?}");
    }

    #[test]
    fn mc_250_ten_go_in_one_run_and_the_rest_later() {
        let vms: Vec<ListedVm> = (0..50).map(|n| vm(&format!("v{n:02}"), Claim::Nobody)).collect();
        let suspects = vms.iter().map(|vm| (vm.provider_id.clone(), since(90))).collect();
        let plan =
            decide(&Observation { version: OBSERVATION_VERSION, now: at(0), vms, suspects, guards: Guards::default() });
        assert_eq!((plan.deletions.len(), plan.suspects.len()), (10, 50));
        assert_eq!(plan.next, Some(Duration::from_secs(60)));
    }

    /// A cloud refuses to delete 12 VMs.
    #[rstest]
    #[case::a_minute_ago(60, 0, 240)]
    #[case::almost_long_enough_ago(299, 0, 1)]
    #[case::long_enough_ago(300, 10, 60)]
    fn a_failed_deletion_is_tried_again_after_five_minutes(
        #[case] failed: i64,
        #[case] deletions: usize,
        #[case] next_seconds: u64,
    ) {
        let vms: Vec<ListedVm> = (0..12).map(|n| vm(&format!("v{n:02}"), Claim::Nobody)).collect();
        let failure = Suspicion::DeletionFailed(at(-failed));
        let suspects = vms.iter().map(|vm| (vm.provider_id.clone(), failure)).collect();
        let plan =
            decide(&Observation { version: OBSERVATION_VERSION, now: at(0), vms, suspects, guards: Guards::default() });
        assert_eq!((plan.deletions.len(), plan.next), (deletions, Some(Duration::from_secs(next_seconds))));
        assert!(plan.suspects.values().all(|suspicion| *suspicion == failure), "{:?}", plan.suspects);
    }

    #[test]
    fn a_new_orphan_goes_before_a_second_try() {
        let vms = vec![vm("refused", Claim::Nobody), vm("new", Claim::Nobody)];
        let suspects =
            [("refused".to_owned(), Suspicion::DeletionFailed(at(-310))), ("new".to_owned(), since(100))].into();
        let guards = Guards { deletions: 1, ..Guards::default() };
        let plan = decide(&Observation { version: OBSERVATION_VERSION, now: at(0), vms, suspects, guards });
        assert_eq!(plan.deletions[0].provider_id, "new", "it has been due for 40 s, and the other one for 10 s");
    }

    #[rstest]
    #[case::those_suspected_for_the_longest_time_go_first(&[70, 90, 80], &["v1", "v2"])]
    #[case::of_the_same_time_in_the_order_of_the_list(&[70, 70, 70], &["v0", "v1"])]
    #[case::only_those_that_have_waited(&[59, 60, 0], &["v1"])]
    fn the_order_of_deletions(#[case] suspected: &[i64], #[case] expected: &[&str]) {
        let id = |n: usize| format!("v{n}");
        let vms = (0..suspected.len()).map(|n| vm(&id(n), Claim::Nobody)).collect();
        let suspects = suspected.iter().enumerate().map(|(n, seconds)| (id(n), since(*seconds))).collect();
        let guards = Guards { deletions: 2, ..Guards::default() };
        let plan = decide(&Observation { version: OBSERVATION_VERSION, now: at(0), vms, suspects, guards });
        let deleted: Vec<&str> = plan.deletions.iter().map(|deletion| deletion.provider_id.as_str()).collect();
        assert_eq!(deleted, expected);
    }

    #[test]
    fn mc_288_a_vm_that_is_listed_for_a_while_after_its_end_is_suspected_and_forgotten() {
        let first = decided(None, None, Claim::Nobody);
        assert_eq!((first.deletions.len(), first.suspects.len()), (0, 1));
        let gone = Observation {
            version: OBSERVATION_VERSION,
            now: at(60),
            vms: Vec::new(),
            suspects: first.suspects,
            guards: Guards::default(),
        };
        assert_eq!(decide(&gone), Plan::default());
    }

    #[test]
    fn what_is_listed_no_more_is_no_suspect_any_more_and_an_empty_list_deletes_nothing() {
        let seen = Observation {
            version: OBSERVATION_VERSION,
            now: at(0),
            vms: Vec::new(),
            suspects: [("v".to_owned(), since(90))].into(),
            guards: Guards::default(),
        };
        assert_eq!(decide(&seen), Plan::default());
    }

    #[rstest]
    #[case::suspects_alone(&["s1", "s2", "s3", "s4", "s5"], &["s5", "s4", "s3", "s2"])]
    #[case::others_alone(&["a", "b", "c", "d", "e"], &["a", "b", "c", "d"])]
    #[case::many_of_both(&["a", "s1", "b", "s2", "c", "s3"], &["s3", "s2", "a", "b"])]
    #[case::many_suspects_and_one_other(&["s1", "s2", "s3", "s4", "a"], &["s4", "s3", "s2", "a"])]
    #[case::one_suspect_and_many_others(&["a", "b", "c", "d", "s1"], &["s1", "a", "b", "c"])]
    #[case::fewer_than_may_be_read(&["a", "s1"], &["s1", "a"])]
    #[case::none(&[], &[])]
    fn suspects_and_other_vms_share_the_reads(#[case] listed: &[&str], #[case] expected: &[&str]) {
        let vms: Vec<ListedVm> = listed.iter().map(|id| vm(id, Claim::Nobody)).collect();
        let suspect = |seconds: i64| (format!("s{seconds}"), since(seconds));
        let guards = Guards { reads: 4, ..Guards::default() };
        assert_eq!(to_be_confirmed(&vms, &(1..=5).map(suspect).collect(), &guards), expected);
    }
}
