//! The task that keeps the connection to a driver. It connects, calls `GetInfo`, watches the health of the driver and reconnects.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use machine_driver::Code;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    address::Address,
    client::{DriverState, Shared},
    codes,
    connection::{self, TlsFiles},
    grpc_only::GrpcOnly,
    info::{self, Accepted},
    link::{LinkState, pause},
    wire::{
        driver::{GetInfoRequest, driver_client::DriverClient},
        health::{
            HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_client::HealthClient,
        },
    },
};

/// The longest message in either direction, in bytes.
pub const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;
/// How long the answer to `GetInfo`, or to the request to watch the health, may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two checks whether the driver answers and whether the files for TLS have changed.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two checks whether the driver is down.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// The most problems that are remembered as logged.
const MAX_PROBLEMS: usize = 16;

/// Keeps the connection until `stop`.
pub async fn keep(shared: Arc<Shared>, address: Address, files: Option<TlsFiles>, stop: CancellationToken) {
    let keeping = async {
        tokio::join!(connect_loop(&shared, &address, files.as_ref()), report_loop(&shared));
    };
    let _ = stop.run_until_cancelled(Box::pin(keeping)).await;
    shared.link.lost(Instant::now(), "this process ends".to_owned());
    (shared.on_change)(&DriverState::Ended);
}

async fn connect_loop(shared: &Shared, address: &Address, files: Option<&TlsFiles>) {
    let (driver, mut failures, mut logged) = (shared.provider(), 0, LoggedProblems::default());
    loop {
        // Subscribed before the attempt, because the program may end meanwhile.
        let program_ended = shared.program_ended.subscribe();
        match connect(shared, address, files).await {
            Ok((channel, accepted)) => {
                let why = use_connection(shared, channel, accepted, files, program_ended).await;
                tracing::warn!(
                    provider = driver, %address, error = why,
                    "the connection to the external driver has ended"
                );
                shared.link.lost(Instant::now(), why);
                (failures, logged) = (0, LoggedProblems::default());
            }
            Err(why) => {
                if logged.is_new(&why) {
                    tracing::warn!(
                        provider = driver, %address, error = why,
                        "the external driver can't be used; it is tried again"
                    );
                }
                shared.link.lost(Instant::now(), why);
                failures += 1;
            }
        }
        tokio::time::sleep(pause(failures, rand::random())).await;
    }
}

/// The problems that were logged since the last connection. Each one is logged once, because a driver may be unreachable for hours, and may fail in
/// turn with several texts.
#[derive(Default)]
struct LoggedProblems(BTreeSet<String>);

impl LoggedProblems {
    /// Whether this problem was not logged yet. Two texts with other numbers name the same problem: the text for an expired certificate, for
    /// example, contains the present time.
    fn is_new(&mut self, why: &str) -> bool {
        if self.0.len() >= MAX_PROBLEMS {
            self.0.clear();
        }
        self.0.insert(why.replace(|c: char| c.is_ascii_digit(), ""))
    }
}

/// Connects to the driver and checks its answer to `GetInfo`.
///
/// # Errors
/// Why there is no usable connection.
async fn connect(shared: &Shared, address: &Address, files: Option<&TlsFiles>) -> Result<(GrpcOnly, Accepted), String> {
    let channel = connection::connect(address, files).await.map_err(|error| connection::with_causes(&error))?;
    let answer = get_info(shared, &mut client(channel.clone())).await.map_err(|unanswered| unanswered.why)?;
    let before = shared.history.last().accepted.as_ref();
    let accepted =
        info::accept(shared.provider(), before, answer).map_err(|refusal| format!("it is refused: {refusal}"))?;
    Ok((channel, accepted))
}

/// Why `GetInfo` has no answer.
struct Unanswered {
    why: String,
    /// Whether the connection is lost. If not, the driver is unhealthy, and running calls may still get their answers.
    is_lost: bool,
}

async fn get_info(
    shared: &Shared,
    client: &mut DriverClient<GrpcOnly>,
) -> Result<crate::wire::driver::GetInfoResponse, Unanswered> {
    let request =
        GetInfoRequest { mcm_version: shared.version.clone(), supported_protocols: vec![info::PROTOCOL.to_string()] };
    match tokio::time::timeout(ANSWER_TIMEOUT, client.get_info(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(error)) => Err(Unanswered {
            why: format!("GetInfo: {}", connection::describe(&error)),
            is_lost: connection::is_lost(&error),
        }),
        Err(_) => {
            let why = format!("GetInfo had no answer within {} s", ANSWER_TIMEOUT.as_secs());
            Err(Unanswered { why, is_lost: false })
        }
    }
}

/// The client of a connection.
fn client(channel: GrpcOnly) -> DriverClient<GrpcOnly> {
    DriverClient::new(channel).max_decoding_message_size(LONGEST_MESSAGE).max_encoding_message_size(LONGEST_MESSAGE)
}

/// Lets calls use a connection until it must be replaced, and returns the reason.
async fn use_connection(
    shared: &Shared,
    channel: GrpcOnly,
    accepted: Accepted,
    files: Option<&TlsFiles>,
    mut program_ended: watch::Receiver<()>,
) -> String {
    let Accepted { name, version, protocol, .. } = &accepted;
    tracing::info!(
        provider = shared.provider(), name, version, code = %protocol,
        "the external driver is connected"
    );
    if let Err(error) = &accepted.schema {
        tracing::warn!(provider = shared.provider(), error, "the driver's schema of providerSpec can't be read");
    }
    shared.history.record(&accepted);
    shared.link.connected(client(channel.clone()), Arc::new(accepted));
    tokio::select! {
        why = watch_health(shared, channel) => why,
        () = tls_files_changed(shared, files) => "the files for TLS have changed".to_owned(),
        // The connection may outlast the program: another process may hold it.
        Ok(()) = program_ended.changed() => "the program of the driver has ended".to_owned(),
    }
}

/// Waits until the files for TLS have changed and can be used. They may be unusable for a while, because they are written one after another.
async fn tls_files_changed(shared: &Shared, files: Option<&TlsFiles>) {
    let Some(files) = files else { return std::future::pending().await };
    let used = connection::fingerprint(files);
    let mut logged = used;
    loop {
        tokio::time::sleep(shared.check_interval).await;
        let now = connection::fingerprint(files);
        if now == used {
            continue;
        }
        match connection::tls(files) {
            Ok(_) => return,
            Err(error) if logged != now => {
                let driver = shared.provider();
                tracing::warn!(
                    provider = driver, %error,
                    "changed files for TLS can't be used; the connection is kept"
                );
                logged = now;
            }
            Err(_) => {}
        }
    }
}

/// Whether the driver has no such service. The 404 of a proxy does not say that.
fn is_unimplemented(error: &tonic::Status) -> bool {
    codes::from_wire(error).code == Code::Unimplemented
}

/// Watches the health of a driver until the connection is lost, and returns the reason. A driver without a health service is healthy while it
/// answers `GetInfo`.
///
/// `GetInfo` is also called for a driver with a health service, because its process may hang. The calls also keep the connection in use: some
/// gRPC servers close an idle connection with pings only.
async fn watch_health(shared: &Shared, channel: GrpcOnly) -> String {
    let mut health = HealthClient::new(channel.clone());
    let mut driver = client(channel.clone());
    let mut probes = std::pin::pin!(probes(shared, channel));
    let (mut stream, mut opens_at) = (None, Some(Instant::now()));
    // Why the driver is unhealthy: what the health service reported, and why `GetInfo` has no answer.
    let (mut reported, mut unresponsive) = (None, None);
    loop {
        tokio::select! {
            () = sleep_until(opens_at) => match open_watch(&mut health).await {
                Ok(opened) => (stream, opens_at) = (Some(opened), None),
                Err(error) if is_unimplemented(&error) => opens_at = None,
                Err(error) if connection::is_lost(&error) => return connection::describe(&error),
                Err(error) => opens_at = Some(reopen_at(shared, &connection::describe(&error))),
            },
            change = next_health(stream.as_mut()) => match change {
                Ok(Some(health)) => match health.status() {
                    ServingStatus::Serving | ServingStatus::ServiceUnknown => reported = None,
                    status => reported = Some(format!("it says {}", status.as_str_name())),
                },
                Err(error) if is_unimplemented(&error) => stream = None,
                Err(error) if connection::is_lost(&error) => return connection::describe(&error),
                // The health is unknown until the watch is open again. The driver may still serve, so `GetInfo` is called.
                ended => {
                    let why = ended.err().map_or("it has ended".to_owned(), |error| connection::describe(&error));
                    (stream, reported, opens_at) = (None, None, Some(reopen_at(shared, &why)));
                    match get_info(shared, &mut driver).await {
                        Err(unanswered) if unanswered.is_lost => return unanswered.why,
                        answer => unresponsive = answer.err().map(|unanswered| unanswered.why),
                    }
                }
            },
            answer = probes.next() => match answer {
                Some(Err(unanswered)) if unanswered.is_lost => return unanswered.why,
                Some(Err(unanswered)) => unresponsive = Some(unanswered.why),
                _ => unresponsive = None,
            },
        }
        shared.link.health(Instant::now(), reported.clone().or_else(|| unresponsive.clone()));
    }
}

/// If the driver ends or refuses the watch of its health, the watch is opened again after this time.
const REOPEN_AFTER: Duration = Duration::from_secs(30);

fn reopen_at(shared: &Shared, why: &str) -> Instant {
    tracing::debug!(
        provider = shared.provider(),
        error = why,
        "the external driver's health can't be watched; it is tried again"
    );
    Instant::now() + REOPEN_AFTER
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn open_watch(
    health: &mut HealthClient<GrpcOnly>,
) -> Result<tonic::Streaming<HealthCheckResponse>, tonic::Status> {
    let opening = health.watch(HealthCheckRequest::default());
    match tokio::time::timeout(ANSWER_TIMEOUT, opening).await {
        Ok(opened) => opened.map(tonic::Response::into_inner),
        Err(_) => Err(tonic::Status::deadline_exceeded("the watch of its health had no answer")),
    }
}

/// The next change of the health. Without a watch this future never ends.
async fn next_health(
    stream: Option<&mut tonic::Streaming<HealthCheckResponse>>,
) -> Result<Option<HealthCheckResponse>, tonic::Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}

/// Calls `GetInfo` again and again, with a pause of `check_interval` before each call.
fn probes(shared: &Shared, channel: GrpcOnly) -> impl Stream<Item = Result<(), Unanswered>> {
    stream::unfold(client(channel), async |mut client| {
        tokio::time::sleep(shared.check_interval).await;
        let answer = get_info(shared, &mut client).await.map(drop);
        Some((answer, client))
    })
}

/// Reports when the driver comes up or goes down.
async fn report_loop(shared: &Shared) {
    let mut reported = None;
    loop {
        let now = match shared.link.link_state(Instant::now()) {
            LinkState::NeverConnected => None,
            LinkState::Up | LinkState::Degraded => Some(DriverState::Up),
            LinkState::Down => Some(DriverState::Down { why: shared.link.problem() }),
        };
        // A new reason alone is not reported: each attempt to connect may fail with another text.
        if let Some(now) = now
            && reported.as_ref().map(std::mem::discriminant) != Some(std::mem::discriminant(&now))
        {
            match &now {
                DriverState::Up | DriverState::Ended => {
                    tracing::info!(provider = shared.provider(), "the external driver is up");
                }
                DriverState::Down { why } => {
                    tracing::warn!(provider = shared.provider(), error = why, "the external driver is down");
                }
            }
            (shared.on_change)(&now);
            reported = Some(now);
        }
        tokio::time::sleep(REPORT_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_once() {
        let mut logged = LoggedProblems::default();
        let expired = |seconds: u32| format!("certificate expired: verification time {seconds} (UNIX)");
        assert!(logged.is_new(&expired(1_764_174_832)));
        assert!(logged.is_new("connection refused"));
        assert!(!logged.is_new(&expired(1_764_174_842)), "it is the same problem 10 s later");
        assert!(!logged.is_new("connection refused"));
        assert!((0..100).all(|number| logged.is_new(&"x".repeat(number + 1))), "their number is bounded");
        assert!(logged.0.len() <= MAX_PROBLEMS);
    }
}
