//! Kubernetes Events: messages to users about an object.
//!
//! Controllers pass notes to a [`Recorder`], which never blocks and whose memory is bounded. The publisher writes them to the API
//! server at client-go's rate. A message must not contain a secret.

pub mod correlate;
mod publish;

pub use publish::{Publisher, WAITING_NOTES, channel};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio::sync::mpsc;

use super::snapshot::Snapshot;

/// Whether an event reports normal progress or a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum EventKind {
    /// Progress.
    Normal,
    /// A problem.
    Warning,
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EventNote {
    /// Progress or a problem.
    pub kind: EventKind,
    /// Reason in CamelCase, from a closed set.
    pub reason: &'static str,
    /// The cause and the advice, for users.
    pub message: String,
}

impl EventNote {
    /// Reports progress.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Normal, reason, message: message.into() }
    }

    /// Reports a problem.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Warning, reason, message: message.into() }
    }
}

/// A note about an object, to be written to the API server.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The object.
    pub about: ObjectReference,
    /// The reporting component, such as `machineset-controller`.
    pub component: &'static str,
    /// The content.
    pub note: EventNote,
}

/// Accepts the notes of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    component: &'static str,
    sender: mpsc::Sender<Pending>,
}

impl Recorder {
    /// A recorder that sends the notes of a component to `sender`.
    pub fn new(component: &'static str, sender: mpsc::Sender<Pending>) -> Self {
        Self { component, sender }
    }

    /// Accepts a note. When the channel is full the note is dropped, because events are not a reliable record.
    pub fn note<S: Snapshot>(&self, about: &S, note: EventNote) {
        let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let about = ObjectReference {
            api_version: Some(S::Object::api_version(&()).into_owned()),
            kind: Some(S::Object::kind(&()).into_owned()),
            name: said(about.name()),
            namespace: said(about.namespace()),
            resource_version: about.resource_version().map(str::to_owned),
            uid: said(about.uid()),
            field_path: None,
        };
        self.note_about(about, note);
    }

    /// Accepts a note about an object of which only a reference is known.
    pub fn note_about(&self, about: ObjectReference, note: EventNote) {
        if self.sender.try_send(Pending { about, component: self.component, note }).is_err() {
            tracing::debug!(controller = self.component, "event dropped: too many are waiting");
        }
    }
}
