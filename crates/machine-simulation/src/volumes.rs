//! Pods with volumes. Each pod has an owner, which creates it again on any schedulable Node, and one volume, which is
//! attached to one Node at a time. Claims and volumes never change; attachments are objects of the API server.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{
        CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
        PersistentVolumeClaimVolumeSource, PersistentVolumeSpec, Pod, PodSpec, Volume,
    },
    storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeAttachmentStatus},
};
use kube::ResourceExt;

use super::{api::Api, played::target::node_of, pods, process::later};
use controller_runtime::key::ObjectKey;

/// Represents the storage driver: an attachment with this finalizer is still being detached.
const ATTACHER: &str = "simulated/attacher";
/// Time until a volume is attached.
const ATTACHES_IN: Duration = Duration::from_secs(10);
/// Time until a volume is detached.
const DETACHES_IN: Duration = Duration::from_secs(15);

/// The volumes of a world.
#[derive(Clone, Copy, Debug)]
pub struct Volumes {
    /// Their number; each has a pod.
    pub count: u8,
    /// No volume detaches before this time.
    pub detach_from: Timestamp,
}

fn pod_name(number: u8) -> String {
    format!("db-{number}")
}

fn claim_of(pod: &str) -> String {
    format!("data-{pod}")
}

fn volume_of(claim: &str) -> String {
    format!("pv-of-{claim}")
}

/// The claim of this name.
pub fn claim(key: &ObjectKey) -> PersistentVolumeClaim {
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = Some(key.name.clone());
    claim.metadata.namespace = Some(key.namespace.clone());
    let volume_name = Some(volume_of(&key.name));
    claim.spec = Some(PersistentVolumeClaimSpec { volume_name, ..PersistentVolumeClaimSpec::default() });
    claim
}

/// The volume of this name.
pub fn volume(name: &str) -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    volume.metadata.name = Some(name.to_owned());
    let csi = CSIPersistentVolumeSource {
        driver: "simulated".to_owned(),
        volume_handle: format!("disk-{name}"),
        ..CSIPersistentVolumeSource::default()
    };
    volume.spec = Some(PersistentVolumeSpec { csi: Some(csi), ..PersistentVolumeSpec::default() });
    volume
}

/// The volume of an attachment.
pub fn attached_volume(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

/// Whether an attachment says that its volume is attached.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

impl Volumes {
    /// Owners, scheduler and storage driver work; returns whether there was anything to do.
    pub fn go_on(self, api: &mut Api, now: Timestamp) -> bool {
        let changes = api.changes;
        if self.count > 0 {
            pods::end_lost(api);
            self.move_pods(api, now);
            self.detach(api, now);
            self.attach(api, now);
        }
        api.changes != changes
    }

    /// When there is something to do next.
    pub fn next(self, api: &Api) -> Option<Timestamp> {
        let due = |attachment: &VolumeAttachment| match &attachment.metadata.deletion_timestamp {
            Some(deleted) => Some(later(deleted.0, DETACHES_IN).max(self.detach_from)),
            None if is_attached(attachment) => None,
            None => attachment.metadata.creation_timestamp.as_ref().map(|made| later(made.0, ATTACHES_IN)),
        };
        api.attachments.values().filter_map(|attachment| due(attachment)).min()
    }

    /// Each owner creates its pod, and each pod gets a Node if any is schedulable.
    fn move_pods(self, api: &mut Api, now: Timestamp) {
        for number in 0..self.count {
            let name = pod_name(number);
            if !api.pods.contains_key(&name) {
                pods::make(api, &name, with_claim(&name), now);
            }
            let free = pods::free(api);
            let waits = api.pods.get(&name).is_some_and(|pod| node_of(pod).is_none());
            let place = usize::from(number).checked_rem(free.len()).and_then(|place| free.get(place));
            if let Some(node) = place.filter(|_| waits) {
                api.edit::<Pod>(&name, |pod| pod.spec.get_or_insert_default().node_name = Some(node.clone()));
            }
        }
    }

    /// Ends the attachments to Nodes on which no pod uses the volume.
    fn detach(self, api: &mut Api, now: Timestamp) {
        let unused = |one: &VolumeAttachment| user_on(api, one).is_none();
        let (ending, others): (Vec<_>, Vec<_>) =
            api.attachments.values().cloned().partition(|one| one.metadata.deletion_timestamp.is_some());
        let unused: Vec<String> = others.iter().filter(|one| unused(one)).map(|one| one.name_any()).collect();
        for attachment in ending {
            let deleted = attachment.metadata.deletion_timestamp.as_ref().map_or(now, |deleted| deleted.0);
            if later(deleted, DETACHES_IN).max(self.detach_from) <= now {
                api.edit::<VolumeAttachment>(&attachment.name_any(), |one| one.metadata.finalizers = None);
            }
        }
        for name in unused {
            // The attachment exists: it was just looked up.
            let _ = api.delete::<VolumeAttachment>(&name, None, None, now);
        }
    }

    /// Attaches volumes to the Nodes of their pods, unless they are attached elsewhere.
    fn attach(self, api: &mut Api, now: Timestamp) {
        for number in 0..self.count {
            let name = pod_name(number);
            let volume = volume_of(&claim_of(&name));
            let Some(node) = api.pods.get(&name).and_then(|pod| node_of(pod)).map(str::to_owned) else { continue };
            let known = api.attachments.values().find(|one| attached_volume(one) == Some(volume.as_str())).cloned();
            let Some(known) = known else {
                // The name is new: the earlier attachment has ended.
                let _ = api.create(&attachment(&volume, &node), now);
                continue;
            };
            let made = known.metadata.creation_timestamp.as_ref().map_or(now, |made| made.0);
            let is_due = known.metadata.deletion_timestamp.is_none() && later(made, ATTACHES_IN) <= now;
            if is_due && !is_attached(&known) {
                api.edit::<VolumeAttachment>(&known.name_any(), |one| {
                    one.status = Some(VolumeAttachmentStatus { attached: true, ..VolumeAttachmentStatus::default() });
                });
            }
        }
    }
}

/// The pod on the Node of an attachment that uses its volume.
pub fn user_on<'a>(api: &'a Api, attachment: &VolumeAttachment) -> Option<&'a str> {
    let uses = |name: &&String| attached_volume(attachment) == Some(volume_of(&claim_of(name)).as_str());
    let (name, pod) = api.pods.iter().find(|(name, _)| uses(name))?;
    (node_of(pod) == Some(attachment.spec.node_name.as_str())).then_some(name)
}

fn with_claim(pod: &str) -> PodSpec {
    let source = PersistentVolumeClaimVolumeSource { claim_name: claim_of(pod), ..Default::default() };
    let volume = Volume { name: "data".to_owned(), persistent_volume_claim: Some(source), ..Volume::default() };
    PodSpec { volumes: Some(vec![volume]), ..PodSpec::default() }
}

fn attachment(volume: &str, node: &str) -> VolumeAttachment {
    let mut attachment = VolumeAttachment {
        spec: VolumeAttachmentSpec {
            attacher: "simulated".to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource { persistent_volume_name: Some(volume.to_owned()), ..Default::default() },
        },
        ..VolumeAttachment::default()
    };
    attachment.metadata.name = Some(format!("{volume}-on-{node}"));
    attachment.metadata.finalizers = Some(vec![ATTACHER.to_owned()]);
    attachment
}
