//! Peers that are broken or mean it: no Secret goes to one that has not said who it is, and one that can be talked to again serves on.

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

use crate::peer::{Kept, Living, Peer, Script, code, cx, request, until};

/// What a peer that speaks no gRPC does with a connection.
#[derive(Clone, Copy)]
enum Manner {
    Garbage,
    Http1,
    ClosesAtOnce,
    HalfCloses,
    NeverAnswers,
}

#[rstest]
#[case::garbage(Manner::Garbage)]
#[case::http_1(Manner::Http1)]
#[case::closes_at_once(Manner::ClosesAtOnce)]
#[case::half_closes(Manner::HalfCloses)]
#[case::never_answers(Manner::NeverAnswers)]
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_speaks_no_grpc_gets_no_secret(#[case] manner: Manner) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let socket = folder.path().join("driver.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let hearing = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let hearing = Arc::clone(&hearing);
            tokio::spawn(async move {
                match manner {
                    Manner::Garbage => drop(stream.write_all(&[0xff; 4096]).await),
                    Manner::Http1 => drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await),
                    Manner::ClosesAtOnce => return,
                    Manner::HalfCloses => drop(stream.shutdown().await),
                    Manner::NeverAnswers => {}
                }
                let mut some = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut some).await {
                    hearing.lock().unwrap().extend_from_slice(&some[..length]);
                }
            });
        }
    });
    let kept = Kept::new("scripted", Address::Unix(socket), |options| options.down_after = Duration::from_secs(1));
    until(|| *kept.ups.lock().unwrap() == [false]).await;
    let asked = Instant::now();
    assert_eq!(code(kept.driver.create_machine(&cx(), request("worker-1")).await), Code::Unavailable);
    assert!(asked.elapsed() < Duration::from_secs(1), "a driver that is down fails at once");
    assert!(!String::from_utf8_lossy(&heard.lock().unwrap()).contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_falls_silent_is_down_but_may_still_end_what_it_does() {
    let peer = Peer::new(Script { creation: Duration::from_secs(14), ..Script::default() });
    let living = Living::new(&peer);
    let kept = Kept::new("scripted", Address::Unix(living.socket()), |options| {
        options.looks_every = Duration::from_millis(100);
        options.down_after = Duration::from_millis(500);
    });
    until(|| kept.driver.accepted().is_some()).await;
    let (cx, worker) = (cx(), request("worker-1"));
    let watching = async {
        until(|| peer.seen.running.load(Ordering::SeqCst) == 1).await;
        peer.script.lock().unwrap().silent = true;
        until(|| *kept.ups.lock().unwrap() == [true, false]).await;
        let told = kept.status().await.unwrap_err();
        assert!(told.message.contains("is down: GetInfo had no answer within 10 s"), "{}", told.message);
        peer.script.lock().unwrap().silent = false;
    };
    let (made, ()) = tokio::join!(kept.driver.create_machine(&cx, worker), watching);
    made.expect("a busy driver is not cut off");
    until(|| *kept.ups.lock().unwrap() == [true, false, true]).await;
    kept.status().await.expect("it answers again");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_beyond_all_limits_fail_their_call_alone() {
    let vm = MachineResponse { provider_id: "x".repeat(17 << 20), ..MachineResponse::default() };
    let peer = Peer::new(Script { status: Ok(vm), ..Script::default() });
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let told = kept.status().await.unwrap_err();
    assert_eq!(told.code, Code::Internal, "{told}");
    peer.script.lock().unwrap().status = Err(tonic::Status::aborted("x".repeat(1 << 20)));
    let told = kept.driver.delete_machine(&cx(), request("worker-1")).await.unwrap_err();
    assert!([Code::Unavailable, Code::Internal, Code::Unknown].contains(&told.code), "{told}");
    assert!(told.message.len() < 10_000);
    peer.script.lock().unwrap().status =
        Ok(MachineResponse { provider_id: "s:///1".to_owned(), ..MachineResponse::default() });
    until_ok(&kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_all_limits_is_not_sent() {
    let peer = Peer::new(Script::default());
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let mut large = request("worker-1");
    large.secret.set("userData", vec![b'x'; 17 << 20]);
    let told = kept.driver.create_machine(&cx(), large).await.unwrap_err();
    assert_eq!(told.code, Code::InvalidArgument, "{told}");
    assert!(peer.seen.creations.lock().unwrap().is_empty());
    kept.status().await.expect("the connection serves on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_of_another_major_version_is_refused() {
    let mut script = Script::default();
    script.info.protocol = "2.0".to_owned();
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    let kept =
        Kept::new("scripted", Address::Unix(living.socket()), |options| options.down_after = Duration::from_secs(1));
    until(|| *kept.ups.lock().unwrap() == [false]).await;
    let told = kept.status().await.unwrap_err();
    assert!(told.message.contains("it speaks protocol \"2.0\", this program speaks 1.0"), "{told}");
    assert!(peer.seen.calls.lock().unwrap().is_empty(), "it gets no Secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_creations_keep_to_the_drivers_concurrency() {
    let mut script = Script { creation: Duration::from_millis(5), ..Script::default() };
    script.info.max_concurrency = 8;
    let peer = Peer::new(script);
    let living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let cx = cx();
    let creations = (0..1000).map(|number| kept.driver.create_machine(&cx, request(&format!("worker-{number}"))));
    try_join_all(creations).await.expect("all are made");
    let most = peer.seen.most.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at once");
    assert_eq!(peer.seen.creations.lock().unwrap().len(), 1000, "none is sent twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_restarts_each_second_serves_in_between() {
    let peer = Peer::new(Script { creation: Duration::from_millis(100), ..Script::default() });
    let mut living = Living::new(&peer);
    let kept = Kept::of(&living).await;
    let cx = cx();
    let creations = (0..20).map(|number| {
        let (kept, cx, worker) = (&kept, &cx, request(&format!("worker-{number}")));
        async move {
            // The core asks again after 5 s; here it is more eager.
            loop {
                match code(kept.driver.create_machine(cx, worker.clone()).await) {
                    Code::OK => return,
                    told => assert_eq!(told, Code::Unavailable),
                }
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }
    });
    let restarts = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            tokio::task::block_in_place(|| living.revive(&peer));
        }
    };
    tokio::join!(join_all(creations), restarts);
    until_ok(&kept).await;
}

async fn until_ok(kept: &Kept) {
    for _ in 0..100 {
        if kept.status().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not serve any more");
}
