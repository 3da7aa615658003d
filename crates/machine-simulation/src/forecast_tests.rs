use rstest::rstest;

use super::*;
use crate::{
    facts::is_available,
    history::{Edit, History, Picks, Setup, Step as Happening, Strategy},
    world::{Start, World as Played},
};

const PLAIN: Assumptions = Assumptions {
    create: Duration::from_secs(44),
    drain: Duration::from_secs(4),
    update: Duration::from_secs(1),
    fail_every: 0,
};

fn rolling(replicas: u8, surge: u8, unavailable: u8) -> Setup {
    Setup { replicas, strategy: Strategy::Rolling { surge: surge.into(), unavailable: unavailable.into() } }
}

/// A history without any steps.
fn history(setup: Setup) -> History {
    History { rounds: Vec::new(), setup, ..History::of_seed(1) }
}

/// A world at rest after this edit.
fn after(setup: Setup, edit: Edit) -> Played {
    let (start, checks) = Start::of(setup);
    assert_eq!(checks.violation, None);
    let mut world = Played::new(&start, &history(setup), Trace::default());
    world.step(Happening::Edit(edit));
    world
}

fn question(world: &Played) -> Question {
    Question {
        deployment: world.api.deployments.values().next().unwrap().clone().into(),
        sets: world.api.sets.values().cloned().map(Into::into).collect(),
        machines: world.api.machines.values().cloned().map(Into::into).collect(),
        nodes: world.api.nodes.values().cloned().map(NodeSnapshot::of).collect(),
        now: world.now,
        settings: DeploymentSettings::default(),
        machine_settings: MachineSettings::default(),
        assume: PLAIN,
        most_steps: 200,
    }
}

fn in_place(replicas: u8, surge: u8, unavailable: u8, picks: Picks) -> Setup {
    Setup { replicas, strategy: Strategy::InPlace { surge: surge.into(), unavailable: unavailable.into(), picks } }
}

fn forecast_of(question: &Question) -> Forecast {
    forecast(question, &|| true)
}

fn deletions(forecast: &Forecast) -> Vec<String> {
    forecast.steps.iter().flat_map(|step| step.deletes.clone()).collect()
}

/// The result of a played rollout: machines in the order of their deletion, maximum number of machines, minimum number
/// of available ones.
fn played(world: &mut Played) -> (Vec<String>, usize, usize) {
    let mut machines: BTreeMap<String, Arc<Machine>> = world.api.machines.clone();
    let from = world.api.log[0].len();
    let available = |machines: &BTreeMap<String, Arc<Machine>>| {
        machines
            .values()
            .filter(|machine| is_available(machine) && machine.metadata.deletion_timestamp.is_none())
            .count()
    };
    let (mut order, mut peak, mut least) = (Vec::new(), machines.len(), available(&machines));
    world.calm();
    assert!(!world.is_violated());
    for event in &world.api.log[0][from..] {
        let Object::Machine(machine) = &event.object else { continue };
        let name = machine.name_any();
        if machine.metadata.deletion_timestamp.is_some() && !order.contains(&name) {
            order.push(name.clone());
        }
        if event.gone {
            machines.remove(&name)
        } else {
            machines.insert(name, Arc::clone(machine))
        };
        peak = peak.max(machines.len());
        least = least.min(available(&machines));
    }
    (order, peak, least)
}

#[rstest]
#[case::one_more(rolling(3, 1, 0), Edit::Class(1))]
#[case::one_less(rolling(3, 0, 1), Edit::Class(1))]
#[case::two_more_one_less(rolling(5, 2, 1), Edit::Class(1))]
#[case::all_at_once(Setup { replicas: 3, strategy: Strategy::Recreate }, Edit::Class(1))]
#[case::fewer(rolling(5, 1, 0), Edit::Scale(2))]
#[case::more(rolling(2, 1, 0), Edit::Scale(6))]
fn a_forecast_equals_the_rollout(#[case] setup: Setup, #[case] edit: Edit) {
    let mut world = after(setup, edit);
    let forecast = forecast_of(&question(&world));
    let today: BTreeSet<String> = world.api.machines.keys().cloned().collect();
    let (mut order, peak, least) = played(&mut world);
    order.retain(|name| today.contains(name));
    assert_eq!(deletions(&forecast), order, "{:#?}", forecast.steps);
    assert_eq!((forecast.peak, forecast.least_available), (peak, least), "{:#?}", forecast.steps);
    assert_eq!((forecast.stuck, forecast.cut), (None, None));
}

/// The machines in the order in which their Nodes are selected.
fn picks(world: &Played, from: usize) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for event in &world.api.log[3][from..] {
        let Object::Node(node) = &event.object else { continue };
        if node.labels().contains_key(label::SELECTED_FOR_UPDATE) && !order.contains(&node.name_any()) {
            // Here a Node has the name of its machine.
            order.push(node.name_any());
        }
    }
    order
}

#[rstest]
#[case::one_less(in_place(3, 0, 1, Picks::Controller))]
#[case::one_more(in_place(3, 1, 0, Picks::Controller))]
#[case::two_less(in_place(5, 0, 2, Picks::Controller))]
#[case::both(in_place(4, 1, 1, Picks::Controller))]
fn a_forecast_equals_the_update_in_place(#[case] setup: Setup) {
    let mut world = after(setup, Edit::Class(1));
    // The duration of a drain in the played world.
    let assume = Assumptions { drain: Duration::from_secs(20), ..PLAIN };
    let forecast = forecast_of(&Question { assume, ..question(&world) });
    let today: BTreeSet<String> = world.api.machines.keys().cloned().collect();
    let from = world.api.log[3].len();
    let (mut order, peak, least) = played(&mut world);
    order.retain(|name| today.contains(name));
    let updates: Vec<String> = forecast.steps.iter().flat_map(|step| step.updates.clone()).collect();
    assert!(!updates.is_empty());
    assert_eq!(updates, picks(&world, from), "{:#?}", forecast.steps);
    assert_eq!(deletions(&forecast), order, "{:#?}", forecast.steps);
    assert_eq!((forecast.peak, forecast.least_available), (peak, least), "{:#?}", forecast.steps);
    assert_eq!((forecast.stuck, forecast.cut), (None, None));
}

#[test]
fn with_manual_selection_the_plan_names_its_wait() {
    let world = after(in_place(3, 0, 1, Picks::User), Edit::Class(1));
    let forecast = forecast_of(&question(&world));
    assert!(forecast.steps.iter().all(|step| step.updates.is_empty() && step.deletes.is_empty()), "{forecast:#?}");
    let stuck = forecast.stuck.unwrap();
    assert_eq!(stuck.reason, "AwaitsSelection");
    assert!(stuck.message.contains(label::SELECTED_FOR_UPDATE), "{}", stuck.message);
}

#[test]
fn equal_questions_get_equal_answers() {
    let world = after(rolling(5, 2, 1), Edit::Class(1));
    let question = question(&world);
    assert_eq!(forecast_of(&question), forecast_of(&question));
}

#[test]
fn a_rollout_under_way_goes_on_from_where_it_is() {
    let world = after(rolling(4, 1, 0), Edit::Class(1));
    let whole = forecast_of(&question(&world));
    assert_eq!((deletions(&whole).len(), whole.peak, whole.least_available), (4, 5, 4), "{whole:#?}");
    assert!(whole.took >= PLAIN.create * 4, "one after the other: {:?}", whole.took);
    let setup = rolling(4, 1, 0);
    let at_rest = Played::new(&Start::of(setup).0, &history(setup), Trace::default());
    let nothing = forecast_of(&question(&at_rest));
    assert_eq!((nothing.steps.len(), nothing.took, nothing.stuck), (0, Duration::ZERO, None));
}

#[test]
fn obstacles_are_reported() {
    let world = after(rolling(3, 1, 0), Edit::Class(1));
    let mut paused = MachineDeployment::clone(world.api.deployments.values().next().unwrap());
    paused.spec.paused = true;
    let forecast = forecast_of(&Question { deployment: paused.into(), ..question(&world) });
    assert_eq!(deletions(&forecast).len(), 0);
    assert_eq!(forecast.stuck.map(|stuck| stuck.reason), Some("Paused"));

    let failing = Question { assume: Assumptions { fail_every: 2, ..PLAIN }, ..question(&world) };
    let forecast = forecast_of(&failing);
    assert!(
        forecast.steps.iter().map(|step| step.creates).sum::<usize>() > 3,
        "failed machines are made again: {forecast:#?}"
    );
}

#[test]
fn a_plan_has_at_most_the_requested_steps() {
    let world = after(rolling(5, 1, 0), Edit::Class(1));
    let short = forecast_of(&Question { most_steps: 2, ..question(&world) });
    assert_eq!((short.steps.len(), short.cut), (2, Some(Cut::Steps)));
    let none = forecast(&question(&world), &|| false);
    assert_eq!(none.cut, Some(Cut::Time));
}
