//! Writes events to the API server, one after another, at the rate of its own client.
//!
//! [`super::correlate`] decides what is written. A note that can't be written is dropped after a few tries: events are not a
//! reliable record, and no controller waits for them. They go through kube's own API, because the deadline of a call is shorter here
//! and a count is added to an event without its UID.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Pending,
    correlate::{Correlator, Verdict},
};
use crate::{clock::SharedClock, error::ApiError};

/// Maximum number of waiting notes; further ones are dropped.
pub const WAITING_NOTES: usize = 1000;
/// Number of tries to write one event while the API server does not answer, and the pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(2);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// How long waiting events are still written when the process ends.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Writes the notes that arrive on its channel.
pub struct Publisher {
    notes: mpsc::Receiver<Pending>,
    client: kube::Client,
    clock: SharedClock,
    correlator: Correlator,
}

/// The channel between recorders and a publisher.
pub fn channel() -> (mpsc::Sender<Pending>, mpsc::Receiver<Pending>) {
    mpsc::channel(WAITING_NOTES)
}

impl Publisher {
    /// A publisher that writes through its own client ([`crate::clients::Purpose::Events`]).
    pub fn new(notes: mpsc::Receiver<Pending>, client: kube::Client, clock: SharedClock) -> Self {
        Self { notes, client, clock, correlator: Correlator::default() }
    }

    /// Writes events until `shutdown`, then the waiting ones for a short time. The supervisor should own the future.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let note = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                note = self.notes.recv() => note,
            };
            let Some(note) = note else {
                // All recorders are dropped. The supervisor expects this task to run until it is stopped.
                shutdown.cancelled().await;
                return;
            };
            // A running write does not delay the shutdown.
            if shutdown.run_until_cancelled(self.publish(&note)).await.is_none() {
                break;
            }
        }
        self.notes.close();
        let drain = async {
            while let Some(note) = self.notes.recv().await {
                self.publish(&note).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIME, drain).await.is_err() {
            tracing::debug!("events dropped at the end of the process");
        }
    }

    async fn publish(&mut self, note: &Pending) {
        let verdict = self.correlator.correlate(note, self.clock.now());
        let event = match &verdict {
            Verdict::Create(event) | Verdict::Count(event) => event,
            Verdict::Drop => return,
        };
        let api: Api<Event> =
            Api::namespaced(self.client.clone(), event.metadata.namespace.as_deref().unwrap_or("default"));
        for attempt in 1..=TRIES {
            let written = tokio::time::timeout(CALL, write(&api, &verdict)).await;
            match written.unwrap_or(Err(ApiError::TimedOut(CALL))) {
                Ok(()) => return,
                Err(error) if error.is_temporary() => {
                    tracing::debug!(%error, count = attempt, "event not written");
                    if attempt < TRIES {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err(error) => {
                    // Refused: the namespace may be terminating, or permissions are missing. A retry does not help.
                    tracing::debug!(%error, code = note.note.reason, "event refused by the API server");
                    return;
                }
            }
        }
        tracing::warn!(code = note.note.reason, "event dropped: the API server did not take it");
    }
}

async fn write(api: &Api<Event>, verdict: &Verdict) -> Result<(), ApiError> {
    match verdict {
        Verdict::Create(event) => create(api, event).await,
        Verdict::Count(event) => {
            let count = json!({
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            });
            let name = event.metadata.name.as_deref().unwrap_or_default();
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&count)).await.map_err(ApiError::from) {
                Ok(_) => Ok(()),
                // The event has expired, or was never written. It is created again with its count.
                Err(ApiError::NotFound(_)) => create(api, event).await,
                Err(error) => Err(error),
            }
        }
        Verdict::Drop => Ok(()),
    }
}

async fn create(api: &Api<Event>, event: &Event) -> Result<(), ApiError> {
    match api.create(&PostParams::default(), event).await.map_err(ApiError::from) {
        // AlreadyExists: the answer to an earlier try was lost.
        Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt;
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::ObjectReference;
    use kube::client::Body;

    use super::*;
    use crate::{
        clock::TokioClock,
        events::{EventNote, Recorder},
    };

    type Calls = Arc<Mutex<Vec<(String, serde_json::Value)>>>;

    /// An API server that records calls; its answers depend on the number of the call.
    fn server(answer: impl Fn(usize) -> u16 + Send + Sync + 'static) -> (kube::Client, Calls) {
        let (calls, answer) = (Calls::default(), Arc::new(answer));
        let log = Arc::clone(&calls);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            async move {
                let method = request.method().to_string();
                let body = request.into_body().collect().await?.to_bytes();
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push((method, body.clone()));
                    log.len()
                };
                let code = answer(number);
                let answer = if code < 300 {
                    json!({"metadata": {"name": "e"}, "involvedObject": {}})
                } else {
                    let reason = if code == 404 { "NotFound" } else { "x" };
                    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"})
                };
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, kube::Error>(http::Response::builder().status(code).body(answer).unwrap())
            }
        });
        (kube::Client::new(service, "default"), calls)
    }

    async fn publish(notes: usize, answer: impl Fn(usize) -> u16 + Send + Sync + 'static) -> Vec<String> {
        let (client, calls) = server(answer);
        let (sender, receiver) = channel();
        let recorder = Recorder::new("machine-controller", sender);
        for _ in 0..notes {
            let about = ObjectReference { name: Some("m".to_owned()), ..ObjectReference::default() };
            recorder.note_about(about, EventNote::normal("Created", "done"));
        }
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(Publisher::new(receiver, client, clock).run(shutdown.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
        running.await.unwrap();
        let calls = calls.lock().unwrap();
        calls.iter().map(|(method, body)| format!("{method} {}", body["count"])).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_created_once_and_then_counted() {
        assert_eq!(publish(3, |_| 201).await, ["POST 1", "PATCH 2", "PATCH 3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_event_is_created_again_with_its_count() {
        assert_eq!(publish(2, |call| if call == 2 { 404 } else { 201 }).await, ["POST 1", "PATCH 2", "POST 2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_server_is_tried_again_a_few_times() {
        assert_eq!(publish(1, |_| 503).await, ["POST 1", "POST 1", "POST 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_event_is_dropped() {
        assert_eq!(publish(1, |_| 403).await, ["POST 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_channel_never_blocks_the_recorder() {
        assert_eq!(publish(5 * WAITING_NOTES, |_| 201).await.len(), 25, "and one object gets no more than its burst");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_events_are_written_at_the_end() {
        let (client, calls) = server(|_| 201);
        let (sender, receiver) = channel();
        let recorder = Recorder::new("machine-controller", sender);
        recorder.note_about(ObjectReference::default(), EventNote::normal("Created", "done"));
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        Publisher::new(receiver, client, clock).run(shutdown).await;
        assert_eq!(calls.lock().unwrap().len(), 1);
    }
}
