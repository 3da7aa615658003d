//! Requests to EC2 in one region with one account's credentials: signed, sent, read.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, HttpOptions, HttpTransport, Limits, Repeat, http::Request,
};
use jiff::Timestamp;
use machine_driver::{Code, OpContext, SecretData, Status};

use crate::{
    actions::{self, Image, Instance, Look, Network, Page},
    credentials::{Credentials, Giver, Source, Wallet},
    errors,
    options::{AwsOptions, address},
    query::Query,
    regions,
    sign::{FORM, Form, sign},
    xml::Xml,
};

/// A list has no more pages than this; beyond it the service repeats itself.
const MOST_PAGES: usize = 1000;

/// EC2, in all regions and for all accounts.
pub struct Ec2 {
    client: Client,
    options: AwsOptions,
    wallet: Wallet,
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
    /// EC2 as the options say.
    pub fn new(options: AwsOptions) -> Self {
        let transport = HttpTransport::new(HttpOptions { ca_file: options.ca_file.clone(), ..HttpOptions::default() });
        Self::through(Client::new(transport, Limits::default()), options)
    }

    /// EC2 behind this client.
    pub fn through(client: Client, options: AwsOptions) -> Self {
        Self { client, options, wallet: Wallet::default() }
    }

    /// Where the credentials of a class come from.
    pub fn source(&self, secret: &SecretData) -> Result<Source, Status> {
        Source::of(secret, &self.options)
    }

    /// A session. The region has been checked: it becomes a part of a host.
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

/// What is asked for.
#[derive(Clone, Copy)]
struct Ask<'a> {
    /// The name of the request in metrics.
    service: &'static str,
    query: &'a Query,
    repeat: Repeat,
}

impl Session<'_> {
    /// EC2 counts the requests of an account in each region.
    fn account(&self) -> CredentialsKey {
        self.source.key().with(self.region)
    }

    /// Credentials; those that were given before while they last.
    async fn credentials(&self) -> Result<Credentials, Failure> {
        let Ec2 { client, options, wallet } = self.ec2;
        let sts = self.ec2.url("sts", self.region, options.sts_endpoint.as_ref());
        let giver = Giver { client, cx: self.cx, options, sts: &sts };
        Ok(wallet.credentials(giver, self.source, Timestamp::now()).await?)
    }

    async fn ask<T: Send>(
        &self,
        ask: Ask<'_>,
        read: impl Fn(&Xml<'_>) -> Option<T> + Send + Sync,
    ) -> Result<T, Failure> {
        let answer = match self.credentials().await {
            Ok(credentials) => match self.sent(ask, &credentials, &read).await {
                // What was given may end before its time, and then EC2 has done nothing.
                Err(failure) if failure.status.code == Code::Unauthenticated && self.source.is_renewable() => {
                    self.ec2.wallet.forget(self.source.key(), &credentials).await;
                    let renewed = self.credentials().await?;
                    if renewed == credentials { Err(failure) } else { self.sent(ask, &renewed, &read).await }
                }
                answer => answer,
            },
            Err(failure) => Err(failure),
        };
        answer.map_err(|failure| self.ec2.options.error_codes.of(failure))
    }

    async fn sent<T: Send>(
        &self,
        ask: Ask<'_>,
        credentials: &Credentials,
        read: &(impl Fn(&Xml<'_>) -> Option<T> + Send + Sync),
    ) -> Result<T, Failure> {
        let Ask { service, query, repeat } = ask;
        let Ec2 { client, options, .. } = self.ec2;
        let url = address(&self.ec2.url("ec2", self.region, options.ec2_endpoint.as_ref()))?;
        let (target, body) = (url.to_string(), query.body());
        // Each try is signed anew: signatures are good for some minutes.
        let build = || {
            let form = Form { url: &target, service: "ec2", region: self.region, body: &body };
            let mut request = Request::post(url.clone()).header("content-type", FORM);
            for (name, value) in sign(form, credentials, Timestamp::now())? {
                request = request.header(name, value);
            }
            // Only what stands in the credentials can be no header.
            request.body(Bytes::from(body.clone())).map_err(|_| {
                Status::new(Code::Unauthenticated, "the credentials hold characters that no request can carry")
            })
        };
        let read = |answer: &Answer| match errors::failure("EC2", query.action(), answer) {
            Some(failure) => Err(failure),
            // A page of a gateway may be XML, too.
            None => Xml::parse(&answer.body)
                .filter(|xml| xml.answers(query.action()))
                .and_then(|xml| read(&xml))
                .ok_or_else(|| {
                    Failure::permanent(
                        Code::Internal,
                        format!("operation error EC2: {}, the answer can't be read", query.action()),
                    )
                }),
        };
        let call = Call { service, what: query.action(), account: self.account(), repeat };
        client.call(self.cx, call, build, read).await
    }

    /// An image; `None` when there is no such image.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, Failure> {
        let query = actions::describe_images(image);
        let ask = Ask { service: "image_get", query: &query, repeat: Repeat::Safe };
        self.ask(ask, |xml| {
            xml.root().child("imagesSet")?;
            Some(actions::read_image(xml))
        })
        .await
    }

    /// Subnets, by ids.
    pub async fn subnets(&self, ids: Vec<&str>) -> Result<BTreeMap<String, Network>, Failure> {
        let query = actions::describe_subnets(ids);
        let ask = Ask { service: "subnet_get", query: &query, repeat: Repeat::Safe };
        self.ask(ask, |xml| actions::read_networks(xml, "subnetSet", "subnetId")).await
    }

    /// Security groups, by ids.
    pub async fn security_groups(&self, ids: Vec<&str>) -> Result<BTreeMap<String, Network>, Failure> {
        let query = actions::describe_security_groups(ids);
        let ask = Ask { service: "security_group_get", query: &query, repeat: Repeat::Safe };
        self.ask(ask, |xml| actions::read_networks(xml, "securityGroupInfo", "groupId")).await
    }

    /// Whether there is a key pair of this name.
    pub async fn key_pair(&self, name: &str) -> Result<(), Failure> {
        let query = actions::describe_key_pair(name);
        let ask = Ask { service: "key_pair_get", query: &query, repeat: Repeat::Safe };
        self.ask(ask, |xml| xml.root().child("keySet").map(drop)).await
    }

    /// The instance that this request makes, or has made.
    pub async fn launch(&self, query: &Query) -> Result<Instance, Failure> {
        let ask = Ask { service: "instance_run", query, repeat: Repeat::Unsafe };
        self.ask(ask, actions::read_launched).await
    }

    /// All instances that are looked for, or a failure.
    pub async fn instances(&self, look: Look<'_>) -> Result<Vec<Instance>, Failure> {
        let service = match look {
            Look::Id(_) => "instance_get_by_id",
            Look::Tags { machine: Some(_), .. } => "instance_get_by_machine",
            Look::Tags { machine: None, .. } => "instance_get_by_tag_and_status",
        };
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let query = actions::describe_instances(look, next.as_deref());
            let ask = Ask { service, query: &query, repeat: Repeat::Safe };
            let page: Page = self.ask(ask, actions::read_page).await?;
            // Of a page that was there already others follow for ever. A page of a filtered list may be empty.
            let (before, shown) = (seen.len(), page.instances.len());
            seen.extend(page.instances.iter().map(|instance| instance.id.clone()));
            let repeats = shown > 0 && seen.len() == before;
            all.extend(page.instances.into_iter().filter(|instance| look.wants(instance)));
            match page.next {
                None => return Ok(all),
                // It would be asked for for ever, or the rest is missing.
                Some(token) if repeats || next.as_ref() == Some(&token) => break,
                token => next = token,
            }
        }
        Err(Failure::permanent(
            Code::Internal,
            "operation error EC2: DescribeInstances, the pages of the list do not end",
        ))
    }

    /// An instance in whatever state it is; `None` when there is none of this id.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        match self.instances(Look::Id(id)).await {
            Ok(mut found) => Ok(found.pop()),
            Err(failure) if failure.status.code == Code::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Ends instances. Those that are gone are not missed.
    pub async fn terminate(&self, id: &str) -> Result<(), Failure> {
        let query = actions::terminate_instances([id]);
        let ask = Ask { service: "instance_terminate", query: &query, repeat: Repeat::Safe };
        match self.ask(ask, |xml| xml.root().child("instancesSet").map(drop)).await {
            Err(failure) if failure.status.code == Code::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Lets a network interface pass on packets that are not its own. Twice is as good as once.
    pub async fn disable_source_dest_check(&self, interface: &str) -> Result<(), Failure> {
        let query = actions::disable_source_dest_check(interface);
        let ask = Ask { service: "instance_disable_source_dest_check", query: &query, repeat: Repeat::Safe };
        // EC2 says `true`; others say nothing.
        self.ask(ask, |xml| (xml.root().text("return") != "false").then_some(())).await
    }

    /// Gives a network interface more prefixes.
    pub async fn assign_ipv6_prefixes(&self, interface: &str, count: usize) -> Result<(), Failure> {
        let query = actions::assign_ipv6_prefixes(interface, count);
        let ask = Ask { service: "instance_assign_ipv6_prefixes", query: &query, repeat: Repeat::Unsafe };
        self.ask(ask, |_| Some(())).await
    }
}
