//! What Microsoft's own clients know of Azure: which methods exist, and the shapes of their bodies and answers. `scripts/azure-model` extracts it.
//!
//! A request or an answer that does not match them is a violation. The fake records it, and its test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::Regex;
use serde_json::{Map, Value, json};

static MODEL: LazyLock<Model> = LazyLock::new(Model::new);

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// A method of Azure Resource Manager, or of Entra.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $name,)* }

        impl Method {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name: the collection and the method, as in Microsoft's clients.
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }
        }
    };
}

methods! {
    /// A token of Entra.
    GetToken = "entra.token",
    /// The description of Entra's endpoints. Microsoft's clients ask for it.
    GetOpenIdConfiguration = "entra.openIdConfiguration",
    /// A subscription.
    GetSubscription = "subscriptions.get",
    /// `HEAD` of a resource group.
    CheckResourceGroup = "resourceGroups.checkExistence",
    /// A resource group.
    GetResourceGroup = "resourceGroups.get",
    /// A virtual network.
    GetVnet = "virtualNetworks.get",
    /// A subnet.
    GetSubnet = "subnets.get",
    /// A network interface.
    GetNic = "networkInterfaces.get",
    /// `PUT` of a network interface.
    CreateNic = "networkInterfaces.createOrUpdate",
    /// `DELETE` of a network interface.
    DeleteNic = "networkInterfaces.delete",
    /// The network interfaces of a resource group.
    ListNics = "networkInterfaces.list",
    /// A disk.
    GetDisk = "disks.get",
    /// `PUT` of a disk.
    CreateDisk = "disks.createOrUpdate",
    /// `DELETE` of a disk.
    DeleteDisk = "disks.delete",
    /// The disks of a resource group.
    ListDisks = "disks.listByResourceGroup",
    /// A VM.
    GetVm = "virtualMachines.get",
    /// `PUT` of a VM.
    CreateVm = "virtualMachines.createOrUpdate",
    /// `PATCH` of a VM.
    UpdateVm = "virtualMachines.update",
    /// `DELETE` of a VM.
    DeleteVm = "virtualMachines.delete",
    /// The VMs of a resource group.
    ListVms = "virtualMachines.list",
    /// What runs in a VM.
    GetInstanceView = "virtualMachines.instanceView",
    /// An availability set.
    GetAvailabilitySet = "availabilitySets.get",
    /// A scale set.
    GetScaleSet = "virtualMachineScaleSets.get",
    /// A group of capacity reservations.
    GetCapacityReservationGroup = "capacityReservationGroups.get",
    /// An image of the subscription.
    GetImage = "images.get",
    /// An image of the marketplace.
    GetMarketplaceImage = "virtualMachineImages.get",
    /// The terms of a plan.
    GetAgreement = "marketplaceAgreements.get",
    /// `PUT` of the terms of a plan.
    AcceptAgreement = "marketplaceAgreements.create",
    /// A query of Resource Graph.
    QueryGraph = "resources.query",
    /// The state of a long-running operation of Compute.
    GetComputeOperation = "compute.operation",
    /// The state of a long-running operation with a disk.
    GetDiskOperation = "disks.operation",
    /// The state of a long-running operation of Network.
    GetNetworkOperation = "network.operation",
    /// The result of a long-running operation of Network.
    GetNetworkResult = "network.operationResult",
}

/// The methods that have no model: name, verb and path.
const WITHOUT_MODEL: [(&str, &str, &str); 7] = [
    ("entra.token", "POST", "/{tenant}/oauth2/v2.0/token"),
    ("entra.openIdConfiguration", "GET", "/{tenant}/v2.0/.well-known/openid-configuration"),
    ("subscriptions.get", "GET", "/subscriptions/{subscriptionId}"),
    (
        "compute.operation",
        "GET",
        "/subscriptions/{subscriptionId}/providers/Microsoft.Compute/locations/{location}/operations/{operation}",
    ),
    (
        "disks.operation",
        "GET",
        "/subscriptions/{subscriptionId}/providers/Microsoft.Compute/locations/{location}/DiskOperations/{operation}",
    ),
    (
        "network.operation",
        "GET",
        "/subscriptions/{subscriptionId}/providers/Microsoft.Network/locations/{location}/operations/{operation}",
    ),
    (
        "network.operationResult",
        "GET",
        "/subscriptions/{subscriptionId}/providers/Microsoft.Network/locations/{location}/operationResults/{operation}",
    ),
];

impl Method {
    /// Whether it belongs to Entra: callers without a token may use it.
    pub(crate) fn is_of_entra(self) -> bool {
        matches!(self, Self::GetToken | Self::GetOpenIdConfiguration)
    }

    /// Whether it asks for the state of a long-running operation.
    pub(crate) fn is_poll(self) -> bool {
        matches!(
            self,
            Self::GetComputeOperation | Self::GetDiskOperation | Self::GetNetworkOperation | Self::GetNetworkResult
        )
    }

    /// The versions of its API that Azure serves, besides the version of Microsoft's client. From Microsoft's reference.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::GetSubscription => &["2020-01-01", "2021-01-01", "2022-12-01"],
            Self::CheckResourceGroup | Self::GetResourceGroup => {
                &["2020-06-01", "2021-04-01", "2022-09-01", "2023-07-01", "2024-03-01", "2024-11-01"]
            }
            Self::GetVnet | Self::GetSubnet | Self::GetNic | Self::CreateNic | Self::DeleteNic | Self::ListNics => {
                &["2023-11-01", "2024-01-01", "2024-03-01", "2024-05-01", "2024-07-01", "2024-10-01", "2025-01-01"]
            }
            Self::GetDisk | Self::CreateDisk | Self::DeleteDisk | Self::ListDisks => {
                &["2023-04-02", "2023-10-02", "2024-03-02", "2025-01-02"]
            }
            Self::GetAgreement | Self::AcceptAgreement => &["2015-06-01", "2021-01-01"],
            Self::QueryGraph => &["2021-03-01", "2022-10-01", "2024-04-01"],
            _ => &["2023-07-01", "2023-09-01", "2024-03-01", "2024-07-01", "2024-11-01", "2025-04-01"],
        }
    }
}

/// Which way a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction<'a> {
    /// To the service, in this version of the API. Fields that only the service writes, and fields of later versions, are violations.
    Request(&'a str),
    /// To the client.
    Answer,
}

struct Documented {
    method: Method,
    verb: String,
    path: Regex,
    document: Value,
}

struct Model {
    schemas: Map<String, Value>,
    methods: Vec<Documented>,
}

impl Model {
    fn new() -> Self {
        let mut document: Value = serde_json::from_str(include_str!("../model.json")).expect("the model is JSON");
        let mut part = |name: &str| match document[name].take() {
            Value::Object(part) => part,
            other => panic!("the model has no {name}: {other}"),
        };
        let (schemas, mut documents) = (part("schemas"), part("methods"));
        for (id, verb, path) in WITHOUT_MODEL {
            documents.insert(id.to_owned(), json!({"httpMethod": verb, "path": path}));
        }
        let documented = |method: &Method| {
            let document =
                documents.remove(method.id()).unwrap_or_else(|| panic!("{} is not in the model", method.id()));
            let verb = document["httpMethod"].as_str().unwrap_or_default().to_owned();
            let path = path_pattern(document["path"].as_str().unwrap_or_default());
            Documented { method: *method, verb, path, document }
        };
        Self { methods: Method::ALL.iter().map(documented).collect(), schemas }
    }

    fn of(method: Method) -> &'static Value {
        let found = MODEL.methods.iter().find(|documented| documented.method == method);
        &found.expect("each method has its document").document
    }
}

/// The template of a path as a pattern with named groups. ARM compares paths without regard to case.
fn path_pattern(template: &str) -> Regex {
    let pieces = template.split_inclusive('}').map(|piece| {
        let (literal, name) = piece.split_once('{').unwrap_or((piece, ""));
        let (literal, name) = (regex::escape(literal), name.trim_end_matches('}'));
        if name.is_empty() { literal } else { format!("{literal}(?<{name}>[^/]+)") }
    });
    Regex::new(&format!("(?i)^{}$", pieces.collect::<String>())).expect("a template is a pattern")
}

/// The method at a path, and the parameters in the path.
pub fn method_at(verb: &str, path: &str) -> Option<(Method, BTreeMap<String, String>)> {
    MODEL.methods.iter().filter(|documented| documented.verb == verb).find_map(|documented| {
        let found = documented.path.captures(path)?;
        let names = documented.path.capture_names().flatten();
        let parameters = names.map(|name| (name.to_owned(), found[name].to_owned())).collect();
        Some((documented.method, parameters))
    })
}

/// The violations in the query of a request.
pub fn check_query(method: Method, query: &BTreeMap<String, String>) -> Vec<String> {
    if method.is_of_entra() || method.is_poll() {
        return Vec::new();
    }
    let document = Model::of(method);
    let mut found = Vec::new();
    match query.get("api-version") {
        None => found.push("the query has no api-version".to_owned()),
        Some(version) if document["version"] == *version || method.versions().contains(&version.as_str()) => {}
        Some(version) => found.push(format!("there is no api-version {version}")),
    }
    let own: BTreeSet<_> = document["query"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for name in query.keys().filter(|name| *name != "api-version" && !own.contains(name.as_str())) {
        found.push(format!("the query has no parameter {name}"));
    }
    found
}

/// The violations in the body of a request.
pub fn check_request(method: Method, version: &str, body: Option<&Value>) -> Vec<String> {
    if method == Method::GetToken {
        return Vec::new();
    }
    match (Model::of(method)["request"].as_str(), body) {
        (None, None) => Vec::new(),
        (None, Some(_)) => vec!["the method has no body".to_owned()],
        (Some(_), None) => vec!["the body is missing, or is no JSON".to_owned()],
        (Some(schema), Some(body)) => checked(schema, body, Direction::Request(version)),
    }
}

/// The violations in the body of a successful answer.
pub fn check_answer(method: Method, body: &Value) -> Vec<String> {
    match Model::of(method)["response"].as_str() {
        None => Vec::new(),
        Some(schema) => match schema.strip_prefix('[').and_then(|schema| schema.strip_suffix(']')) {
            None => checked(schema, body, Direction::Answer),
            Some(element) => {
                let items = body["value"].as_array().into_iter().flatten();
                items.flat_map(|item| checked(element, item, Direction::Answer)).collect()
            }
        },
    }
}

fn checked(schema: &str, value: &Value, direction: Direction<'_>) -> Vec<String> {
    let mut found = Vec::new();
    check(&MODEL.schemas[schema], value, "", direction, &mut found);
    found
}

fn check(schema: &Value, value: &Value, at: &str, direction: Direction<'_>, found: &mut Vec<String>) {
    if let Direction::Request(version) = direction {
        // ARM ignores what a request says about the identity of its resource.
        if schema["readOnly"] == true && !["id", "name", "type"].contains(&at) {
            found.push(format!("{at}: only the service writes this field"));
        }
        if schema["since"].as_str().is_some_and(|since| version < since) {
            found.push(format!("{at}: the field exists since {}, not in {version}", schema["since"]));
        }
    }
    let schema = schema["$ref"].as_str().map_or(schema, |name| &MODEL.schemas[name]);
    let kind = schema["type"].as_str().unwrap_or("any");
    let fits = match (kind, value) {
        ("object", Value::Object(fields)) => {
            check_fields(schema, fields, at, direction, found);
            true
        }
        ("array", Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check(&schema["items"], item, &format!("{at}[{index}]"), direction, found);
            }
            true
        }
        ("string", Value::String(text)) => {
            if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
                found.push(format!("{at}: {value} is none of {}", schema["enum"]));
            }
            schema["format"] != "date-time" || text.parse::<jiff::Timestamp>().is_ok()
        }
        ("integer", Value::Number(number)) => number.is_i64() || number.is_u64(),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("any", _) => true,
        _ => false,
    };
    if !fits {
        found.push(format!("{at}: {value} is not of type {kind}"));
    }
}

fn check_fields(
    schema: &Value,
    fields: &Map<String, Value>,
    at: &str,
    direction: Direction<'_>,
    found: &mut Vec<String>,
) {
    let dot = if at.is_empty() { "" } else { "." };
    for (name, value) in fields {
        let field = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        match field {
            Some(field) => check(field, value, &format!("{at}{dot}{name}"), direction, found),
            None => found.push(format!("{at}{dot}{name}: there is no such field")),
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if field["required"] == true && !fields.contains_key(name) {
            found.push(format!("{at}{dot}{name}: the field is required"));
        }
    }
}
