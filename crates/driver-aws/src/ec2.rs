//! Requests to EC2 in one region with the credentials of one account: signs and sends them, and reads the answers.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, HttpOptions, HttpTransport, Limits, Repeat, http::Request,
};
use jiff::Timestamp;
use machine_driver::{Code, OpContext, SecretData, Status};

use crate::{
    actions::{self, Image, Instance, InstanceQuery, Network, Page},
    credentials::{Credentials, CredentialsCache, CredentialsClient, Source},
    errors,
    options::{AwsOptions, address},
    query::Query,
    regions,
    sign::{FORM, Form, sign},
    xml::Xml,
};

/// The most pages of a list. With more pages, the service probably repeats itself.
const MOST_PAGES: usize = 1000;

/// EC2, in all regions and for all accounts.
pub struct Ec2 {
    client: Client,
    options: AwsOptions,
    cache: CredentialsCache,
}

/// EC2 in one region for one account, during one operation.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    ec2: &'a Ec2,
    pub cx: &'a OpContext,
    pub region: &'a str,
    source: &'a Source,
}

impl Ec2 {
    /// EC2 with these options.
    pub fn new(options: AwsOptions) -> Self {
        let transport = HttpTransport::new(HttpOptions { ca_file: options.ca_file.clone(), ..HttpOptions::default() });
        Self::through(Client::new(transport, Limits::default()), options)
    }

    /// EC2 with these options, over this client.
    pub fn through(client: Client, options: AwsOptions) -> Self {
        Self { client, options, cache: CredentialsCache::default() }
    }

    /// The source of the credentials for the Secrets of a class.
    pub fn source(&self, secret: &SecretData) -> Result<Source, Status> {
        Source::of(secret, &self.options)
    }

    /// A session in a region. The caller has checked the region with [`regions::is_region`], because it becomes a part of a host name.
    pub fn session<'a>(&'a self, cx: &'a OpContext, region: &'a str, source: &'a Source) -> Session<'a> {
        Session { ec2: self, cx, region, source }
    }

    fn url(&self, service: &str, region: &str, endpoint: Option<&String>) -> String {
        match endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://{}/", regions::host(service, region, self.options.variant)),
        }
    }
}

/// A service that gets signed requests.
#[derive(Clone, Copy)]
enum Api {
    Ec2,
    Sts,
}

impl Api {
    /// The name of the service in host names and signatures.
    const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Sts => "sts",
        }
    }

    /// The name of the service in messages.
    const fn shown(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Sts => "STS",
        }
    }

    /// The URL that replaces the endpoints of the service.
    const fn endpoint(self, options: &AwsOptions) -> Option<&String> {
        match self {
            Self::Ec2 => options.ec2_endpoint.as_ref(),
            Self::Sts => options.sts_endpoint.as_ref(),
        }
    }
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

impl Session<'_> {
    /// The key for request budgets. EC2 limits the requests of an account separately for each region.
    fn account(&self) -> CredentialsKey {
        self.source.key().with(self.region)
    }

    /// The credentials of the session, from the cache if possible.
    async fn credentials(&self) -> Result<Credentials, Failure> {
        let Ec2 { client, options, cache } = self.ec2;
        let sts = self.ec2.url("sts", self.region, options.sts_endpoint.as_ref());
        let fetcher = CredentialsClient { client, cx: self.cx, options, sts: &sts };
        Ok(cache.credentials(fetcher, self.source, Timestamp::now()).await?)
    }

    /// Gets the credentials for the next request. Only that request remains to be sent then.
    pub async fn get_credentials(&self) -> Result<(), Failure> {
        self.credentials().await.map(drop).map_err(|failure| errors::coded(self.ec2.options.error_codes, failure))
    }

    async fn call<T: Send>(
        &self,
        operation: Operation<'_>,
        read: impl Fn(&Xml<'_>) -> Option<T> + Send + Sync,
    ) -> Result<T, Failure> {
        let answer = match self.credentials().await {
            Ok(credentials) => match self.sent(operation, &credentials, &read).await {
                // Credentials may be revoked before they expire. EC2 does nothing for such a request, so the request may be repeated.
                Err(failure) if failure.status.code == Code::Unauthenticated && self.source.is_renewable() => {
                    self.ec2.cache.forget(self.source.key(), &credentials).await;
                    let renewed = self.credentials().await?;
                    if renewed == credentials { Err(failure) } else { self.sent(operation, &renewed, &read).await }
                }
                answer => answer,
            },
            Err(failure) => Err(failure),
        };
        answer.map_err(|failure| errors::coded(self.ec2.options.error_codes, failure))
    }

    async fn sent<T: Send>(
        &self,
        operation: Operation<'_>,
        credentials: &Credentials,
        read: &(impl Fn(&Xml<'_>) -> Option<T> + Send + Sync),
    ) -> Result<T, Failure> {
        let Operation { api, service, query, repeat } = operation;
        let Ec2 { client, options, .. } = self.ec2;
        let url = address(&self.ec2.url(api.name(), self.region, api.endpoint(options)))?;
        let (target, body) = (url.to_string(), query.body());
        // Each attempt has a new signature, because signatures are valid for a few minutes only.
        let build = || {
            let form = Form { url: &target, service: api.name(), region: self.region, body: &body };
            let mut request = Request::post(url.clone()).header("content-type", FORM);
            for (name, value) in sign(form, credentials, Timestamp::now())? {
                request = request.header(name, value);
            }
            // Building fails only if a value of the credentials can't be a header.
            request.body(Bytes::from(body.clone())).map_err(|_| {
                Status::new(Code::Unauthenticated, "the credentials hold characters that no request can carry")
            })
        };
        let read = |answer: &Answer| match errors::failure(api.shown(), query.action(), answer) {
            Some(failure) => Err(credentials.redacted(failure)),
            // The error page of a gateway may be XML, too, so the name of the root element is checked.
            None => Xml::parse(&answer.body)
                .filter(|xml| xml.answers(query.action()))
                .and_then(|xml| read(&xml))
                .ok_or_else(|| {
                    Failure::permanent(
                        Code::Internal,
                        format!("operation error {}: {}, the answer can't be read", api.shown(), query.action()),
                    )
                }),
        };
        let call = Call { service, what: query.action(), account: self.account(), repeat };
        client.call(self.cx, call, build, read).await
    }

    /// The id of the account that the credentials belong to. The request needs no right.
    pub async fn account_id(&self) -> Result<String, Failure> {
        let query = actions::get_caller_identity();
        let operation = Operation { api: Api::Sts, service: "caller_identity", query: &query, repeat: Repeat::Safe };
        self.call(operation, actions::read_account).await
    }

    /// An image. `None` if there is no such image.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, Failure> {
        let query = actions::describe_images(image);
        let operation = Operation { api: Api::Ec2, service: "image_get", query: &query, repeat: Repeat::Safe };
        self.call(operation, |xml| {
            xml.root().child("imagesSet")?;
            Some(actions::read_image(xml))
        })
        .await
    }

    /// Subnets, by ids.
    pub async fn subnets(&self, ids: Vec<&str>) -> Result<BTreeMap<String, Network>, Failure> {
        let query = actions::describe_subnets(ids);
        let operation = Operation { api: Api::Ec2, service: "subnet_get", query: &query, repeat: Repeat::Safe };
        self.call(operation, |xml| actions::read_networks(xml, "subnetSet", "subnetId")).await
    }

    /// Security groups, by ids.
    pub async fn security_groups(&self, ids: Vec<&str>) -> Result<BTreeMap<String, Network>, Failure> {
        let query = actions::describe_security_groups(ids);
        let operation = Operation { api: Api::Ec2, service: "security_group_get", query: &query, repeat: Repeat::Safe };
        self.call(operation, |xml| actions::read_networks(xml, "securityGroupInfo", "groupId")).await
    }

    /// Checks that there is a key pair of this name.
    pub async fn key_pair(&self, name: &str) -> Result<(), Failure> {
        let query = actions::describe_key_pair(name);
        let operation = Operation { api: Api::Ec2, service: "key_pair_get", query: &query, repeat: Repeat::Safe };
        self.call(operation, |xml| xml.root().child("keySet").map(drop)).await
    }

    /// Launches an instance. Returns the instance of an earlier request with the same client token, if there is one.
    pub async fn launch(&self, query: &Query) -> Result<Instance, Failure> {
        let operation = Operation { api: Api::Ec2, service: "instance_run", query, repeat: Repeat::Unsafe };
        self.call(operation, actions::read_launched).await
    }

    /// All selected instances. If a page is missing, the whole list is a failure.
    pub async fn instances(&self, selection: InstanceQuery<'_>) -> Result<Vec<Instance>, Failure> {
        let service = match selection {
            InstanceQuery::Id(_) => "instance_get_by_id",
            InstanceQuery::Named { .. } | InstanceQuery::Token(_) => "instance_get_by_machine",
            InstanceQuery::Owned(_) => "instance_get_by_tag_and_status",
        };
        let mut all = Vec::new();
        let mut known_ids = HashSet::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let query = actions::describe_instances(selection, next.as_deref());
            let operation = Operation { api: Api::Ec2, service, query: &query, repeat: Repeat::Safe };
            let page: Page = self
                .call(operation, actions::read_page)
                .await
                .map_err(|failure| errors::of_list(selection, failure))?;
            // A page without a new instance means that the service repeats pages. An empty page is normal for a filtered list.
            let (before, shown) = (known_ids.len(), page.instances.len());
            known_ids.extend(page.instances.iter().map(|instance| instance.id.clone()));
            let repeats = shown > 0 && known_ids.len() == before;
            all.extend(page.instances.into_iter().filter(|instance| selection.matches(instance)));
            match page.next {
                None => return Ok(all),
                // The driver would request the same pages for ever, or the rest of the list would be missing.
                Some(token) if repeats || next.as_ref() == Some(&token) => break,
                token => next = token,
            }
        }
        Err(Failure::permanent(
            Code::Internal,
            "operation error EC2: DescribeInstances, the pages of the list do not end",
        ))
    }

    /// The instance with this id, in any state. `None` if there is none.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        match self.instances(InstanceQuery::Id(id)).await {
            Ok(mut found) => Ok(found.pop()),
            Err(failure) if failure.status.code == Code::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Terminates an instance.
    pub async fn terminate(&self, id: &str) -> Result<(), Failure> {
        let query = actions::terminate_instances([id]);
        let operation = Operation { api: Api::Ec2, service: "instance_terminate", query: &query, repeat: Repeat::Safe };
        self.call(operation, |xml| xml.root().child("instancesSet").map(drop)).await
    }

    /// Lets a network interface forward packets of other addresses. The request may be repeated.
    pub async fn disable_source_dest_check(&self, interface: &str) -> Result<(), Failure> {
        let query = actions::disable_source_dest_check(interface);
        let operation = Operation {
            api: Api::Ec2,
            service: "instance_disable_source_dest_check",
            query: &query,
            repeat: Repeat::Safe,
        };
        // EC2 answers `true`. Some compatible services answer nothing.
        self.call(operation, |xml| (xml.root().text("return") != "false").then_some(())).await
    }

    /// Assigns more IPv6 prefixes to a network interface. The request must not be repeated.
    pub async fn assign_ipv6_prefixes(&self, interface: &str, count: usize) -> Result<(), Failure> {
        let query = actions::assign_ipv6_prefixes(interface, count);
        let operation = Operation {
            api: Api::Ec2,
            service: "instance_assign_ipv6_prefixes",
            query: &query,
            repeat: Repeat::Unsafe,
        };
        self.call(operation, |_| Some(())).await
    }
}
