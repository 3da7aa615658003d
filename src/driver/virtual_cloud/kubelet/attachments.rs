//! `VolumeAttachment`s of simulated CSI drivers: attached after a while, and let go of after a while.
//!
//! This is the part of an external attacher. Volumes in the status of Nodes are not shown; what waits for a detachment
//! sees it in the `VolumeAttachment`.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use kube::runtime::watcher;
use serde_json::json;

use super::{
    CallError, Done, Job, Kubelet, back_off, brief::AttachmentBrief, log_call_error, log_watch_error, target::PatchKind,
};
use crate::driver::virtual_cloud::{
    cloud::{MachineCall, Verdict},
    rules::Operation,
};

/// What is done with an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attaching {
    Attach,
    Detach,
}

/// An attachment and the work on it.
#[derive(Debug)]
pub(super) struct AttachmentRecord {
    brief: AttachmentBrief,
    begun: Option<Attaching>,
    failures: u32,
}

/// A call about an attachment that has ended.
#[derive(Debug)]
pub(super) struct AttachmentDone {
    name: Arc<str>,
    step: Attaching,
    result: Result<(), CallError>,
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
                self.attachments.remove(attachment.name());
            }
        }
    }

    fn on_attachment(&mut self, brief: AttachmentBrief) {
        let settings = self.config().volumes.clone();
        if !settings.drivers.contains(&brief.attacher) {
            return;
        }
        let name: Arc<str> = Arc::from(brief.name());
        let step = match (brief.deleting, brief.attached) {
            (false, false) => Some((Attaching::Attach, settings.attach, Operation::Attach)),
            (false, true) => None,
            (true, _) => Some((Attaching::Detach, settings.detach, Operation::Detach)),
        };
        let record = self.attachments.entry(Arc::clone(&name)).or_insert_with(|| AttachmentRecord {
            brief: brief.clone(),
            begun: None,
            failures: 0,
        });
        if record.brief.uid() != brief.uid() {
            (record.begun, record.failures) = (None, 0);
        }
        record.brief = brief;
        let Some((step, latency, operation)) = step else { return };
        if record.begun == Some(step) {
            return;
        }
        record.begun = Some(step);
        let after = latency + self.hang_of(operation, &name);
        self.schedule(after, Job::Attachment(name, step));
    }

    /// How much longer the cloud takes, by its failure rules. A failure counts as a minute of retries.
    fn hang_of(&self, operation: Operation, attachment: &str) -> std::time::Duration {
        let call = MachineCall { machine: attachment.to_owned(), ..MachineCall::default() };
        let admission = self.shared.with(|cloud, now| cloud.admit(operation, &call, now));
        let failed = !matches!(admission.verdict, Verdict::Go);
        admission.hang.unwrap_or_default() + std::time::Duration::from_secs(if failed { 60 } else { 0 })
    }

    pub(super) fn begin_attachment(&mut self, name: &Arc<str>, step: Attaching) -> Option<BoxFuture<'static, Done>> {
        let record = self.attachments.get(name).filter(|record| record.begun == Some(step))?;
        let (target, name, brief) = (self.target.clone(), Arc::clone(name), record.brief.clone());
        let finalizer = format!("external-attacher/{}", brief.attacher.replace('.', "-"));
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        let others: Vec<String> = brief.finalizers.iter().filter(|other| **other != finalizer).cloned().collect();
        let held = others.len() != brief.finalizers.len();
        let with_finalizers = move |finalizers: Vec<String>| json!({"metadata": {"uid": brief.uid(), "resourceVersion": brief.resource_version(), "finalizers": finalizers}});
        let work = async move {
            let result = match step {
                Attaching::Attach => {
                    let mut claimed = Ok(());
                    if !held {
                        let all = others.into_iter().chain([finalizer]).collect();
                        claimed = target.patch(&path, PatchKind::Merge, &with_finalizers(all)).await;
                    }
                    match claimed {
                        Ok(()) => {
                            let patch = json!({"status": {"attached": true}});
                            target.patch(&format!("{path}/status"), PatchKind::Merge, &patch).await
                        }
                        failed => failed,
                    }
                }
                Attaching::Detach if held => target.patch(&path, PatchKind::Merge, &with_finalizers(others)).await,
                Attaching::Detach => Ok(()),
            };
            Done::Attachment(AttachmentDone { name, step, result })
        };
        Some(work.boxed())
    }

    pub(super) fn on_attachment_done(&mut self, done: AttachmentDone) {
        let AttachmentDone { name, step, result } = done;
        let Err(error) = result else { return };
        if error.is_not_found() {
            return;
        }
        log_call_error("volumeattachment", &name, &error);
        let Some(record) = self.attachments.get_mut(&name) else { return };
        record.failures += 1;
        let after = back_off(&name, record.failures);
        // The watch brings the newer version that a conflict means.
        self.schedule(after, Job::Attachment(name, step));
    }
}
