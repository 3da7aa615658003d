//! Keeps the connection to a driver: connects, asks who it is, watches its health, and connects anew.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    address::Address,
    client::Shared,
    codes,
    connection::{self, TlsFiles},
    info::{self, Accepted},
    link::{Standing, pause},
    wire::{
        driver::{GetInfoRequest, driver_client::DriverClient},
        health::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient},
    },
};

/// The longest message in either direction.
pub const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;
/// So long a driver may take to say who it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// A driver without a health service is asked so often whether it answers; certificate files are looked at as often.
const LOOKS_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether the driver is down.
const TELLS_EVERY: Duration = Duration::from_millis(500);

/// Keeps the connection until `stop`.
pub async fn keep(shared: Arc<Shared>, address: Address, files: Option<TlsFiles>, stop: CancellationToken) {
    let keeping = async {
        tokio::join!(connect_for_ever(&shared, &address, files.as_ref()), tell_for_ever(&shared));
    };
    let _ = stop.run_until_cancelled(Box::pin(keeping)).await;
    shared.link.lost(Instant::now(), "this process ends".to_owned());
    (shared.tell_up)(false);
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
    let told = who_are_you(shared, &mut client(channel.clone())).await?;
    let before = shared.told.last().accepted.as_ref();
    let accepted =
        info::accept(shared.provider(), before, told).map_err(|refusal| format!("it is refused: {refusal}"))?;
    Ok((channel, accepted))
}

async fn who_are_you(
    shared: &Shared,
    client: &mut DriverClient<Channel>,
) -> Result<crate::wire::driver::GetInfoResponse, String> {
    let request =
        GetInfoRequest { mcm_version: shared.version.clone(), supported_protocols: vec![info::PROTOCOL.to_string()] };
    let answer = tokio::time::timeout(ANSWERS_WITHIN, client.get_info(request)).await;
    let answer = answer.map_err(|_| format!("GetInfo had no answer within {} s", ANSWERS_WITHIN.as_secs()))?;
    answer.map(tonic::Response::into_inner).map_err(|error| format!("GetInfo: {}", codes::from_wire(&error).message))
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
        () = changed(files) => "the files for TLS have changed".to_owned(),
    }
}

/// Waits until the files for TLS hold something else.
async fn changed(files: Option<&TlsFiles>) {
    let Some(files) = files else { return std::future::pending().await };
    let before = connection::fingerprint(files);
    while connection::fingerprint(files) == before {
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

/// Watches the health of a driver until the connection is lost; answers why.
async fn watch(shared: &Shared, channel: Channel) -> String {
    let mut health = HealthClient::new(channel.clone());
    let mut stream = match health.watch(HealthCheckRequest::default()).await {
        Ok(stream) => stream.into_inner(),
        Err(error) if error.code() == tonic::Code::Unimplemented => return ask_for_ever(shared, channel).await,
        Err(error) => return connection::words(&error),
    };
    loop {
        match stream.message().await {
            Ok(Some(health)) => match health.status() {
                ServingStatus::Serving => shared.link.health(Instant::now(), None),
                ServingStatus::ServiceUnknown => return ask_for_ever(shared, channel).await,
                status => {
                    shared.link.health(Instant::now(), Some(format!("it says {}", status.as_str_name())));
                }
            },
            Ok(None) => return "the driver has ended the watch of its health".to_owned(),
            Err(error) if error.code() == tonic::Code::Unimplemented => return ask_for_ever(shared, channel).await,
            Err(error) => return connection::words(&error),
        }
    }
}

/// Asks a driver without a health service whether it answers, until it does not.
async fn ask_for_ever(shared: &Shared, channel: Channel) -> String {
    let mut client = client(channel);
    loop {
        tokio::time::sleep(LOOKS_EVERY).await;
        if let Err(why) = who_are_you(shared, &mut client).await {
            return why;
        }
    }
}

/// Tells whenever the driver comes up or goes down.
async fn tell_for_ever(shared: &Shared) {
    let mut told = false;
    loop {
        let is_up = matches!(shared.link.standing(Instant::now()), Standing::Up | Standing::Shaky);
        if is_up != told {
            told = is_up;
            tracing::info!(driver = shared.provider(), is_up, "the external driver has come up or gone down");
            (shared.tell_up)(is_up);
        }
        tokio::time::sleep(TELLS_EVERY).await;
    }
}
