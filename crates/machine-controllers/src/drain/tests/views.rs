//! Scenarios of spec/machine-controller §17.10 that need the stores of a cluster: shared volumes, attachments, names of
//! volumes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{
        CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource,
        Pod, Volume,
    },
    storage::v1::VolumeAttachment,
};
use kube::client::Body;
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use crate::{
    drain::{
        Drain, Drainer, Run,
        act::Evictor,
        observe::{DrainLimits, DrainViews, observe},
        order::{DrainFlow, DrainOrder, Force},
        progress::Progress,
        remembered,
        step::DrainResult,
    },
    snapshots::{AttachmentSnapshot, BudgetSnapshot, ClaimSnapshot, PodSnapshot, VolumeSnapshot},
};
use controller_runtime::{gate::Gate, key::ObjectKey, snapshot::Snapshot, tasks::TokioTasks};
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext,
    Status, VmIdentity, VolumeIdsRequest,
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Two nodes `here` and `there`; PV `pv-N` is bound to claim `claim-N` and has the handle `vol-N`.
#[derive(Default)]
struct Views {
    pods: Mutex<Vec<PodSnapshot>>,
    attachments: Vec<AttachmentSnapshot>,
}

impl Views {
    fn pod(self, name: &str, node: &str, claims: &[&str]) -> Self {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.uid = Some(name.to_owned());
        let spec = pod.spec.get_or_insert_default();
        spec.node_name = Some(node.to_owned());
        let volume = |claim: &&str| Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: (*claim).to_owned(),
                ..PersistentVolumeClaimVolumeSource::default()
            }),
            ..Volume::default()
        };
        spec.volumes = Some(claims.iter().map(volume).collect());
        self.pods.lock().unwrap().push(pod.into());
        self
    }

    fn attached(mut self, volume: Option<&str>, node: &str) -> Self {
        let mut attachment = VolumeAttachment::default();
        attachment.spec.node_name = node.to_owned();
        attachment.spec.source.persistent_volume_name = volume.map(str::to_owned);
        attachment.status.get_or_insert_default().attached = true;
        self.attachments.push(attachment.into());
        self
    }
}

impl DrainViews for Views {
    fn ready(&self) -> bool {
        true
    }
    fn pods_on(&self, node: &str) -> Vec<PodSnapshot> {
        let pods = self.pods.lock().unwrap();
        pods.iter().filter(|pod| pod.node_name() == Some(node)).cloned().collect()
    }
    fn pods_using(&self, claim: &ObjectKey) -> Vec<PodSnapshot> {
        let pods = self.pods.lock().unwrap();
        pods.iter().filter(|pod| pod.claims().any(|own| own == *claim)).cloned().collect()
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<BudgetSnapshot> {
        Vec::new()
    }
    fn claim(&self, key: &ObjectKey) -> Option<ClaimSnapshot> {
        let mut claim = PersistentVolumeClaim::default();
        claim.spec.get_or_insert_default().volume_name = Some(key.name.replace("claim", "pv"));
        Some(claim.into())
    }
    fn volume(&self, name: &str) -> Option<VolumeSnapshot> {
        let mut volume = PersistentVolume::default();
        volume.spec.get_or_insert_default().csi = Some(CSIPersistentVolumeSource {
            volume_handle: name.replace("pv", "vol"),
            ..CSIPersistentVolumeSource::default()
        });
        Some(volume.into())
    }
    fn attachments_on(&self, node: &str) -> Vec<AttachmentSnapshot> {
        self.attachments.iter().filter(|attachment| attachment.node_name() == node).cloned().collect()
    }
    fn attachments_of(&self, volume: &str) -> Vec<AttachmentSnapshot> {
        let of = |attachment: &&AttachmentSnapshot| attachment.volume_name() == Some(volume);
        self.attachments.iter().filter(of).cloned().collect()
    }
}

fn limits() -> DrainLimits {
    DrainLimits {
        force: Force::No,
        deadline: at(7200),
        timeout: Duration::from_secs(7200),
        retries: 360,
        detach: Duration::from_secs(120),
        reattach: Duration::from_secs(90),
        parallel: 20,
    }
}

fn order() -> DrainOrder {
    let flow = DrainFlow::Deletion;
    DrainOrder { node: "here".to_owned(), node_uid: String::new(), flow, force: Force::No, deadline: at(7200) }
}

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("here".to_owned());
    node
}

fn looked_at(views: &Views) -> crate::drain::observe::DrainObservation {
    let ids: BTreeMap<String, Vec<String>> =
        (1..5).map(|number| (format!("pv-{number}"), vec![format!("vol-{number}")])).collect();
    observe(views, "here", Some(&node().into()), limits(), &Progress::default(), &ids, at(0))
}

#[test]
fn mc_217_a_volume_of_two_pods_is_not_waited_for() {
    let views = Views::default().pod("a", "here", &["claim-1", "claim-2"]).pod("b", "here", &["claim-1"]);
    let seen = looked_at(&views);
    assert_eq!(seen.pods[0].volumes, ["pv-2"]);
    assert!(seen.pods[1].volumes.is_empty());
}

#[test]
fn mc_219_an_attachment_without_a_volume_of_its_own_is_ignored() {
    let views = Views::default().pod("a", "here", &["claim-1"]).attached(None, "here").attached(None, "there");
    let place = looked_at(&views).volumes["pv-1"];
    assert_eq!((place.here, place.elsewhere), (false, false));
}

#[test]
fn a_volume_is_left_attached_when_no_pod_on_the_node_uses_it_and_the_driver_knows_it() {
    let views = Views::default()
        .pod("a", "here", &["claim-1"])
        .pod("b", "there", &["claim-2"])
        .attached(Some("pv-1"), "here")
        .attached(Some("pv-2"), "here")
        .attached(Some("pv-3"), "there")
        .attached(Some("pv-9"), "here")
        .attached(None, "here");
    let seen = looked_at(&views);
    assert_eq!(seen.left_attached, ["pv-2"]);
    assert!(seen.volumes["pv-2"].here);
}

#[test]
fn a_volume_is_on_the_node_until_its_attachment_is_gone() {
    let views = Views::default().pod("a", "here", &["claim-1"]).attached(Some("pv-1"), "here");
    let place = looked_at(&views).volumes["pv-1"];
    assert_eq!((place.here, place.elsewhere), (true, false));
}

#[test]
fn mc_223_an_attachment_elsewhere_counts_whenever_it_came() {
    let views = Views::default()
        .pod("a", "here", &["claim-1"])
        .pod("a-again", "there", &["claim-1"])
        .attached(Some("pv-1"), "there");
    let mut progress = Progress::default();
    progress.claims.insert("pv-1".to_owned(), vec![ObjectKey::new("ns", "claim-1")]);
    let ids = BTreeMap::from([("pv-1".to_owned(), vec!["vol-1".to_owned()])]);
    let seen = observe(&views, "here", Some(&node().into()), limits(), &progress, &ids, at(0));
    let place = seen.volumes["pv-1"];
    assert_eq!((place.here, place.elsewhere, place.wanted), (false, true, true));
}

/// The driver's answer about `vol-1`.
#[derive(Clone, Copy, Debug)]
enum Says {
    ItsName,
    NotMine,
    Fails(Code),
    Crashes,
}

/// A driver that knows the names of all volumes. About `vol-1` it gives the scripted answers in order and repeats the
/// last one.
struct Scripted {
    info: DriverInfo,
    script: Mutex<VecDeque<Says>>,
    /// Calls in progress, and the maximum so far.
    under_way: Mutex<(usize, usize)>,
}

impl Scripted {
    fn saying(script: impl IntoIterator<Item = Says>) -> Arc<Self> {
        let info = DriverInfo {
            name: "scripted",
            providers: vec!["scripted".to_owned()],
            schema: None,
            capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: false },
        };
        Arc::new(Self { info, script: Mutex::new(script.into_iter().collect()), under_way: Mutex::default() })
    }

    fn next(&self) -> Says {
        let mut script = self.script.lock().unwrap();
        if script.len() > 1 { script.pop_front().unwrap() } else { script[0] }
    }
}

#[async_trait]
impl Driver for Scripted {
    fn info(&self) -> &DriverInfo {
        &self.info
    }
    fn validate(&self, _class: &MachineClass, _found: &mut kube_values::field::Findings) {}
    async fn create_machine(&self, _: &OpContext, _: MachineRequest) -> Result<CreatedVm, Status> {
        Err(Status::new(Code::Unimplemented, ""))
    }
    async fn delete_machine(&self, _: &OpContext, _: MachineRequest) -> Result<DeletedVm, Status> {
        Err(Status::new(Code::Unimplemented, ""))
    }
    async fn get_machine_status(&self, _: &OpContext, _: MachineRequest) -> Result<VmIdentity, Status> {
        Err(Status::new(Code::Unimplemented, ""))
    }
    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        Err(Status::new(Code::Unimplemented, ""))
    }
    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        let handle = request.volumes[0].csi.as_ref().unwrap().volume_handle.clone();
        {
            let mut calls = self.under_way.lock().unwrap();
            calls.0 += 1;
            calls.1 = calls.1.max(calls.0);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.under_way.lock().unwrap().0 -= 1;
        match if handle == "vol-1" { self.next() } else { Says::ItsName } {
            Says::ItsName => Ok(vec![handle]),
            Says::NotMine => Ok(Vec::new()),
            Says::Fails(code) => Err(Status::new(code, "no idea")),
            Says::Crashes => panic!("a test's driver crashes"),
        }
    }
}

/// Runs the steps of a drain of `here` for at most this many seconds, with an API server that accepts every eviction at
/// once.
async fn stepped(views: Views, driver: Arc<Scripted>, seconds: i64) -> (Vec<DrainResult>, usize) {
    stepped_through(&Gate::open_until(CancellationToken::new()), views, driver, seconds).await
}

/// The same with this gate.
async fn stepped_through(
    gate: &Gate,
    views: Views,
    driver: impl Into<Option<Arc<Scripted>>>,
    seconds: i64,
) -> (Vec<DrainResult>, usize) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        async move { Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec()))) }
    });
    let views = Arc::new(views);
    let evictor = Evictor::new(kube::Client::new(service, "ns"), gate.clone(), 5);
    let drainer =
        Drainer::new(Arc::clone(&views) as Arc<dyn DrainViews>, evictor, Arc::new(TokioTasks), Duration::from_secs(5));
    let driver = driver.into().map(|driver| driver as Arc<dyn Driver>);
    let woken = Arc::new(tokio::sync::Notify::new());
    let mut run = Run::new(order());
    let mut results = Vec::new();
    for second in 0..seconds {
        let wakes = Arc::clone(&woken);
        let drain = Drain {
            node_name: "here",
            node: Some(&node().into()),
            limits: limits(),
            driver: driver.as_ref(),
            now: at(second),
            wake: Arc::new(move || wakes.notify_one()),
        };
        results.push(drainer.step(&drain, &mut run));
        if results.last() == Some(&DrainResult::Drained) {
            break;
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), woken.notified()).await;
        // Evicted pods are gone at once.
        let gone: Vec<String> = asked.lock().unwrap().clone();
        views.pods.lock().unwrap().retain(|pod| !gone.iter().any(|path| path.contains(&format!("/{}/", pod.name()))));
    }
    let evictions = asked.lock().unwrap().len();
    (results, evictions)
}

/// Two pods with one volume each; the volume of `a` stays attached forever.
fn two_pods() -> Views {
    Views::default().pod("a", "here", &["claim-1"]).pod("b", "here", &["claim-2"]).attached(Some("pv-1"), "here")
}

#[rstest]
#[case::mc_221_a_volume_that_the_driver_can_not_name(vec![Says::Fails(Code::Internal)])]
#[case::one_that_is_not_the_providers(vec![Says::NotMine])]
#[case::a_driver_that_crashes_has_answered(vec![Says::Crashes])]
#[case::a_driver_that_was_throttled_first(vec![Says::Fails(Code::ResourceExhausted), Says::Fails(Code::Unavailable), Says::NotMine])]
#[tokio::test(start_paused = true)]
async fn such_a_volume_is_not_waited_for(#[case] script: Vec<Says>) {
    let (results, evictions) = stepped(two_pods(), Scripted::saying(script), 60).await;
    assert_eq!(results.last(), Some(&DrainResult::Drained), "the volume of pod a is attached for ever: {results:#?}");
    assert_eq!(evictions, 2);
}

#[rstest]
#[case::the_driver_names_it(vec![Says::ItsName])]
#[case::it_is_throttled_and_names_it_later(vec![Says::Fails(Code::ResourceExhausted), Says::Fails(Code::Unavailable), Says::ItsName])]
#[case::it_is_throttled_for_ever(vec![Says::Fails(Code::ResourceExhausted)])]
#[tokio::test(start_paused = true)]
async fn a_volume_that_may_be_the_providers_is_waited_for_until_it_is_detached(#[case] script: Vec<Says>) {
    let (results, evictions) = stepped(two_pods(), Scripted::saying(script), 100).await;
    let Some(DrainResult::Running { waiting: Some(waiting), .. }) = results.last() else {
        panic!("the VM must not go: {results:#?}")
    };
    assert!(waiting.text().contains("pv-1"), "{waiting:?}");
    assert_eq!(evictions, 1, "pod b comes after the volume of pod a");
}

/// The class of a machine may be gone, and with it the driver.
#[tokio::test(start_paused = true)]
async fn a_volume_is_waited_for_while_no_driver_can_be_asked() {
    let gate = Gate::open_until(CancellationToken::new());
    let (results, evictions) = stepped_through(&gate, two_pods(), None, 100).await;
    assert!(matches!(results.last(), Some(DrainResult::Running { waiting: Some(_), .. })), "{results:#?}");
    assert_eq!(evictions, 1, "pod b comes after the volume of pod a");
}

#[tokio::test(start_paused = true)]
async fn a_large_node_does_not_ask_for_all_its_volumes_at_once() {
    let claims: Vec<String> = (0..64).map(|number| format!("claim-1{number:03}")).collect();
    let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
    let driver = Scripted::saying([Says::ItsName]);
    let (results, _) = stepped(Views::default().pod("a", "here", &claims), Arc::clone(&driver), 80).await;
    assert_eq!(results.last(), Some(&DrainResult::Drained), "{results:#?}");
    assert_eq!(*driver.under_way.lock().unwrap(), (0, 32));
}

#[tokio::test(start_paused = true)]
async fn a_stopping_process_asks_for_no_names_of_volumes() {
    let stopping = CancellationToken::new();
    let gate = Gate::open_until(CancellationToken::new()).draining_calls(stopping.clone(), Duration::ZERO);
    stopping.cancel();
    let driver = Scripted::saying([Says::ItsName]);
    let (results, _) = stepped_through(&gate, two_pods(), Arc::clone(&driver), 30).await;
    assert_eq!(*driver.under_way.lock().unwrap(), (0, 0));
    assert_ne!(results.last(), Some(&DrainResult::Drained), "a volume whose name is not known may be the provider's");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_drops_a_question_for_the_name_of_a_volume() {
    let lost = CancellationToken::new();
    let gate = Gate::open_until(lost.clone());
    let driver = Scripted::saying([Says::ItsName]);
    let lose = async {
        // An answer takes 10 ms.
        tokio::time::sleep(Duration::from_millis(5)).await;
        lost.cancel();
    };
    tokio::join!(stepped_through(&gate, two_pods(), Arc::clone(&driver), 30), lose);
    assert_eq!(*driver.under_way.lock().unwrap(), (2, 2), "both have begun, none has come to its end");
}

/// A running drain that has listed its pods.
fn under_way() -> Run {
    let mut run = Run::new(order());
    run.progress.is_listed = true;
    run.progress.lingering.insert("pv-1".to_owned());
    run
}

#[rstest]
#[case::the_same_flow(order(), true, 1)]
#[case::by_force_it_lists_anew_and_knows_what_lingers(DrainOrder { force: Force::Yes, ..order() }, false, 1)]
#[case::another_flow(DrainOrder { flow: DrainFlow::Update(Some(at(0))), ..order() }, false, 0)]
#[case::another_node(DrainOrder { node: "there".to_owned(), ..order() }, false, 0)]
#[case::a_node_that_has_registered_anew(DrainOrder { node_uid: "x".to_owned(), ..order() }, false, 0)]
fn a_drain_goes_on_only_for_the_flow_and_the_node_that_it_was_begun_for(
    #[case] order: DrainOrder,
    #[case] is_listed: bool,
    #[case] lingering: usize,
) {
    let run = Run::ordered(Some(under_way()), order, remembered);
    assert_eq!((run.progress.is_listed, run.progress.lingering.len()), (is_listed, lingering));
}

#[rstest]
#[case::a_second_selection(DrainFlow::Update(Some(at(0))), DrainFlow::Update(Some(at(1))))]
#[case::a_second_failure(DrainFlow::Preservation(Some(at(0))), DrainFlow::Preservation(Some(at(1))))]
fn the_same_flow_at_another_time_is_another_one(#[case] first: DrainFlow, #[case] second: DrainFlow) {
    let run = Run { order: DrainOrder { flow: first, ..order() }, ..under_way() };
    let run = Run::ordered(Some(run), DrainOrder { flow: second, ..order() }, remembered);
    assert!(!run.progress.is_listed);
}

#[test]
fn a_drain_that_is_not_ordered_any_more_is_abandoned() {
    assert!(!under_way().is_kept_by(remembered));
}
