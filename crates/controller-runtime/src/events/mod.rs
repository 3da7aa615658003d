//! Kubernetes Events: what a person should read about an object.
//!
//! Controllers hand notes to a [`Recorder`], which never blocks them and never grows without bound; the publisher writes
//! them to the API server at client-go's pace. No secret may be put into a message.

pub mod correlate;
mod publish;

pub use publish::{Publisher, WAITING_NOTES, channel};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio::sync::mpsc;

use super::snapshot::Snapshot;

/// Whether an event tells of normal progress or of something to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum EventKind {
    /// Progress.
    Normal,
    /// Trouble.
    Warning,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EventNote {
    /// Progress or trouble.
    pub kind: EventKind,
    /// Reason in CamelCase, from a closed set.
    pub reason: &'static str,
    /// What happened and what to do, for people.
    pub message: String,
}

impl EventNote {
    /// Tells of progress.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Normal, reason, message: message.into() }
    }

    /// Tells of trouble.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind: EventKind::Warning, reason, message: message.into() }
    }
}

/// A note about an object, on its way to the API server.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The object it is about.
    pub about: ObjectReference,
    /// Component that tells it, such as `machineset-controller`.
    pub component: &'static str,
    /// What it says.
    pub note: EventNote,
}

/// Takes notes of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    component: &'static str,
    sender: mpsc::Sender<Pending>,
}

impl Recorder {
    /// A recorder for a component whose notes arrive at the other end of `sender`.
    pub fn new(component: &'static str, sender: mpsc::Sender<Pending>) -> Self {
        Self { component, sender }
    }

    /// Takes a note. When the channel is full the note is dropped: an event is a help, not a record.
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

    /// Takes a note about an object that is known by reference only.
    pub fn note_about(&self, about: ObjectReference, note: EventNote) {
        if self.sender.try_send(Pending { about, component: self.component, note }).is_err() {
            tracing::debug!(component = self.component, "event dropped: too many are waiting");
        }
    }
}
