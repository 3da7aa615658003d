//! `VolumeAttachment`s of simulated CSI drivers to simulated Nodes: attached after a while, and let go of after a while.
//!
//! This is the part of an external attacher. What a Node shows of its volumes is in [`super::volumes`].

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::runtime::watcher;
use serde_json::json;

use super::{
    CallError, Done, Job, Kubelet, UNPLACED, back_off,
    brief::AttachmentBrief,
    log_call_error, log_watch_error,
    target::{PatchKind, Target},
    volumes::AttachedVolume,
};
use crate::{
    cloud::{MachineCall, Verdict},
    rules::Operation,
};

/// What is done with an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attaching {
    Attach,
    /// Find out which volume is attached; after a restart only the cluster knows.
    LookUp,
    Detach,
}

/// Whether the Node of an attachment is one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    /// Its Node is not known: it may be gone, or somebody else's.
    Unclear,
}

/// An attachment and the work on it.
#[derive(Debug)]
pub(super) struct AttachmentRecord {
    brief: AttachmentBrief,
    whose: Whose,
    begun: Option<Attaching>,
    volume: Option<AttachedVolume>,
    failures: u32,
}

impl AttachmentRecord {
    /// The volume, when it is attached to this node.
    pub(super) fn shown_on(&self, node: &str) -> Option<&AttachedVolume> {
        self.volume.as_ref().filter(|_| self.brief.node == node && self.brief.attached)
    }
}

/// A call about an attachment that has ended.
#[derive(Debug)]
pub(super) struct AttachmentDone {
    name: Arc<str>,
    step: Attaching,
    result: Result<Option<AttachedVolume>, CallError>,
}

impl Kubelet {
    pub(super) fn on_attachment_event(&mut self, event: watcher::Result<watcher::Event<AttachmentBrief>>) {
        match event {
            Err(error) => log_watch_error("volumeattachments", &error),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Ok(watcher::Event::InitApply(attachment) | watcher::Event::Apply(attachment)) => {
                self.on_attachment(attachment);
            }
            Ok(watcher::Event::Delete(attachment)) => {
                self.unplaced_attachments.remove(attachment.name());
                if let Some(record) = self.attachments.remove(attachment.name()) {
                    self.volumes_changed(&record.brief.node);
                }
            }
        }
    }

    /// Takes up the attachments to a Node that were seen before it was known. One that was being let go of then, as after a
    /// restart, was taken for somebody else's.
    pub(super) fn place_attachments(&mut self, node: &str) {
        let unclear = |record: &AttachmentRecord| record.whose == Whose::Unclear && record.brief.node == node;
        let mut looked_at_too_early: Vec<AttachmentBrief> =
            self.attachments.extract_if(|_, record| unclear(record)).map(|(_, record)| record.brief).collect();
        looked_at_too_early.sort_by(|one, other| one.name().cmp(other.name()));
        for attachment in looked_at_too_early {
            self.on_attachment(attachment);
        }
        let mut here: Vec<Arc<str>> = self
            .unplaced_attachments
            .iter()
            .filter(|(_, attachment)| attachment.node == node)
            .map(|(name, _)| Arc::clone(name))
            .collect();
        here.sort();
        for name in here {
            if let Some(attachment) = self.unplaced_attachments.remove(&name) {
                self.on_attachment(attachment);
            }
        }
    }

    fn on_attachment(&mut self, brief: AttachmentBrief) {
        let settings = self.config().volumes.clone();
        if !settings.drivers.contains(&brief.attacher) {
            return;
        }
        let name: Arc<str> = Arc::from(brief.name());
        if self.attachments.get(&name).is_some_and(|known| known.brief.uid() != brief.uid()) {
            self.attachments.remove(&name);
        }
        let known = self.attachments.get(&name).map(|known| known.whose);
        let whose = if self.nodes.contains_key(brief.node.as_str()) { Some(Whose::Ours) } else { known };
        if whose.is_none() && !brief.deleting {
            if self.unplaced_attachments.len() < UNPLACED {
                self.unplaced_attachments.insert(name, brief);
            }
            return;
        }
        self.unplaced_attachments.remove(&name);
        let whose = whose.unwrap_or(Whose::Unclear);
        let record = self.attachments.entry(Arc::clone(&name)).or_insert_with(|| AttachmentRecord {
            brief: brief.clone(),
            whose,
            begun: None,
            volume: None,
            failures: 0,
        });
        (record.brief, record.whose) = (brief, whose);
        let (step, latency, operation) = match (record.brief.deleting, record.brief.attached) {
            (false, false) => (Attaching::Attach, settings.attach, Some(Operation::Attach)),
            (false, true) if record.volume.is_none() => (Attaching::LookUp, Duration::ZERO, None),
            (false, true) => {
                let node = record.brief.node.clone();
                return self.volumes_changed(&node);
            }
            (true, _) => (Attaching::Detach, settings.detach, Some(Operation::Detach)),
        };
        if record.begun == Some(step) {
            return;
        }
        record.begun = Some(step);
        let after = latency + operation.map(|operation| self.hang_of(operation, &name)).unwrap_or_default();
        self.schedule(after, Job::Attachment(name, step));
    }

    /// How much longer the cloud takes, by its failure rules. A failure counts as a minute of retries.
    fn hang_of(&self, operation: Operation, attachment: &str) -> Duration {
        let call = MachineCall { machine: attachment.to_owned(), ..MachineCall::default() };
        let admission = self.shared.with(|cloud, now| cloud.admit(operation, &call, now));
        let failed = matches!(admission.verdict, Verdict::FailBefore(_) | Verdict::FailAfter(_));
        admission.hang.unwrap_or_default() + Duration::from_secs(if failed { 60 } else { 0 })
    }

    pub(super) fn begin_attachment(&mut self, name: &Arc<str>, step: Attaching) -> Option<BoxFuture<'static, Done>> {
        let record = self.attachments.get(name).filter(|record| record.begun == Some(step))?;
        let (target, name) = (self.target.clone(), Arc::clone(name));
        let (brief, whose) = (record.brief.clone(), record.whose);
        let work = async move {
            let result = match step {
                Attaching::Attach => attach(&target, &brief).await,
                Attaching::LookUp => volume_of(&target, &brief).await,
                Attaching::Detach => detach(&target, &brief, whose).await.map(|()| None),
            };
            Done::Attachment(AttachmentDone { name, step, result })
        };
        Some(work.boxed())
    }

    pub(super) fn on_attachment_done(&mut self, done: AttachmentDone) {
        let AttachmentDone { name, step, result } = done;
        let Some(record) = self.attachments.get_mut(&name) else { return };
        match result {
            Ok(volume) => {
                if step != Attaching::Detach {
                    record.volume = volume;
                    let node = record.brief.node.clone();
                    self.volumes_changed(&node);
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                log_call_error("volumeattachment", &name, &error);
                record.failures += 1;
                let after = back_off(&name, record.failures);
                // The watch brings the newer version that a conflict means.
                self.schedule(after, Job::Attachment(name, step));
            }
        }
    }
}

fn path_of(brief: &AttachmentBrief) -> String {
    format!("/apis/storage.k8s.io/v1/volumeattachments/{}", brief.name())
}

/// The finalizer of the attacher, and those of others.
fn finalizers(brief: &AttachmentBrief) -> (String, Vec<String>) {
    let ours = format!("external-attacher/{}", brief.attacher.replace('.', "-"));
    let others = brief.finalizers.iter().filter(|other| **other != ours).cloned().collect();
    (ours, others)
}

async fn set_finalizers(target: &Target, brief: &AttachmentBrief, finalizers: &[String]) -> Result<(), CallError> {
    let metadata = json!({"uid": brief.uid(), "resourceVersion": brief.resource_version(), "finalizers": finalizers});
    target.patch(&path_of(brief), PatchKind::Merge, &json!({"metadata": metadata})).await
}

async fn attach(target: &Target, brief: &AttachmentBrief) -> Result<Option<AttachedVolume>, CallError> {
    let volume = volume_of(target, brief).await?;
    let (ours, others) = finalizers(brief);
    if others.len() == brief.finalizers.len() {
        let all: Vec<String> = others.into_iter().chain([ours]).collect();
        set_finalizers(target, brief, &all).await?;
    }
    let patch = json!({"status": {"attached": true}});
    target.patch(&format!("{}/status", path_of(brief)), PatchKind::Merge, &patch).await?;
    Ok(volume)
}

/// The volume that an attachment is about; `None` when the cluster does not know it, or it is an inline one.
async fn volume_of(target: &Target, brief: &AttachmentBrief) -> Result<Option<AttachedVolume>, CallError> {
    let Some(name) = &brief.volume else { return Ok(None) };
    match target.get(&format!("/api/v1/persistentvolumes/{name}")).await {
        Ok(volume) => Ok(AttachedVolume::of(&volume, &brief.attacher)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets go of the attachment. One whose Node is there without being ours is somebody else's to detach.
async fn detach(target: &Target, brief: &AttachmentBrief, whose: Whose) -> Result<(), CallError> {
    if whose == Whose::Unclear {
        match target.get(&format!("/api/v1/nodes/{}", brief.node)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let (_, others) = finalizers(brief);
    if others.len() == brief.finalizers.len() { Ok(()) } else { set_finalizers(target, brief, &others).await }
}
