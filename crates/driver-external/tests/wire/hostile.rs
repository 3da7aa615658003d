//! Defective and malicious peers. No Secret is sent to a peer that has not answered `GetInfo`, and a peer that recovers serves again.

use std::{
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use driver_external::{Address, wire::driver::MachineResponse};
use futures::future::{join_all, try_join_all};
use machine_driver::{Code, Driver};
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

use crate::peer::{Peer, RunningPeer, Script, TestClient, code, cx, request, until};

/// The behaviour of a peer that does not speak gRPC on a connection.
#[derive(Clone, Copy)]
enum Behaviour {
    Garbage,
    Http1,
    ClosesAtOnce,
    HalfCloses,
    NeverAnswers,
}

#[rstest]
#[case::garbage(Behaviour::Garbage)]
#[case::http_1(Behaviour::Http1)]
#[case::closes_at_once(Behaviour::ClosesAtOnce)]
#[case::half_closes(Behaviour::HalfCloses)]
#[case::never_answers(Behaviour::NeverAnswers)]
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_speaks_no_grpc_gets_no_secret(#[case] behaviour: Behaviour) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let socket = folder.path().join("driver.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let received = Arc::<Mutex<Vec<u8>>>::default();
    let receiving = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let receiving = Arc::clone(&receiving);
            tokio::spawn(async move {
                match behaviour {
                    Behaviour::Garbage => drop(stream.write_all(&[0xff; 4096]).await),
                    Behaviour::Http1 => drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await),
                    Behaviour::ClosesAtOnce => return,
                    Behaviour::HalfCloses => drop(stream.shutdown().await),
                    Behaviour::NeverAnswers => {}
                }
                let mut some = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut some).await {
                    receiving.lock().unwrap().extend_from_slice(&some[..length]);
                }
            });
        }
    });
    let client =
        TestClient::new("scripted", Address::Unix(socket), |options| options.down_after = Duration::from_secs(1));
    until(|| *client.states.lock().unwrap() == [false]).await;
    let asked = Instant::now();
    assert_eq!(code(client.driver.create_machine(&cx(), request("worker-1")).await), Code::Unavailable);
    assert!(asked.elapsed() < Duration::from_secs(1), "a driver that is down fails at once");
    assert!(!String::from_utf8_lossy(&received.lock().unwrap()).contains("hunter2"));
}

#[rstest]
#[case::in_place_of_an_answer(200)]
#[case::refused(403)]
#[case::without_a_route(404)]
#[case::without_a_backend(503)]
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_proxy_is_no_answer_of_the_driver(#[case] status: u16) {
    let peer = Peer::new(Script::default());
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    peer.script.lock().unwrap().page = Some(status);
    let refused = [
        client.driver.delete_machine(&cx(), request("worker-1")).await.unwrap_err(),
        client.status().await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
        assert!(
            refused.message.contains(&format!("HTTP status {status} and content type text/html")),
            "{}",
            refused.message
        );
    }
    peer.script.lock().unwrap().page = None;
    client.status().await.expect("the connection lasts");
}

/// A proxy between the manager and the driver has no route for a moment, and says so as a gRPC server does.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_the_driver_has_answered_is_implemented() {
    let answer = Script::default().status;
    let unimplemented = || Err(tonic::Status::unimplemented(""));
    let peer = Peer::new(Script { status: unimplemented(), ..Script::default() });
    let mut running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    assert_eq!(code(client.status().await), Code::Unimplemented, "it has not answered yet");
    peer.script.lock().unwrap().status = answer;
    client.status().await.unwrap();
    peer.script.lock().unwrap().status = unimplemented();
    let refused = client.status().await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("STATUS has the answer Unimplemented, but the driver"), "{}", refused.message);
    peer.script.lock().unwrap().info.version = "2".to_owned();
    tokio::task::block_in_place(|| running_peer.restart(&peer));
    until(|| client.driver.accepted().is_some_and(|info| info.version == "2")).await;
    assert_eq!(code(client.status().await), Code::Unimplemented, "another version may lack the operation");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_driver_is_down_but_its_running_calls_may_still_end() {
    let peer = Peer::new(Script { creation: Duration::from_secs(14), ..Script::default() });
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |options| {
        options.check_interval = Duration::from_millis(100);
        options.down_after = Duration::from_millis(500);
    });
    until(|| client.driver.accepted().is_some()).await;
    let (cx, worker) = (cx(), request("worker-1"));
    let watching = async {
        until(|| peer.recorded.running.load(Ordering::SeqCst) == 1).await;
        peer.script.lock().unwrap().unresponsive = true;
        until(|| *client.states.lock().unwrap() == [true, false]).await;
        let error = client.status().await.unwrap_err();
        assert!(error.message.contains("is down: GetInfo had no answer within 10 s"), "{}", error.message);
        peer.script.lock().unwrap().unresponsive = false;
    };
    let (made, ()) = tokio::join!(client.driver.create_machine(&cx, worker), watching);
    made.expect("a running call is not cut off");
    until(|| *client.states.lock().unwrap() == [true, false, true]).await;
    client.status().await.expect("it answers again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_long_fails_only_its_call() {
    let vm = MachineResponse { provider_id: "x".repeat(17 << 20), ..MachineResponse::default() };
    let peer = Peer::new(Script { status: Ok(vm), ..Script::default() });
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let error = client.status().await.unwrap_err();
    assert_eq!(error.code, Code::Internal, "{error}");
    peer.script.lock().unwrap().status = Err(tonic::Status::aborted("x".repeat(1 << 20)));
    let error = client.driver.delete_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert!([Code::Unavailable, Code::Internal, Code::Unknown].contains(&error.code), "{error}");
    assert!(error.message.len() < 10_000);
    peer.script.lock().unwrap().status =
        Ok(MachineResponse { provider_id: "s:///1".to_owned(), ..MachineResponse::default() });
    until_ok(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_long_is_not_sent() {
    let peer = Peer::new(Script::default());
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let mut large = request("worker-1");
    large.secret.set("userData", vec![b'x'; 17 << 20]);
    let error = client.driver.create_machine(&cx(), large).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(peer.recorded.creations.lock().unwrap().is_empty());
    client.status().await.expect("the connection serves on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_of_another_major_version_is_refused() {
    let mut script = Script::default();
    script.info.protocol = "2.0".to_owned();
    let peer = Peer::new(script);
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::new("scripted", Address::Unix(running_peer.socket()), |options| {
        options.down_after = Duration::from_secs(1);
    });
    until(|| *client.states.lock().unwrap() == [false]).await;
    let error = client.status().await.unwrap_err();
    assert!(error.message.contains("it speaks protocol \"2.0\", this program speaks 1.0"), "{error}");
    assert!(peer.recorded.calls.lock().unwrap().is_empty(), "it gets no Secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_creations_respect_the_concurrency_limit_of_the_driver() {
    let mut script = Script { creation: Duration::from_millis(5), ..Script::default() };
    script.info.max_concurrency = 8;
    let peer = Peer::new(script);
    let running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let cx = cx();
    let creations = (0..1000).map(|number| client.driver.create_machine(&cx, request(&format!("worker-{number}"))));
    try_join_all(creations).await.expect("all are made");
    let most = peer.recorded.most.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at once");
    assert_eq!(peer.recorded.creations.lock().unwrap().len(), 1000, "none is sent twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_restarts_each_second_serves_in_between() {
    let peer = Peer::new(Script { creation: Duration::from_millis(100), ..Script::default() });
    let mut running_peer = RunningPeer::new(&peer);
    let client = TestClient::of(&running_peer).await;
    let cx = cx();
    let creations = (0..20).map(|number| {
        let (client, cx, worker) = (&client, &cx, request(&format!("worker-{number}")));
        async move {
            // The controllers repeat a call after 5 s. The test does not wait that long.
            loop {
                match code(client.driver.create_machine(cx, worker.clone()).await) {
                    Code::OK => return,
                    other => assert_eq!(other, Code::Unavailable),
                }
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }
    });
    let restarts = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            tokio::task::block_in_place(|| running_peer.restart(&peer));
        }
    };
    tokio::join!(join_all(creations), restarts);
    until_ok(&client).await;
}

async fn until_ok(client: &TestClient) {
    for _ in 0..100 {
        if client.status().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not serve any more");
}
