//! The shutdown of the server.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    fallback::Counting,
    floods::{END_HEADERS, END_STREAM, HEAD, HEADERS, begin, frame, stream},
    rig::{Rig, head, options, soon, until},
};
use crate::{
    server::{Readiness, ServerOptions},
    settings::LateRequests,
};

#[tokio::test]
async fn th_43_a_request_in_flight_is_finished_and_then_the_server_ends() {
    let mut rig = Rig::start(options()).await;
    let idle = rig.h2().await;
    let mut busy = rig.h1().await;
    busy.begin_review("/validate").await;

    rig.shutdown.cancel();
    until(|| rig.health.readiness() == Readiness::NotReady).await;
    assert!(rig.health.report().contains("[-]shutdown failed"));
    until(|| idle.is_closed()).await;
    soon(async { while TcpStream::connect(rig.secure).await.is_ok() {} }).await;
    let (code, _) = rig.get("/readyz").await;
    assert_eq!(code, 500, "health is answered to the end");
    busy.send("{}").await;
    let response = busy.response().await;
    assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("connection: close"), "{response}");
    soon(&mut rig.running).await.unwrap();
    assert!(TcpStream::connect(rig.plain).await.is_err());
}

/// A request on a new stream after the server has announced the end of the connection, as from a client that has not
/// read the announcement yet.
fn late(nth: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream(nth), HEAD)
}

#[tokio::test]
async fn a_late_request_is_sent_to_another_replica() {
    let mut rig = Rig::start_with_fallback(options(), Arc::new(Counting)).await;
    let (mut reading, mut writing) = begin(&rig, &[]).await;
    writing.write_all(&late(0)).await.unwrap();
    let mut heard = Vec::new();
    let hears = async |heard: &mut Vec<u8>, reading: &mut (dyn AsyncRead + Unpin), what: &str| {
        soon(async {
            while !String::from_utf8_lossy(heard).contains(what) {
                heard.push(reading.read_u8().await.unwrap());
            }
        })
        .await;
    };
    hears(&mut heard, &mut reading, "0 certificates").await;
    rig.shutdown.cancel();
    until(|| rig.health.readiness() == Readiness::NotReady).await;
    soon(async { while TcpStream::connect(rig.secure).await.is_ok() {} }).await;
    writing.write_all(&late(1)).await.unwrap();
    hears(&mut heard, &mut reading, "this server is shutting down; try again").await;
    drop((reading, writing));
    soon(&mut rig.running).await.unwrap();
}

#[tokio::test]
async fn a_late_client_can_be_asked_to_retry() {
    let options = ServerOptions { late_requests: LateRequests::AreToldToRetry, ..options() };
    let mut rig = Rig::start(options).await;
    let mut busy = rig.h1().await;
    busy.begin_review("/validate").await;
    rig.shutdown.cancel();
    until(|| rig.health.readiness() == Readiness::NotReady).await;
    let told = soon(async {
        loop {
            let mut late = rig.h1().await;
            late.send(&format!("{}{{}}", head("/validate", 2))).await;
            let told = late.rest().await;
            if !told.starts_with("HTTP/1.1 200 ") {
                return told;
            }
        }
    });
    let told = told.await.to_lowercase();
    assert!(told.starts_with("http/1.1 429 "), "{told}");
    assert!(told.contains("retry-after: 1") && told.contains("connection: close"), "{told}");
    let mut health = rig.h1().await;
    health.send("GET /livez HTTP/1.1\r\nHost: mcm\r\n\r\n").await;
    assert!(health.response().await.starts_with("HTTP/1.1 200 "), "health is answered as before");
    busy.send("{}").await;
    assert!(busy.response().await.starts_with("HTTP/1.1 200 "), "a request that came in time is finished");
    soon(&mut rig.running).await.unwrap();
    assert!(TcpStream::connect(rig.secure).await.is_err());
}

#[tokio::test]
async fn a_request_that_does_not_end_is_aborted() {
    let options = ServerOptions { shutdown_timeout: Duration::from_millis(50), ..options() };
    let mut rig = Rig::start(options).await;
    let mut stuck = rig.h1().await;
    stuck.begin_review("/validate").await;
    rig.shutdown.cancel();
    soon(&mut rig.running).await.unwrap();
    assert_eq!(stuck.rest().await, "");
}

#[tokio::test]
async fn during_the_delay_requests_are_served_as_usual() {
    let rig = Rig::start(ServerOptions { shutdown_delay: Duration::from_secs(3600), ..options() }).await;
    rig.shutdown.cancel();
    until(|| rig.health.readiness() == Readiness::NotReady).await;
    assert_eq!(rig.h2().await.post("/validate", "{}").await.0, StatusCode::OK);
}
