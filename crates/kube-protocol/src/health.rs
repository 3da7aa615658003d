//! Answers of `/healthz`, `/livez` and `/readyz`, in the format of Kubernetes' own components.
//!
//! Source: spec/extension-apiserver §2.12.

use std::fmt::Write;

use http::{StatusCode, header};

use super::{answer::Answer, request::Query, status::ApiStatus};

/// The endpoints.
pub const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];

/// Whether the segments of a path name an endpoint or one of its checks.
pub fn is_endpoint(segments: &[String]) -> bool {
    segments.first().is_some_and(|first| ENDPOINTS.contains(&first.as_str()))
}

/// A health check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckState {
    /// The name of the check, as in paths and in the parameter `exclude`.
    pub name: &'static str,
    /// Why the check fails; none if it passes. Only the path of the single check shows the text.
    pub failure: Option<String>,
}

/// Answers a request for an endpoint, or for one of its checks.
///
/// # Errors
/// 404 for a check that does not exist.
pub fn answer(endpoint: &str, rest: &[&str], checks: &[CheckState], query: &Query) -> Result<Answer, ApiStatus> {
    match rest {
        [] => {}
        [name] => {
            let check = checks.iter().find(|check| check.name == *name).ok_or_else(ApiStatus::page_not_found)?;
            return Ok(match &check.failure {
                None => Answer::text(StatusCode::OK, "ok"),
                Some(why) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}")),
            });
        }
        _ => return Err(ApiStatus::page_not_found()),
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let (mut lines, mut healthy) = (String::new(), true);
    for check in checks {
        let name = check.name;
        let line = if excluded.contains(&name) {
            format!("[+]{name} excluded: ok\n")
        } else if check.failure.is_none() {
            format!("[+]{name} ok\n")
        } else {
            healthy = false;
            format!("[-]{name} failed: reason withheld\n")
        };
        lines.push_str(&line);
    }
    let unknown = excluded.iter().filter(|name| !checks.iter().any(|check| check.name == **name));
    let unknown: Vec<String> = unknown.map(|name| format!("{name:?}")).collect();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        // Writing to a string never fails.
        let _ = writeln!(lines, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    let answer = match (healthy, query.has("verbose")) {
        (true, false) => Answer::text(StatusCode::OK, "ok"),
        (true, true) => Answer::text(StatusCode::OK, format!("{lines}{endpoint} check passed\n")),
        (false, _) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed\n")),
    };
    Ok(answer.with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::answer::AnswerBody;

    const FINE: &str = "[+]ping ok\n[+]storage ok\nreadyz check passed\n";
    const EXCLUDED: &str = "[+]ping excluded: ok\n[+]storage ok\nwarn: some health checks cannot be excluded: \
                            no matches for \"zz\"\nreadyz check passed\n";
    const BROKEN: &str = "[+]ping ok\n[-]storage failed: reason withheld\nreadyz check failed\n";

    #[rstest]
    #[case::plain(None, &[], "", 200, "ok")]
    #[case::xa_019_verbose(None, &[], "verbose", 200, FINE)]
    #[case::xa_020_excluded(None, &[], "verbose&exclude=ping&exclude=zz", 200, EXCLUDED)]
    #[case::failing_is_always_verbose(Some("disk full"), &[], "", 500, BROKEN)]
    #[case::xa_021_one_check(None, &["ping"], "", 200, "ok")]
    #[case::one_failing_check(Some("disk full"), &["storage"], "", 500, "internal server error: disk full")]
    fn checks_and_their_answers(
        #[case] failure: Option<&str>,
        #[case] rest: &[&str],
        #[case] query: &str,
        #[case] status: u16,
        #[case] text: &str,
    ) {
        let checks = [
            CheckState { name: "ping", failure: None },
            CheckState { name: "storage", failure: failure.map(str::to_owned) },
        ];
        let found = answer("readyz", rest, &checks, &Query::parse(Some(query))).unwrap();
        let AnswerBody::Bytes(_, body) = found.body else { panic!() };
        assert_eq!((found.status.as_u16(), &*body), (status, text.as_bytes()));
    }

    #[test]
    fn xa_021_an_unknown_check_is_not_found() {
        assert_eq!(answer("livez", &["nope"], &[], &Query::default()).unwrap_err().code, 404);
    }
}
