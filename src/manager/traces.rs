//! Sends spans to a collector: a bounded queue, and one task that empties it.
//!
//! Whoever records a span never waits: a span that finds the queue full is dropped and counted. `observability/traces` decides what follows
//! from the collector's answers. Source: spec/packaging §7.2.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use cloud_client::{Bytes, HttpOptions, HttpTransport, NoAnswer, Transport};
use http::{
    HeaderMap, Request, Uri,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    observability::traces::{Batch, Delivery, Refusal, after, otlp},
    settings::{Build, TracingSettings},
};
use controller_runtime::clock::SharedClock;
use mcm_metrics::{LostSpans, Metrics, SpanLoss};
use mcm_traces::{Span, Tracer};

/// The most spans that wait. A span takes about half a kilobyte, and at most about ten.
const QUEUE: usize = 2048;
/// The most spans of a request.
const MOST_SPANS: usize = 512;
/// How long a span waits for others.
const GATHERING: Duration = Duration::from_secs(5);
/// The longest time for a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the spans of an ending process are still sent.
const LAST: Duration = Duration::from_secs(3);

/// The task that sends.
pub(super) struct Exporter {
    queue: mpsc::Receiver<Span>,
    settings: TracingSettings,
    transport: Arc<dyn Transport>,
    metrics: Metrics,
    /// What is wrong since the last success.
    failure: Option<DeliveryFailure>,
    /// When an ending process stops sending.
    last: OnceLock<Instant>,
}

/// What is wrong with a collector. A later variant is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeliveryFailure {
    /// A batch is sent again.
    Retried,
    /// A batch was dropped.
    Dropped,
}

impl DeliveryFailure {
    /// Logs it. `address` is the collector's, and `error` its last answer.
    fn log(self, address: &str, error: &str) {
        match self {
            Self::Retried => tracing::warn!(
                address,
                error,
                "spans can't be delivered yet; a batch is sent five times, and the next spans wait in a queue"
            ),
            Self::Dropped => tracing::warn!(
                address,
                error,
                "spans can't be delivered and are dropped; mcm_trace_spans_dropped_total counts them"
            ),
        }
    }
}

/// The handle that records spans, and the task that sends them. Without a collector the handle records nothing.
pub(super) fn prepare(
    settings: Option<&TracingSettings>,
    metrics: &Metrics,
    clock: &SharedClock,
    draw: impl Fn() -> u64 + Send + Sync + 'static,
) -> (Tracer, Option<Exporter>) {
    let Some(settings) = settings else { return (Tracer::off(), None) };
    let transport = Arc::new(HttpTransport::new(HttpOptions::default()));
    let (tracer, exporter) = over(transport, settings.clone(), metrics, clock, draw);
    (tracer, Some(exporter))
}

/// The same over a given transport.
fn over(
    transport: Arc<dyn Transport>,
    settings: TracingSettings,
    metrics: &Metrics,
    clock: &SharedClock,
    draw: impl Fn() -> u64 + Send + Sync + 'static,
) -> (Tracer, Exporter) {
    metrics.trace.show();
    let (sender, queue) = mpsc::channel(QUEUE);
    let (counters, clock) = (metrics.clone(), Arc::clone(clock));
    let take = move |span| {
        let reason = match sender.try_send(span) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => SpanLoss::QueueFull,
            Err(TrySendError::Closed(_)) => SpanLoss::Ended,
        };
        counters.trace.dropped.inc(&LostSpans { reason });
    };
    let tracer = Tracer::new(take, move || clock.now(), draw);
    let metrics = metrics.clone();
    (tracer, Exporter { queue, settings, transport, metrics, failure: None, last: OnceLock::new() })
}

impl Exporter {
    /// Sends spans until `stop`, and then those that are left, for a short time.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tracing::info!(address = %shown(&self.settings.endpoint), "spans are sent to a collector");
        while let Some(spans) = self.next_batch(&stop).await {
            self.deliver(&spans, &stop).await;
        }
        // Without a tracer nothing can come. The task still ends with its stage only.
        stop.cancelled().await;
    }

    /// The next spans to send. `None` after `stop`, when none are left.
    async fn next_batch(&mut self, stop: &CancellationToken) -> Option<Vec<Span>> {
        let mut spans = Vec::new();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            _ = self.queue.recv_many(&mut spans, MOST_SPANS) => {}
        }
        let due = Instant::now() + GATHERING;
        while spans.len() < MOST_SPANS && !stop.is_cancelled() {
            let more = MOST_SPANS - spans.len();
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                received = timeout_at(due, self.queue.recv_many(&mut spans, more)) => received,
            };
            if received.is_ok_and(|count| count > 0) {
                continue;
            }
            break;
        }
        while spans.len() < MOST_SPANS
            && let Ok(span) = self.queue.try_recv()
        {
            spans.push(span);
        }
        (!spans.is_empty()).then_some(spans)
    }

    /// Sends spans, in smaller batches if the collector calls them too large.
    async fn deliver(&mut self, spans: &[Span], stop: &CancellationToken) {
        let mut batches = vec![spans];
        while let Some(batch) = batches.pop() {
            if self.deliver_batch(batch, stop).await == Fit::TooLarge {
                let (first, second) = batch.split_at(batch.len() / 2);
                batches.extend([second, first]);
            }
        }
    }

    /// Sends a batch until the collector takes it, refuses it, or has been asked often enough.
    async fn deliver_batch(&mut self, spans: &[Span], stop: &CancellationToken) -> Fit {
        let body = Bytes::from(otlp::request(&Build::THIS, &self.settings.instance, spans));
        let mut batch = Batch { spans: spans.len().try_into().unwrap_or(u64::MAX), tries: 0 };
        let reason = loop {
            batch.tries += 1;
            let (delivery, error) = self.send(body.clone(), stop).await;
            match after(&delivery, batch) {
                Refusal::None { taken, refused } => {
                    self.metrics.trace.sent.add(&(), taken);
                    self.count_lost(SpanLoss::Refused, refused);
                    if self.failure.take().is_some() {
                        tracing::info!(address = %shown(&self.settings.endpoint), "the collector takes spans again");
                    }
                    return Fit::Done;
                }
                Refusal::Halve => return Fit::TooLarge,
                Refusal::Again(_) if stop.is_cancelled() => break SpanLoss::Ended,
                Refusal::Again(pause) => {
                    self.complain(DeliveryFailure::Retried, &error);
                    stop.run_until_cancelled(sleep(pause)).await;
                }
                Refusal::Drop(reason) => {
                    self.complain(DeliveryFailure::Dropped, &error);
                    break reason;
                }
            }
        };
        self.count_lost(reason, batch.spans);
        Fit::Done
    }

    /// Sends one request. Returns the answer, and a text for the log if it is not good.
    async fn send(&self, body: Bytes, stop: &CancellationToken) -> (Delivery, String) {
        let request = Request::post(self.settings.endpoint.clone()).header(CONTENT_TYPE, otlp::CONTENT_TYPE).body(body);
        let Ok(request) = request else { return (Delivery::Unusable, "the request can't be made".to_owned()) };
        let answer = tokio::select! {
            biased;
            () = self.end(stop) => return (Delivery::Silence, "the process ends".to_owned()),
            answer = self.transport.send(request) => answer,
            () = sleep(TIMEOUT) => return (Delivery::Silence, "no answer in time".to_owned()),
        };
        match answer {
            Ok(answer) if answer.status.is_success() && is_page(&answer.headers) => {
                (Delivery::Page, "the answer is a page: no collector is at this address".to_owned())
            }
            Ok(answer) if answer.status.is_success() => {
                (Delivery::Taken { refused: otlp::refused(&answer.body) }, String::new())
            }
            Ok(answer) => {
                let status = answer.status.as_u16();
                (Delivery::Status(status, retry_after(&answer.headers)), format!("HTTP status {status}"))
            }
            Err(NoAnswer::Unusable(why)) => (Delivery::Unusable, why),
            Err(NoAnswer::NotSent(why) | NoAnswer::Lost(why)) => (Delivery::Silence, why),
            Err(NoAnswer::TooLong) => (Delivery::Silence, "the answer is too long".to_owned()),
        }
    }

    /// Waits until an ending process must not send any more.
    async fn end(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        sleep_until(*self.last.get_or_init(|| Instant::now() + LAST)).await;
    }

    /// Logs the first failure after a success, and the first dropped batch.
    fn complain(&mut self, failure: DeliveryFailure, error: &str) {
        if self.failure < Some(failure) {
            self.failure = Some(failure);
            failure.log(&shown(&self.settings.endpoint), error);
        }
    }

    fn count_lost(&self, reason: SpanLoss, spans: u64) {
        self.metrics.trace.dropped.add(&LostSpans { reason }, spans);
    }
}

/// Whether a batch has to be sent in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It was taken or dropped.
    Done,
    /// It was too large.
    TooLarge,
}

/// An address for the log. Its path may contain a token.
fn shown(address: &Uri) -> String {
    let host = address.host().unwrap_or_default();
    let port = address.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}", address.scheme_str().unwrap_or_default())
}

/// Whether the content is for readers, such as HTML. Collectors answer with protocol buffers, with JSON, or without a type.
fn is_page(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(b"text/html"))
}

/// The time in this header, if it is in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
#[path = "traces_tests.rs"]
mod tests;
