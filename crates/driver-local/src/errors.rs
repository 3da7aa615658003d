//! Maps errors of the API server to machine codes (spec/providers §2.2, §8).

use controller_runtime::error::ApiError;
use machine_driver::{Code, ErrorCodes, Status};

/// How the failures of a call's requests are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// With codes of this set. The Go driver has `Internal` for every failure of a request but lack of capacity.
    Coded(ErrorCodes),
    /// As failures of a deletion. Except for a missing pod the code is `Unknown`, as in the Go driver, so that the deletion is repeated soon.
    OfDeletion,
}

impl Failures {
    /// The failure of a request. `what` is what failed.
    pub fn of(self, what: &str, error: &ApiError) -> Status {
        let code = match (self, code_of(error)) {
            (_, Code::NotFound) => Code::NotFound,
            (Self::OfDeletion, _) => Code::Unknown,
            (Self::Coded(ErrorCodes::AsGo), code) if code != Code::ResourceExhausted => Code::Internal,
            (Self::Coded(_), code) => code,
        };
        Status::new(code, format!("{what}: {error}"))
    }
}

/// Part of the message of a 403 because of a `ResourceQuota`.
const QUOTA: &str = "exceeded quota";

fn code_of(error: &ApiError) -> Code {
    match error {
        ApiError::NotFound(_) => Code::NotFound,
        ApiError::Forbidden(message) if message.contains(QUOTA) => Code::ResourceExhausted,
        ApiError::Forbidden(_) => Code::PermissionDenied,
        ApiError::Invalid(_) | ApiError::TooLarge(_) => Code::InvalidArgument,
        ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::NotLeading(_) => Code::Aborted,
        ApiError::TimedOut(_) => Code::DeadlineExceeded,
        ApiError::TooManyRequests(_)
        | ApiError::DisruptionBudget(_)
        | ApiError::NotServed(_)
        | ApiError::ServerFault(_)
        | ApiError::Unavailable(_) => Code::Unavailable,
        ApiError::Unreadable(_) | ApiError::Other(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(ApiError::NotFound(String::new()), Code::NotFound, Code::NotFound)]
    #[case::a_quota(ApiError::Forbidden("pods \"machine-m\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5".to_owned()), Code::ResourceExhausted, Code::Unknown)]
    #[case::no_right(ApiError::Forbidden("pods is forbidden".to_owned()), Code::PermissionDenied, Code::Unknown)]
    #[case::a_policy(ApiError::Invalid(String::new()), Code::InvalidArgument, Code::Unknown)]
    #[case::another_pod(ApiError::Conflict(String::new()), Code::Aborted, Code::Unknown)]
    #[case::silence(ApiError::TimedOut(Duration::ZERO), Code::DeadlineExceeded, Code::Unknown)]
    #[case::no_connection(ApiError::Unavailable(String::new()), Code::Unavailable, Code::Unknown)]
    #[case::a_proxy(ApiError::NotServed(String::new()), Code::Unavailable, Code::Unknown)]
    #[case::no_json(ApiError::Unreadable(String::new()), Code::Internal, Code::Unknown)]
    fn an_error_has_its_code(#[case] error: ApiError, #[case] usual: Code, #[case] in_deletions: Code) {
        let status = Failures::Coded(ErrorCodes::Fine).of("error reading pod", &error);
        assert_eq!(status.code, usual);
        assert!(status.message.starts_with("error reading pod: "));
        assert_eq!(Failures::OfDeletion.of("", &error).code, in_deletions);
        let kept = matches!(usual, Code::NotFound | Code::ResourceExhausted);
        let as_go = Failures::Coded(ErrorCodes::AsGo).of("", &error).code;
        assert_eq!(as_go, if kept { usual } else { Code::Internal });
    }
}
