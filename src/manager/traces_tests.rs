//! A collector that answers as a table says, behind the queue of spans.

use std::{collections::VecDeque, sync::Mutex};

use async_trait::async_trait;
use cloud_client::Answer;
use http::StatusCode;
use prost::Message as _;
use rstest::rstest;

use super::*;
use controller_runtime::{clock::TokioClock, lock};
use mcm_traces::{Outcome, SpanKind, TraceId};

/// An answer of the collector.
#[derive(Clone, Copy)]
enum Says {
    Status(u16),
    Refused,
    Nothing,
    /// Success, with a page in HTML.
    Page,
}

/// Answers in this order, and then with success. Keeps the names of the spans that it took.
#[derive(Default)]
struct Collector {
    says: Mutex<VecDeque<Says>>,
    is_silent: bool,
    /// The most spans of a request, if larger ones get status 413.
    most: Option<usize>,
    took: Mutex<Vec<String>>,
}

#[async_trait]
impl Transport for Collector {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        assert_eq!(request.headers()[CONTENT_TYPE], otlp::CONTENT_TYPE);
        assert_eq!(request.uri().path(), "/v1/traces");
        let says = if self.is_silent { Some(Says::Nothing) } else { lock(&self.says).pop_front() };
        let status = match says {
            Some(Says::Nothing) => return std::future::pending().await,
            Some(Says::Refused) => return Err(NoAnswer::NotSent("connection refused".to_owned())),
            Some(Says::Page) => {
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, "text/html; charset=utf-8".parse().unwrap())]);
                return Ok(Answer { status: StatusCode::OK, headers, body: Bytes::from_static(b"<html>") });
            }
            Some(Says::Status(status)) => StatusCode::from_u16(status).unwrap(),
            None => StatusCode::OK,
        };
        if status.is_success() {
            let read = otlp::Request::decode(request.into_body()).unwrap();
            let spans =
                read.resource_spans.into_iter().flat_map(|spans| spans.scope_spans).flat_map(|spans| spans.spans);
            let names: Vec<String> = spans.map(|span| span.name).collect();
            if self.most.is_some_and(|most| names.len() > most) {
                let (status, body) = (StatusCode::PAYLOAD_TOO_LARGE, Bytes::new());
                return Ok(Answer { status, headers: HeaderMap::new(), body });
            }
            lock(&self.took).extend(names);
        }
        Ok(Answer { status, headers: HeaderMap::new(), body: Bytes::new() })
    }
}

struct Rig {
    collector: Arc<Collector>,
    tracer: Tracer,
    metrics: Metrics,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Rig {
    fn new(collector: Collector) -> Self {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let settings = TracingSettings {
            endpoint: "http://collector:4318/v1/traces".parse().unwrap(),
            instance: "pod-1".to_owned(),
        };
        let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let collector = Arc::new(collector);
        let transport = Arc::clone(&collector) as Arc<dyn Transport>;
        let (tracer, exporter) = over(transport, settings, &metrics, &clock, || 1);
        let stop = CancellationToken::new();
        let running = tokio::spawn(exporter.run(stop.clone()));
        Self { collector, tracer, metrics, stop, running }
    }

    fn saying(says: &[Says]) -> Self {
        Self::new(Collector { says: Mutex::new(says.iter().copied().collect()), ..Collector::default() })
    }

    fn record(&self, name: &'static str) {
        let span = self.tracer.begin(TraceId::of_number(1), None, SpanKind::Internal, name).unwrap();
        span.end(Outcome::Fine);
    }

    /// The value of a counter with this label.
    fn counted(&self, series: &str) -> u64 {
        let text = self.metrics.render().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).expect(series);
        line.parse().unwrap()
    }

    fn lost(&self, reason: &str) -> u64 {
        self.counted(&format!("mcm_trace_spans_dropped_total{{reason=\"{reason}\"}}"))
    }

    fn sent(&self) -> u64 {
        self.counted("mcm_trace_spans_sent_total")
    }
}

#[rstest]
#[case::at_once(&[], 1, "")]
#[case::after_a_while(&[Says::Refused, Says::Status(503), Says::Nothing], 1, "")]
#[case::never(&[Says::Refused; 5], 0, "unreachable")]
#[case::by_a_web_server(&[Says::Page], 0, "refused")]
#[case::one_span_is_too_large(&[Says::Status(413)], 0, "refused")]
#[case::not_with_these_rights(&[Says::Status(401)], 0, "refused")]
#[tokio::test(start_paused = true)]
async fn pk_104_a_span_is_delivered_or_counted(#[case] says: &[Says], #[case] sent: u64, #[case] lost: &str) {
    let rig = Rig::saying(says);
    rig.record("drain");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.sent(), sent);
    for reason in ["queue_full", "refused", "unreachable", "ended"] {
        assert_eq!(rig.lost(reason), u64::from(reason == lost), "{reason}");
    }
    assert_eq!(lock(&rig.collector.took).len() as u64, sent);
    rig.record("later");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.sent(), sent + 1, "the next batch has nothing to do with this one");
}

#[tokio::test(start_paused = true)]
async fn pk_104_a_silent_collector_costs_neither_time_nor_memory() {
    let rig = Rig::new(Collector { is_silent: true, ..Collector::default() });
    rig.record("the batch under way");
    sleep(GATHERING + Duration::from_secs(1)).await;
    let spans = 20_000_u32;
    let began = std::time::Instant::now();
    for _ in 0..spans {
        rig.record("drain");
    }
    let each = began.elapsed() / spans;
    assert!(each < Duration::from_millis(1), "{each:?} for each span");
    assert_eq!(rig.lost("queue_full"), u64::from(spans) - QUEUE as u64, "the queue has a bounded size");
}

#[tokio::test(start_paused = true)]
async fn pk_104_a_batch_that_is_too_large_is_sent_in_parts() {
    let rig = Rig::new(Collector { most: Some(3), ..Collector::default() });
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    for name in names {
        rig.record(name);
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!((rig.sent(), rig.lost("refused")), (10, 0));
    assert_eq!(*lock(&rig.collector.took), names, "in their order");
}

#[rstest]
#[case::a_token("https://collector:4318/token-77/v1/traces", "https://collector:4318")]
#[case::a_user("http://user:password@collector/v1/traces", "http://collector")]
#[case::a_query("http://[fd00::1]:1/v1/traces?key=77", "http://[fd00::1]:1")]
fn a_log_names_the_host_of_a_collector_only(#[case] address: &str, #[case] expected: &str) {
    assert_eq!(shown(&address.parse().unwrap()), expected);
}

#[test]
fn a_log_says_waits_only_before_a_batch_is_dropped() {
    let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
    let endpoint = "http://collector:4318/v1/traces".parse().unwrap();
    let settings = TracingSettings { endpoint, instance: "pod-1".to_owned() };
    let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let (_, mut exporter) = over(Arc::new(Collector::default()), settings, &metrics, &clock, || 1);
    for (failure, expected) in [
        (DeliveryFailure::Retried, DeliveryFailure::Retried),
        (DeliveryFailure::Dropped, DeliveryFailure::Dropped),
        (DeliveryFailure::Retried, DeliveryFailure::Dropped),
    ] {
        exporter.complain(failure, "why");
        assert_eq!(exporter.failure, Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn the_spans_of_an_ending_process_are_sent() {
    let rig = Rig::saying(&[]);
    for _ in 0..1000 {
        rig.record("drain");
    }
    rig.stop.cancel();
    let Rig { running, collector, metrics, .. } = rig;
    running.await.unwrap();
    assert_eq!(lock(&collector.took).len(), 1000);
    assert!(metrics.render().unwrap().contains("mcm_trace_spans_sent_total 1000"));
}

#[tokio::test(start_paused = true)]
async fn a_process_ends_in_time_without_its_collector() {
    let mut rig = Rig::new(Collector { is_silent: true, ..Collector::default() });
    for _ in 0..2000 {
        rig.record("drain");
    }
    let began = Instant::now();
    rig.stop.cancel();
    (&mut rig.running).await.unwrap();
    assert!(began.elapsed() <= LAST, "{:?}", began.elapsed());
    assert_eq!((rig.sent(), rig.lost("ended")), (0, 2000));
}

#[test]
fn without_a_collector_nothing_is_recorded() {
    let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
    let clock: SharedClock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let (tracer, exporter) = prepare(None, &metrics, &clock, || 1);
    assert!(!tracer.is_on() && exporter.is_none());
    assert!(!metrics.render().unwrap().contains("mcm_trace_spans"), "no series without a collector");
}
