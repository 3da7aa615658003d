//! Hand-written histories for guards that random histories rarely test. Each history fails without its guard, and only
//! then.

use rstest::rstest;

use super::{
    calls::{CallFault, Fault},
    guards::Guard,
    history::{ClassEdit, Edit, History, Keep, Luck, Margin, NodeEvent, Picks, Place, Provider, Setup, Step, Strategy},
    *,
};
use machine_controllers::deployment::AvailabilityRule;

const DEPLOYMENT: u8 = 2;
const NODES: u8 = 3;
const MACHINES: u8 = 0;

fn history(replicas: u8, strategy: Strategy, steps: Vec<Step>) -> History {
    History {
        seed: 1,
        setup: Setup { replicas, strategy },
        provider: Provider::default(),
        counts: AvailabilityRule::default(),
        volumes: 0,
        rounds: vec![steps],
        without: None,
    }
}

fn rolling() -> Strategy {
    Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) }
}

/// The violated property with the guard, and without it.
fn shown(history: &History, guard: Guard) -> [Option<&'static str>; 2] {
    [None, Some(guard)].map(|without| {
        let history = History { without, ..history.clone() };
        run(&history, TraceMode::Off).violation.map(|violation| violation.rule)
    })
}

/// Due jobs are in this order: deployment, set, guard, machines.
#[test]
fn versions_keep_a_machine_that_a_user_preserves() {
    let steps = vec![
        Step::Node(0, NodeEvent::Sickens),
        Step::Watch(NODES, 9),
        // The machine becomes Unknown, and Failed after its health timeout.
        Step::Pass(3, None),
        Step::Wait(700),
        Step::Pass(3, None),
        Step::Edit(Edit::Keep(0, Place::Machine, Keep::Now)),
        // The set has not observed that.
        Step::Pass(1, None),
    ];
    let found = shown(&history(1, rolling(), steps), Guard::Versions);
    assert_eq!(found, [None, Some("a machine is replaced that somebody keeps")]);
}

/// A user edits the class of a machine, or the Secret of the class, while the machine is being created. Only the
/// decided inputs may be sent. The user data needs no token when the creation is decided, and needs one when the driver
/// is called.
#[rstest]
#[case::of_a_secret(Step::UserData, "a VM is made with user data that nobody has filled in")]
#[case::of_a_class(Step::Classes(ClassEdit::Spec(0)), "a VM is made of a class that nobody has decided on")]
fn a_creation_is_decided_again_after_a_change(#[case] change: Step, #[case] wrong: &str) {
    let held_up_after = |calls: u8| {
        let mut steps = vec![Step::UserData, Step::Edit(Edit::Scale(1)), Step::Watch(DEPLOYMENT, 9)];
        steps.extend([Step::Pass(0, None), Step::Pass(1, None)]);
        // The driver has said that there is no VM.
        steps.extend([Step::Pass(9, None); 4]);
        steps.push(Step::Cloud(0, Luck::Good));
        steps.extend([Step::Begin(9, calls), change, Step::GoOn(0, None)]);
        shown(&history(0, rolling(), steps), Guard::Inputs)
    };
    let found: Vec<_> = (0..4).map(held_up_after).collect();
    assert!(found.iter().all(|[with, _]| with.is_none()), "{found:?}");
    assert!(found.iter().any(|[_, without]| *without == Some(wrong)), "{found:?}");
}

#[test]
fn a_class_that_is_gone_is_not_used() {
    let mut steps = vec![Step::Classes(ClassEdit::Remove(0))];
    steps.extend(creation(9, Luck::Good));
    let found = shown(&history(0, rolling(), steps), Guard::Classes);
    assert_eq!(found, [None, Some("a VM is made of a class that is gone")]);
}

/// A machine was created without an answer; then its class is deleted.
#[test]
fn a_class_with_an_unobserved_machine_stays() {
    let mut steps = vec![Step::Edit(Edit::Scale(1)), Step::Watch(DEPLOYMENT, 9), Step::Pass(0, None)];
    let lost = CallFault { call: 0, fault: Fault::LoseAnswer };
    steps.extend([Step::Pass(1, Some(lost)), Step::Classes(ClassEdit::Delete(0))]);
    steps.extend([Step::Finalizers(0, None); 4]);
    let found = shown(&history(0, rolling(), steps), Guard::Users);
    assert_eq!(found, [None, Some("what is in use loses our finalizer")]);
}

#[test]
fn nothing_is_made_while_the_nodes_are_not_visible() {
    let scaled = || vec![Step::Edit(Edit::Scale(2)), Step::Watch(DEPLOYMENT, 9)];
    let mut steps = scaled();
    steps.extend([Step::Silence(60), Step::Pass(0, None), Step::Pass(1, None)]);
    let found = shown(&history(1, rolling(), steps), Guard::Silence);
    assert_eq!(found, [None, Some("a set acts while nobody sees the Nodes")]);

    // The set has already created the machine.
    let mut steps = scaled();
    steps.extend([Step::Pass(0, None), Step::Pass(1, None), Step::Silence(60)]);
    steps.extend(std::iter::repeat_n([Step::Pass(9, None), Step::Cloud(0, Luck::Good)], 12).flatten());
    let found = shown(&history(1, rolling(), steps), Guard::Silence);
    assert_eq!(found, [None, Some("a driver is called while the controller is frozen")]);
}

#[test]
fn a_set_that_was_sized_without_an_answer_takes_room() {
    // Seed 213408.
    let steps = vec![
        Step::Edit(Edit::Scale(3)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, Some(CallFault { call: 0, fault: Fault::LoseAnswer })),
        Step::Edit(Edit::Class(1)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
    ];
    let found = shown(&history(0, Strategy::Recreate, steps), Guard::Unanswered);
    assert_eq!(found, [None, Some("there are too many machines")]);
}

#[test]
fn a_node_that_was_picked_without_an_answer_is_missing() {
    // Seed 154399.
    let strategy =
        Strategy::InPlace { surge: Margin::Machines(0), unavailable: Margin::Machines(0), picks: Picks::Controller };
    let back = vec![
        Step::Edit(Edit::Class(0)),
        Step::Watch(DEPLOYMENT, 9),
        // The old set is the new one again, Nodes become candidates, and one of them is selected.
        Step::Pass(0, None),
        Step::Pass(0, None),
        Step::Pass(0, Some(CallFault { call: 0, fault: Fault::LoseAnswer })),
        // The scaler wants another machine deleted.
        Step::Edit(Edit::Mark(3)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
        Step::Pass(0, None),
    ];
    let mut history = history(5, strategy, vec![Step::Edit(Edit::Class(1))]);
    history.rounds.push(back);
    let found = shown(&history, Guard::Unanswered);
    assert_eq!(found, [None, Some("too few machines are available through an update of our choice")]);
}

#[test]
fn a_machine_whose_deletion_got_no_answer_is_not_joined_by_another_one() {
    let steps = vec![
        // The first of three machines is preserved for an hour, so it would be deleted last.
        Step::Edit(Edit::Keep(0, Place::Machine, Keep::Now)),
        Step::Watch(MACHINES, 9),
        Step::Pass(3, None),
        Step::Edit(Edit::Scale(2)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
        Step::Wait(3599),
        // The set deletes the second machine and gets no answer. Then the hour is over and the first machine would be
        // chosen.
        Step::Pass(1, Some(CallFault { call: 0, fault: Fault::LoseAnswer })),
        Step::Wait(5),
        Step::Pass(0, None),
        Step::Pass(0, None),
    ];
    let found = shown(&history(3, rolling(), steps), Guard::Unread);
    assert_eq!(found, [None, Some("too few machines are available through a deletion of ours")]);
}

/// The old set's controller has decided but perhaps not acted, and the template turns back to that set. At any point of
/// time, the machines that it deletes must not count as replacements.
#[test]
fn a_set_that_the_template_turns_back_to_is_not_counted_on_before_it_knows_its_size() {
    let after = |passes: usize| {
        let pass = [
            Step::Begin(0, 0),
            Step::GoOn(0, None),
            Step::Cloud(0, Luck::Good),
            Step::Node(4, NodeEvent::Joins),
            Step::Watch(NODES, 9),
            Step::Wait(1),
        ];
        let mut steps = vec![Step::Edit(Edit::Class(1)), Step::Watch(DEPLOYMENT, 9)];
        steps.extend(std::iter::repeat_n(pass, passes).flatten());
        // The set has room to grow at once.
        let roomy = Strategy::Rolling { surge: Margin::Machines(3), unavailable: Margin::Machines(0) };
        steps.extend([Step::Begin(0, 0), Step::Edit(Edit::Class(0)), Step::Edit(Edit::Strategy(roomy))]);
        steps.push(Step::Watch(DEPLOYMENT, 9));
        steps.extend([Step::Pass(0, None); 8]);
        shown(&history(4, rolling(), steps), Guard::Settling)
    };
    let found: Vec<_> = (0..40).map(after).collect();
    assert!(found.iter().all(|[with, _]| with.is_none()), "{found:?}");
    let wrong = Some("too few machines are available through a deletion of ours");
    assert!(found.iter().any(|[_, without]| *without == wrong), "{found:?}");
}

#[test]
fn machines_that_a_set_may_be_making_count() {
    let found = shown(&History::of_seed(19_934), Guard::Settling);
    assert_eq!(found, [None, Some("there are too many machines")]);
}

#[test]
fn a_machine_that_was_updated_waits_while_another_one_is_being_replaced() {
    let found = shown(&History::of_seed(821), Guard::Siblings);
    assert_eq!(found, [None, Some("a machine is given up while another one of its group is being replaced")]);
}

/// Creates a machine whose first `calls` driver calls end like this.
fn creation(calls: usize, luck: Luck) -> Vec<Step> {
    let mut steps = vec![Step::Edit(Edit::Scale(1)), Step::Watch(DEPLOYMENT, 9)];
    let call = [Step::Pass(0, None), Step::Pass(0, None), Step::Pass(0, None), Step::Cloud(0, luck)];
    steps.extend(std::iter::repeat_n(call, calls).flatten());
    steps
}

#[test]
fn a_vm_that_its_machine_does_not_name_yet_is_not_collected() {
    let after = |calls: usize| {
        let mut steps = creation(calls, Luck::ShownLate);
        // No pass runs over the machine in that time.
        steps.extend([Step::Wait(700); 3]);
        shown(&history(0, rolling(), steps), Guard::Claims)
    };
    let found: Vec<_> = (1..8).map(after).collect();
    assert!(found.iter().all(|[with, _]| with.is_none()), "{found:?}");
    let wrong = Some("the VM of a machine is deleted that nobody has deleted");
    assert!(found.iter().any(|[_, without]| *without == wrong), "{found:?}");
}

/// The drain of a preservation fails, the machine recovers, and other pods arrive.
#[test]
fn a_deletion_does_not_go_on_with_the_pods_of_an_abandoned_drain() {
    let mut steps = vec![
        Step::Edit(Edit::Keep(0, Place::Machine, Keep::WhenFailed)),
        Step::Watch(MACHINES, 9),
        Step::Pass(3, None),
        Step::Budget(30),
        Step::Node(0, NodeEvent::FillsUp),
        Step::Watch(NODES, 9),
        Step::Pass(3, None),
        Step::Wait(700),
    ];
    steps.extend([Step::Pass(9, None); 9]);
    steps.extend([Step::Node(0, NodeEvent::Recovers), Step::Watch(NODES, 9)]);
    steps.extend([Step::Pass(9, None); 9]);
    steps.extend([Step::NewPods, Step::Wait(1), Step::Edit(Edit::DeleteMachine(0))]);
    let h = history(1, rolling(), steps);
    let found = shown(&h, Guard::AbandonedDrain);
    assert_eq!(found, [None, Some("a Node counts as drained with a pod that nobody has asked to go")]);
}
