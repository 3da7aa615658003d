//! One call to a cloud: wait for the budget, send the request, read the answer, retry.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use machine_driver::{Code, Instant, OpContext, Status};

use crate::{
    budget::{Budgets, Limits},
    failure::{Failure, FailureKind},
    retry::{self, Next, Repeat},
    secret::CredentialsKey,
    transport::{Answer, Transport},
};

/// A cloud that has not answered a request after this time will not answer it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The request of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The name of the request in metrics.
    pub service: &'static str,
    /// The name of the request in messages.
    pub what: &'a str,
    /// The credentials whose budget the request uses.
    pub account: CredentialsKey,
    /// Whether the request may be sent again when its outcome is unknown.
    pub repeat: Repeat,
}

/// Sends requests to a cloud. Clones share budgets and connections.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    budgets: Arc<Budgets>,
}

impl Client {
    /// A client that sends through this transport.
    pub fn new(transport: impl Transport, limits: Limits) -> Self {
        Self { transport: Arc::new(transport), budgets: Arc::new(Budgets::new(limits)) }
    }

    /// Sends a request until `read` accepts an answer, the failure is permanent, or the time of the operation is over. `build`
    /// makes a new request for each try.
    ///
    /// # Errors
    /// The last failure. Its code is `DeadlineExceeded` when no answer came in time.
    pub async fn call<T: Send>(
        &self,
        cx: &OpContext,
        call: Call<'_>,
        build: impl Fn() -> Result<Request<Bytes>, Status> + Send + Sync,
        read: impl Fn(&Answer) -> Result<T, Failure> + Send + Sync,
    ) -> Result<T, Failure> {
        self.call_within(cx, call, ANSWER_TIMEOUT, build, read).await
    }

    /// The same for a request that the cloud answers late on purpose, such as the wait for an operation. Each try may take `limit`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_within<T: Send>(
        &self,
        cx: &OpContext,
        call: Call<'_>,
        limit: Duration,
        build: impl Fn() -> Result<Request<Bytes>, Status> + Send + Sync,
        read: impl Fn(&Answer) -> Result<T, Failure> + Send + Sync,
    ) -> Result<T, Failure> {
        let mut tries = 0;
        loop {
            let Some(wait) = self.budgets.take(call.account, Instant::now(), cx.left()) else {
                let message = format!("{}: too many requests of this account wait for their turn", call.what);
                return Err(Failure::new(Code::Unavailable, message, FailureKind::Throttled));
            };
            tokio::time::sleep(wait).await;
            tries += 1;
            let sent = Instant::now();
            let failure = match self.attempt(cx, call, limit, build()?, &read).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.kind == FailureKind::Throttled {
                self.budgets.throttled(call.account, sent, Instant::now());
            }
            match retry::after(&failure, tries, call.repeat, cx.left(), retry::draw()) {
                Next::In(pause) => tokio::time::sleep(pause).await,
                Next::GiveUp => return Err(failure),
            }
        }
    }

    /// Sends one request and counts it.
    async fn attempt<T: Send>(
        &self,
        cx: &OpContext,
        call: Call<'_>,
        limit: Duration,
        request: Request<Bytes>,
        read: &(impl Fn(&Answer) -> Result<T, Failure> + Send + Sync),
    ) -> Result<T, Failure> {
        let mut failed = None;
        let limit = cx.left().min(limit);
        let answered = cx.request(call.service, async {
            let outcome = match tokio::time::timeout(limit, self.transport.send(request)).await {
                Ok(Ok(answer)) => read(&answer).map_err(|failure| failure.asking_to_wait(&answer.headers)),
                Ok(Err(why)) => Err(Failure::without_answer(call.what, &why)),
                Err(_) => {
                    let message = format!("{}: no answer within {} s", call.what, limit.as_secs_f32().round());
                    Err(Failure::new(Code::DeadlineExceeded, message, FailureKind::Temporary))
                }
            };
            outcome.map_err(|failure| {
                let status = failure.status.clone();
                failed = Some(failure);
                status
            })
        });
        answered.await.map_err(|status| failed.unwrap_or_else(|| status.into()))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, reason: String::new(), kind: FailureKind::Permanent, retry_after: None }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
