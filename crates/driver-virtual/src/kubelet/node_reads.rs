//! Nodes that stand in the way of ours: read, and deleted when they are left over.

use super::{CallError, brief::NodeBrief, target::Target};

/// The Node at this path, unless there is none.
pub(super) async fn read(target: &Target, path: &str) -> Result<Option<NodeBrief>, CallError> {
    match target.get(path).await {
        Ok(node) => serde_json::from_value(node).map(Some).map_err(|error| CallError::Unanswered(error.to_string())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a simulated Node whose VM has this identity; an empty identity fits all.
pub(super) async fn remove(target: &Target, path: &str, provider_id: &str) -> Result<(), CallError> {
    let Some(node) = read(target, path).await? else { return Ok(()) };
    let ours = node.simulated.as_ref().is_some_and(|node| provider_id.is_empty() || node.provider_id == provider_id);
    if !ours {
        return Ok(());
    }
    match target.delete(path, node.uid()).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}
