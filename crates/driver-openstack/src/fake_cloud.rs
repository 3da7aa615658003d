//! A small fake of `OpenStack` with faults, for the tests of the driver.
//!
//! It implements the transport, so that tests can pause the time. Its bodies have the same form as the bodies of the real services. The tests in
//! `tests/` use the real services. It records every request.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use cloud_client::{
    Answer, Bytes, NoAnswer, Transport,
    http::{HeaderMap, Method, Request, StatusCode},
};
use machine_driver::async_trait;
use serde_json::{Value, json};

/// What happens to one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request is carried out and answered.
    None,
    /// The answer has this status and body.
    Error(u16, &'static str),
    /// The request is carried out, and the answer is lost.
    LostReply,
    /// The request is lost.
    LostRequest,
    /// The request gets no answer.
    Silence,
    /// Another client adds an address pair to all ports just before the request.
    PairBefore(&'static str),
}

/// The project of the login.
pub const PROJECT: &str = "project-1";

/// The status of a server that is built.
pub const ACTIVE: &str = "ACTIVE";

pub struct State {
    pub servers: Vec<Value>,
    pub ports: Vec<Value>,
    pub volumes: Vec<Value>,
    /// The faults for the next requests that begin with a text.
    pub faults: Vec<(&'static str, VecDeque<Fault>)>,
    pub log: Vec<(String, Value)>,
    pub headers: Vec<HeaderMap>,
    /// For this number of requests, a new server is still in BUILD, and a deleted server still exists.
    pub looks: usize,
    /// The status of a new server after BUILD, and its fault message.
    pub becomes: (&'static str, Option<&'static str>),
    /// The status of a new volume after `creating`.
    pub volumes_become: &'static str,
    pub page: usize,
    /// The number of servers that Nova finds twice for the first page, because it begins to build them while it makes the page.
    pub found_twice: usize,
    /// The number of logins so far. Only the token of the last one is valid.
    pub logins: usize,
    /// Whether the token of the last login is refused.
    pub expired: bool,
    pub flavors: Vec<&'static str>,
    pub images: Vec<&'static str>,
    /// The services in the catalogue.
    pub catalogue: Vec<&'static str>,
    /// The regions in the catalogue, with the host of their services.
    pub regions: Vec<(&'static str, &'static str)>,
    pub made: usize,
    /// The fault of a server after its deletion, which fails.
    pub deletion_fails: Option<&'static str>,
    /// Whether a deleted server can be restored.
    pub deletes_softly: bool,
    /// The project of the login.
    pub project: &'static str,
    /// The servers, ports and volumes of the other region.
    elsewhere: [Vec<Value>; 3],
    pending: BTreeMap<String, usize>,
}

/// The fake cloud. Clones share their state.
#[derive(Clone)]
pub struct FakeCloud(Arc<Mutex<State>>);

type Outcome = Result<(u16, Value), (u16, Value)>;

fn not_found(what: &str) -> Outcome {
    Err((404, json!({"itemNotFound": {"code": 404, "message": format!("{what} could not be found.")}})))
}

impl FakeCloud {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            servers: Vec::new(),
            ports: Vec::new(),
            volumes: Vec::new(),
            faults: Vec::new(),
            log: Vec::new(),
            headers: Vec::new(),
            looks: 1,
            becomes: (ACTIVE, None),
            volumes_become: "available",
            page: 1000,
            found_twice: 0,
            logins: 0,
            expired: false,
            flavors: vec!["large", "small"],
            images: vec!["linux"],
            catalogue: vec!["compute/v2.1", "network/v2.0", "image/v2", "block-storage/v3"],
            regions: vec![("eu-1", "cloud"), ("eu-2", "other")],
            made: 0,
            deletion_fails: None,
            deletes_softly: false,
            project: PROJECT,
            elsewhere: [const { Vec::new() }; 3],
            pending: BTreeMap::new(),
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Adds faults for the next requests that begin with a text such as `POST /servers`.
    pub fn fails(&self, request: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.push((request, faults.into_iter().collect()));
    }

    /// The bodies of the requests that begin with this text.
    pub fn asked(&self, request: &str) -> Vec<Value> {
        self.state().log.iter().filter(|(line, _)| line.starts_with(request)).map(|(_, body)| body.clone()).collect()
    }

    /// The requests so far, without their queries.
    pub fn requests(&self) -> Vec<String> {
        let state = self.state();
        state.log.iter().map(|(line, _)| line.split('?').next().unwrap().to_owned()).collect()
    }

    pub fn ids(&self, of: impl Fn(&State) -> &Vec<Value>) -> Vec<String> {
        of(&self.state()).iter().map(|thing| thing["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[async_trait]
impl Transport for FakeCloud {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let silence = {
            let mut state = self.state();
            let (service, line) = State::line(&request);
            let body = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
            state.log.push((line.clone(), body.clone()));
            state.headers.push(request.headers().clone());
            if service != "identity" {
                let token = request.headers()["x-auth-token"].to_str().unwrap();
                if state.expired || token != format!("t-{}", state.logins) {
                    let text = "This server could not verify that you are authorized";
                    return Ok(answer(
                        401,
                        &if service == "image" {
                            json!(text)
                        } else {
                            json!({"error": {"code": 401, "message": text, "title": "Unauthorized"}})
                        },
                    ));
                }
            }
            let fault = state
                .faults
                .iter_mut()
                .filter(|(begin, _)| line.starts_with(begin))
                .find_map(|(_, faults)| faults.pop_front());
            match fault {
                Some(Fault::Error(status, body)) => return Ok(text_answer(status, body)),
                Some(Fault::LostRequest) => return Err(NoAnswer::Lost("connection reset".to_owned())),
                Some(Fault::Silence) => true,
                Some(Fault::LostReply) => {
                    let _ = state.carry_out(&request, &line, &body);
                    return Err(NoAnswer::Lost("connection reset".to_owned()));
                }
                Some(Fault::PairBefore(address)) => {
                    for port in &mut state.ports {
                        port["allowed_address_pairs"]
                            .as_array_mut()
                            .unwrap()
                            .push(json!({"ip_address": address, "mac_address": "m"}));
                        port["revision_number"] = json!(port["revision_number"].as_u64().unwrap() + 1);
                    }
                    return Ok(state.answered(&request, &line, &body));
                }
                Some(Fault::None) | None => return Ok(state.answered(&request, &line, &body)),
            }
        };
        assert!(silence);
        std::future::pending().await
    }
}

fn text_answer(status: u16, body: &str) -> Answer {
    Answer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body: body.to_owned().into() }
}

fn answer(status: u16, body: &Value) -> Answer {
    text_answer(status, &if body.is_null() { String::new() } else { body.to_string() })
}

fn queried(line: &str) -> Vec<(String, String)> {
    let query = line.split_once('?').map_or("", |(_, query)| query);
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

impl State {
    /// The service, and method and path of the request below the URL of the service.
    fn line(request: &Request<Bytes>) -> (String, String) {
        let path = request.uri().path_and_query().unwrap().as_str();
        let (service, path) = match path.strip_prefix('/').unwrap().split_once('/').unwrap() {
            ("v3", rest) => ("identity", rest),
            (service, rest) => (service, rest.split_once('/').unwrap().1),
        };
        (service.to_owned(), format!("{} /{path}", request.method()))
    }

    fn answered(&mut self, request: &Request<Bytes>, line: &str, body: &Value) -> Answer {
        if line == "POST /auth/tokens" {
            return self.log_in(body);
        }
        let (Ok((status, body)) | Err((status, body))) = self.carry_out(request, line, body);
        answer(status, &body)
    }

    fn log_in(&mut self, body: &Value) -> Answer {
        let user = &body["auth"]["identity"]["password"]["user"];
        if user["password"] != "secret" {
            return answer(
                401,
                &json!({"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}),
            );
        }
        self.logins += 1;
        self.expired = false;
        let service = |path: &&str| {
            let endpoint = |(region, host): &(&str, &str)| json!({"interface": "public", "region": region, "region_id": region, "url": format!("http://{host}/{path}")});
            let endpoints: Vec<Value> = self.regions.iter().map(endpoint).collect();
            json!({"type": path.split('/').next(), "endpoints": endpoints})
        };
        let catalog: Vec<Value> = self.catalogue.iter().map(service).collect();
        let body = json!({"token": {
            "issued_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T01:00:00Z", "catalog": catalog,
            "project": {"id": self.project, "name": "machines", "domain": {"id": "default", "name": "Default"}},
        }});
        let mut answer = answer(201, &body);
        answer.headers.insert("x-subject-token", format!("t-{}", self.logins).parse().unwrap());
        answer
    }

    /// Exchanges the objects of `eu-1` and `eu-2`.
    pub fn exchange_regions(&mut self) {
        let [servers, ports, volumes] = &mut self.elsewhere;
        std::mem::swap(&mut self.servers, servers);
        std::mem::swap(&mut self.ports, ports);
        std::mem::swap(&mut self.volumes, volumes);
    }

    fn carry_out(&mut self, request: &Request<Bytes>, line: &str, body: &Value) -> Outcome {
        let is_elsewhere = request.uri().host() == Some("other");
        if is_elsewhere {
            self.exchange_regions();
        }
        let outcome = self.carry_out_here(request, line, body);
        if is_elsewhere {
            self.exchange_regions();
        }
        outcome
    }

    fn carry_out_here(&mut self, request: &Request<Bytes>, line: &str, body: &Value) -> Outcome {
        let path = line.split_once(' ').unwrap().1;
        let path = path.split('?').next().unwrap();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let matched = request.headers().get("if-match").map(|state| state.to_str().unwrap().to_owned());
        match (request.method(), parts.as_slice()) {
            (&Method::GET, ["servers", "detail"]) => Ok((200, self.page("servers", self.servers.clone(), line))),
            (&Method::GET, ["servers", id]) => self.show_server(id),
            (&Method::POST, ["servers"]) => Ok(self.make_server(body)),
            (&Method::DELETE, ["servers", id]) => self.delete_server(id),
            (&Method::GET, ["flavors"]) => {
                let flavors =
                    self.flavors.iter().map(|name| json!({"id": format!("f-{name}"), "name": name})).collect();
                Ok((200, self.page("flavors", flavors, line)))
            }
            (&Method::GET, ["images"]) => {
                let images = self.images.iter().map(|name| json!({"id": format!("i-{name}"), "name": name})).collect();
                Ok((200, self.page("images", images, line)))
            }
            (&Method::GET, ["os-keypairs"]) => Ok((200, json!({"keypairs": [{"keypair": {"name": "k"}}]}))),
            (&Method::GET, ["os-availability-zone"]) => Ok((200, json!({"availabilityZoneInfo": [{"zoneName": "z"}]}))),
            (&Method::GET, ["os-server-groups", "sg-1"]) => Ok((200, json!({"server_group": {"id": "sg-1"}}))),
            (&Method::GET, ["os-server-groups", _]) => not_found("Instance group"),
            (&Method::GET, ["types"]) => Ok((200, json!({"volume_types": [{"name": "ssd"}]}))),
            (&Method::GET, ["networks"]) => {
                let networks = ["front", "back", "1"].map(|name| json!({"id": format!("n-{name}"), "name": name}));
                Ok((200, self.page("networks", networks.to_vec(), line)))
            }
            (&Method::GET, ["security-groups"]) => {
                let own = ["machines", "others", "default", "twice"].map(|name| (name, PROJECT, format!("g-{name}")));
                let others = ["machines", "default", "shared"].map(|name| (name, "another", format!("g-{name}-2")));
                let twice = [("twice", PROJECT, "g-twice-2".to_owned())];
                let groups = own.into_iter().chain(others).chain(twice);
                let groups = groups.map(|(name, project, id)| json!({"id": id, "name": name, "project_id": project}));
                Ok((200, self.page("security_groups", groups.collect(), line)))
            }
            (&Method::GET, ["subnets"]) => {
                let subnets = [
                    ("s-1", "n-1", Value::Null),
                    ("s-2", "n-1", Value::Null),
                    ("s-slaac", "n-1", json!("slaac")),
                    ("s-9", "n-9", Value::Null),
                ];
                let subnets = subnets.map(|(id, network, mode)| {
                    json!({"id": id, "network_id": network, "ipv6_address_mode": mode, "ipv6_ra_mode": mode})
                });
                Ok((200, self.page("subnets", subnets.to_vec(), line)))
            }
            (method, parts) => self.carry_out_below(method, parts, matched.as_deref(), line, body),
        }
    }

    /// Requests for ports and volumes.
    fn carry_out_below(
        &mut self,
        method: &Method,
        parts: &[&str],
        matched: Option<&str>,
        line: &str,
        body: &Value,
    ) -> Outcome {
        match (method, parts) {
            (&Method::GET, ["ports"]) => Ok((200, self.page("ports", self.ports.clone(), line))),
            (&Method::GET, ["ports", id]) => match self.ports.iter().find(|port| port["id"] == *id) {
                Some(port) => Ok((200, json!({ "port": port }))),
                None => {
                    Err((404, json!({"NeutronError": {"type": "PortNotFound", "message": "no port", "detail": ""}})))
                }
            },
            (&Method::POST, ["ports"]) => {
                let mut port = body["port"].clone();
                let id = self.id("p");
                port["id"] = json!(id);
                port["project_id"] = json!(PROJECT);
                port["device_id"] = json!("");
                port["tags"] = json!([]);
                port["revision_number"] = json!(1);
                port["created_at"] = json!("2026-01-01T00:00:00Z");
                if port.get("security_groups").is_none() {
                    port["security_groups"] = json!(["g-default"]);
                }
                self.ports.push(port.clone());
                Ok((201, json!({ "port": port })))
            }
            (&Method::PUT, ["ports", id, "tags"]) => {
                let port = self.ports.iter_mut().find(|port| port["id"] == *id).unwrap();
                port["tags"] = body["tags"].clone();
                Ok((200, body.clone()))
            }
            (&Method::PUT, ["ports", id]) => {
                let port = self.ports.iter_mut().find(|port| port["id"] == *id).unwrap();
                if matched != Some(&format!("revision_number={}", port["revision_number"])) {
                    return Err((
                        412,
                        json!({"NeutronError": {"type": "RevisionNumberConstraintFailed", "message": "old", "detail": ""}}),
                    ));
                }
                port["allowed_address_pairs"] = body["port"]["allowed_address_pairs"].clone();
                port["revision_number"] = json!(port["revision_number"].as_u64().unwrap() + 1);
                Ok((200, json!({ "port": port })))
            }
            (&Method::DELETE, ["ports", id]) => {
                self.ports.retain(|port| port["id"] != *id);
                Ok((204, Value::Null))
            }
            (&Method::GET, ["volumes", "detail"]) => Ok((200, self.page("volumes", self.volumes.clone(), line))),
            (&Method::GET, ["volumes", id]) => {
                let Some(at) = self.volumes.iter().position(|volume| volume["id"] == *id) else {
                    return not_found("Volume");
                };
                let volume = self.volumes[at].clone();
                match volume["status"].as_str() {
                    Some("creating") => self.volumes[at]["status"] = json!(self.volumes_become),
                    Some("deleting") => drop(self.volumes.remove(at)),
                    _ => {}
                }
                Ok((200, json!({ "volume": volume })))
            }
            (&Method::POST, ["volumes"]) => {
                let mut volume = body["volume"].clone();
                let id = self.id("v");
                volume["id"] = json!(id);
                volume["status"] = json!("creating");
                volume["attachments"] = json!([]);
                volume["created_at"] = json!("2026-01-01T00:00:00.000000");
                self.volumes.push(volume.clone());
                Ok((202, json!({ "volume": volume })))
            }
            (&Method::DELETE, ["volumes", id]) => {
                let Some(volume) = self.volumes.iter_mut().find(|volume| volume["id"] == *id) else {
                    return not_found("Volume");
                };
                if volume["status"] == "in-use" {
                    return Err((
                        400,
                        json!({"badRequest": {"code": 400, "message": "Invalid volume: Volume status must be available or error"}}),
                    ));
                }
                volume["status"] = json!("deleting");
                Ok((202, Value::Null))
            }
            other => panic!("the cloud is not asked for {other:?}"),
        }
    }

    fn id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}-{}", self.made)
    }

    /// A page of a list, filtered by the query like in the real services.
    fn page(&self, key: &str, all: Vec<Value>, line: &str) -> Value {
        let query = queried(line);
        let asked: Vec<_> =
            query.iter().filter(|(name, _)| ["name", "id", "device_id"].contains(&name.as_str())).collect();
        // The login has the role `admin`: Neutron shows it the ports and security groups of all projects, unless it asks for one.
        let project = query.iter().find(|(name, _)| name == "project_id").map(|(_, value)| value);
        let found: Vec<Value> = all
            .into_iter()
            .filter(|thing| project.is_none_or(|project| thing["project_id"] == *project.as_str()))
            .filter(|thing| {
                asked.is_empty()
                    || asked.iter().any(|(name, value)| {
                        thing[name]
                            == *value
                                .trim_start_matches("in:")
                                .trim_start_matches('^')
                                .trim_end_matches('$')
                                .replace('\\', "")
                    })
            })
            .collect();
        let marker = query.iter().find(|(name, _)| name == "marker").map(|(_, value)| value);
        let from =
            marker.map_or(0, |marker| 1 + found.iter().position(|thing| thing["id"] == *marker.as_str()).unwrap());
        // A server that Nova found twice is shown once.
        let twice = if marker.is_none() && key == "servers" { self.found_twice } else { 0 };
        let shown: Vec<&Value> = found.iter().skip(from).take(self.page - twice).collect();
        let mut page = json!({ key: shown });
        if let (Some(last), true) = (shown.last(), from + self.page < found.len() && twice == 0) {
            let mut query: Vec<_> = query.iter().filter(|(name, _)| name != "marker").collect();
            let marker = ("marker".to_owned(), last["id"].as_str().unwrap().to_owned());
            query.push(&marker);
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
            if key == "images" {
                page["next"] = json!(format!("/v2/images?{query}"));
            } else {
                page[format!("{key}_links")] =
                    json!([{"rel": "next", "href": format!("http://inside.example/{key}?{query}")}]);
            }
        }
        page
    }

    fn make_server(&mut self, body: &Value) -> (u16, Value) {
        let mut server = body["server"].clone();
        let id = self.id("s");
        server["id"] = json!(id);
        server["status"] = json!("BUILD");
        server["created"] = json!("2026-01-01T00:00:00Z");
        server["addresses"] = json!({"front": [{"addr": "10.0.0.7", "OS-EXT-IPS:type": "fixed"}]});
        let own = server["networks"][0]["port"].as_str().map(str::to_owned);
        if let Some(own) = own {
            self.ports.iter_mut().find(|port| port["id"] == *own).unwrap()["device_id"] = json!(id);
        } else {
            for network in server["networks"].as_array().unwrap().clone() {
                let port = self.id("p");
                self.ports.push(json!({
                    "id": port, "name": "", "network_id": network["uuid"], "device_id": id, "tags": [], "allowed_address_pairs": [],
                    "revision_number": 1, "made_by_nova": true, "project_id": PROJECT,
                }));
            }
        }
        if let Some(volume) = server["block_device_mapping_v2"][0]["uuid"].as_str()
            && let Some(volume) = self.volumes.iter_mut().find(|known| known["id"] == *volume)
        {
            volume["status"] = json!("in-use");
            server["os-extended-volumes:volumes_attached"] =
                json!([{"id": volume["id"], "delete_on_termination": false}]);
            volume["attachments"] = json!([{ "server_id": id }]);
        }
        self.pending.insert(id.clone(), self.looks);
        self.servers.push(server);
        (202, json!({"server": {"id": id, "adminPass": "hunter2"}}))
    }

    fn show_server(&mut self, id: &str) -> Outcome {
        // The database of Nova compares ids without case.
        let is_shown = |server: &Value| server["id"].as_str().unwrap().eq_ignore_ascii_case(id);
        let Some(at) = self.servers.iter().position(is_shown) else { return not_found("Instance") };
        let shown = self.servers[at].clone();
        let left = self.pending.entry(id.to_owned()).or_default();
        if *left > 0 {
            *left -= 1;
        }
        if *left == 0 && shown["OS-EXT-STS:task_state"] == "deleting" {
            self.servers.remove(at);
            self.ports.retain(|port| port["device_id"] != *id || port.get("made_by_nova").is_none());
            for port in self.ports.iter_mut().filter(|port| port["device_id"] == *id) {
                port["device_id"] = json!("");
            }
            for volume in self.volumes.iter_mut().filter(|volume| volume["attachments"][0]["server_id"] == *id) {
                volume["status"] = json!("available");
                volume["attachments"] = json!([]);
            }
        } else if *left == 0 && shown["status"] == "BUILD" {
            let (status, fault) = self.becomes;
            self.servers[at]["status"] = json!(status);
            if let Some(fault) = fault {
                self.servers[at]["fault"] = json!({"code": 500, "message": fault, "created": "2026-01-01T00:00:00Z"});
            }
        }
        Ok((200, json!({ "server": shown })))
    }

    fn delete_server(&mut self, id: &str) -> Outcome {
        let looks = self.looks;
        let Some(server) = self.servers.iter_mut().find(|server| server["id"] == *id) else {
            return not_found("Instance");
        };
        if self.deletes_softly {
            server["status"] = json!("SOFT_DELETED");
            return Ok((204, Value::Null));
        }
        if let Some(fault) = self.deletion_fails {
            server["status"] = json!("ERROR");
            server["fault"] = json!({"code": 500, "message": fault});
            return Ok((204, Value::Null));
        }
        server["OS-EXT-STS:task_state"] = json!("deleting");
        self.pending.insert(id.to_owned(), looks);
        Ok((204, Value::Null))
    }
}
