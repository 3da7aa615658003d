//! The discovery documents of Google: which methods exist, and the shapes of their parameters, bodies and answers. `scripts/gce-model` extracts them.
//!
//! A request or an answer that does not match them is a violation. The fake records it, and its test fails.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE},
};
use regex::Regex;
use serde_json::{Map, Value};

static MODEL: LazyLock<Model> = LazyLock::new(Model::new);

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// A method of an API of Google.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $name,)* }

        impl Method {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its id in the discovery document.
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }
        }
    };
}

methods! {
    /// `compute.instances.insert`.
    InsertInstance = "compute.instances.insert",
    /// `compute.instances.get`.
    GetInstance = "compute.instances.get",
    /// `compute.instances.list`.
    ListInstances = "compute.instances.list",
    /// `compute.instances.aggregatedList`.
    AggregatedInstances = "compute.instances.aggregatedList",
    /// `compute.instances.delete`.
    DeleteInstance = "compute.instances.delete",
    /// `compute.instances.setDeletionProtection`.
    SetDeletionProtection = "compute.instances.setDeletionProtection",
    /// `compute.zoneOperations.get`.
    GetOperation = "compute.zoneOperations.get",
    /// `compute.zoneOperations.wait`.
    WaitOperation = "compute.zoneOperations.wait",
    /// `compute.zoneOperations.list`.
    ListOperations = "compute.zoneOperations.list",
    /// `compute.disks.get`.
    GetDisk = "compute.disks.get",
    /// `compute.disks.list`.
    ListDisks = "compute.disks.list",
    /// `compute.disks.delete`.
    DeleteDisk = "compute.disks.delete",
    /// `compute.acceleratorTypes.get`.
    GetAcceleratorType = "compute.acceleratorTypes.get",
    /// `compute.diskTypes.get`.
    GetDiskType = "compute.diskTypes.get",
    /// `compute.machineTypes.get`.
    GetMachineType = "compute.machineTypes.get",
    /// `compute.images.get`.
    GetImage = "compute.images.get",
    /// `compute.images.getFromFamily`.
    GetImageFromFamily = "compute.images.getFromFamily",
    /// `compute.networks.get`.
    GetNetwork = "compute.networks.get",
    /// `compute.subnetworks.get`.
    GetSubnetwork = "compute.subnetworks.get",
    /// `compute.zones.get`.
    GetZone = "compute.zones.get",
    /// `compute.regions.get`.
    GetRegion = "compute.regions.get",
    /// `compute.projects.get`.
    GetProject = "compute.projects.get",
    /// `sts.token`: the exchange of a token of another issuer.
    ExchangeToken = "sts.token",
    /// `iamcredentials.projects.serviceAccounts.generateAccessToken`: a token of a service account for another caller.
    GenerateAccessToken = "iamcredentials.projects.serviceAccounts.generateAccessToken",
}

/// Which way a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the service. Fields that only the service writes are violations.
    Request(Method),
    /// To the client.
    Answer,
}

/// A method with its documentation.
struct Documented {
    method: Method,
    http_method: String,
    path: Regex,
    document: Value,
}

struct Model {
    parameters: Map<String, Value>,
    schemas: Map<String, Value>,
    methods: Vec<Documented>,
    patterns: HashMap<String, Regex>,
}

impl Model {
    fn new() -> Self {
        let mut document: Value = serde_json::from_str(include_str!("../model.json")).expect("the model is JSON");
        let mut part = |name: &str| match document[name].take() {
            Value::Object(part) => part,
            other => panic!("the model has no {name}: {other}"),
        };
        let (parameters, schemas, mut documents) = (part("parameters"), part("schemas"), part("methods"));
        let documented = |method: &Method| {
            let document =
                documents.remove(method.id()).unwrap_or_else(|| panic!("{} is not in the model", method.id()));
            let http_method = document["httpMethod"].as_str().unwrap_or_default().to_owned();
            let path = path_pattern(document["path"].as_str().unwrap_or_default());
            Documented { method: *method, http_method, path, document }
        };
        let methods: Vec<_> = Method::ALL.iter().map(documented).collect();
        let mut patterns = HashMap::new();
        for document in schemas.values().chain(methods.iter().map(|documented| &documented.document)) {
            collect_patterns(document, &mut patterns);
        }
        Self { parameters, schemas, methods, patterns }
    }

    fn of(method: Method) -> &'static Value {
        let found = MODEL.methods.iter().find(|documented| documented.method == method);
        &found.expect("each method has its document").document
    }
}

/// The template of a path as a pattern with named groups.
fn path_pattern(template: &str) -> Regex {
    let pieces = template.split_inclusive('}').map(|piece| {
        let (literal, name) = piece.split_once('{').unwrap_or((piece, ""));
        let literal = regex::escape(literal);
        let name = name.trim_end_matches('}');
        match name.strip_prefix('+') {
            Some(several) => format!("{literal}(?<{several}>.+)"),
            None if name.is_empty() => literal,
            None => format!("{literal}(?<{name}>[^/:]+)"),
        }
    });
    Regex::new(&format!("^{}$", pieces.collect::<String>())).expect("a template is a pattern")
}

fn collect_patterns(document: &Value, into: &mut HashMap<String, Regex>) {
    match document {
        Value::Object(fields) => {
            if let Some(Value::String(pattern)) = fields.get("pattern") {
                let whole = Regex::new(&format!("^(?:{pattern})$")).expect("the model's patterns are patterns");
                into.insert(pattern.clone(), whole);
            }
            fields.values().for_each(|value| collect_patterns(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_patterns(value, into)),
        _ => {}
    }
}

/// The method at a path, and the parameters in the path.
pub fn method_at(http_method: &str, path: &str) -> Option<(Method, BTreeMap<String, String>)> {
    MODEL.methods.iter().filter(|documented| documented.http_method == http_method).find_map(|documented| {
        let found = documented.path.captures(path)?;
        let names = documented.path.capture_names().flatten();
        let parameters = names.map(|name| (name.to_owned(), found[name].to_owned())).collect();
        Some((documented.method, parameters))
    })
}

/// The scopes of which a caller needs one. Empty for methods without authorization.
pub fn scopes(method: Method) -> impl Iterator<Item = &'static str> {
    Model::of(method)["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The violations in the parameters of a request, in path and query.
pub fn check_parameters(
    method: Method,
    path: &BTreeMap<String, String>,
    query: &BTreeMap<String, String>,
) -> Vec<String> {
    let own = Model::of(method)["parameters"].as_object();
    let mut found = Vec::new();
    for (location, given) in [("path", path), ("query", query)] {
        for (name, value) in given {
            let documented = own.and_then(|own| own.get(name)).or_else(|| MODEL.parameters.get(name));
            let documented = documented.filter(|documented| documented["location"] == location);
            match documented {
                None => found.push(format!("the {location} has no parameter {name}")),
                Some(documented) => check_text(documented, value, name, &mut found),
            }
        }
    }
    found
}

/// A parameter is text in every case; its type says how it is read.
fn check_text(documented: &Value, value: &str, at: &str, found: &mut Vec<String>) {
    let typed = match documented["type"].as_str().unwrap_or_default() {
        "boolean" => value.parse().map(Value::Bool).ok(),
        "integer" => value.parse::<i64>().map(Value::from).ok(),
        _ => Some(Value::from(value)),
    };
    match typed {
        Some(typed) => check(documented, &typed, at, Direction::Answer, found),
        None => found.push(format!("{at}: {value:?} is no {}", documented["type"])),
    }
}

/// The violations in the body of a request.
pub fn check_request(method: Method, body: Option<&Value>) -> Vec<String> {
    match (Model::of(method)["request"].as_str(), body) {
        (None, None) => Vec::new(),
        (None, Some(_)) => vec!["the method has no body".to_owned()],
        (Some(_), None) => vec!["the body is missing, or is no JSON".to_owned()],
        (Some(schema), Some(body)) => checked(schema, body, Direction::Request(method)),
    }
}

/// The violations in an answer with status 200.
pub fn check_answer(method: Method, body: &Value) -> Vec<String> {
    checked(response_schema(method), body, Direction::Answer)
}

/// The name of the schema of the answer.
pub fn response_schema(method: Method) -> &'static str {
    Model::of(method)["response"].as_str().unwrap_or_default()
}

fn checked(schema: &str, value: &Value, direction: Direction) -> Vec<String> {
    let mut found = Vec::new();
    check(&MODEL.schemas[schema], value, "", direction, &mut found);
    found
}

/// The schema behind a reference.
fn resolved(schema: &Value) -> &Value {
    schema["$ref"].as_str().map_or(schema, |name| &MODEL.schemas[name])
}

/// The schema of a field of a schema, or of the elements of a list. `None` if there is no such field.
pub fn field_schema<'a>(schema: &'a Value, field: &str) -> Option<&'a Value> {
    let schema = resolved(schema);
    let schema = if schema["type"] == "array" { resolved(&schema["items"]) } else { schema };
    schema["properties"].get(field).or_else(|| schema.get("additionalProperties"))
}

/// A schema by its name.
pub fn schema(name: &str) -> &'static Value {
    &MODEL.schemas[name]
}

fn check(schema: &Value, value: &Value, at: &str, direction: Direction, found: &mut Vec<String>) {
    if schema["readOnly"] == true && matches!(direction, Direction::Request(_)) {
        found.push(format!("{at}: only the service writes this field"));
    }
    let schema = resolved(schema);
    let kind = schema["type"].as_str().unwrap_or("any");
    let fits = match (kind, value) {
        ("object", Value::Object(fields)) => {
            check_fields(schema, fields, at, direction, found);
            true
        }
        ("array", Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let at = format!("{at}[{index}]");
                check(&schema["items"], item, &at, direction, found);
                // In these documents the pattern of a list is the pattern of its elements.
                check_pattern(schema, item, &at, found);
            }
            true
        }
        ("string", Value::String(text)) => {
            check_pattern(schema, value, at, found);
            if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
                found.push(format!("{at}: {value} is none of {}", schema["enum"]));
            }
            has_format(schema["format"].as_str().unwrap_or_default(), text)
        }
        ("integer", Value::Number(number)) => {
            number.as_i64().is_some_and(|number| schema["format"] != "uint32" || number >= 0)
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("any", _) => true,
        _ => false,
    };
    if !fits {
        let format = schema["format"].as_str().unwrap_or_default();
        found.push(format!("{at}: {value} is not of type {kind} {format}"));
    }
}

fn check_fields(schema: &Value, fields: &Map<String, Value>, at: &str, direction: Direction, found: &mut Vec<String>) {
    let dot = if at.is_empty() { "" } else { "." };
    for (name, value) in fields {
        let at = format!("{at}{dot}{name}");
        match field_schema(schema, name) {
            Some(field) => check(field, value, &at, direction, found),
            None => found.push(format!("{at}: there is no such field")),
        }
    }
    let Direction::Request(method) = direction else { return };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let required = field["required"].as_array().is_some_and(|methods| methods.iter().any(|id| id == method.id()));
        if required && !fields.contains_key(name) {
            found.push(format!("{at}{dot}{name}: the field is required"));
        }
    }
}

fn check_pattern(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str()) else { return };
    if !MODEL.patterns[pattern].is_match(text) {
        found.push(format!("{at}: {text:?} does not match {pattern}"));
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "int64" => text.parse::<i64>().is_ok(),
        "uint64" => text.parse::<u64>().is_ok(),
        "byte" => BASE64_STANDARD.decode(text).is_ok() || BASE64_URL_SAFE.decode(text).is_ok(),
        "google-datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "google-duration" => text.strip_suffix('s').is_some_and(|seconds| seconds.parse::<f64>().is_ok()),
        _ => true,
    }
}
