//! Calls over a transport with scripted answers, in paused time.

use std::{collections::VecDeque, sync::Mutex};

use async_trait::async_trait;
use http::{HeaderMap, StatusCode, header};

use super::*;
use crate::transport::NoAnswer;

/// The scripted answer to one request.
enum Scripted {
    Answer(u16, Option<&'static str>),
    Missing(NoAnswer),
    Silence,
}

/// Returns scripted answers, and records when requests came.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<Scripted>>>,
    came: Arc<Mutex<Vec<Instant>>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Scripted>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    fn gaps(&self) -> Vec<u64> {
        self.came.lock().unwrap().windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect()
    }
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, _: Request<Bytes>) -> Result<Answer, NoAnswer> {
        self.came.lock().unwrap().push(Instant::now());
        let scripted = self.answers.lock().unwrap().pop_front().unwrap_or(Scripted::Answer(200, None));
        match scripted {
            Scripted::Answer(status, retry_after) => {
                let mut headers = HeaderMap::new();
                if let Some(seconds) = retry_after {
                    headers.insert(header::RETRY_AFTER, seconds.parse().unwrap());
                }
                Ok(Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: Bytes::new() })
            }
            Scripted::Missing(why) => Err(why),
            Scripted::Silence => std::future::pending().await,
        }
    }
}

fn read(answer: &Answer) -> Result<u16, Failure> {
    match answer.status.as_u16() {
        200 => Ok(200),
        429 => Err(Failure::new(Code::Unavailable, "slow down", FailureKind::Throttled)),
        500 => Err(Failure::new(Code::Unavailable, "broken", FailureKind::Temporary)),
        other => Err(Failure::permanent(Code::Internal, format!("status {other}"))),
    }
}

async fn called(script: &Script, repeat: Repeat, seconds: u64) -> Result<u16, Failure> {
    let client = Client::new(script.clone(), Limits::default());
    let call = Call { service: "things", what: "GetThings", account: CredentialsKey::of(&["a"]), repeat };
    let cx = OpContext::within(Duration::from_secs(seconds));
    client.call(&cx, call, || Ok(Request::new(Bytes::new())), read).await
}

#[tokio::test(start_paused = true)]
async fn c_11_a_throttled_read_succeeds_and_waits_as_it_is_asked_to() {
    let script = Script::of([2, 3, 1].map(|seconds| Scripted::Answer(429, Some(["0", "1", "2", "3"][seconds]))));
    assert_eq!(called(&script, Repeat::Safe, 60).await, Ok(200));
    assert_eq!(script.gaps(), [2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn c_13_a_cloud_that_hangs_is_given_up_at_the_deadline() {
    let (script, began) = (Script::of([Scripted::Silence]), Instant::now());
    let failure = called(&script, Repeat::Safe, 2).await.unwrap_err();
    assert_eq!(failure.status.code, Code::DeadlineExceeded);
    assert!(began.elapsed() <= Duration::from_millis(2_200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_not_sent_again() {
    let script = Script::of([Scripted::Missing(NoAnswer::Lost("reset".to_owned()))]);
    let failure = called(&script, Repeat::Unsafe, 60).await.unwrap_err();
    assert_eq!((failure.status.code, failure.status.message.as_str()), (Code::Unavailable, "GetThings: reset"));
    assert_eq!(script.came.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_read_is_sent_four_times_at_most() {
    let script = Script::of((0..9).map(|_| Scripted::Answer(500, None)));
    assert_eq!(called(&script, Repeat::Safe, 600).await.unwrap_err().status.message, "broken");
    assert_eq!(script.came.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_returned_at_once() {
    let script = Script::of([Scripted::Answer(400, None), Scripted::Missing(NoAnswer::TooLong)]);
    assert_eq!(called(&script, Repeat::Safe, 60).await.unwrap_err().status.message, "status 400");
    assert_eq!(
        called(&script, Repeat::Safe, 60).await.unwrap_err().status.message,
        "GetThings: the answer is too long"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_answered_late_on_purpose_has_its_own_limit() {
    for (limit, gap) in [(ANSWER_TIMEOUT, 60), (Duration::from_secs(130), 130)] {
        let script = Script::of([Scripted::Silence]);
        let client = Client::new(script.clone(), Limits::default());
        let call = Call { service: "things", what: "Wait", account: CredentialsKey::of(&["a"]), repeat: Repeat::Safe };
        let cx = OpContext::within(Duration::from_secs(600));
        let answer = client.call_within(&cx, call, limit, || Ok(Request::new(Bytes::new())), read).await;
        assert_eq!((answer, script.gaps()), (Ok(200), vec![gap]));
    }
}
