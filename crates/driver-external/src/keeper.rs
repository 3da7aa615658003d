//! Keeps the connection to a driver: connects, asks who it is, watches its health, and connects anew.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    address::Address,
    client::{News, Shared},
    connection::{self, TlsFiles},
    info::{self, Accepted},
    link::{Standing, pause},
    wire::{
        driver::{GetInfoRequest, driver_client::DriverClient},
        health::{
            HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_client::HealthClient,
        },
    },
};

/// The longest message in either direction.
pub const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;
/// So long a driver may take to say who it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// So often a driver is asked whether it answers, and files for TLS are looked at.
pub const LOOKS_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether the driver is down.
const TELLS_EVERY: Duration = Duration::from_millis(500);

/// Keeps the connection until `stop`.
pub async fn keep(shared: Arc<Shared>, address: Address, files: Option<TlsFiles>, stop: CancellationToken) {
    let keeping = async {
        tokio::join!(connect_for_ever(&shared, &address, files.as_ref()), tell_for_ever(&shared));
    };
    let _ = stop.run_until_cancelled(Box::pin(keeping)).await;
    shared.link.lost(Instant::now(), "this process ends".to_owned());
    (shared.tell)(&News::Ended);
}

async fn connect_for_ever(shared: &Shared, address: &Address, files: Option<&TlsFiles>) {
    let (driver, mut failures, mut told) = (shared.provider(), 0, String::new());
    loop {
        match first_words(shared, address, files).await {
            Ok((channel, accepted)) => {
                let why = stays(shared, channel, accepted, files).await;
                tracing::warn!(driver, %address, why, "the connection to the external driver has ended");
                shared.link.lost(Instant::now(), why);
                (failures, told) = (0, String::new());
            }
            Err(why) => {
                // Once for each reason: a driver may be away for hours.
                if told != why {
                    tracing::warn!(driver, %address, why, "the external driver can't be used; it is tried again");
                    told.clone_from(&why);
                }
                shared.link.lost(Instant::now(), why);
                failures += 1;
            }
        }
        tokio::time::sleep(pause(failures, rand::random())).await;
    }
}

/// A new connection to a driver that is what it should be, or why there is none.
async fn first_words(
    shared: &Shared,
    address: &Address,
    files: Option<&TlsFiles>,
) -> Result<(Channel, Accepted), String> {
    let channel = connection::connect(address, files).await.map_err(|error| connection::with_causes(&error))?;
    let told = who_are_you(shared, &mut client(channel.clone())).await.map_err(|unanswered| unanswered.why)?;
    let before = shared.told.last().accepted.as_ref();
    let accepted =
        info::accept(shared.provider(), before, told).map_err(|refusal| format!("it is refused: {refusal}"))?;
    Ok((channel, accepted))
}

/// Why a driver did not say who it is.
struct Unanswered {
    why: String,
    /// The connection is gone; else the driver is ill, and calls that run may still be answered.
    is_lost: bool,
}

async fn who_are_you(
    shared: &Shared,
    client: &mut DriverClient<Channel>,
) -> Result<crate::wire::driver::GetInfoResponse, Unanswered> {
    let request =
        GetInfoRequest { mcm_version: shared.version.clone(), supported_protocols: vec![info::PROTOCOL.to_string()] };
    match tokio::time::timeout(ANSWERS_WITHIN, client.get_info(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(error)) => Err(Unanswered {
            why: format!("GetInfo: {}", connection::words(&error)),
            is_lost: connection::is_lost(&error),
        }),
        Err(_) => {
            let why = format!("GetInfo had no answer within {} s", ANSWERS_WITHIN.as_secs());
            Err(Unanswered { why, is_lost: false })
        }
    }
}

/// A client for calls to the driver.
fn client(channel: Channel) -> DriverClient<Channel> {
    DriverClient::new(channel).max_decoding_message_size(LONGEST_MESSAGE).max_encoding_message_size(LONGEST_MESSAGE)
}

/// Lets calls use a connection as long as it is good; answers why it is not any more.
async fn stays(shared: &Shared, channel: Channel, accepted: Accepted, files: Option<&TlsFiles>) -> String {
    let Accepted { name, version, protocol, .. } = &accepted;
    tracing::info!(driver = shared.provider(), name, version, %protocol, "the external driver is connected");
    if let Err(error) = &accepted.schema {
        tracing::warn!(driver = shared.provider(), error, "the driver's schema of providerSpec can't be read");
    }
    shared.told.tell(&accepted);
    shared.link.connected(client(channel.clone()), Arc::new(accepted));
    tokio::select! {
        why = watch(shared, channel) => why,
        () = changed(shared, files) => "the files for TLS have changed".to_owned(),
    }
}

/// Waits until the files for TLS hold something else that can be used: one file may be written before the other.
async fn changed(shared: &Shared, files: Option<&TlsFiles>) {
    let Some(files) = files else { return std::future::pending().await };
    let used = connection::fingerprint(files);
    let mut told = used;
    loop {
        tokio::time::sleep(shared.looks_every).await;
        let now = connection::fingerprint(files);
        if now == used {
            continue;
        }
        match connection::tls(files) {
            Ok(_) => return,
            Err(error) if told != now => {
                let driver = shared.provider();
                tracing::warn!(driver, %error, "changed files for TLS can't be used; the connection is kept");
                told = now;
            }
            Err(_) => {}
        }
    }
}

/// Watches the health of a driver until the connection is lost; answers why. A driver that serves no health is well while it answers.
///
/// It is asked for an answer in any case: its process may be stopped, and an idle connection on which only pings travel is cut by
/// servers of gRPC that take pings for an attack.
async fn watch(shared: &Shared, channel: Channel) -> String {
    let mut health = HealthClient::new(channel.clone());
    let mut asked = client(channel.clone());
    let mut answers = std::pin::pin!(answers(shared, channel));
    let (mut stream, mut opens_at) = (None, Some(Instant::now()));
    let (mut says, mut silent) = (None, None);
    loop {
        tokio::select! {
            () = until(opens_at) => match opened(&mut health).await {
                Ok(opened) => (stream, opens_at) = (Some(opened), None),
                Err(error) if error.code() == tonic::Code::Unimplemented => opens_at = None,
                Err(error) if connection::is_lost(&error) => return connection::words(&error),
                Err(error) => opens_at = Some(opens_later(shared, &connection::words(&error))),
            },
            told = next_health(stream.as_mut()) => match told {
                Ok(Some(health)) => match health.status() {
                    ServingStatus::Serving | ServingStatus::ServiceUnknown => says = None,
                    status => says = Some(format!("it says {}", status.as_str_name())),
                },
                Err(error) if error.code() == tonic::Code::Unimplemented => stream = None,
                Err(error) if connection::is_lost(&error) => return connection::words(&error),
                // Its health is not known then, and the driver may serve all the same.
                ended => {
                    let why = ended.err().map_or("it has ended".to_owned(), |error| connection::words(&error));
                    (stream, says, opens_at) = (None, None, Some(opens_later(shared, &why)));
                    match who_are_you(shared, &mut asked).await {
                        Err(unanswered) if unanswered.is_lost => return unanswered.why,
                        answer => silent = answer.err().map(|unanswered| unanswered.why),
                    }
                }
            },
            answer = answers.next() => match answer {
                Some(Err(unanswered)) if unanswered.is_lost => return unanswered.why,
                Some(Err(unanswered)) => silent = Some(unanswered.why),
                _ => silent = None,
            },
        }
        shared.link.health(Instant::now(), says.clone().or_else(|| silent.clone()));
    }
}

/// A watch of health that the driver has ended, or refused, is opened again after this time.
const OPENS_AFTER: Duration = Duration::from_secs(30);

fn opens_later(shared: &Shared, why: &str) -> Instant {
    tracing::debug!(
        driver = shared.provider(),
        why,
        "the external driver's health can't be watched; it is tried again"
    );
    Instant::now() + OPENS_AFTER
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn opened(health: &mut HealthClient<Channel>) -> Result<tonic::Streaming<HealthCheckResponse>, tonic::Status> {
    let opening = health.watch(HealthCheckRequest::default());
    match tokio::time::timeout(ANSWERS_WITHIN, opening).await {
        Ok(opened) => opened.map(tonic::Response::into_inner),
        Err(_) => Err(tonic::Status::deadline_exceeded("the watch of its health had no answer")),
    }
}

/// What the driver says of its health next; nothing, ever, when it does not say.
async fn next_health(
    stream: Option<&mut tonic::Streaming<HealthCheckResponse>>,
) -> Result<Option<HealthCheckResponse>, tonic::Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}

/// Whether the driver answers, again and again.
fn answers(shared: &Shared, channel: Channel) -> impl Stream<Item = Result<(), Unanswered>> {
    stream::unfold(client(channel), async |mut client| {
        tokio::time::sleep(shared.looks_every).await;
        let answer = who_are_you(shared, &mut client).await.map(drop);
        Some((answer, client))
    })
}

/// Tells whenever the driver comes up or goes down.
async fn tell_for_ever(shared: &Shared) {
    let mut told = None;
    loop {
        let now = match shared.link.standing(Instant::now()) {
            Standing::Unseen => None,
            Standing::Up | Standing::Shaky => Some(News::Up),
            Standing::Down => Some(News::Down { why: shared.link.illness() }),
        };
        // Once for each change: why it is down may be told in other words from try to try.
        if let Some(now) = now
            && told.as_ref().map(std::mem::discriminant) != Some(std::mem::discriminant(&now))
        {
            match &now {
                News::Up | News::Ended => tracing::info!(driver = shared.provider(), "the external driver is up"),
                News::Down { why } => tracing::warn!(driver = shared.provider(), why, "the external driver is down"),
            }
            (shared.tell)(&now);
            told = Some(now);
        }
        tokio::time::sleep(TELLS_EVERY).await;
    }
}
