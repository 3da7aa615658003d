//! A small fake of EC2 with faults, for the tests of the driver.
//!
//! It implements the transport, so that tests can pause the time. Its XML has the form of the examples in EC2's API reference. It handles client
//! tokens, filters and pages like EC2, and records every request.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard},
};

use cloud_client::{
    Answer, Bytes, NoAnswer, Transport,
    http::{HeaderMap, Request, StatusCode},
};
use fault_proxy::{ReceivedRequest, Reply};
use machine_driver::async_trait;

/// What happens to one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request is refused with this status and error code.
    Error(u16, &'static str),
    /// The request is carried out, and the answer is lost.
    LostReply,
    /// The request gets no answer.
    Silence,
    /// The answer has this body.
    Body(&'static str),
    /// The request is refused with this status and message.
    Message(u16, &'static str),
}

/// An instance.
#[derive(Clone, Debug, Default)]
pub struct Vm {
    pub id: String,
    pub state: &'static str,
    pub reason: &'static str,
    pub token: String,
    pub account: &'static str,
    /// The launch request. `None` for an instance that a test adds.
    pub request: Option<Parameters>,
    pub tags: BTreeMap<String, String>,
    pub interfaces: Vec<Nic>,
}

#[derive(Clone, Debug, Default)]
pub struct Nic {
    pub id: String,
    pub kind: &'static str,
    pub index: usize,
    pub checks: bool,
    pub prefixes: usize,
}

pub type Parameters = BTreeMap<String, String>;

#[derive(Default)]
pub struct State {
    pub vms: Vec<Vm>,
    pub faults: Vec<(&'static str, VecDeque<Fault>)>,
    pub log: Vec<(String, Parameters)>,
    pub headers: Vec<HeaderMap>,
    pub uris: Vec<String>,
    pub no_image: bool,
    /// The number of requests for an id that find nothing although the instance exists.
    pub stale_looks: usize,
    /// State and state reason of an instance after its launch.
    pub launches: Option<(&'static str, &'static str)>,
    pub page: usize,
    /// The account of the credentials.
    pub account: &'static str,
    /// Whether STS can be reached.
    pub no_sts: bool,
}

/// The fake EC2. Clones share their state.
#[derive(Clone)]
pub struct FakeEc2(Arc<Mutex<State>>);

impl FakeEc2 {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State { page: 1000, ..State::default() })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Adds faults for the next requests of an action.
    pub fn fails(&self, action: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.push((action, faults.into_iter().collect()));
    }

    /// The parameters of all requests of an action.
    pub fn asked(&self, action: &str) -> Vec<Parameters> {
        self.state().log.iter().filter(|(known, _)| known == action).map(|(_, parameters)| parameters.clone()).collect()
    }

    /// The answer to a request that came through the fault proxy.
    pub fn reply(&self, seen: &ReceivedRequest) -> Reply {
        let action = seen.parameter("Action").to_owned();
        let mut state = self.state();
        state.log.push((action.clone(), seen.parameters.clone()));
        let Answer { status, body, .. } = answer(&action, state.carry_out(&action, &seen.parameters));
        Reply::new(status.as_u16(), body)
    }

    pub fn live(&self) -> Vec<Vm> {
        self.state().vms.iter().filter(|vm| !["terminated", "shutting-down"].contains(&vm.state)).cloned().collect()
    }
}

#[async_trait]
impl Transport for FakeEc2 {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let fault = {
            let mut state = self.state();
            state.headers.push(request.headers().clone());
            state.uris.push(request.uri().to_string());
            let parameters: Parameters = form_urlencoded::parse(request.body()).into_owned().collect();
            let action = parameters["Action"].clone();
            state.log.push((action.clone(), parameters.clone()));
            let mut waiting = state.faults.iter_mut().filter(|(known, _)| *known == action);
            let fault = waiting.find_map(|(_, faults)| faults.pop_front());
            match fault {
                None => return Ok(answer(&action, state.carry_out(&action, &parameters))),
                Some(Fault::Error(status, code)) => return Ok(answer(&action, Err((status, code.to_owned())))),
                Some(Fault::Body(body)) => return Ok(answer(&action, Ok(body.to_owned()))),
                Some(Fault::Message(status, text)) => {
                    let refused = answer(&action, Err((status, "SignatureDoesNotMatch".to_owned())));
                    let body = String::from_utf8_lossy(&refused.body).replace("it fails", text);
                    return Ok(Answer { body: body.into(), ..refused });
                }
                Some(Fault::LostReply) => {
                    let _ = state.carry_out(&action, &parameters);
                    Fault::LostReply
                }
                Some(Fault::Silence) => Fault::Silence,
            }
        };
        match fault {
            Fault::Silence => std::future::pending().await,
            _ => Err(NoAnswer::Lost("connection reset".to_owned())),
        }
    }
}

type Outcome = Result<String, (u16, String)>;

/// The answer to a request. The placeholder `R` is replaced by the name of the root element.
fn answer(action: &str, outcome: Outcome) -> Answer {
    let (status, body) = match outcome {
        Ok(body) => {
            let body = ["<", "</"]
                .into_iter()
                .fold(body, |body, mark| body.replace(&format!("{mark}R>"), &format!("{mark}{action}Response>")));
            (200, body.replace("<R/>", &format!("<{action}Response/>")))
        }
        Err((status, code)) => (
            status,
            format!(
                "<Response><Errors><Error><Code>{code}</Code><Message>it fails</Message></Error></Errors><RequestID>r-1</RequestID></Response>"
            ),
        ),
    };
    Answer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body: body.into() }
}

fn listed(parameters: &Parameters, name: &str) -> Vec<String> {
    (1..).map_while(|number| parameters.get(&format!("{name}.{number}")).cloned()).collect()
}

impl State {
    fn carry_out(&mut self, action: &str, parameters: &Parameters) -> Outcome {
        match action {
            "GetCallerIdentity" if self.no_sts => Err((503, "ServiceUnavailable".to_owned())),
            "GetCallerIdentity" => Ok(format!(
                "<R><GetCallerIdentityResult><Account>{}</Account></GetCallerIdentityResult></R>",
                self.account
            )),
            "DescribeImages" if self.no_image => Ok("<R><imagesSet/></R>".to_owned()),
            "DescribeImages" => Ok("<R><imagesSet><item><imageId>ami-1</imageId><rootDeviceName>/dev/sda1</rootDeviceName></item></imagesSet></R>".to_owned()),
            "RunInstances" if parameters.get("DryRun").is_some_and(|dry| dry == "true") => {
                Err((412, "DryRunOperation".to_owned()))
            }
            "RunInstances" => self.run(parameters),
            "DescribeSubnets" => networks(parameters, "SubnetId", ("subnetSet", "subnetId"), "InvalidSubnetID.NotFound"),
            "DescribeSecurityGroups" => {
                networks(parameters, "GroupId", ("securityGroupInfo", "groupId"), "InvalidGroup.NotFound")
            }
            "DescribeKeyPairs" if parameters["KeyName.1"] == "gone" => Err((400, "InvalidKeyPair.NotFound".to_owned())),
            "DescribeKeyPairs" => Ok("<R><keySet/></R>".to_owned()),
            "DescribeInstances" => self.describe(parameters),
            "TerminateInstances" => {
                for id in listed(parameters, "InstanceId") {
                    let Some(vm) = self.vms.iter_mut().find(|vm| vm.id == id) else {
                        return Err((400, "InvalidInstanceID.NotFound".to_owned()));
                    };
                    vm.state = "terminated";
                }
                Ok("<R><instancesSet/></R>".to_owned())
            }
            "ModifyNetworkInterfaceAttribute" => {
                self.nic(parameters).checks = false;
                Ok("<R><return>true</return></R>".to_owned())
            }
            "AssignIpv6Addresses" => {
                self.nic(parameters).prefixes += parameters["Ipv6PrefixCount"].parse::<usize>().unwrap();
                Ok("<R/>".to_owned())
            }
            other => panic!("EC2 is not asked for {other}"),
        }
    }

    fn nic(&mut self, parameters: &Parameters) -> &mut Nic {
        let id = &parameters["NetworkInterfaceId"];
        self.vms.iter_mut().flat_map(|vm| &mut vm.interfaces).find(|nic| nic.id == *id).unwrap()
    }

    fn run(&mut self, parameters: &Parameters) -> Outcome {
        let token = &parameters["ClientToken"];
        let known = self.vms.iter().find(|vm| vm.token == *token);
        if let Some(vm) = known {
            if vm.request.as_ref().is_some_and(|request| request != parameters) {
                return Err((400, "IdempotentParameterMismatch".to_owned()));
            }
            if vm.state == "terminated" {
                return Err((400, "IdempotentInstanceTerminated".to_owned()));
            }
            return Ok(self.launched(vm));
        }
        let number = self.vms.len() + 1;
        let tag = |number: usize| {
            let key = parameters.get(&format!("TagSpecification.1.Tag.{number}.Key"))?;
            Some((key.clone(), parameters[&format!("TagSpecification.1.Tag.{number}.Value")].clone()))
        };
        let nics = (1..).take_while(|at| parameters.contains_key(&format!("NetworkInterface.{at}.SubnetId")));
        let (state, reason) = self.launches.unwrap_or(("running", ""));
        let vm = Vm {
            id: format!("i-{number}"),
            state,
            reason,
            token: token.clone(),
            account: self.account,
            request: Some(parameters.clone()),
            tags: (1..).map_while(tag).collect(),
            interfaces: nics
                .map(|at| Nic {
                    id: format!("eni-{number}-{at}"),
                    kind: "interface",
                    index: at - 1,
                    checks: true,
                    prefixes: 0,
                })
                .collect(),
        };
        let text = self.launched(&Vm { state: "pending", ..vm.clone() });
        self.vms.push(vm);
        Ok(text)
    }

    fn launched(&self, vm: &Vm) -> String {
        format!("<R><ownerId>{}</ownerId><instancesSet>{}</instancesSet></R>", self.account, item(vm))
    }

    pub fn describe(&mut self, parameters: &Parameters) -> Outcome {
        let ids = listed(parameters, "InstanceId");
        if !ids.is_empty() {
            let hidden = self.stale_looks > 0;
            self.stale_looks = self.stale_looks.saturating_sub(1);
            let is_shown = |vm: &&Vm| ids.contains(&vm.id) && vm.account == self.account && !hidden;
            let found: String = self.vms.iter().filter(is_shown).map(item).collect();
            if found.is_empty() {
                return Err((400, "InvalidInstanceID.NotFound".to_owned()));
            }
            return Ok(page(self.account, &found, None));
        }
        let filters = (1..).map_while(|number| {
            let name = parameters.get(&format!("Filter.{number}.Name"))?;
            Some((name.clone(), listed(parameters, &format!("Filter.{number}.Value"))))
        });
        let filters: Vec<_> = filters.collect();
        let found: Vec<_> = self
            .vms
            .iter()
            .filter(|vm| vm.account == self.account)
            .filter(|vm| {
                filters.iter().all(|(name, values)| match name.as_str() {
                    "client-token" => values.contains(&vm.token),
                    "tag-key" => values.iter().any(|key| vm.tags.contains_key(key)),
                    "instance-state-name" => values.iter().any(|state| state == vm.state),
                    name => vm.tags.get(name.strip_prefix("tag:").unwrap()).is_some_and(|tag| values.contains(tag)),
                })
            })
            .collect();
        let from: usize = parameters.get("NextToken").map_or(0, |token| token.parse().unwrap());
        let next = from + self.page;
        let shown: String = found.iter().skip(from).take(self.page).map(|vm| item(vm)).collect();
        Ok(page(self.account, &shown, (next < found.len()).then_some(next)))
    }
}

/// The answer for subnets or security groups. The name `x-NAME-NETWORK-ZONE` determines network and zone, with defaults for missing parts. A name
/// that ends with `gone` does not exist.
fn networks(parameters: &Parameters, asked: &str, (list, id): (&str, &str), missing: &str) -> Outcome {
    let mut text = String::new();
    for name in listed(parameters, asked) {
        if name.ends_with("gone") {
            return Err((400, missing.to_owned()));
        }
        let mut words = name.split('-').skip(2);
        let (network, zone) = (words.next().unwrap_or("1"), words.next().unwrap_or("a"));
        let _ = write!(
            text,
            "<item><{id}>{name}</{id}><vpcId>vpc-{network}</vpcId><availabilityZone>eu-west-1{zone}</availabilityZone></item>"
        );
    }
    Ok(format!("<R><{list}>{text}</{list}></R>"))
}

fn page(account: &str, items: &str, next: Option<usize>) -> String {
    let next = next.map(|next| format!("<nextToken>{next}</nextToken>")).unwrap_or_default();
    format!(
        "<?xml version=\"1.0\"?><DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>r</requestId><reservationSet><item><reservationId>r-1</reservationId><ownerId>{account}</ownerId><groupSet/><instancesSet>{items}</instancesSet></item></reservationSet>{next}</DescribeInstancesResponse>"
    )
}

fn item(vm: &Vm) -> String {
    let Vm { id, state, reason, token, tags, interfaces, .. } = vm;
    let mut text = format!(
        "<item><instanceId>{id}</instanceId><imageId>ami-1</imageId><instanceState><code>16</code><name>{state}</name></instanceState>\
         <privateDnsName>ip-{id}.eu-west-1.compute.internal</privateDnsName><privateIpAddress>10.0.0.1</privateIpAddress>\
         <launchTime>2026-01-01T00:00:00.000Z</launchTime><clientToken>{token}</clientToken>\
         <stateReason><code>{reason}</code><message>{reason}: so it is</message></stateReason><tagSet>"
    );
    for (key, value) in tags {
        let _ = write!(text, "<item><key>{key}</key><value>{value}</value></item>");
    }
    text.push_str("</tagSet><networkInterfaceSet>");
    for Nic { id, kind, index, checks, prefixes } in interfaces {
        let prefixes = "<item><ipv6Prefix>2001:db8::/80</ipv6Prefix></item>".repeat(*prefixes);
        let _ = write!(
            text,
            "<item><networkInterfaceId>{id}</networkInterfaceId><interfaceType>{kind}</interfaceType><sourceDestCheck>{checks}</sourceDestCheck>\
             <attachment><deviceIndex>{index}</deviceIndex></attachment><ipv6PrefixSet>{prefixes}</ipv6PrefixSet></item>"
        );
    }
    text.push_str("</networkInterfaceSet></item>");
    text
}
