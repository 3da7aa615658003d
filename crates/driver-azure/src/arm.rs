//! Requests to Azure Resource Manager with one account: sends them with a token, reads the answers, and waits for the end of changes.

use std::time::Duration;

use cloud_client::{
    Answer, Bytes, Call, Client, Failure, HttpOptions, HttpTransport, Limits, Repeat, Token, Tokens,
    http::{Method, Request, Uri, header},
};
use machine_driver::{Code, OpContext, Status, Timestamp};
use serde_json::Value;

use crate::{
    api::{self, Cloud, Group},
    errors,
    login::Login,
    lro::{self, Change, Follow, Reply, Step},
    options::AzureOptions,
    resources::Resource,
    token::TokenSource,
};

/// A call ends this long before its deadline, so that its answer is not lost.
const MARGIN: Duration = Duration::from_secs(5);
/// How long a call waits for a VM or a network interface (spec/providers §4.4).
pub const LONG: Duration = Duration::from_secs(15 * 60);
/// How long a call waits for a disk, and for an update of a VM.
pub const SHORT: Duration = Duration::from_secs(10 * 60);

/// Azure Resource Manager, for all accounts.
pub struct Arm {
    client: Client,
    pub options: AzureOptions,
    tokens: Tokens,
}

/// Azure Resource Manager for one account, during one operation.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    arm: &'a Arm,
    pub cx: &'a OpContext,
    pub login: &'a Login,
    cloud: Cloud,
}

/// A request.
#[derive(Clone, Copy)]
pub struct Sent<'a> {
    /// The name of the request in metrics.
    pub service: &'static str,
    /// The name of the request in messages.
    pub what: &'a str,
    pub method: &'a Method,
    /// The path with the query.
    pub path: &'a str,
    pub body: Option<&'a Value>,
    /// Whether the request fails if the resource exists.
    pub overwrite: Overwrite,
}

/// What a `PUT` does with a resource that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// The request fails.
    Never,
    /// The resource is changed.
    Allowed,
}

impl<'a> Sent<'a> {
    /// A request that only looks.
    pub const fn get(service: &'static str, what: &'a str, path: &'a str) -> Self {
        Self { service, what, method: &Method::GET, path, body: None, overwrite: Overwrite::Allowed }
    }

    /// A request that makes or changes a resource.
    pub const fn put(service: &'static str, what: &'a str, path: &'a str, body: &'a Value) -> Self {
        Self { service, what, method: &Method::PUT, path, body: Some(body), overwrite: Overwrite::Allowed }
    }
}

/// The answer to the question for a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It exists.
    Resource(Resource),
    /// It does not exist.
    Nothing,
    /// Its resource group does not exist.
    NoGroup,
}

impl Found {
    /// The resource, if it exists.
    pub fn resource(self) -> Option<Resource> {
        match self {
            Self::Resource(resource) => Some(resource),
            Self::Nothing | Self::NoGroup => None,
        }
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// It has been carried out. The resource is the one of the first answer, which may be empty.
    Done(Resource),
    /// It has not ended in time.
    StillRuns,
}

impl Arm {
    /// Azure over the network.
    pub fn new(options: AzureOptions) -> Self {
        Self::through(Client::new(HttpTransport::new(HttpOptions::default()), Limits::default()), options)
    }

    /// Azure over this client.
    pub fn through(client: Client, options: AzureOptions) -> Self {
        Self { client, options, tokens: Tokens::default() }
    }

    /// A session.
    pub const fn session<'a>(&'a self, cx: &'a OpContext, login: &'a Login, cloud: Cloud) -> Session<'a> {
        Session { arm: self, cx, login, cloud }
    }
}

impl Session<'_> {
    fn source(&self) -> TokenSource<'_> {
        let Arm { client, options, .. } = self.arm;
        TokenSource { client, cx: self.cx, options, login: self.login, cloud: self.cloud }
    }

    async fn token(&self) -> Result<Token, Status> {
        let (source, now) = (self.source(), Timestamp::now());
        self.arm.tokens.token(source.key(), now, Box::pin(source.fetch(now))).await
    }

    /// Sends a request, and once more with a new token if Azure refuses the token.
    pub async fn send(&self, sent: Sent<'_>) -> Result<Reply, Failure> {
        let url = self.arm.options.url(self.cloud, sent.path)?;
        self.send_to(&url, sent).await
    }

    async fn send_to(&self, url: &Uri, sent: Sent<'_>) -> Result<Reply, Failure> {
        let token = self.token().await?;
        match self.send_with(url, sent, &token).await {
            // A token may be revoked before it expires. Azure does nothing for a request with it, so the request may be repeated.
            Err(failure) if failure.status.code == Code::Unauthenticated => {
                self.arm.tokens.forget(self.source().key(), &token).await;
                let renewed = self.token().await?;
                if renewed == token { Err(failure) } else { self.send_with(url, sent, &renewed).await }
            }
            outcome => outcome,
        }
    }

    async fn send_with(&self, url: &Uri, sent: Sent<'_>, token: &Token) -> Result<Reply, Failure> {
        let Sent { service, what, method, body, overwrite, .. } = sent;
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let build = || {
            let mut request = Request::builder()
                .method(method)
                .uri(url.clone())
                .header(header::ACCEPT, "application/json")
                .header(header::AUTHORIZATION, format!("Bearer {}", token.value.reveal()));
            if body.is_some() {
                request = request.header(header::CONTENT_TYPE, "application/json");
            }
            if overwrite == Overwrite::Never {
                request = request.header(header::IF_NONE_MATCH, "*");
            }
            request.body(bytes.clone()).map_err(|_| {
                Status::new(Code::Unauthenticated, "the token contains characters that no request can carry")
            })
        };
        let read = |answer: &Answer| {
            if !answer.status.is_success() {
                return Err(token.redacted(errors::failure(what, answer)));
            }
            let unreadable = || Failure::permanent(Code::Internal, format!("{what}: the answer can't be read"));
            Reply::of(answer).ok_or_else(unreadable)
        };
        // The names of all resources are given by the driver, so that a repeated request makes nothing more.
        let account = self.login.account.with(self.cloud.resource_manager());
        let call = Call { service, what, account, repeat: Repeat::Safe };
        self.arm.client.call(self.cx, call, build, read).await
    }

    /// Looks for a resource of a group.
    pub async fn look(&self, sent: Sent<'_>) -> Result<Found, Failure> {
        match self.send(sent).await {
            Ok(reply) if reply.body.is_object() => Ok(Found::Resource(Resource(reply.body))),
            Ok(_) => Err(Failure::permanent(Code::Internal, format!("{}: the answer can't be read", sent.what))),
            Err(failure) if failure.status.code != Code::NotFound => Err(failure),
            Err(failure) if failure.reason.eq_ignore_ascii_case(errors::NO_GROUP) => Ok(Found::NoGroup),
            Err(_) => Ok(Found::Nothing),
        }
    }

    /// The VM of this name.
    pub async fn virtual_machine(&self, group: &Group, name: &str) -> Result<Found, Failure> {
        self.look(Sent::get("virtual_machine_get", "virtualMachines.get", &api::virtual_machine(group, name))).await
    }

    /// The VM of this name with its instance view.
    pub async fn virtual_machine_view(&self, group: &Group, name: &str) -> Result<Found, Failure> {
        let path = api::virtual_machine_view(group, name);
        self.look(Sent::get("virtual_machine_get", "virtualMachines.get", &path)).await
    }

    /// The network interface of this name.
    pub async fn network_interface(&self, group: &Group, name: &str) -> Result<Found, Failure> {
        self.look(Sent::get("nic_get", "networkInterfaces.get", &api::network_interface(group, name))).await
    }

    /// The disk of this name.
    pub async fn disk(&self, group: &Group, name: &str) -> Result<Found, Failure> {
        self.look(Sent::get("disk_get", "disks.get", &api::disk(group, name))).await
    }

    /// Makes or changes a resource, and waits until that is carried out, at most `limit` and until shortly before the deadline of the call.
    pub async fn change(&self, sent: Sent<'_>, limit: Duration) -> Result<Changed, Failure> {
        self.carry_out(sent, Change::Write, limit).await
    }

    /// Deletes a resource, and waits until it is gone. A resource that does not exist is a success.
    pub async fn delete(
        &self,
        service: &'static str,
        what: &str,
        path: &str,
        limit: Duration,
    ) -> Result<Changed, Failure> {
        let sent = Sent { method: &Method::DELETE, ..Sent::get(service, what, path) };
        match self.carry_out(sent, Change::Delete, limit).await {
            Err(failure) if failure.status.code == Code::NotFound => Ok(Changed::Done(Resource::default())),
            outcome => outcome,
        }
    }

    /// Waits until a change that an earlier call has begun is carried out.
    pub async fn finish(&self, sent: Sent<'_>, limit: Duration) -> Result<Changed, Failure> {
        let ended = self.within(limit, self.follow(sent, Change::Write, Follow::Resource, None)).await?;
        Ok(if ended { Changed::Done(Resource::default()) } else { Changed::StillRuns })
    }

    async fn carry_out(&self, sent: Sent<'_>, change: Change, limit: Duration) -> Result<Changed, Failure> {
        let reply = self.send(sent).await?;
        let followed = |url: &str| self.arm.options.followed(self.cloud, url);
        let ended = match lro::begun(change, &reply, followed) {
            Step::Done => true,
            Step::Failed(error) => return Err(error.failed(sent.what)),
            Step::Wait(follow) => self.within(limit, self.follow(sent, change, follow, reply.retry_after)).await?,
        };
        Ok(if ended { Changed::Done(Resource(reply.body)) } else { Changed::StillRuns })
    }

    /// Whether the wait has ended in time.
    async fn within(
        &self,
        limit: Duration,
        waiting: impl Future<Output = Result<(), Failure>>,
    ) -> Result<bool, Failure> {
        let limit = self.cx.left().saturating_sub(MARGIN).min(limit);
        match tokio::time::timeout(limit, waiting).await {
            Ok(outcome) => outcome.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    async fn follow(
        &self,
        sent: Sent<'_>,
        change: Change,
        mut follow: Follow,
        mut retry_after: Option<Duration>,
    ) -> Result<(), Failure> {
        let mut looks = 0;
        loop {
            tokio::time::sleep(lro::pause(retry_after, looks)).await;
            looks += 1;
            let step = match follow {
                Follow::Operation(url) => {
                    let reply = self.poll(&url, sent).await?;
                    retry_after = reply.as_ref().and_then(|reply| reply.retry_after);
                    lro::of_operation(url, reply.as_ref())
                }
                Follow::Location(url) => {
                    let reply = self.poll(&url, sent).await?;
                    retry_after = reply.as_ref().and_then(|reply| reply.retry_after);
                    lro::of_location(change, url, reply.as_ref())
                }
                Follow::Resource => {
                    retry_after = None;
                    let get = Sent { method: &Method::GET, body: None, overwrite: Overwrite::Allowed, ..sent };
                    let found = self.look(get).await?.resource();
                    lro::of_resource(change, found.as_ref().map(|resource| &resource.0))
                }
            };
            match step {
                Step::Done => return Ok(()),
                Step::Failed(error) => return Err(error.failed(sent.what)),
                Step::Wait(next) => follow = next,
            }
        }
    }

    /// Asks for the state of an operation. `None` if Azure does not know the operation any more.
    async fn poll(&self, url: &Uri, sent: Sent<'_>) -> Result<Option<Reply>, Failure> {
        let get = Sent::get("operation_get", sent.what, "");
        match self.send_to(url, get).await {
            Ok(reply) => Ok(Some(reply)),
            // A 404 with another code is also about the operation. The resource itself then shows what is wrong.
            Err(failure) if matches!(failure.status.code, Code::NotFound | Code::FailedPrecondition) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}
