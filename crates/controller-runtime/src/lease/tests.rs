use std::{collections::BTreeMap, sync::Mutex};

use jiff::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{clock::TokioClock, gate::Gate, lock};

/// The fault of the calls of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// Calls fail at once.
    Refuse,
    /// Calls get no answer.
    Hang,
}

/// The stored leases, with optimistic concurrency.
#[derive(Default)]
struct Server {
    leases: Mutex<BTreeMap<String, Lease>>,
    writes: Mutex<u64>,
}

impl Server {
    fn lease(&self, name: &str) -> Option<Lease> {
        lock(&self.leases).get(name).cloned()
    }

    fn holder(&self, name: &str) -> Option<String> {
        self.lease(name).map(|lease| api::record_of(&lease).holder)
    }

    fn put(&self, mut lease: Lease) -> Lease {
        let mut writes = self.writes.lock().unwrap();
        *writes += 1;
        lease.metadata.resource_version = Some(writes.to_string());
        let name = lease.metadata.name.clone().unwrap();
        self.leases.lock().unwrap().insert(name, lease.clone());
        lease
    }
}

/// The connection of one replica to the server.
#[derive(Clone, Default)]
struct Connection {
    server: Arc<Server>,
    fault: Arc<Mutex<Fault>>,
}

impl Connection {
    fn breaks(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    async fn pass(&self) -> Result<(), ApiError> {
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::None => Ok(()),
            Fault::Refuse => Err(ApiError::Unavailable("refused".to_owned())),
            Fault::Hang => std::future::pending().await,
        }
    }
}

#[async_trait::async_trait]
impl LeaseApi for Connection {
    async fn get(&self, name: &str) -> Result<Option<Lease>, ApiError> {
        self.pass().await?;
        Ok(self.server.lease(name))
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.pass().await?;
        if self.server.lease(lease.metadata.name.as_deref().unwrap()).is_some() {
            return Err(ApiError::AlreadyExists("lease".to_owned()));
        }
        Ok(self.server.put(lease.clone()))
    }

    async fn update(&self, lease: &Lease) -> Result<Lease, ApiError> {
        self.pass().await?;
        let stored = self.server.lease(lease.metadata.name.as_deref().unwrap());
        let stored = stored.ok_or(ApiError::NotFound("lease".to_owned()))?;
        if stored.metadata.resource_version != lease.metadata.resource_version {
            return Err(ApiError::Conflict("lease".to_owned()));
        }
        Ok(self.server.put(lease.clone()))
    }
}

struct Replica {
    leadership: Leadership,
    gate: Gate,
    shutdown: CancellationToken,
    connection: Connection,
    task: tokio::task::JoinHandle<Ended>,
}

const FIRST: &str = "machine-controller-manager";
const SECOND: &str = "machine-controller";

fn replica(server: &Arc<Server>, identity: &str, leases: &[&str]) -> Replica {
    replica_drawing(server, identity, leases, 0)
}

/// A replica whose pauses all have this jitter.
fn replica_drawing(server: &Arc<Server>, identity: &str, leases: &[&str], jitter: u64) -> Replica {
    let connection = Connection { server: Arc::clone(server), ..Connection::default() };
    let settings = ElectionSettings {
        namespace: "ns".to_owned(),
        leases: leases.iter().map(ToString::to_string).collect(),
        identity: identity.to_owned(),
        times: Times::default(),
    };
    let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
    let election = LeaderElection::new(settings, Arc::new(connection.clone()), clock, move || jitter, None);
    let leadership = election.leadership();
    let shutdown = CancellationToken::new();
    let gate = Gate::open_while(leadership.clone());
    let task = tokio::spawn(election.run(shutdown.clone()));
    Replica { leadership, gate, shutdown, connection, task }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets paused time pass in small steps, as timers would fire.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_replica_takes_both_leases_in_order_and_the_second_stands_by() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST, SECOND]);
    first.leadership.won().await;
    let second = replica(&server, "b", &[FIRST, SECOND]);
    pass(secs(60)).await;
    assert!(first.leadership.is_leading() && first.gate.may_act().is_ok());
    assert!(!second.leadership.is_leading() && second.gate.may_act().is_err());
    let lease = server.lease(FIRST).unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    assert_eq!(spec.acquire_time.unwrap().0, Timestamp::UNIX_EPOCH);
    assert!(spec.renew_time.unwrap().0 >= Timestamp::from_second(57).unwrap());
}

#[tokio::test(start_paused = true)]
async fn mc_007_a_lease_held_by_a_go_process_keeps_us_from_acting_even_when_we_hold_the_other() {
    let server = Arc::<Server>::default();
    let go = replica(&server, "go", &[SECOND]);
    go.leadership.won().await;
    let ours = replica(&server, "ours", &[FIRST, SECOND]);
    pass(secs(60)).await;
    assert_eq!(server.holder(FIRST).as_deref(), Some("ours"));
    assert_eq!(server.holder(SECOND).as_deref(), Some("go"));
    assert!(ours.gate.may_act().is_err());
    go.shutdown.cancel();
    assert_eq!(go.task.await.unwrap(), Ended::Released);
    pass(secs(5)).await;
    assert!(ours.gate.may_act().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_second_lease_is_not_taken_before_the_first() {
    let server = Arc::<Server>::default();
    let go = replica(&server, "go", &[FIRST]);
    go.leadership.won().await;
    let _ours = replica(&server, "ours", &[FIRST, SECOND]);
    pass(secs(60)).await;
    assert_eq!(server.holder(SECOND), None);
}

#[rstest::rstest]
#[case::calls_are_refused(Fault::Refuse)]
#[case::calls_get_no_answer(Fault::Hang)]
#[tokio::test(start_paused = true)]
async fn a_leader_without_connection_closes_its_gate_before_another_can_lead(#[case] fault: Fault) {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST, SECOND]);
    first.leadership.won().await;
    let second = replica(&server, "b", &[FIRST, SECOND]);
    pass(secs(30)).await;
    first.connection.breaks(fault);
    let broken = Instant::now();
    let mut closed = None;
    while !second.leadership.is_leading() {
        assert!(broken.elapsed() < secs(60), "no replica leads");
        if closed.is_none() && first.gate.may_act().is_err() {
            closed = Some(broken.elapsed());
        }
        pass(Duration::from_millis(50)).await;
    }
    let closed = closed.expect("the first gate is closed");
    assert!(closed <= secs(10) + Duration::from_millis(50), "{closed:?}");
    assert!(broken.elapsed() >= closed + secs(3), "{:?}", broken.elapsed());
    let Ended::Lost { why, .. } = first.task.await.unwrap() else { panic!("not lost") };
    assert_eq!(why, StepDown::NotRenewed(secs(10)));
    assert_eq!(server.lease(FIRST).unwrap().spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_short_loss_of_the_connection_costs_nothing() {
    let server = Arc::<Server>::default();
    let only = replica(&server, "a", &[FIRST]);
    only.leadership.won().await;
    only.connection.breaks(Fault::Refuse);
    pass(secs(7)).await;
    assert!(only.leadership.is_leading());
    only.connection.breaks(Fault::None);
    pass(secs(30)).await;
    assert!(only.leadership.is_leading() && !only.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_finds_its_gate_closed_before_its_election_wakes_up() {
    let server = Arc::<Server>::default();
    let only = replica(&server, "a", &[FIRST]);
    only.leadership.won().await;
    tokio::time::advance(secs(11)).await;
    // No task has run since; only the time has changed.
    assert!(only.gate.may_act().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_steps_down_when_it_sees_another_holder() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST]);
    first.leadership.won().await;
    let mut stolen = server.lease(FIRST).unwrap();
    stolen.spec.as_mut().unwrap().holder_identity = Some("thief".to_owned());
    server.put(stolen);
    let ended = first.task.await.unwrap();
    assert_eq!(ended, Ended::Lost { lease: FIRST.to_owned(), why: StepDown::TakenBy("thief".to_owned()) });
    assert!(first.leadership.lost().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_by_its_leader() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST]);
    first.leadership.won().await;
    server.leases.lock().unwrap().clear();
    pass(secs(8)).await;
    assert_eq!(server.holder(FIRST).as_deref(), Some("a"));
    assert!(first.leadership.is_leading());
}

#[rstest::rstest]
#[case::candidates_that_try_early(0)]
#[case::candidates_that_try_in_the_middle(u64::MAX / 2)]
#[case::candidates_that_try_late(u64::MAX)]
#[tokio::test(start_paused = true)]
async fn a_deleted_lease_stays_with_its_holder(#[case] jitter: u64) {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST, SECOND]);
    first.leadership.won().await;
    let second = replica_drawing(&server, "b", &[FIRST, SECOND], jitter);
    pass(secs(20)).await;
    for step in 0..15 {
        server.leases.lock().unwrap().clear();
        for _ in 0..211 {
            assert!(second.gate.may_act().is_err(), "both act after deletion {step}");
            pass(Duration::from_millis(97)).await;
        }
        assert!(first.gate.may_act().is_ok());
        assert_eq!(server.holder(FIRST).as_deref(), Some("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_refused_renewal_shows_another_holder_steps_down_at_once() {
    let server = Arc::<Server>::default();
    let only = replica(&server, "a", &[FIRST]);
    only.leadership.won().await;
    pass(secs(3)).await;
    let mut lease = server.lease(FIRST).unwrap();
    lease.spec.as_mut().unwrap().holder_identity = Some("b".to_owned());
    server.put(lease);
    let taken = Instant::now();
    let Ended::Lost { why, .. } = only.task.await.unwrap() else { panic!("not lost") };
    assert_eq!(why, StepDown::TakenBy("b".to_owned()));
    assert!(taken.elapsed() <= secs(2), "{:?}", taken.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_foreign_change_of_the_lease_does_not_cost_leadership() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST]);
    first.leadership.won().await;
    let mut labelled = server.lease(FIRST).unwrap();
    labelled.metadata.labels = Some([("l".to_owned(), "v".to_owned())].into());
    server.put(labelled);
    pass(secs(30)).await;
    assert!(first.leadership.is_leading());
    assert!(server.lease(FIRST).unwrap().metadata.labels.is_some(), "and it is kept");
}

#[tokio::test(start_paused = true)]
async fn s_cli_10_a_regular_end_gives_the_leases_back_so_that_the_next_leads_at_once() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST, SECOND]);
    first.leadership.won().await;
    let second = replica(&server, "b", &[FIRST, SECOND]);
    pass(secs(10)).await;
    first.shutdown.cancel();
    assert_eq!(first.task.await.unwrap(), Ended::Released);
    assert!(first.gate.may_act().is_err());
    let released = Instant::now();
    second.leadership.won().await;
    assert!(released.elapsed() <= secs(5), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn mc_010_leases_are_left_to_expire_when_a_driver_call_was_cut_off() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST, SECOND]);
    first.leadership.won().await;
    let second = replica(&server, "b", &[FIRST, SECOND]);
    pass(secs(10)).await;
    drop(first.leadership.call_begins());
    first.shutdown.cancel();
    assert_eq!(first.task.await.unwrap(), Ended::Expiring { unanswered: 1 });
    assert!(first.gate.may_act().is_err());
    let ended = Instant::now();
    second.leadership.won().await;
    assert!(ended.elapsed() >= secs(10), "{:?}", ended.elapsed());
}

#[rstest::rstest]
#[case::jitter_of_nothing(0)]
#[case::the_greatest_jitter(u64::MAX)]
#[tokio::test(start_paused = true)]
async fn a_standby_leads_one_lease_duration_and_a_retry_period_after_the_leader_died(#[case] jitter: u64) {
    for dies_after in [30_000, 30_700, 31_300, 31_900] {
        let server = Arc::<Server>::default();
        let first = replica(&server, "a", &[FIRST, SECOND]);
        first.leadership.won().await;
        let second = replica_drawing(&server, "b", &[FIRST, SECOND], jitter);
        pass(Duration::from_millis(dies_after)).await;
        first.task.abort();
        let died = Instant::now();
        second.leadership.won().await;
        assert!(died.elapsed() <= secs(20), "{:?}", died.elapsed());
        second.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_dead_go_process_of_this_host_holds_is_taken_over() {
    let server = Arc::<Server>::default();
    let go = replica(&server, "node-1", &[FIRST, SECOND]);
    go.leadership.won().await;
    pass(secs(10)).await;
    let ours = replica(&server, &identity_of("node-1", || 7), &[FIRST, SECOND]);
    pass(secs(60)).await;
    assert!(!ours.leadership.is_leading(), "it lives");
    go.task.abort();
    pass(secs(20)).await;
    assert!(ours.leadership.is_leading());
    assert_eq!(server.holder(SECOND).as_deref(), Some("node-1_0000000000000007"));
}

#[tokio::test(start_paused = true)]
async fn pk_039_two_processes_of_one_host_never_lead_together() {
    let random = Mutex::new(ChaCha8Rng::seed_from_u64(39));
    let draw = || random.lock().unwrap().next_u64();
    for start in 0..1000 {
        let server = Arc::<Server>::default();
        let first = replica_drawing(&server, &identity_of("vm", draw), &[FIRST, SECOND], draw());
        pass(Duration::from_millis(draw() % 3000)).await;
        let second = replica_drawing(&server, &identity_of("vm", draw), &[FIRST, SECOND], draw());
        for _ in 0..10 {
            pass(Duration::from_millis(700)).await;
            assert!(!(first.leadership.is_leading() && second.leadership.is_leading()), "start {start}");
        }
        assert!(first.leadership.is_leading() || second.leadership.is_leading(), "start {start}");
        first.task.abort();
        second.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_process_goes_on_with_its_own_lease() {
    let server = Arc::<Server>::default();
    let first = replica(&server, "a", &[FIRST]);
    first.leadership.won().await;
    pass(secs(5)).await;
    first.task.abort();
    let again = replica(&server, "a", &[FIRST]);
    again.leadership.won().await;
    let spec = server.lease(FIRST).unwrap().spec.unwrap();
    assert_eq!((spec.lease_transitions, spec.acquire_time.unwrap().0), (Some(0), Timestamp::UNIX_EPOCH));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_leaders_is_reported_as_an_event() {
    let (sender, mut notes) = tokio::sync::mpsc::channel(4);
    let server = Arc::<Server>::default();
    let connection = Connection { server, ..Connection::default() };
    let settings = ElectionSettings {
        namespace: "ns".to_owned(),
        leases: vec![FIRST.to_owned()],
        identity: "a".to_owned(),
        times: Times::default(),
    };
    let recorder = Recorder::new("machine-controller-manager", sender);
    let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
    let election = LeaderElection::new(settings, Arc::new(connection), clock, || 0, Some(recorder));
    let task = tokio::spawn(election.run(CancellationToken::new()));
    let event = notes.recv().await.unwrap();
    assert_eq!((event.note.reason, event.note.message.as_str()), ("LeaderElection", "a became leader"));
    assert_eq!(event.about.kind.as_deref(), Some("Lease"));
    task.abort();
}
