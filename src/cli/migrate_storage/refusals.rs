//! The consequence of a refused rewrite, and the advice to the user. Pure functions.

use controller_runtime::error::ApiError;

/// The cause of a failed rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The API server or its conversion webhook. The object may be right.
    Server,
    /// The object: rules refuse it, or it is too large.
    Object,
    /// The user of the command, or a gateway between the command and the API server.
    Caller,
}

impl Cause {
    /// The cause of this error, which the last try returned.
    pub(super) const fn of(error: &ApiError) -> Self {
        match error {
            ApiError::Invalid(_) | ApiError::TooLarge(_) => Self::Object,
            ApiError::NotFound(_)
            | ApiError::Conflict(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Forbidden(_)
            | ApiError::DisruptionBudget(_)
            | ApiError::NotLeading(_)
            | ApiError::Unreadable(_)
            | ApiError::Other(_) => Self::Caller,
            _ => Self::Server,
        }
    }
}

/// The advice for these causes. It never suggests to delete an object when a server failed.
pub(super) fn advice(causes: &[Cause]) -> &'static str {
    if causes.contains(&Cause::Server) {
        "See that `mcm serve` runs and that the API server reaches its conversion webhook (`mcm doctor`), then run the same \
         command again: it goes on where it stopped"
    } else if causes.contains(&Cause::Caller) {
        "See that the user of the kubeconfig may patch these objects, and that nothing between here and the API server \
         answers in its place; then run the same command again"
    } else {
        "Correct or delete these objects, then run the same command again"
    }
}

/// The result of a live read of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Live {
    /// The API server confirms that the object does not exist.
    Gone,
    /// The object exists.
    There { uid: String, version: String },
    /// The read failed.
    Unknown(ApiError),
}

/// The consequence for an object whose rewrite was refused with 404, 409 or 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// None: the object is gone, or was written or created since it was listed, which was after the switch.
    NotNeeded,
    /// The rewrite failed: the object is unchanged since it was listed.
    Refused,
    /// It is not known, because the live read failed.
    Unknown(ApiError),
}

/// The consequence of a refusal, by the current state of the object.
pub(super) fn after_refusal(uid: &str, version: &str, live: &Live) -> Verdict {
    match live {
        Live::Gone => Verdict::NotNeeded,
        Live::There { uid: now, version: written } if now != uid || written != version => Verdict::NotNeeded,
        Live::There { .. } => Verdict::Refused,
        Live::Unknown(error) => Verdict::Unknown(error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn there(uid: &str, version: &str) -> Live {
        Live::There { uid: uid.to_owned(), version: version.to_owned() }
    }

    #[rstest]
    #[case::deleted_since(Live::Gone, Verdict::NotNeeded)]
    #[case::written_since(there("u", "8"), Verdict::NotNeeded)]
    #[case::created_again(there("v", "9"), Verdict::NotNeeded)]
    #[case::a_gateway_answered(there("u", "7"), Verdict::Refused)]
    #[case::a_gateway_answers_all(
        Live::Unknown(ApiError::NotFound("page".to_owned())), Verdict::Unknown(ApiError::NotFound("page".to_owned())))]
    fn a_refusal_counts_only_if_the_object_confirms_it(#[case] live: Live, #[case] expected: Verdict) {
        assert_eq!(after_refusal("u", "7", &live), expected);
    }

    #[rstest]
    #[case::the_converter_is_away(&[Cause::Object, Cause::Server], false, "mcm serve")]
    #[case::a_gateway(&[Cause::Caller, Cause::Object], false, "may patch")]
    #[case::rules_refuse_it(&[Cause::Object], true, "Correct")]
    fn the_advice_never_is_deletion_when_a_server_failed(
        #[case] causes: &[Cause],
        #[case] deletes: bool,
        #[case] words: &str,
    ) {
        let advice = advice(causes);
        assert!(advice.contains("delete") == deletes && advice.contains(words), "{advice}");
    }

    #[test]
    fn the_server_is_the_cause_of_answers_of_500_and_above_and_the_object_of_refusals() {
        let server = [
            ApiError::ServerFault(String::new()),
            ApiError::Unavailable(String::new()),
            ApiError::TooManyRequests(None),
        ];
        assert!(server.iter().all(|error| error.is_temporary() && Cause::of(error) == Cause::Server));
        let object = [ApiError::Invalid(String::new()), ApiError::TooLarge(String::new())];
        assert!(object.iter().all(|error| !error.is_temporary() && Cause::of(error) == Cause::Object));
    }
}
