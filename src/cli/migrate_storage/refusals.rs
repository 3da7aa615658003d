//! What a refused rewrite proves, and what to advise. Pure.

use controller_runtime::error::ApiError;
use kube::core::Status;

/// Whose fault it is that an object could not be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The API server's, or its conversion webhook's: the object may be as it should be.
    Server,
    /// The object's: rules refuse it.
    Object,
    /// That of whoever runs the command, or of something that stands between it and the API server.
    Caller,
}

impl Blame {
    /// By the error that the last try ended with.
    pub(super) const fn of(error: &ApiError) -> Self {
        match error {
            ApiError::Invalid(_) => Self::Object,
            ApiError::NotFound(_)
            | ApiError::Conflict(_)
            | ApiError::AlreadyExists(_)
            | ApiError::Forbidden(_)
            | ApiError::DisruptionBudget(_)
            | ApiError::NotLeading(_)
            | ApiError::Other(_) => Self::Caller,
            _ => Self::Server,
        }
    }
}

/// Whether the next try may find what this one did not: an API server, or a converter, that is away for a moment.
/// kube-apiserver answers 500 when it can't reach the conversion webhook.
pub(super) const fn is_passing(error: &ApiError) -> bool {
    matches!(
        error,
        ApiError::TooManyRequests(_)
            | ApiError::TimedOut(_)
            | ApiError::Unavailable(_)
            | ApiError::ServerFault(_)
            | ApiError::NotServed(_)
    )
}

/// What to do, by whose fault the failures are. Nobody is told to delete an object for what a server failed at.
pub(super) fn advice(blames: &[Blame]) -> &'static str {
    if blames.contains(&Blame::Server) {
        "See that `mcm serve` runs and that the API server reaches its conversion webhook (`mcm doctor`), then run the same \
         command again: it goes on where it stopped"
    } else if blames.contains(&Blame::Caller) {
        "See that the user of the kubeconfig may patch these objects, and that nothing between here and the API server \
         answers in its place; then run the same command again"
    } else {
        "Correct or delete these objects, then run the same command again"
    }
}

/// An object as a live read shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Live {
    /// The API server says that there is none.
    Gone,
    /// It is there.
    There { uid: String, version: String },
    /// It does not say.
    Unknown(ApiError),
}

/// What follows for an object whose rewrite was refused with 404, 409 or 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is gone, or was written or made since it was listed, and that is later than the switch.
    NotNeeded,
    /// It is as it was listed: the refusal stands.
    Refused,
    /// Nobody knows.
    Unknown(ApiError),
}

/// Judges a refusal by the object itself.
pub(super) fn after_refusal(uid: &str, version: &str, live: &Live) -> Verdict {
    match live {
        Live::Gone => Verdict::NotNeeded,
        Live::There { uid: now, version: written } if now != uid || written != version => Verdict::NotNeeded,
        Live::There { .. } => Verdict::Refused,
        Live::Unknown(error) => Verdict::Unknown(error.clone()),
    }
}

/// Whether an answer is the API server's own, and says that this very object does not exist.
pub(super) fn proves_absence(status: &Status, name: &str) -> bool {
    status.code == 404
        && status.reason == "NotFound"
        && status.details.as_ref().is_some_and(|details| details.name == name)
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use rstest::rstest;

    use super::*;

    fn there(uid: &str, version: &str) -> Live {
        Live::There { uid: uid.to_owned(), version: version.to_owned() }
    }

    #[rstest]
    #[case::deleted_since(Live::Gone, Verdict::NotNeeded)]
    #[case::written_since(there("u", "8"), Verdict::NotNeeded)]
    #[case::made_anew(there("v", "9"), Verdict::NotNeeded)]
    #[case::a_gateway_answered(there("u", "7"), Verdict::Refused)]
    #[case::a_gateway_answers_all(
        Live::Unknown(ApiError::NotFound("page".to_owned())), Verdict::Unknown(ApiError::NotFound("page".to_owned())))]
    fn a_refusal_counts_only_as_far_as_the_object_confirms_it(#[case] live: Live, #[case] expected: Verdict) {
        assert_eq!(after_refusal("u", "7", &live), expected);
    }

    #[rstest]
    #[case::the_object(404, "NotFound", Some("m"), true)]
    #[case::another_object(404, "NotFound", Some("other"), false)]
    #[case::the_kind_is_gone(404, "NotFound", None, false)]
    #[case::a_page_of_a_gateway(404, "", None, false)]
    #[case::another_code(410, "NotFound", Some("m"), false)]
    fn absence_is_proved_by_name(
        #[case] code: u16,
        #[case] reason: &str,
        #[case] name: Option<&str>,
        #[case] expected: bool,
    ) {
        let details = name.map(|name| StatusDetails {
            name: name.to_owned(),
            group: String::new(),
            kind: "machines".to_owned(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        let status = Status { code, reason: reason.to_owned(), details, ..Status::default() };
        assert_eq!(proves_absence(&status, "m"), expected);
    }

    #[rstest]
    #[case::the_converter_is_away(&[Blame::Object, Blame::Server], false, "mcm serve")]
    #[case::a_gateway(&[Blame::Caller, Blame::Object], false, "may patch")]
    #[case::rules_refuse_it(&[Blame::Object], true, "Correct")]
    fn deletion_is_never_the_advice_for_a_server_that_failed(
        #[case] blames: &[Blame],
        #[case] deletes: bool,
        #[case] words: &str,
    ) {
        let advice = advice(blames);
        assert!(advice.contains("delete") == deletes && advice.contains(words), "{advice}");
    }

    #[test]
    fn an_answer_of_500_and_above_is_the_servers() {
        let server = [
            ApiError::ServerFault(String::new()),
            ApiError::Unavailable(String::new()),
            ApiError::TooManyRequests(None),
        ];
        assert!(server.iter().all(|error| is_passing(error) && Blame::of(error) == Blame::Server));
        assert!(!is_passing(&ApiError::Invalid(String::new())));
    }
}
