//! Requests to ECS in one region with the credentials of one account: signs and sends them, and reads the answers.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, HttpOptions, HttpTransport, Limits, Repeat,
    http::{Request, header},
};
use machine_driver::{Code, OpContext, Status};
use serde::de::DeserializeOwned;

use crate::{
    actions::{self, Caller, DRY_RUN, Deleted, Instance, InstanceQuery, Launched, Page},
    credentials::Credentials,
    errors,
    names::is_name,
    options::{AlicloudOptions, Api, host},
    query::Query,
    sign::{self, Moment},
};

/// The most pages of a list. With more pages, the service probably repeats itself.
const MOST_PAGES: usize = 1000;
/// The most access keys whose accounts are remembered.
const MOST_ACCOUNTS: usize = 256;
/// The most deleted instances that are remembered.
const MOST_DELETED: usize = 10_000;
/// How long STS may take to tell the account of the credentials. It may be out of reach.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(10);

/// ECS, in all regions and for all accounts.
pub struct Ecs {
    client: Client,
    options: AlicloudOptions,
    /// The accounts of access keys. The account of a key never changes.
    accounts: Mutex<HashMap<CredentialsKey, String>>,
    /// The ids of instances whose deletion ECS has accepted. If it does not show them, they are gone.
    deleted: Mutex<HashSet<String>>,
}

/// ECS in one region for one account, during one operation.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    ecs: &'a Ecs,
    pub cx: &'a OpContext,
    pub region: &'a str,
    credentials: &'a Credentials,
}

/// A request for an action.
#[derive(Clone, Copy)]
struct Operation<'a> {
    api: Api,
    /// The name of the request in metrics.
    service: &'static str,
    query: &'a Query,
    repeat: Repeat,
}

impl Ecs {
    /// ECS over the network.
    pub fn new(options: AlicloudOptions) -> Self {
        Self::through(Client::new(HttpTransport::new(HttpOptions::default()), Limits::default()), options)
    }

    /// ECS over this client.
    pub fn through(client: Client, options: AlicloudOptions) -> Self {
        Self { client, options, accounts: Mutex::default(), deleted: Mutex::default() }
    }

    /// A session in a region. The caller has checked that the region can be a part of a host name.
    pub const fn session<'a>(
        &'a self,
        cx: &'a OpContext,
        region: &'a str,
        credentials: &'a Credentials,
    ) -> Session<'a> {
        Session { ecs: self, cx, region, credentials }
    }
}

impl Session<'_> {
    async fn call<T: DeserializeOwned + Send>(&self, operation: Operation<'_>) -> Result<T, Failure> {
        let Operation { api, service, query, repeat } = operation;
        let Ecs { client, options, .. } = self.ecs;
        let url = options.url(api, self.region, query)?;
        let host = host(&url);
        // Each attempt has a new signature, because signatures are valid for a few minutes and only once.
        let build = || {
            let mut request = Request::post(url.clone()).header(header::CONTENT_LENGTH, 0);
            for (name, value) in sign::headers(query, &host, self.credentials, &Moment::now()?) {
                request = request.header(name, value);
            }
            request.body(Bytes::new()).map_err(|_| {
                Status::new(Code::Unauthenticated, "the credentials contain characters that no request can carry")
            })
        };
        let action = query.action();
        let read = |answer: &Answer| match errors::failure(action, answer) {
            Some(failure) => Err(failure),
            None => serde_json::from_slice(&answer.body)
                .map_err(|_| Failure::permanent(Code::Internal, format!("{action}: the answer can't be read"))),
        };
        // ECS limits the requests of an account separately for each region.
        let account = self.credentials.key.with(self.region);
        let call = Call { service, what: action, account, repeat };
        client.call(self.cx, call, build, read).await.map_err(|failure| errors::coded(options.codes, failure))
    }

    async fn look<T: DeserializeOwned + Send>(&self, service: &'static str, query: &Query) -> Result<T, Failure> {
        self.call(Operation { api: Api::Ecs, service, query, repeat: Repeat::Safe }).await
    }

    /// All selected instances. If a page is missing, the whole list is a failure.
    ///
    /// An empty list may mean that a right is missing: [`Self::check_right_to_look`] finds that out.
    pub async fn instances(&self, selection: InstanceQuery<'_>) -> Result<Vec<Instance>, Failure> {
        let service = match selection {
            InstanceQuery::Id(_) => "instance_get_by_id",
            InstanceQuery::Named(_) => "instance_get_by_machine",
            InstanceQuery::Tagged(_) => "instance_get_by_tag",
        };
        let mut all = Vec::new();
        let mut known = HashSet::new();
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let page = Some(next.as_str()).filter(|token| !token.is_empty());
            let query = actions::describe_instances(self.region, selection, page);
            let Page { instances, next_token } =
                self.look(service, &query).await.map_err(|failure| errors::of_list(selection, failure))?;
            let shown = instances.instance;
            if let Some(other) = shown.iter().find(|instance| !is_name(&instance.id)) {
                let message = format!("DescribeInstances: {:?} can't be the id of an instance", other.id);
                return Err(Failure::permanent(Code::Internal, message));
            }
            let before = known.len();
            known.extend(shown.iter().map(|instance| instance.id.clone()));
            let repeats = !shown.is_empty() && known.len() == before;
            all.extend(shown.into_iter().filter(|instance| selection.matches(instance)));
            if next_token.is_empty() {
                return Ok(all);
            }
            // The driver would request the same pages for ever, or the rest of the list would be missing.
            if repeats || next_token == next {
                break;
            }
            next = next_token;
        }
        Err(Failure::permanent(Code::Internal, "DescribeInstances: the pages of the list do not end"))
    }

    /// The instance with this id. `None` if these credentials see none.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        match self.instances(InstanceQuery::Id(id)).await {
            Ok(mut found) => Ok(found.pop()),
            Err(failure) if failure.status.code == Code::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Checks that the credentials may look for instances. ECS shows an empty list to credentials without the right to look, and only says so when it
    /// is asked for a rehearsal.
    ///
    /// # Errors
    /// `PermissionDenied` without the right, and the failure if ECS can't be asked.
    pub async fn check_right_to_look(&self, selection: InstanceQuery<'_>) -> Result<(), Failure> {
        let mut query = actions::describe_instances(self.region, selection, None);
        query.set("DryRun", true);
        match self.look::<Page>("instance_right", &query).await {
            // Some services with the API of ECS know no rehearsals.
            Ok(_) => Ok(()),
            Err(failure) if failure.reason == DRY_RUN => Ok(()),
            Err(failure) => Err(errors::of_list(selection, failure)),
        }
    }

    /// Launches an instance. Returns the id of the instance of an earlier request with the same client token, if there was one.
    pub async fn launch(&self, query: &Query) -> Result<String, Failure> {
        let operation = Operation { api: Api::Ecs, service: "instance_run", query, repeat: Repeat::Unsafe };
        let launched: Launched = self.call(operation).await?;
        let mut ids = launched.instance_id_sets.instance_id_set.into_iter();
        ids.find(|id| is_name(id))
            .ok_or_else(|| Failure::permanent(Code::Internal, "RunInstances: the answer has no id of an instance"))
    }

    /// Begins to delete an instance, also while it runs.
    pub async fn delete(&self, id: &str) -> Result<(), Failure> {
        let query = actions::delete_instance(id);
        let operation = Operation { api: Api::Ecs, service: "instance_delete", query: &query, repeat: Repeat::Safe };
        self.call::<Deleted>(operation).await?;
        let mut deleted = self.ecs.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        if deleted.len() >= MOST_DELETED {
            deleted.clear();
        }
        deleted.insert(id.to_owned());
        Ok(())
    }

    /// Whether this process has deleted an instance.
    pub fn has_deleted(&self, id: &str) -> bool {
        self.ecs.deleted.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// The id of the account that the credentials belong to. `None` if STS does not tell it in time.
    pub async fn account(&self) -> Option<String> {
        let key = self.credentials.key;
        let accounts = || self.ecs.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = accounts().get(&key) {
            return Some(known.clone());
        }
        let query = actions::get_caller_identity();
        let operation = Operation { api: Api::Sts, service: "caller_identity", query: &query, repeat: Repeat::Safe };
        let told = tokio::time::timeout(IDENTITY_TIMEOUT, self.call::<Caller>(operation)).await;
        let account = told.ok()?.ok()?.account_id;
        let mut accounts = accounts();
        if accounts.len() >= MOST_ACCOUNTS {
            accounts.clear();
        }
        accounts.insert(key, account.clone());
        Some(account)
    }
}
