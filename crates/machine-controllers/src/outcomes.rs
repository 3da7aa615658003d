//! Interprets answers of the API server: whether an effect counts as carried out. Shared by the `act` files of the
//! controllers that own objects (`set`, `deployment`). Pure.

use crate::snapshots::Metadata;
use controller_runtime::error::ApiError;

/// An effect on an object that is gone counts as carried out.
///
/// # Errors
/// Any other error.
pub fn gone_is_fine<T>(answer: Result<T, ApiError>) -> Result<(), ApiError> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

/// The patch that releases an object tests its owner. An object that is gone, or has another owner now, counts as
/// released.
///
/// # Errors
/// Any other error.
pub fn released<T>(answer: Result<T, ApiError>) -> Result<(), ApiError> {
    match gone_is_fine(answer) {
        Err(ApiError::Invalid(_)) => Ok(()),
        other => other,
    }
}

/// An orphan may only be adopted by an owner that exists and is not being deleted (spec/deployment-and-set §5). `fresh`
/// is the owner as the API server returns it now.
///
/// # Errors
/// A conflict when the owner was replaced or is being deleted.
pub fn may_adopt(owner: Metadata<'_>, fresh: Option<Metadata<'_>>) -> Result<(), ApiError> {
    if fresh.is_some_and(|fresh| fresh.uid == owner.uid && !fresh.is_deleting()) {
        return Ok(());
    }
    let (namespace, name) = (owner.namespace, owner.name);
    Err(ApiError::Conflict(format!("{namespace}/{name} adopts nothing: it was replaced or is being deleted")))
}

/// Decides whether an existing object with the wanted name is ours. It is ours when the answer to an earlier creation
/// was lost; then its controller has the UID of the wanted owner. `there` is the object that the API server has under
/// the name, `message` is the text of its refusal.
///
/// # Errors
/// The refusal, when the object has another owner.
pub fn taken_by_us(there: Option<Metadata<'_>>, owner: Option<&str>, message: String) -> Result<(), ApiError> {
    let controller = there.and_then(Metadata::controller).map(|owner| owner.uid.as_str());
    if there.is_some() && controller == owner { Ok(()) } else { Err(ApiError::AlreadyExists(message)) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::{controller_reference, meta};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn refused() -> ApiError {
        ApiError::Forbidden("no".to_owned())
    }

    #[rstest]
    #[case::done(Ok(()), true, true)]
    #[case::gone(Err(ApiError::NotFound(String::new())), true, true)]
    #[case::not_ours_any_more(Err(ApiError::Invalid(String::new())), false, true)]
    #[case::refused(Err(refused()), false, false)]
    fn an_answer_is_read(#[case] answer: Result<(), ApiError>, #[case] is_patched: bool, #[case] is_released: bool) {
        assert_eq!(gone_is_fine(answer.clone()).is_ok(), is_patched);
        assert_eq!(released(answer).is_ok(), is_released);
    }

    #[rstest]
    #[case::it_stays(Some(meta("md")), true)]
    #[case::it_is_gone(None, false)]
    #[case::it_was_replaced(Some(ObjectMeta { uid: Some("other".to_owned()), ..meta("md") }), false)]
    fn an_owner_adopts_while_it_is_the_same(#[case] fresh: Option<ObjectMeta>, #[case] allowed: bool) {
        assert_eq!(may_adopt((&meta("md")).into(), fresh.as_ref().map(Metadata::from)).is_ok(), allowed);
    }

    #[rstest]
    #[case::by_us("uid-md", true)]
    #[case::by_somebody_else("uid-other", false)]
    fn a_name_is_taken(#[case] uid: &str, #[case] is_ours: bool) {
        let owners = Some(vec![controller_reference("MachineDeployment", "md", uid)]);
        let there = ObjectMeta { owner_references: owners, ..meta("md-1") };
        let taken =
            |there: Option<&ObjectMeta>| taken_by_us(there.map(Metadata::from), Some("uid-md"), "taken".to_owned());
        assert_eq!(taken(Some(&there)).is_ok(), is_ours);
        assert_eq!(taken(None), Err(ApiError::AlreadyExists("taken".to_owned())));
    }
}
