//! `lastOperation` ↔ `operation`: the same texts, and the next step as a separate field.
//!
//! In v1alpha1 the next step of a deletion is a text inside the description (spec/machine-controller §1.8).

use super::{Object, rename};
use crate::names::stage_text;
use kube_values::json::Json;

/// The texts in the order in which the Go original looks for them. The first match decides.
const STEPS: [(&str, &str); 6] = [
    ("GetVMStatus", stage_text::GET_VM_STATUS),
    ("InitiateDrain", stage_text::DRAIN),
    ("DeleteVolumeAttachments", stage_text::DELETE_VOLUME_ATTACHMENTS),
    ("InitiateVMDeletion", stage_text::DELETE_VM),
    ("InitiateNodeDeletion", stage_text::DELETE_NODE),
    ("InitiateFinalizerRemoval", stage_text::REMOVE_FINALIZER),
];

/// Renames `lastOperation` of a status or summary and derives the next step.
pub(super) fn up(owner: &mut Object<'_>) {
    rename(owner, "lastOperation", "operation");
    let Some(operation) = super::nested(owner, "operation") else { return };
    rename(operation, "description", "message");
    rename(operation, "lastUpdateTime", "updateTime");
    operation.remove("nextStep");
    if let Some(step) = next_step(operation, text(operation, "message")) {
        operation.insert("nextStep", step);
    }
}

/// Renames `operation` and adds the next step to the description, if it is not there.
pub(super) fn down(owner: &mut Object<'_>) {
    rename(owner, "operation", "lastOperation");
    let Some(operation) = super::nested(owner, "lastOperation") else { return };
    rename(operation, "updateTime", "lastUpdateTime");
    rename(operation, "message", "description");
    let Some(wanted) = operation.remove("nextStep") else { return };
    let description = text(operation, "description");
    let Some((step, constant)) = STEPS.iter().find(|(step, _)| wanted == *step) else { return };
    if next_step(operation, description) == Some(step) {
        return;
    }
    let appended = if description.is_empty() { (*constant).to_owned() } else { format!("{description}. {constant}") };
    // If the message contains the text of another step, that text would match first. Then the message is dropped.
    let candidates = [appended, (*constant).to_owned()];
    if let Some(description) = candidates.into_iter().find(|it| next_step(operation, it) == Some(step)) {
        operation.insert("description", description);
    }
}

fn text<'a>(operation: &'a Object<'_>, name: &str) -> &'a str {
    operation.get(name).and_then(Json::as_str).unwrap_or_default()
}

/// The next step in a description. Only deletions and operations in progress have one.
fn next_step(operation: &Object<'_>, description: &str) -> Option<&'static str> {
    if text(operation, "type") != "Delete" && text(operation, "state") != "Processing" {
        return None;
    }
    STEPS.iter().find(|(_, constant)| description.contains(constant)).map(|(step, _)| *step)
}
