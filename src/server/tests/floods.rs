//! Clients that use HTTP/2 only to exhaust the server. The tests write the frames themselves, because no HTTP library would
//! send them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::{
    fallback::Counting,
    rig::{Rig, options, soon},
};
use crate::server::{FallbackHandler, ServerOptions};
use kube_listener::ConnectionLimits;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// `GET /apis` of host `mcm`, mostly from the static table.
pub(super) const HEAD: &[u8] = b"\x82\x87\x44\x05/apis\x41\x03mcm";
/// Kinds of frames.
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The number of a client's nth stream.
pub(super) fn stream(nth: u32) -> u32 {
    nth * 2 + 1
}

pub(super) async fn begin(
    rig: &Rig,
    settings: &[u8],
) -> (ReadHalf<TlsStream<TcpStream>>, WriteHalf<TlsStream<TcpStream>>) {
    let (reading, mut writing) = split(rig.connect("h2").await);
    writing.write_all(PREFACE).await.unwrap();
    writing.write_all(&frame(SETTINGS, 0, 0, settings)).await.unwrap();
    (reading, writing)
}

/// The codes of all GOAWAY frames until the server closes.
async fn goodbyes(mut reading: impl AsyncRead + Unpin) -> Vec<u32> {
    let mut bytes = Vec::new();
    // A server that aborts a connection sends no TLS close message, so an error is ignored.
    let _ = soon(reading.read_to_end(&mut bytes)).await;
    let (mut rest, mut codes) = (&bytes[..], Vec::new());
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap().min(payload.len());
        if let (GOAWAY, [_, _, _, _, code @ ..]) = (*kind, &payload[..length]) {
            codes.push(u32::from_be_bytes(code[..4].try_into().unwrap()));
        }
        rest = &payload[length..];
    }
    codes
}

async fn still_answers(rig: &Rig) {
    assert_eq!(rig.h2().await.post("/validate", "{}").await.0, StatusCode::OK);
}

/// Counts the requests that it gets.
#[derive(Default)]
struct Reached(AtomicUsize);

#[async_trait]
impl FallbackHandler for Reached {
    async fn answer(&self, _: Request<Body>) -> Response<Body> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Response::new(Body::empty())
    }
}

#[tokio::test]
async fn th_10_a_connection_with_many_resets_is_closed() {
    const FLOOD: u32 = 100_000;
    let fallback = Arc::new(Reached::default());
    let rig = Rig::start_with_fallback(options(), Arc::<Reached>::clone(&fallback)).await;
    let (reading, mut writing) = begin(&rig, &[]).await;
    let flood = tokio::spawn(async move {
        for thousand in 0..FLOOD / 1_000 {
            let pair = |nth| {
                let (opened, reset) = (stream(nth), 8_u32.to_be_bytes());
                [frame(HEADERS, END_STREAM | END_HEADERS, opened, HEAD), frame(RST_STREAM, 0, opened, &reset)].concat()
            };
            let some: Vec<u8> = (thousand * 1_000..(thousand + 1) * 1_000).flat_map(pair).collect();
            if writing.write_all(&some).await.is_err() {
                return;
            }
        }
    });
    let codes = goodbyes(reading).await;
    assert!(codes.contains(&ENHANCE_YOUR_CALM), "{codes:?}");
    soon(flood).await.unwrap();
    let reached = fallback.0.load(Ordering::Relaxed);
    assert!(reached < 10_000, "the connection is closed long before all requests are sent: {reached}");
    still_answers(&rig).await;
}

/// Never answers.
#[derive(Default)]
struct Waiting(AtomicUsize);

#[async_trait]
impl FallbackHandler for Waiting {
    async fn answer(&self, _: Request<Body>) -> Response<Body> {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

#[tokio::test]
async fn th_10_a_connection_with_many_cancelled_requests_is_closed() {
    let fallback = Arc::new(Waiting::default());
    let mut options = options();
    options.connections.http2.resets = 3;
    let rig = Rig::start_with_fallback(options, Arc::<Waiting>::clone(&fallback)).await;
    let (reading, mut writing) = begin(&rig, &[]).await;
    for nth in 0..4 {
        writing.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream(nth), HEAD)).await.unwrap();
        let wanted = usize::try_from(nth).unwrap() + 1;
        super::rig::until(|| fallback.0.load(Ordering::Relaxed) == wanted).await;
        writing.write_all(&frame(RST_STREAM, 0, stream(nth), &8_u32.to_be_bytes())).await.unwrap();
    }
    goodbyes(reading).await;
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_11_a_connection_with_an_endless_head_is_closed() {
    let rig = Rig::start_with_fallback(options(), Arc::new(Counting)).await;
    let (reading, mut writing) = begin(&rig, &[]).await;
    let flood = tokio::spawn(async move {
        let _ = writing.write_all(&frame(HEADERS, END_STREAM, 1, HEAD)).await;
        // Literal headers `x: y…` without indexing, in frames without the flag END_HEADERS.
        let header = [&b"\x00\x01x\x7f\x81\x01"[..], &[b'y'; 256]].concat();
        let more = frame(CONTINUATION, 0, 1, &header.repeat(60));
        for sent in 0..10_000 {
            if writing.write_all(&more).await.is_err() {
                return sent;
            }
        }
        10_000
    });
    goodbyes(reading).await;
    assert!(soon(flood).await.unwrap() < 10_000, "closed before 150 MB are sent");
    still_answers(&rig).await;
}

#[rstest::rstest]
#[case::pings(frame(PING, 0, 0, &[7; 8]))]
#[case::settings(frame(SETTINGS, 0, 0, &[]))]
#[tokio::test]
async fn th_11_a_client_that_reads_no_answers_is_disconnected(#[case] asks: Vec<u8>) {
    // The buffers of the operating system are limited too. When they are full, the server's writes make no progress, and
    // then the write timeout passes.
    let connections = ConnectionLimits { write: Duration::from_millis(200), ..ConnectionLimits::default() };
    let rig = Rig::start_with_fallback(ServerOptions { connections, ..options() }, Arc::new(Counting)).await;
    let (_unread, mut writing) = begin(&rig, &[]).await;
    let flood = tokio::spawn(async move {
        let many = asks.repeat(1_000);
        while writing.write_all(&many).await.is_ok() {}
    });
    soon(flood).await.unwrap();
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_11_a_client_that_only_pings_is_disconnected_even_if_it_reads_the_answers() {
    let rig = Rig::start_with_fallback(options(), Arc::new(Counting)).await;
    let (reading, mut writing) = begin(&rig, &[]).await;
    let flood = tokio::spawn(async move {
        let many = frame(PING, 0, 0, &[7; 8]).repeat(1_000);
        while writing.write_all(&many).await.is_ok() {}
    });
    goodbyes(reading).await;
    soon(flood).await.unwrap();
    still_answers(&rig).await;
}

#[tokio::test]
async fn th_11_unread_answers_do_not_keep_a_connection_open_for_ever() {
    let age = Duration::from_millis(100);
    let connections = ConnectionLimits { max_age: age, linger: age, ..ConnectionLimits::default() };
    let rig = Rig::start_with_fallback(ServerOptions { connections, ..options() }, Arc::new(Counting)).await;
    // SETTINGS_INITIAL_WINDOW_SIZE is 0, so the server may send no byte of any body.
    let (reading, mut writing) = begin(&rig, &[0, 4, 0, 0, 0, 0]).await;
    let asked: Vec<u8> = (0..100).flat_map(|nth| frame(HEADERS, END_STREAM | END_HEADERS, stream(nth), HEAD)).collect();
    writing.write_all(&asked).await.unwrap();
    goodbyes(reading).await;
    still_answers(&rig).await;
}
