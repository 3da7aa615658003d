//! Scenarios of spec/machine-controller §17.3 and §17.4 on the pure decision.

use crate::{
    machine::{
        decide::decide,
        observation::{
            Answer, Call, ClassState, Flow, Freeze, Namesake, NodeView, Observation, Pause, Purpose, SecretView,
            TargetCluster, UserData,
        },
        plan::{Effect, Next, Plan},
        testing::*,
    },
    snapshots::MachineSnapshot,
};
use k8s_openapi::{
    api::core::v1::NodeAddress,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::ResourceExt;
use rstest::rstest;

use machine_api::{
    names::{annotation, finalizer, label, stage_text},
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, CreatedVm, SameInstance, Status, VmIdentity};

fn vm(node: &str) -> VmIdentity {
    VmIdentity { provider_id: "cloud:///n".to_owned(), node_name: node.to_owned(), addresses: Vec::new() }
}

fn created(node: &str) -> Answer {
    Answer::Created(Ok(CreatedVm { vm: vm(node), last_known_state: None }))
}

fn fails(code: Code) -> Answer {
    Answer::Created(Err(Status::new(code, "no")))
}

/// The observation of a machine after these answers, in this order.
fn observed(machine: impl Into<MachineSnapshot>, second: i64, answers: Vec<Answer>) -> Observation {
    let mut seen = seen(machine, second);
    for answer in answers {
        seen.flow.learn(answer);
    }
    seen
}

fn not_found() -> Answer {
    Answer::Status(Err(Status::new(Code::NotFound, "no VM")))
}

fn has_warning(plan: &Plan, wanted: &str) -> bool {
    plan.effects.iter().any(|effect| matches!(effect, Effect::Warn { reason, .. } if *reason == wanted))
}

/// The VM may run, but its Node can never be found by a label.
#[test]
fn a_vm_whose_node_can_not_be_linked_is_reported() {
    let long = "a-very-long-name-of-a-node-which-is-longer-than-any-value-of-a-label-may-be";
    let seen = observed(machine(), 1, vec![not_found(), created(long)]);
    let status = after(&decide(&seen), &seen.machine).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::CrashLoopBackOff);
    let observed = &status.last_operation.description;
    assert!(observed.contains(long) && observed.contains("must be no more than 63 bytes"), "{observed}");
}

#[test]
fn mc_033_a_machine_without_finalizer_gets_it_and_nothing_else() {
    let mut bare = machine();
    bare.metadata.finalizers = Some(vec!["other".to_owned()]);
    let plan = decide(&seen(bare.clone(), 0));
    assert_eq!(plan.effects.len(), 1);
    assert_eq!(after(&plan, &bare).metadata().finalizers, ["other", finalizer::MACHINE]);
}

#[test]
fn mc_034_a_machine_with_finalizer_asks_the_driver_at_once() {
    assert_eq!(decide(&seen(machine(), 0)).effects, [Effect::Start(Call::Status)]);
}

#[test]
fn mc_036_while_frozen_no_driver_is_called() {
    let mut seen = seen(machine(), 0);
    seen.freeze = Freeze::Frozen;
    assert_eq!(decide(&seen), Plan::wait("frozen", Next::Settled));
}

#[rstest]
#[case::mc_038_class_absent(ClassState::Absent, "FailedPrecondition", "ClassNotUsable")]
#[case::mc_052_no_class_named(ClassState::NotNamed, "InvalidArgument", "ClassNotUsable")]
#[case::mc_041_template_incomplete(
    ClassState::NodeTemplateInvalid("x".to_owned()),
    "FailedPrecondition",
    "NodeTemplateInvalid"
)]
fn an_unusable_class_is_reported_and_nothing_is_made(
    #[case] state: ClassState,
    #[case] code: &str,
    #[case] reason: &str,
) {
    let mut seen = seen(machine(), 0);
    seen.class.state = state;
    let plan = decide(&seen);
    let status = after(&plan, &machine()).status().clone();
    assert_eq!(starts(&plan), None);
    assert_eq!(status.last_operation.error_code, code);
    assert_eq!(status.last_operation.state, OperationState::Failed);
    assert_eq!(status.current_status.phase, MachinePhase::CrashLoopBackOff);
    assert!(has_warning(&plan, reason));
}

#[test]
fn mc_040_a_class_that_still_lacks_its_finalizer_is_waited_for_without_a_write() {
    let mut seen = seen(machine(), 0);
    seen.class.state = ClassState::WithoutFinalizer;
    let plan = decide(&seen);
    assert!(plan.effects.is_empty());
    assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 5));
}

#[rstest]
#[case::mc_045_mc_047_a_secret_is_missing(SecretView::Missing(vec!["ns/s".to_owned()]), "FailedPrecondition", "SecretNotUsable")]
#[case::mc_046_no_user_data(SecretView::Present(UserData::KeyMissing), "InvalidArgument", "UserDataMissing")]
fn unusable_secrets_are_reported(#[case] secrets: SecretView, #[case] code: &str, #[case] reason: &str) {
    let mut seen = seen(machine(), 0);
    seen.secrets = secrets;
    let plan = decide(&seen);
    assert_eq!(after(&plan, &machine()).last_operation().error_code, code);
    assert!(has_warning(&plan, reason));
}

#[test]
fn mc_046_a_machine_without_user_data_fails_after_the_creation_timeout() {
    let mut seen = seen(machine(), 1201);
    seen.secrets = SecretView::Present(UserData::KeyMissing);
    assert_eq!(*after(&decide(&seen), &machine()).phase(), MachinePhase::Failed);
}

#[test]
fn a_class_without_any_secret_leaves_user_data_to_the_driver() {
    let mut seen = observed(machine(), 0, vec![not_found()]);
    seen.secrets = SecretView::Present(UserData::NotNamed);
    assert_eq!(starts(&decide(&seen)), Some(Call::Create));
}

#[rstest]
#[case::mc_054_not_found(Code::NotFound)]
#[case::mc_056_unimplemented(Code::Unimplemented)]
fn without_a_vm_one_is_made_after_a_last_look_at_the_machine(#[case] code: Code) {
    let plan = decide(&observed(machine(), 0, vec![Answer::Status(Err(Status::new(code, "")))]));
    assert_eq!(plan.effects, [Effect::RereadMachine, Effect::CheckInputs, Effect::Start(Call::Create)]);
}

#[test]
fn a_token_is_made_only_right_before_the_create() {
    let mut asking = seen(machine(), 0);
    asking.secrets = SecretView::Present(UserData::NeedsToken);
    assert_eq!(decide(&asking).effects, [Effect::Start(Call::Status)]);
    asking.flow.learn(not_found());
    assert_eq!(
        decide(&asking).effects,
        [Effect::RereadMachine, Effect::EnsureToken, Effect::CheckInputs, Effect::Start(Call::Create)]
    );
}

#[test]
fn a_repeated_create_is_not_preceded_by_a_read() {
    let again = in_phase(MachinePhase::CrashLoopBackOff, 0, OperationType::Create, OperationState::Failed);
    let mut again = Machine { spec: machine().spec, ..again };
    again.labels_mut().clear();
    assert_eq!(
        decide(&observed(again, 60, vec![not_found()])).effects,
        [Effect::CheckInputs, Effect::Start(Call::Create)]
    );
}

#[test]
fn mc_054_the_triple_is_one_write() {
    let plan = decide(&observed(machine(), 1, vec![not_found(), created("n")]));
    assert_eq!(machine_writes(&plan), ["machine"]);
    let machine = after(&plan, &machine());
    assert_eq!(machine.labels()[label::NODE], "n");
    assert_eq!(machine.annotations()[annotation::MACHINE_PRIORITY], "3");
    assert_eq!(machine.provider_id(), "cloud:///n");
}

#[test]
fn mc_055_a_priority_that_was_set_stays() {
    let mut machine = machine();
    machine.annotations_mut().insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned());
    let plan = decide(&observed(machine.clone(), 1, vec![created("n")]));
    assert_eq!(after(&plan, &machine).annotations()[annotation::MACHINE_PRIORITY], "1");
}

#[rstest]
#[case::mc_057_a_lost_reply(Answer::Status(Ok(vm("n"))))]
#[case::mc_084_a_crash_after_the_create(Answer::Status(Ok(vm("n"))))]
fn a_vm_that_exists_is_adopted(#[case] answer: Answer) {
    let plan = decide(&observed(machine(), 1, vec![answer]));
    assert_eq!(starts(&plan), None);
    assert_eq!(after(&plan, &machine()).provider_id(), "cloud:///n");
}

#[test]
fn after_the_identity_the_vm_is_initialised_and_then_pending_is_written() {
    let observed_creation = observed(recorded(), 1, vec![created("n")]);
    assert_eq!(starts(&decide(&observed_creation)), Some(Call::Initialize));
    let mut initialised = observed_creation;
    initialised.flow.learn(Answer::Initialized(Ok(VmIdentity::default())));
    let plan = decide(&initialised);
    assert_eq!(machine_writes(&plan), ["status"]);
    let status = after(&plan, &recorded()).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Pending);
    assert!(status.current_status.timeout_active);
    assert_eq!(status.last_operation.description, "Creating machine on cloud provider");
    assert_eq!(status.last_operation.state, OperationState::Processing);
}

#[test]
fn mc_078_initialisation_is_optional() {
    let unimplemented = Answer::Initialized(Err(Status::new(Code::Unimplemented, "")));
    let plan = decide(&observed(recorded(), 1, vec![created("n"), unimplemented]));
    assert_eq!(*after(&plan, &recorded()).phase(), MachinePhase::Pending);
}

#[test]
fn mc_079_a_failed_initialisation_is_reported_with_its_marker() {
    let broken = Answer::Initialized(Err(Status::new(Code::Internal, "boom")));
    let plan = decide(&observed(recorded(), 1, vec![created("n"), broken]));
    let status = after(&plan, &recorded()).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::CrashLoopBackOff);
    assert_eq!(status.last_operation.error_code, "Internal");
    assert_eq!(
        status.last_operation.description,
        "Provider error: machine codes error: code = [Internal] message = [boom]. Initialize VM Instance"
    );
    assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 5));
}

#[test]
fn mc_082_a_failed_initialisation_is_repeated_although_the_driver_finds_the_vm_in_order() {
    let mut machine = in_phase(MachinePhase::CrashLoopBackOff, 1, OperationType::Create, OperationState::Failed);
    machine.status.last_operation.description = format!("Provider error: x. {}", stage_text::INITIALIZE_VM);
    assert_eq!(starts(&decide(&observed(machine, 10, vec![Answer::Status(Ok(vm("n")))]))), Some(Call::Initialize));
}

#[test]
fn mc_080_an_uninitialised_vm_is_recorded_and_initialised_but_not_made() {
    let status = Status::new(Code::Uninitialized, "").with_partial(vm("n"));
    let observed = |machine| observed(machine, 1, vec![Answer::Status(Err(status.clone()))]);
    assert_eq!(after(&decide(&observed(machine())), &machine()).provider_id(), "cloud:///n");
    assert_eq!(starts(&decide(&observed(recorded()))), Some(Call::Initialize));
}

#[test]
fn mc_081_an_uninitialised_vm_without_data_is_reported() {
    let plan = decide(&observed(machine(), 1, vec![Answer::Status(Err(Status::new(Code::Uninitialized, "")))]));
    assert_eq!(after(&plan, &machine()).last_operation().error_code, "Internal");
}

#[rstest]
#[case::mc_083_a_crash_before_pending(Answer::Status(Ok(vm("n"))))]
#[case::mc_049_a_restored_machine(Answer::Status(Ok(vm("n"))))]
#[case::mc_050_a_restored_machine_whose_vm_is_not_found(not_found())]
fn a_recorded_machine_without_phase_becomes_pending_without_a_create(#[case] answer: Answer) {
    let plan = decide(&observed(recorded(), 1, vec![answer]));
    assert_eq!(starts(&plan), None);
    assert_eq!(*after(&plan, &recorded()).phase(), MachinePhase::Pending);
}

#[test]
fn a_vm_that_is_initialised_although_the_driver_does_not_find_it_is_not_asked_for_again() {
    let mut stored = recorded();
    stored.status.current_status.phase = MachinePhase::CrashLoopBackOff;
    stored.status.last_operation.operation = OperationType::Create;
    stored.status.last_operation.state = OperationState::Failed;
    stored.status.last_operation.description = format!("no answer. {}", stage_text::INITIALIZE_VM);
    assert_eq!(starts(&decide(&observed(stored.clone(), 1, vec![not_found()]))), Some(Call::Initialize));
    let plan = decide(&observed(stored.clone(), 1, vec![not_found(), Answer::Initialized(Ok(VmIdentity::default()))]));
    assert_eq!(starts(&plan), None);
    assert_eq!(*after(&plan, &stored).phase(), MachinePhase::Pending);
}

#[test]
fn mc_060_a_vm_without_node_name_is_an_error() {
    let plan = decide(&observed(machine(), 1, vec![created("")]));
    let status = after(&plan, &machine()).status().clone();
    assert_eq!(
        (status.last_operation.error_code.as_str(), status.current_status.phase),
        ("Internal", MachinePhase::CrashLoopBackOff)
    );
}

#[test]
fn mc_061_mc_062_without_target_the_machine_is_available_with_all_addresses() {
    let mut stored = machine();
    stored.annotations_mut().insert(annotation::MACHINE_PRIORITY.to_owned(), "3".to_owned());
    stored.spec.provider_id = "cloud:///n".to_owned();
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    stored.status.addresses = vec![address("InternalIP", "10.0.0.9")];
    let mut made = vm("n");
    made.addresses = vec![address("InternalIP", "10.0.0.1")];
    let more = VmIdentity { addresses: vec![address("ExternalIP", "1.2.3.4")], ..VmIdentity::default() };
    let answers = vec![
        Answer::Created(Ok(CreatedVm { vm: made, last_known_state: Some("s".to_owned()) })),
        Answer::Initialized(Ok(more)),
    ];
    let mut seen = observed(stored.clone(), 1, answers);
    seen.target = TargetCluster::None;
    seen.node = NodeView::NoTarget;
    let status = after(&decide(&seen), &stored).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Available);
    assert_eq!(status.last_operation.state, OperationState::Successful);
    assert_eq!(status.last_known_state, "s");
    let addresses: Vec<String> =
        status.addresses.iter().map(|address| format!("{}={}", address.type_, address.address)).collect();
    assert_eq!(addresses, ["ExternalIP=1.2.3.4", "Hostname=n", "InternalIP=10.0.0.1", "InternalIP=10.0.0.9"]);
}

#[test]
fn mc_061_without_target_no_node_label_is_written() {
    let mut seen = observed(machine(), 1, vec![created("n")]);
    seen.target = TargetCluster::None;
    seen.node = NodeView::NoTarget;
    let machine = after(&decide(&seen), &machine());
    assert!(!machine.labels().contains_key(label::NODE));
    assert_eq!(machine.provider_id(), "cloud:///n");
}

#[rstest]
#[case::mc_063_no_capacity(Code::ResourceExhausted, 180, MachinePhase::CrashLoopBackOff, 600)]
#[case::mc_064_no_capacity_too_long(Code::ResourceExhausted, 1260, MachinePhase::Failed, 600)]
#[case::mc_065_busy(Code::Unavailable, 180, MachinePhase::CrashLoopBackOff, 5)]
#[case::mc_066_a_wrong_class(Code::InvalidArgument, 180, MachinePhase::CrashLoopBackOff, 180)]
#[case::mc_091_a_hanging_driver(Code::DeadlineExceeded, 180, MachinePhase::CrashLoopBackOff, 5)]
fn after_a_failed_create(#[case] code: Code, #[case] age: i64, #[case] phase: MachinePhase, #[case] retry: u64) {
    let plan = decide(&observed(machine(), age, vec![fails(code)]));
    let status = after(&plan, &machine()).status().clone();
    assert_eq!(status.current_status.phase, phase);
    assert_eq!(status.last_operation.error_code, code.as_str());
    assert_eq!(status.last_operation.operation, OperationType::Create);
    assert!(status.last_operation.description.starts_with("Cloud provider message - machine codes error: code = ["));
    assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == retry));
}

#[rstest]
#[case::mc_063_capacity_keeps_it(Code::ResourceExhausted, None, "s1")]
#[case::mc_066_a_wrong_class_clears_it(Code::InvalidArgument, None, "")]
#[case::mc_067_the_answer_brings_a_new_one(Code::Unavailable, Some("s2"), "s2")]
fn the_drivers_memory_after_a_failure(#[case] code: Code, #[case] answered: Option<&str>, #[case] kept: &str) {
    let mut machine = machine();
    machine.status.last_known_state = "s1".to_owned();
    let mut status = Status::new(code, "no");
    status.last_known_state = answered.map(str::to_owned);
    let plan = decide(&observed(machine.clone(), 10, vec![Answer::Created(Err(status))]));
    assert_eq!(after(&plan, &machine).last_known_state(), kept);
}

fn with_state(node: &str, state: &str) -> Answer {
    Answer::Created(Ok(CreatedVm { vm: vm(node), last_known_state: Some(state.to_owned()) }))
}

fn initialisation_fails(state: Option<&str>) -> Answer {
    let mut status = Status::new(Code::Unavailable, "no");
    status.last_known_state = state.map(str::to_owned);
    Answer::Initialized(Err(status))
}

#[rstest]
#[case::its_initialisation_fails(vec![with_state("n", "s1"), initialisation_fails(None)], "s1")]
#[case::its_initialisation_fails_with_another_state(vec![with_state("n", "s1"), initialisation_fails(Some("s2"))], "s2")]
#[case::the_driver_names_no_node(vec![with_state("", "s1")], "s1")]
fn the_state_of_a_new_vm_is_stored_also_if(#[case] answers: Vec<Answer>, #[case] stored: &str) {
    let plan = decide(&observed(recorded(), 10, answers));
    assert_eq!(after(&plan, &recorded()).last_known_state(), stored);
}

/// A machine whose creation failed at second 60 with this code and request id.
fn failed_before(code: Code, message: &str) -> MachineSnapshot {
    let plan = decide(&observed(machine(), 60, vec![Answer::Created(Err(Status::new(code, message)))]));
    after(&plan, &machine())
}

#[rstest]
#[case::mc_069_another_request_id(Code::Unavailable, "request 8f3a-22: throttled", None, 120, false)]
#[case::mc_070_after_half_an_hour(Code::Unavailable, "request 8f3a-22: throttled", None, 1870, true)]
#[case::mc_071_another_code(Code::Unauthenticated, "request 8f3a-22: throttled", None, 120, true)]
#[case::mc_068_a_new_memory(Code::Unavailable, "request 8f3a-22: throttled", Some("s"), 120, true)]
#[case::another_text_alone(Code::Unavailable, "the region is down", None, 120, false)]
#[case::another_text_after_a_while(Code::Unavailable, "the region is down", None, 660, true)]
fn a_similar_failure_is_not_written_again(
    #[case] code: Code,
    #[case] message: &str,
    #[case] memory: Option<&str>,
    #[case] second: i64,
    #[case] written: bool,
) {
    let mut machine = failed_before(Code::Unavailable, "request 1a2b-33: throttled");
    machine.to_mut().metadata.creation_timestamp = Some(Time(at(0)));
    machine.to_mut().annotations_mut().insert(annotation::EFFECTIVE_CREATION_TIMEOUT.to_owned(), "2h".to_owned());
    let mut status = Status::new(code, message);
    status.last_known_state = memory.map(str::to_owned);
    let plan = decide(&observed(machine, second, vec![Answer::Created(Err(status))]));
    assert_eq!(status_change(&plan).is_some(), written);
}

#[rstest]
#[case::mc_074_an_old_node_without_an_id("n", SameInstance::Unknown, 0, true)]
#[case::mc_074_an_old_node_of_another_vm("n", SameInstance::Another, 0, true)]
#[case::mc_074_it_registered_meanwhile("n", SameInstance::Another, 9, true)]
#[case::mc_076_the_node_is_the_new_vms("n", SameInstance::Same, 0, false)]
#[case::mc_075_named_like_the_machine_and_without_an_id("m-abcde", SameInstance::Unknown, 0, false)]
#[case::mc_075_named_like_the_machine_and_younger_than_the_call("m-abcde", SameInstance::Another, 9, false)]
#[case::named_like_the_machine_and_older_than_the_call("m-abcde", SameInstance::Another, 0, true)]
#[case::named_like_the_machine_and_the_new_vms("m-abcde", SameInstance::Same, 0, false)]
fn a_stale_node_ends_the_new_vm(
    #[case] node: &str,
    #[case] instance: SameInstance,
    #[case] registered: i64,
    #[case] stale: bool,
) {
    let mut seen = observed(machine(), 10, vec![created(node)]);
    seen.flow.asked_at = Some(at(5));
    let namesake = Some(Namesake { instance, created: Some(at(registered)) });
    seen.node = NodeView::NotLinked { candidate: None, namesake };
    assert_eq!(starts(&decide(&seen)) == Some(Call::DeleteStale), stale);
}

#[test]
fn mc_074_mc_077_a_machine_with_a_stale_node_has_failed_whatever_became_of_the_vm() {
    let answers = vec![created("n"), Answer::DeletedStale(Err(Status::new(Code::Unavailable, "")))];
    let status = after(&decide(&observed(machine(), 1, answers)), &machine()).status().clone();
    assert_eq!(status.current_status.phase, MachinePhase::Failed);
    assert_eq!(status.last_operation.description, "VM using old node obj");
    assert_eq!(status.last_operation.error_code, "");
}

#[test]
fn mc_088_a_failed_machine_of_a_set_never_creates() {
    let mut failed = machine();
    failed.status.current_status.phase = MachinePhase::Failed;
    let owner = OwnerReference { controller: Some(true), ..OwnerReference::default() };
    failed.metadata.owner_references = Some(vec![owner]);
    assert_eq!(decide(&seen(failed, 3000)), Plan::wait("nothing-to-do", Next::Settled));
}

#[rstest]
#[case::unchanged(1, false)]
#[case::changed(2, true)]
fn a_standalone_failed_machine_is_tried_again_only_when_it_changes(#[case] generation: i64, #[case] tried: bool) {
    let plan = decide(&observed(machine(), 1300, vec![fails(Code::InvalidArgument)]));
    let mut failed = after(&plan, &machine());
    assert_eq!(*failed.phase(), MachinePhase::Failed);
    failed.to_mut().metadata.generation = Some(generation);
    assert_eq!(starts(&decide(&seen(failed, 3000))) == Some(Call::Status), tried);
}

#[test]
fn mc_089_the_end_of_a_preservation_survives_a_failure() {
    let mut preserved = machine();
    preserved.annotations_mut().insert("node.machine.sapcloud.io/preserve".to_owned(), "now".to_owned());
    preserved.status.current_status.preserve_expiry_time = Some(Time(at(9000)));
    let plan = decide(&observed(preserved.clone(), 1, vec![fails(Code::Unavailable)]));
    assert_eq!(after(&plan, &preserved).preserve_expiry_time(), Some(at(9000)));
}

#[test]
fn mc_053_while_a_call_is_under_way_nothing_is_asked_again() {
    let mut seen = seen(machine(), 1);
    seen.flow = Flow { in_flight: Some(Call::Create), ..Flow::default() };
    assert_eq!(decide(&seen), Plan::wait("creation-awaits-driver", Next::AwaitCall));
}

#[rstest]
#[case::mc_092_nothing_changed(1, false)]
#[case::mc_048_an_input_changed(2, true)]
fn a_pause_holds_until_its_inputs_change(#[case] generation: i64, #[case] asks: bool) {
    let failed = failed_before(Code::ResourceExhausted, "full");
    let mut seen = seen(failed, 120);
    seen.pause = Some(Pause { purpose: Purpose::Creation, until: at(660), inputs: seen.inputs.clone() });
    seen.inputs.machine = Some(generation);
    let plan = decide(&seen);
    assert_eq!(starts(&plan) == Some(Call::Status), asks);
    if !asks {
        assert!(matches!(plan.next, Next::LookAgain(after, _) if after.as_secs() == 540));
    }
}

#[test]
fn a_machine_at_rest_is_decided_upon_without_a_write() {
    let seen = with_node(seen(running(), 600), node(vec![condition("Ready", "True")]));
    assert_eq!(decide(&seen), Plan::wait("nothing-to-do", Next::Settled));
}

#[test]
fn an_observation_and_its_plan_can_be_kept() {
    let observed = observed(machine(), 10, vec![fails(Code::Unavailable)]);
    let kept = serde_json::to_value((&observed, decide(&observed))).unwrap();
    assert_eq!(kept[0]["version"], 2);
    assert_eq!(kept[1]["rule"], "creation-failed");
}
