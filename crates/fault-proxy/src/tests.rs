//! Each fault, observed with the client of the drivers. A second proxy replaces the cloud.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use cloud_client::{Answer, HttpOptions, HttpTransport, NoAnswer, Transport};
use http::{Method, Request};
use rstest::rstest;

use super::*;

/// A proxy before a cloud that numbers its responses.
struct Rig {
    cloud: FaultProxy,
    proxy: FaultProxy,
    client: HttpTransport,
}

impl Rig {
    async fn new() -> Self {
        let number = AtomicUsize::new(0);
        let answer = move |_: &ReceivedRequest| {
            Reply::new(200, format!("answer {}", number.fetch_add(1, Ordering::Relaxed) + 1)).with("x-cloud", "yes")
        };
        let cloud = FaultProxy::of(answer).await.unwrap();
        let proxy = FaultProxy::before(cloud.url()).await.unwrap();
        Self { cloud, proxy, client: HttpTransport::new(HttpOptions::default()) }
    }

    async fn ask(&self, form: &str) -> Result<Answer, NoAnswer> {
        let request = Request::post(self.proxy.url())
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .body(Bytes::from(form.to_owned()))
            .unwrap();
        self.client.send(request).await
    }

    async fn text(&self, form: &str) -> String {
        String::from_utf8(self.ask(form).await.unwrap().body.to_vec()).unwrap()
    }

    /// The number of requests that the cloud has received.
    fn arrived(&self) -> usize {
        self.cloud.requests().len()
    }
}

#[tokio::test]
async fn a_request_without_a_matching_rule_is_forwarded_unchanged() {
    let rig = Rig::new().await;
    rig.proxy.add(Rule::new(action("Other"), Fault::Drop));
    let answer = rig.ask("Action=Run&Name=a+b").await.unwrap();
    assert_eq!((answer.body.as_ref(), answer.headers["x-cloud"].to_str().unwrap()), (&b"answer 1"[..], "yes"));
    let (before, behind) = (rig.proxy.requests().remove(0), rig.cloud.requests().remove(0));
    assert_eq!(behind.parameter("Name"), "a b");
    // The signature of a request covers this host.
    assert_eq!(before.headers["host"], behind.headers["host"]);
}

#[rstest]
#[case::dropped(Fault::Drop, 0)]
#[case::reply_lost(Fault::LoseReply, 1)]
#[case::cut_off(Fault::Cut(3), 1)]
#[tokio::test]
async fn a_connection_that_ends_is_a_lost_answer(#[case] fault: Fault, #[case] arrived: usize) {
    let rig = Rig::new().await;
    rig.proxy.add(Rule::new(action("Run"), fault).times(1));
    let lost = rig.ask("Action=Run").await.unwrap_err();
    assert!(matches!(lost, NoAnswer::Lost(_)), "{lost:?}");
    assert_eq!(rig.arrived(), arrived);
    assert_eq!(rig.text("Action=Run").await, format!("answer {}", arrived + 1), "the rule is used up");
}

#[tokio::test]
async fn the_answer_of_a_rule_replaces_the_request_to_the_cloud_and_comes_after_delays() {
    let rig = Rig::new().await;
    rig.proxy.add(Rule::new(any, Fault::Answer(Reply::new(503, "<busy/>").with("retry-after", "7"))));
    rig.proxy.add(Rule::new(any, Fault::Drop));
    rig.proxy.add(Rule::new(request(Method::POST, "/"), Fault::Delay(Duration::from_millis(100))));
    let began = Instant::now();
    let answer = rig.ask("Action=Run").await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.headers["retry-after"].to_str().unwrap()), (503, "7"));
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert_eq!(rig.arrived(), 0);
}

#[tokio::test]
async fn a_stale_answer_is_the_first_one_of_the_same_request() {
    let rig = Rig::new().await;
    assert_eq!(rig.text("Action=Look&Id=1").await, "answer 1");
    rig.proxy.add(Rule::new(action("Look"), Fault::Stale));
    assert_eq!(rig.text("Action=Look&Id=1").await, "answer 1");
    assert_eq!(rig.text("Action=Look&Id=2").await, "answer 2", "nothing is remembered of it yet");
    rig.proxy.clear();
    assert_eq!(rig.text("Action=Look&Id=1").await, "answer 3");
}

#[tokio::test]
async fn a_token_is_forwarded_once_also_after_a_lost_reply() {
    let rig = Rig::new().await;
    rig.proxy.keep_to_tokens("ClientToken");
    rig.proxy.add(Rule::new(action("Run"), Fault::LoseReply).times(1));
    rig.ask("Action=Run&ClientToken=t1").await.unwrap_err();
    assert_eq!(rig.text("Action=Run&ClientToken=t1").await, "answer 1");
    assert_eq!(rig.text("Action=Run&ClientToken=t2").await, "answer 2");
    assert_eq!((rig.arrived(), rig.proxy.count(action("Run"))), (2, 3));
}

#[tokio::test]
async fn a_token_is_forwarded_once_also_when_the_client_is_gone_before_the_reply() {
    let rig = Rig::new().await;
    rig.proxy.keep_to_tokens("ClientToken");
    rig.cloud.add(Rule::new(any, Fault::Delay(Duration::from_millis(300))).times(1));
    let arrival = async {
        while rig.arrived() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = rig.ask("Action=Run&ClientToken=t1") => panic!("an answer before the delay is over: {answer:?}"),
        () = arrival => {}
    }
    assert_eq!(rig.text("Action=Run&ClientToken=t1").await, "answer 1");
    assert_eq!(rig.arrived(), 1);
}

#[tokio::test]
async fn a_successful_request_is_not_forwarded_again() {
    let rig = Rig::new().await;
    rig.proxy.forward_once(action("End"));
    rig.cloud.add(Rule::new(any, Fault::Answer(Reply::new(503, ""))).times(1));
    assert_eq!(rig.ask("Action=End&Id=1").await.unwrap().status.as_u16(), 503);
    rig.proxy.add(Rule::new(any, Fault::LoseReply).times(1));
    rig.ask("Action=End&Id=1").await.unwrap_err();
    assert_eq!(rig.text("Action=End&Id=1").await, "answer 1");
    assert_eq!(rig.text("Action=End&Id=2").await, "answer 2");
    assert_eq!(rig.text("Action=Look&Id=1").await, "answer 3");
    assert_eq!(rig.text("Action=Look&Id=1").await, "answer 4");
}

#[tokio::test]
async fn every_third_request_meets_a_fault() {
    let rig = Rig::new().await;
    rig.proxy.add(Rule::new(any, Fault::Answer(Reply::new(503, ""))).every(3));
    let mut statuses = Vec::new();
    for _ in 0..7 {
        statuses.push(rig.ask("Action=Run").await.unwrap().status.as_u16());
    }
    assert_eq!(statuses, [503, 200, 200, 503, 200, 200, 503]);
}

#[tokio::test]
async fn without_a_response_the_request_stays_open() {
    let rig = Rig::new().await;
    rig.proxy.add(Rule::new(any, Fault::NoResponse));
    assert!(tokio::time::timeout(Duration::from_millis(200), rig.ask("Action=Run")).await.is_err());
    assert_eq!(rig.arrived(), 0);
}
