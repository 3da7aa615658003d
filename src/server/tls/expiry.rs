//! Warns while there is time: a serving certificate that nobody renews, for whatever reason.
//!
//! Source: spec/api-and-admission §11.7.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{Shared, WallClock, calls::call};
use crate::api::names::REASON_CERTIFICATE_NOT_RENEWED;

/// A certificate should have been renewed months before so little of its life is left.
const WARNING_TIME: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How often the certificate is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How often the same concern is told.
const REPEAT: SignedDuration = SignedDuration::from_hours(24);

/// How the certificate in use stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// It has time.
    None,
    /// It ends within a week.
    EndsSoon,
    /// It has ended; no handshake succeeds.
    Ended,
}

/// Judges a certificate by its end.
pub fn concern(not_after: Timestamp, now: Timestamp) -> Concern {
    if now >= not_after {
        Concern::Ended
    } else if not_after.duration_since(now) < WARNING_TIME {
        Concern::EndsSoon
    } else {
        Concern::None
    }
}

/// Where the warning is shown to operators, beside the log.
pub(super) struct Audience {
    recorder: Recorder,
    secret: ObjectReference,
}

impl Audience {
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

    async fn tell(&self, note: String) {
        let event = Event {
            type_: EventType::Warning,
            reason: REASON_CERTIFICATE_NOT_RENEWED.to_owned(),
            note: Some(note),
            action: "Renew".to_owned(),
            secondary: None,
        };
        if let Err(error) = call(self.recorder.publish(&event, &self.secret)).await {
            debug!("cannot write an event about the certificate: {error}");
        }
    }
}

/// Looks at the certificate in use until `shutdown`.
pub(super) async fn run(shared: Shared, clock: WallClock, audience: Option<Audience>, shutdown: CancellationToken) {
    let mut told: Option<Timestamp> = None;
    loop {
        if let Some(not_after) = shared.serving.expires() {
            let now = (clock)();
            let note = match concern(not_after, now) {
                Concern::None => None,
                Concern::EndsSoon => Some(format!("the serving certificate ends at {not_after} and was not renewed")),
                Concern::Ended => {
                    let note = format!("the serving certificate ended at {not_after} and was not renewed");
                    shared.certificate_has_ended(&note);
                    Some(note)
                }
            };
            match note {
                None => told = None,
                Some(note) if told.is_none_or(|told| now >= told + REPEAT) => {
                    told = Some(now);
                    error!("{note}; see what this log says about the certificate Secret or files");
                    if let Some(audience) = &audience {
                        audience.tell(note).await;
                    }
                }
                Some(_) => {}
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
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
    fn a_certificate_causes_concern(#[case] not_after: &str, #[case] expected: Concern) {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(concern(not_after.parse().unwrap(), now), expected);
    }
}
