//! The classes of Alibaba Cloud's own client: which actions exist, their parameters, and the fields of their answers. `scripts/ecs-model` extracts them.
//!
//! A request or an answer that does not match them is a violation. The fake records it, and its test fails.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value};

static MODEL: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../model.json")).expect("the model is JSON"));

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// An action of ECS or STS.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Action { $($(#[$doc])* $name,)* }

        impl Action {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

actions! {
    /// Creates and starts instances.
    RunInstances,
    /// Lists instances.
    DescribeInstances,
    /// Deletes an instance.
    DeleteInstance,
    /// Lists disks.
    DescribeDisks,
    /// Deletes a disk.
    DeleteDisk,
    /// Names the account of the caller. The only action of STS.
    GetCallerIdentity,
}

impl Action {
    /// The action with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.name() == name)
    }

    /// The version of its API.
    pub fn version(self) -> &'static str {
        self.model()["version"].as_str().unwrap_or_default()
    }

    fn model(self) -> &'static Value {
        &MODEL["actions"][self.name()]
    }
}

/// The violations in the parameters of a request, without the common parameters of all requests.
pub fn check_parameters(action: Action, given: &BTreeMap<String, String>) -> Vec<String> {
    let model = action.model();
    let mut found = Vec::new();
    for (name, value) in given {
        match model["parameters"][general(name)].as_str() {
            None => found.push(format!("there is no parameter {name}")),
            Some(kind) if !is_text_of(kind, value) => found.push(format!("{name}: {value:?} is no {kind}")),
            Some(_) => {}
        }
    }
    let required = model["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    found.extend(required.filter(|name| !given.contains_key(*name)).map(|name| format!("{name} is required")));
    found
}

/// The name of a parameter with N for the numbers of elements, as in the model.
fn general(name: &str) -> String {
    let parts = name.split('.').map(|part| {
        let number = part.parse::<u32>().is_ok_and(|number| number > 0);
        if number { "N" } else { part }
    });
    parts.collect::<Vec<_>>().join(".")
}

fn is_text_of(kind: &str, value: &str) -> bool {
    match kind {
        // Alibaba Cloud's client for Python writes a capital letter.
        "boolean" => ["true", "false"].contains(&value.to_ascii_lowercase().as_str()),
        "integer" => value.parse::<i64>().is_ok(),
        "number" => value.parse::<f64>().is_ok(),
        _ => true,
    }
}

/// The violations in an answer with status 200.
pub fn check_answer(action: Action, answer: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(&action.model()["answer"], answer, "", &mut found);
    found
}

fn check(shape: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let fits = match (shape, value) {
        (Value::Object(shapes), Value::Object(fields)) => {
            check_fields(shapes, fields, at, found);
            true
        }
        (Value::Array(shapes), Value::Array(items)) => {
            for item in items {
                check(&shapes[0], item, &format!("{at}[]"), found);
            }
            true
        }
        (Value::String(kind), value) => match kind.as_str() {
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            _ => true,
        },
        _ => false,
    };
    if !fits {
        found.push(format!("{at}: {value} is not of type {shape}"));
    }
}

fn check_fields(shapes: &Map<String, Value>, fields: &Map<String, Value>, at: &str, found: &mut Vec<String>) {
    let dot = if at.is_empty() { "" } else { "." };
    for (name, value) in fields {
        let at = format!("{at}{dot}{name}");
        match shapes.get(name) {
            Some(shape) => check(shape, value, &at, found),
            None => found.push(format!("{at}: there is no such field")),
        }
    }
}
