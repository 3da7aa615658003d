//! Scenarios of the cloud on simulated time (spec/providers §11.5).

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rstest::rstest;

use super::{
    Cloud, Entry, EventKind, KnownVm, Life, MachineCall, NodeAction, NodeStage, Target, Verdict, Vm, machine_key,
};
use crate::{clock::later, config::SimulationConfig, rules::Operation, template::VmTemplate};
use machine_driver::{Code, Status};

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: u64) -> Timestamp {
    later(START, Duration::from_secs(seconds))
}

/// A cloud without latencies and with these settings.
fn a_cloud(text: &str) -> Cloud {
    let config = SimulationConfig::without_latency().overlaid_by_text(text).unwrap();
    Cloud::new(Arc::new(config), 7, START)
}

fn a_call(machine: &str) -> MachineCall {
    let template = VmTemplate {
        provider: "virtual".to_owned(),
        class: "pool".to_owned(),
        region: "sim-1".to_owned(),
        zone: "sim-1a".to_owned(),
        machine_type: "sim.small".to_owned(),
        cluster: "namespace shoot".to_owned(),
        role: "class pool".to_owned(),
        ..VmTemplate::default()
    };
    MachineCall { namespace: "shoot".to_owned(), machine: machine.to_owned(), template, ..MachineCall::default() }
}

/// Creates a VM like the driver, with failure rules, but without waiting.
fn create(cloud: &mut Cloud, machine: &str, now: Timestamp) -> Result<String, Status> {
    let call = a_call(machine);
    let verdict = cloud.admit(Operation::Create, &call, now).verdict;
    if let Verdict::FailBefore(status) = verdict {
        return Err(status);
    }
    let step = cloud.create(&call, now)?;
    let created = cloud.created(step.vm, step.exists_at)?;
    if let Verdict::FailAfter(status, _) = verdict { Err(status) } else { Ok(created.vm.provider_id) }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code, |_| Code::OK)
}

fn the_vm(cloud: &Cloud) -> &Vm {
    let vms: Vec<&Vm> = cloud.vms().map(|(_, vm, _)| vm).collect();
    assert_eq!(vms.len(), 1, "{vms:?}");
    cloud.vms().next().unwrap().1
}

#[test]
fn a_vm_passes_its_steps_at_their_times() {
    let mut cloud = a_cloud("latency: {create: 2s, boot: 20s, ready: 5s, delete: 10s}");
    let call = a_call("m");
    let step = cloud.create(&call, START).unwrap();
    assert_eq!(step.exists_at, at(2));
    assert_eq!(code(cloud.status(&call, at(1))), Code::NotFound);
    assert_eq!(code(cloud.status(&call, at(2))), Code::OK);
    assert_eq!(cloud.next_deadline(), Some(at(22)));
    cloud.advance(at(22));
    assert_eq!(the_vm(&cloud).node, NodeStage::Registered);
    cloud.advance(at(27));
    assert_eq!(the_vm(&cloud).node, NodeStage::Ready);
    assert_eq!(cloud.next_deadline(), None);
    assert_eq!(cloud.delete(&call, at(30)), Ok(at(40)));
    assert_eq!(code(cloud.create(&call, at(35))), Code::Aborted);
    assert_eq!(code(cloud.status(&call, at(40))), Code::NotFound);
    assert_eq!(code(cloud.delete(&call, at(41))), Code::NotFound);
    let actions: Vec<NodeAction> = cloud.take_notices().into_iter().map(|notice| notice.action).collect();
    assert_eq!(actions, [NodeAction::Show, NodeAction::Show, NodeAction::Stop, NodeAction::Gone]);
}

#[test]
fn a_node_that_is_ready_at_once_gets_one_notice() {
    let mut cloud = a_cloud("");
    create(&mut cloud, "m", START).unwrap();
    assert_eq!(cloud.take_notices().len(), 1);
    assert_eq!(the_vm(&cloud).node, NodeStage::Ready);
}

#[test]
fn a_second_create_finds_the_existing_or_requested_vm() {
    let mut cloud = a_cloud("latency: {create: 10s}");
    let call = a_call("m");
    let first = cloud.create(&call, START).unwrap();
    // The first caller stopped waiting. The VM is created nevertheless.
    assert_eq!(cloud.create(&call, at(4)), Ok(first));
    assert_eq!(cloud.create(&call, at(20)).map(|step| step.vm), Ok(first.vm));
    assert_eq!(cloud.len(), 1);
}

#[test]
fn a_vm_of_another_owner_is_neither_adopted_nor_deleted() {
    let mut cloud = a_cloud("");
    let call = a_call("m");
    cloud.create(&call, START).unwrap();
    let mut foreign = call.clone();
    foreign.template.cluster = "other".to_owned();
    assert_eq!(code(cloud.create(&foreign, START)), Code::AlreadyExists);
    assert_eq!(code(cloud.delete(&foreign, START)), Code::NotFound);
    assert_eq!(cloud.list(&foreign, START), Vec::new());
    assert_eq!(cloud.list(&call, START).len(), 1);
}

#[test]
fn v02_a_quota_of_five_lets_the_sixth_wait_for_a_deletion() {
    let mut cloud = a_cloud("quota: [{zone: sim-1a, max: 5}]");
    let codes: Vec<Code> = (0..6).map(|n| code(create(&mut cloud, &format!("m-{n}"), START))).collect();
    assert_eq!(codes, [Code::OK, Code::OK, Code::OK, Code::OK, Code::OK, Code::ResourceExhausted]);
    cloud.delete(&a_call("m-0"), START).unwrap();
    assert_eq!(code(create(&mut cloud, "m-5", START)), Code::OK);
}

#[test]
fn cores_have_a_quota_too() {
    let mut cloud = a_cloud("quota: [{vcpus: 2}]");
    let codes: Vec<Code> = (0..3).map(|n| code(create(&mut cloud, &format!("m-{n}"), START))).collect();
    assert_eq!(codes, [Code::OK, Code::OK, Code::ResourceExhausted]);
}

#[test]
fn v03_a_lost_reply_is_followed_by_adoption() {
    let mut cloud = a_cloud("failures: [{op: create, count: 1, effect: created-but-error}]");
    assert_eq!(code(create(&mut cloud, "m", START)), Code::Unknown);
    assert_eq!(cloud.len(), 1);
    let adopted = create(&mut cloud, "m", START).unwrap();
    assert_eq!(adopted, *the_vm(&cloud).provider_id);
}

#[test]
fn v04_two_vms_of_one_machine_are_out_of_range_until_the_surplus_is_deleted() {
    let mut cloud = a_cloud("outcomes: [{effect: duplicate-vm}]");
    let id = create(&mut cloud, "m", START).unwrap();
    let call = a_call("m");
    let status = cloud.status(&call, START).unwrap_err();
    assert_eq!(status.code, Code::OutOfRange);
    let listed = cloud.list(&call, START);
    let surplus = listed.iter().find(|vm| vm.provider_id != id).unwrap();
    assert_eq!((listed.len(), surplus.machine_name.as_str()), (2, "m"));
    let orphan = MachineCall { provider_id: surplus.provider_id.clone(), target: Target::OneVm, ..call.clone() };
    cloud.delete(&orphan, START).unwrap();
    assert_eq!(cloud.status(&call, START).unwrap().provider_id, id);
}

#[test]
fn deleting_a_machine_ends_all_its_vms() {
    let mut cloud = a_cloud("outcomes: [{effect: duplicate-vm}]");
    let provider_id = create(&mut cloud, "m", START).unwrap();
    cloud.delete(&MachineCall { provider_id, ..a_call("m") }, START).unwrap();
    assert!(cloud.is_empty());
}

#[test]
fn c06_an_uninitialised_vm_is_returned_with_its_identity_until_it_is_initialised() {
    let mut cloud = a_cloud("outcomes: [{effect: uninitialized}]");
    let id = create(&mut cloud, "m", START).unwrap();
    let call = a_call("m");
    let status = cloud.status(&call, START).unwrap_err();
    assert_eq!((status.code, status.partial.unwrap().provider_id), (Code::Uninitialized, id.clone()));
    assert_eq!(cloud.initialize(&call, START).unwrap().provider_id, id);
    assert_eq!(code(cloud.status(&call, START)), Code::OK);
}

#[test]
fn a_vm_that_never_joins_has_no_node() {
    let mut cloud = a_cloud("outcomes: [{effect: never-joins}]");
    create(&mut cloud, "m", START).unwrap();
    cloud.advance(at(100_000));
    assert_eq!((the_vm(&cloud).node, cloud.take_notices()), (NodeStage::Absent, Vec::new()));
}

#[test]
fn a_node_breaks_after_its_time_and_stays_so() {
    let mut cloud = a_cloud("outcomes: [{effect: joins-then-notready, after: 20m}]");
    create(&mut cloud, "m", START).unwrap();
    cloud.advance(at(1199));
    assert_eq!(the_vm(&cloud).node, NodeStage::Ready);
    cloud.advance(at(1200));
    assert_eq!(the_vm(&cloud).node, NodeStage::Broken);
}

#[test]
fn a_broken_node_recovers_on_request() {
    let mut cloud = a_cloud("");
    create(&mut cloud, "m", START).unwrap();
    cloud.advance(at(600));
    let vm = cloud.vms().next().unwrap().0;
    cloud.breaks(vm, at(600));
    cloud.take_notices();
    cloud.recovers(vm, at(700));
    assert_eq!((the_vm(&cloud).node, cloud.take_notices().len()), (NodeStage::Ready, 1), "its kubelet is told");
    cloud.recovers(vm, at(701));
    assert_eq!(cloud.take_notices(), Vec::new(), "one that is ready has nothing to recover from");
}

#[test]
fn a_vm_vanishes_after_its_time() {
    let mut cloud = a_cloud("outcomes: [{effect: vanishes, after: 1h}]");
    create(&mut cloud, "m", START).unwrap();
    cloud.advance(at(3599));
    assert_eq!(cloud.len(), 1);
    cloud.advance(at(3600));
    assert!(cloud.is_empty());
}

#[test]
fn v06_an_interrupted_vm_is_gone_when_the_notice_has_passed() {
    let mut cloud = a_cloud("");
    create(&mut cloud, "m", START).unwrap();
    let vm = cloud.vms().next().unwrap().0;
    cloud.take_notices();
    cloud.is_interrupted(vm, at(10));
    cloud.advance(at(129));
    assert_eq!(the_vm(&cloud).life, Life::Running);
    cloud.advance(at(130));
    assert!(cloud.is_empty());
    let actions: Vec<NodeAction> = cloud.take_notices().into_iter().map(|notice| notice.action).collect();
    assert_eq!(actions, [NodeAction::Stop, NodeAction::Gone]);
}

#[test]
fn spot_vms_live_about_their_mean_time() {
    let spot = "spot: {match: {machineType: \"sim.*\"}, meanTimeToInterrupt: 2h, notice: 2m}";
    let mut cloud = a_cloud(spot);
    for n in 0..400 {
        create(&mut cloud, &format!("m-{n}"), START).unwrap();
    }
    // Half of them should have ended after ln 2 times the mean.
    cloud.advance(at(120 + 4990));
    assert!((160..240).contains(&cloud.len()), "{} of 400 are left", cloud.len());
}

#[test]
fn answers_lag_behind_the_state() {
    let mut cloud = a_cloud("consistency: {getLag: 5s, listLag: 10s}");
    let call = a_call("m");
    cloud.create(&call, START).unwrap();
    let seen =
        |cloud: &mut Cloud, seconds| (code(cloud.status(&call, at(seconds))), cloud.list(&call, at(seconds)).len());
    assert_eq!(seen(&mut cloud, 4), (Code::NotFound, 0));
    assert_eq!(seen(&mut cloud, 5), (Code::OK, 0));
    assert_eq!(seen(&mut cloud, 10), (Code::OK, 1));
    cloud.delete(&call, at(20)).unwrap();
    assert_eq!(code(cloud.delete(&call, at(20))), Code::NotFound);
    assert_eq!(seen(&mut cloud, 24), (Code::OK, 1));
    assert_eq!(seen(&mut cloud, 26), (Code::NotFound, 1));
    assert_eq!(seen(&mut cloud, 30), (Code::NotFound, 0));
    assert!(cloud.is_empty());
}

#[test]
fn a_deletion_by_name_finds_visible_vms_and_one_by_id_all() {
    let mut cloud = a_cloud("consistency: {getLag: 5s}");
    let by_name = a_call("m");
    let vm = cloud.create(&by_name, START).unwrap().vm;
    let provider_id = cloud.created(vm, START).unwrap().vm.provider_id;
    assert_eq!(code(cloud.delete(&by_name, at(4))), Code::NotFound);
    assert!(!cloud.is_empty());
    let by_identity = MachineCall { provider_id, ..by_name };
    assert_eq!(code(cloud.delete(&by_identity, at(4))), Code::OK);
}

#[test]
fn a_deleted_vm_that_is_still_visible_does_not_prevent_a_new_one() {
    let mut cloud = a_cloud("consistency: {listLag: 1m}");
    let first = create(&mut cloud, "m", START).unwrap();
    cloud.delete(&a_call("m"), at(1)).unwrap();
    let second = create(&mut cloud, "m", at(2)).unwrap();
    assert_ne!(first, second);
    assert_eq!(cloud.status(&a_call("m"), at(3)).unwrap().provider_id, second);
}

#[test]
fn too_many_calls_are_throttled_until_the_bucket_fills() {
    let mut cloud = a_cloud("rateLimit: {qps: 1, burst: 2}");
    let mut call = |seconds| cloud.admit(Operation::Status, &a_call("m"), at(seconds)).verdict;
    assert_eq!([call(0), call(0)], [Verdict::Go, Verdict::Go]);
    assert_eq!(call(0), Verdict::FailBefore(Status::new(Code::Unavailable, "throttled")));
    assert_eq!(call(1), Verdict::Go);
}

#[test]
fn a_rule_with_a_count_matches_that_often() {
    let mut cloud = a_cloud("failures: [{op: delete, machine: m-7, count: 3, code: Unavailable}]");
    let hits = |cloud: &mut Cloud, machine: &str| {
        let verdict = cloud.admit(Operation::Delete, &a_call(machine), START).verdict;
        verdict != Verdict::Go
    };
    assert!(!hits(&mut cloud, "m-6"));
    assert_eq!([(); 4].map(|()| hits(&mut cloud, "m-7")), [true, true, true, false]);
}

#[test]
fn a_hanging_call_goes_on_afterwards() {
    let mut cloud = a_cloud("failures: [{op: create, effect: hang, for: 3m}]");
    let admission = cloud.admit(Operation::Create, &a_call("m"), START);
    assert_eq!((admission.hang, admission.verdict), (Some(Duration::from_secs(180)), Verdict::Go));
}

#[test]
fn the_order_of_machines_changes_nothing_for_any_of_them() {
    let story = |order: Vec<u32>| {
        let mut cloud = a_cloud(
            "latency: {boot: {normal: {mean: 25s, sd: 5s}}}
failures: [{op: create, rate: 0.2, code: Internal}]
outcomes: [{rate: 0.1, effect: vanishes, after: 1m}]",
        );
        for n in order {
            for _ in 0..3 {
                drop(create(&mut cloud, &format!("m-{n}"), START));
            }
        }
        cloud.advance(at(600));
        cloud.events()
    };
    assert_eq!(story((0..100).collect()), story((0..100).rev().collect()));
}

/// The cloud after a restart with a journal.
fn restarted(cloud: &Cloud, config: &str, now: Timestamp) -> Cloud {
    let written: Vec<Entry> = cloud
        .snapshot()
        .iter()
        .map(|entry| serde_json::from_str(&serde_json::to_string(entry).unwrap()).unwrap())
        .collect();
    let mut again = a_cloud(config);
    again.restore(written);
    again.advance(now);
    again
}

#[test]
fn v05_after_a_restart_the_vm_is_adopted_and_deadlines_that_passed_have_happened() {
    let config = "latency: {create: 2s, boot: 20s, ready: 5s}";
    let mut cloud = a_cloud(config);
    let call = a_call("m");
    cloud.create(&call, START).unwrap();
    let mut again = restarted(&cloud, config, at(27));
    assert_eq!((the_vm(&again).node, &the_vm(&again).provider_id), (NodeStage::Ready, &the_vm(&cloud).provider_id));
    let adopted = again.create(&call, at(28)).unwrap();
    assert_eq!(again.created(adopted.vm, at(28)).unwrap().vm.provider_id, *the_vm(&cloud).provider_id);
    assert_eq!(again.len(), 1);
}

#[test]
fn a_vm_that_was_being_deleted_is_gone_after_a_restart() {
    let config = "latency: {delete: 1m}";
    let mut cloud = a_cloud(config);
    create(&mut cloud, "m", START).unwrap();
    cloud.delete(&a_call("m"), at(1)).unwrap();
    assert_eq!(restarted(&cloud, config, at(60)).len(), 1);
    assert_eq!(restarted(&cloud, config, at(61)).len(), 0);
}

#[test]
fn counters_survive_so_that_no_identity_is_given_twice() {
    let mut cloud = a_cloud("");
    let first = create(&mut cloud, "m", START).unwrap();
    create(&mut cloud, "other", START).unwrap();
    cloud.delete(&a_call("m"), START).unwrap();
    let mut changes = cloud.snapshot();
    changes.extend(cloud.take_changes());
    let mut again = a_cloud("");
    again.restore(changes);
    assert_ne!(create(&mut again, "m", START).unwrap(), first);
}

/// The records of all VMs, sorted.
fn records(cloud: &Cloud) -> Vec<String> {
    let snapshot = cloud.snapshot();
    let mut vms: Vec<String> =
        snapshot.iter().filter(|entry| matches!(entry, Entry::Vm(_))).map(Entry::to_json).collect();
    vms.sort();
    vms
}

#[test]
fn changes_replayed_over_a_snapshot_give_the_same_cloud() {
    let mut cloud = a_cloud("latency: {delete: 1m}");
    create(&mut cloud, "a", START).unwrap();
    let mut entries = cloud.snapshot();
    drop(cloud.take_changes());
    create(&mut cloud, "b", START).unwrap();
    cloud.delete(&a_call("a"), START).unwrap();
    entries.extend(cloud.take_changes());
    let mut again = a_cloud("");
    again.restore(entries);
    assert_eq!(records(&again), records(&cloud));
    again.advance(at(60));
    assert_eq!(&*the_vm(&again).key, "shoot/b");
}

#[rstest]
#[case::of_a_known_class("shoot")]
#[case::of_any_namespace("elsewhere")]
fn a_vm_of_the_exchange_format_is_adopted_by_its_machines_name(#[case] namespace: &str) {
    let mut cloud = a_cloud("latency: {boot: 5s}");
    cloud.adopt(KnownVm {
        node_name: "m".to_owned(),
        provider_id: "virtual:///r/z/i-1".to_owned(),
        key: machine_key("", "m"),
        template: None,
        created: START,
        stage: NodeStage::Absent,
    });
    let call = MachineCall { namespace: namespace.to_owned(), ..a_call("m") };
    assert_eq!(cloud.list(&call, at(100)).len(), 1);
    let step = cloud.create(&call, at(100)).unwrap();
    assert_eq!(cloud.created(step.vm, at(100)).unwrap().vm.provider_id, "virtual:///r/z/i-1");
    let vm = the_vm(&cloud);
    assert_eq!((vm.namespace(), vm.node), (namespace, NodeStage::Ready));
    assert!(records(&cloud)[0].contains("virtual:///r/z/i-1"), "{:?}", records(&cloud));
}

#[test]
fn v11_ten_thousand_vms_have_ten_thousand_identities_and_addresses() {
    let mut cloud = a_cloud("");
    for n in 0..10_000 {
        create(&mut cloud, &format!("fleet-{n:05}"), START).unwrap();
    }
    let mut ids = std::collections::BTreeSet::new();
    let mut addresses = std::collections::BTreeSet::new();
    for (_, vm, _) in cloud.vms() {
        assert_eq!((vm.life, vm.node), (Life::Running, NodeStage::Ready));
        ids.insert(vm.provider_id.clone());
        addresses.insert(vm.address);
    }
    assert_eq!((ids.len(), addresses.len()), (10_000, 10_000));
    // With its two strings (about 90 bytes), its record of the machine (60) and its index entries (60) this is below 400 bytes.
    assert!(size_of::<Vm>() <= 184, "a VM takes {} bytes", size_of::<Vm>());
}

#[test]
fn the_events_of_a_machine_are_in_their_order() {
    let mut cloud = a_cloud("failures: [{op: create, count: 1, code: ResourceExhausted}]");
    drop(create(&mut cloud, "m", START));
    let id: Box<str> = create(&mut cloud, "m", START).unwrap().into();
    let kinds: Vec<EventKind> = cloud.events().into_iter().map(|event| event.kind).collect();
    let failed = EventKind::CallFailed { operation: "create", attempt: 1, code: "ResourceExhausted" };
    assert_eq!(
        kinds,
        [
            failed,
            EventKind::Ordered { id: id.clone() },
            EventKind::Running { id },
            EventKind::NodeRegisters,
            EventKind::NodeReady,
        ]
    );
}
