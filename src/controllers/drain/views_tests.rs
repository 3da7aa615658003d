//! Scenarios of spec/machine-controller §17.10 that need views of a cluster: shared volumes, attachments, names of volumes.

use std::{
    collections::BTreeMap,
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
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use kube::{ResourceExt, client::Body};
use tokio_util::sync::CancellationToken;

use super::{
    Drain, Drainer, Run,
    act::Evictor,
    observe::{DrainLimits, DrainViews, observe},
    progress::Progress,
    step::DrainResult,
    volumes::Presence,
};
use crate::{
    api::v1alpha1::MachineClass,
    cluster::{gate::Gate, key::ObjectKey},
    controllers::machine::observation::Force,
    driver::{
        Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext,
        Status, VmIdentity, VolumeIdsRequest,
    },
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Two nodes `here` and `there`; PV `pv-N` is bound to claim `claim-N` and has the handle `vol-N`.
#[derive(Default)]
struct Views {
    pods: Mutex<Vec<Arc<Pod>>>,
    attachments: Vec<Arc<VolumeAttachment>>,
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
        self.pods.lock().unwrap().push(Arc::new(pod));
        self
    }

    fn attached(mut self, volume: Option<&str>, node: &str) -> Self {
        let mut attachment = VolumeAttachment::default();
        attachment.spec.node_name = node.to_owned();
        attachment.spec.source.persistent_volume_name = volume.map(str::to_owned);
        attachment.status.get_or_insert_default().attached = true;
        self.attachments.push(Arc::new(attachment));
        self
    }
}

impl DrainViews for Views {
    fn ready(&self) -> bool {
        true
    }
    fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let pods = self.pods.lock().unwrap();
        pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)).cloned().collect()
    }
    fn pods_using(&self, claim: &ObjectKey) -> Vec<Arc<Pod>> {
        let pods = self.pods.lock().unwrap();
        pods.iter().filter(|pod| super::pods::claims_of(pod).contains(claim)).cloned().collect()
    }
    fn budgets_in(&self, _namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        Vec::new()
    }
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
        let mut claim = PersistentVolumeClaim::default();
        claim.spec.get_or_insert_default().volume_name = Some(key.name.replace("claim", "pv"));
        Some(Arc::new(claim))
    }
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        let mut volume = PersistentVolume::default();
        volume.spec.get_or_insert_default().csi = Some(CSIPersistentVolumeSource {
            volume_handle: name.replace("pv", "vol"),
            ..CSIPersistentVolumeSource::default()
        });
        Some(Arc::new(volume))
    }
    fn attachments_on(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        self.attachments.iter().filter(|attachment| attachment.spec.node_name == node).cloned().collect()
    }
    fn attachments_of(&self, volume: &str) -> Vec<Arc<VolumeAttachment>> {
        let of = |attachment: &&Arc<VolumeAttachment>| {
            attachment.spec.source.persistent_volume_name.as_deref() == Some(volume)
        };
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

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = Some("here".to_owned());
    node
}

fn looked_at(views: &Views) -> super::observe::DrainObservation {
    let ids: BTreeMap<String, Vec<String>> =
        (1..5).map(|number| (format!("pv-{number}"), vec![format!("vol-{number}")])).collect();
    observe(views, "here", Some(&node()), limits(), &Progress::default(), &ids, at(0))
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
    assert_eq!((place.here, place.elsewhere), (Presence::No, Presence::No));
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
    assert_eq!(seen.volumes["pv-2"].here, Presence::Yes);
}

#[test]
fn a_volume_is_on_the_node_until_its_attachment_is_gone() {
    let views = Views::default().pod("a", "here", &["claim-1"]).attached(Some("pv-1"), "here");
    let place = looked_at(&views).volumes["pv-1"];
    assert_eq!((place.here, place.elsewhere), (Presence::Yes, Presence::No));
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
    let seen = observe(&views, "here", Some(&node()), limits(), &progress, &ids, at(0));
    let place = seen.volumes["pv-1"];
    assert_eq!((place.here, place.elsewhere, place.wanted), (Presence::No, Presence::Yes, Presence::Yes));
}

/// A driver that knows the names of all volumes but one.
struct Forgetful(DriverInfo);

#[async_trait]
impl Driver for Forgetful {
    fn info(&self) -> &DriverInfo {
        &self.0
    }
    fn validate(&self, _class: &MachineClass, _found: &mut crate::api::field::Findings) {}
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
        if handle == "vol-1" { Err(Status::new(Code::Internal, "no idea")) } else { Ok(vec![handle]) }
    }
}

#[tokio::test(start_paused = true)]
async fn mc_221_a_volume_that_the_driver_can_not_name_is_not_waited_for() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        async move { Ok::<_, tower::BoxError>(Response::new(Body::from(b"{}".to_vec()))) }
    });
    let views = Arc::new(
        Views::default().pod("a", "here", &["claim-1"]).pod("b", "here", &["claim-2"]).attached(Some("pv-1"), "here"),
    );
    let evictor = Evictor::new(kube::Client::new(service, "ns"), Gate::open_until(CancellationToken::new()), 5);
    let drainer = Drainer::new(Arc::clone(&views) as Arc<dyn DrainViews>, evictor, Duration::from_secs(5));
    let info = DriverInfo {
        name: "forgetful",
        providers: vec!["forgetful".to_owned()],
        schema: None,
        capabilities: Capabilities { create_is_idempotent: true, lists_creation_time: false },
    };
    let driver: Arc<dyn Driver> = Arc::new(Forgetful(info));
    let woken = Arc::new(tokio::sync::Notify::new());
    let mut run = Run::new(Force::No, at(7200));
    let mut results = Vec::new();
    for second in 0..60 {
        let wakes = Arc::clone(&woken);
        let drain = Drain {
            node_name: "here",
            node: Some(&node()),
            limits: limits(),
            driver: Some(&driver),
            now: at(second),
            wake: Arc::new(move || wakes.notify_one()),
        };
        results.push(drainer.step(&drain, &mut run));
        if results.last() == Some(&DrainResult::Drained) {
            break;
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), woken.notified()).await;
        // Pods that were asked are gone at once.
        let gone: Vec<String> = asked.lock().unwrap().clone();
        views
            .pods
            .lock()
            .unwrap()
            .retain(|pod| !gone.iter().any(|path| path.contains(&format!("/{}/", pod.name_any()))));
    }
    assert_eq!(results.last(), Some(&DrainResult::Drained), "the volume of pod a is attached for ever: {results:#?}");
    assert_eq!(asked.lock().unwrap().len(), 2);
}
