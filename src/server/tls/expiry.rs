//! Reports a serving certificate that was not renewed, while there is time.
//!
//! Source: spec/api-and-admission §11.7.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::{debug, error};

use super::{resolver::Validity, shared::Shared};
use controller_runtime::objects::call;
use machine_api::names::REASON_CERTIFICATE_NOT_RENEWED;

/// A certificate should have been renewed months before so little of its life is left.
const WARNING_TIME: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How often the certificate is checked, because the clock may be set at any moment.
const PERIOD: Duration = Duration::from_secs(10);
/// How often the same concern is reported.
const REPEAT: SignedDuration = SignedDuration::from_hours(24);

/// A concern about the certificate in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// There is none.
    None,
    /// It ends within a week.
    EndsSoon,
    /// It has ended, so no handshake succeeds.
    Ended,
    /// It is not valid yet, because a process whose clock was ahead made it. No handshake succeeds.
    NotBegun,
}

/// Judges a certificate by its time.
pub fn concern(validity: Validity, now: Timestamp) -> Concern {
    if now < validity.from {
        Concern::NotBegun
    } else if now >= validity.until {
        Concern::Ended
    } else if validity.until.duration_since(now) < WARNING_TIME {
        Concern::EndsSoon
    } else {
        Concern::None
    }
}

/// The Secret that gets an event with each report, beside the log.
pub(super) struct EventTarget {
    recorder: Recorder,
    secret: ObjectReference,
}

impl EventTarget {
    pub(super) fn of_secret(client: Client, namespace: &str, name: &str) -> Self {
        let secret = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectReference::default()
        };
        let reporter = Reporter { controller: "machine-controller-manager".to_owned(), instance: None };
        Self { recorder: Recorder::new(client, reporter), secret }
    }

    async fn publish(&self, note: String) {
        let event = Event {
            type_: EventType::Warning,
            reason: REASON_CERTIFICATE_NOT_RENEWED.to_owned(),
            note: Some(note),
            action: "Renew".to_owned(),
            secondary: None,
        };
        if let Err(error) = call(self.recorder.publish(&event, &self.secret)).await {
            debug!(%error, "cannot write an event about the certificate");
        }
    }
}

/// Checks the certificate in use periodically.
pub(super) async fn follow(shared: &Shared, target: Option<EventTarget>) {
    let mut reported: Option<Timestamp> = None;
    let mut was_valid = true;
    loop {
        if let Some(validity) = shared.serving.validity() {
            let now = (shared.clock)();
            let Validity { from, until } = validity;
            let concern = concern(validity, now);
            let note = match concern {
                Concern::None => None,
                Concern::EndsSoon => Some(format!("the serving certificate ends at {until} and was not renewed")),
                Concern::Ended => Some(format!("the serving certificate ended at {until} and was not renewed")),
                Concern::NotBegun => Some(format!(
                    "the serving certificate is not valid before {from}: a replica whose clock was ahead made it"
                )),
            };
            let is_valid = matches!(concern, Concern::None | Concern::EndsSoon);
            match &note {
                Some(note) if !is_valid => shared.certificate_is_not_valid(note),
                _ if !was_valid => shared.loaded.pass(),
                _ => {}
            }
            was_valid = is_valid;
            match note {
                None => reported = None,
                // A clock that was set back repeats it once more.
                Some(note) if reported.is_none_or(|reported| now >= reported + REPEAT || now < reported) => {
                    reported = Some(now);
                    error!(
                        error = %note,
                        "a certificate ends soon; see what this log says about the certificate Secret or files"
                    );
                    if let Some(target) = &target {
                        target.publish(note).await;
                    }
                }
                Some(_) => {}
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_month_is_plenty("2026-02-01T00:00:00Z", Concern::None)]
    #[case::a_week_is_not("2026-01-07T23:59:59Z", Concern::EndsSoon)]
    #[case::the_end_is_the_end("2026-01-01T00:00:00Z", Concern::Ended)]
    fn a_certificate_causes_concern(#[case] until: &str, #[case] expected: Concern) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let from = "2025-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(concern(Validity { from, until: until.parse().unwrap() }, now), expected);
    }

    #[test]
    fn a_certificate_that_has_not_begun_is_no_use() {
        let [from, until] = ["2026-01-01T08:00:00Z", "2027-01-01T00:00:00Z"].map(|time| time.parse().unwrap());
        assert_eq!(concern(Validity { from, until }, "2026-01-01T00:00:00Z".parse().unwrap()), Concern::NotBegun);
        assert_eq!(concern(Validity { from, until }, from), Concern::None);
    }
}
