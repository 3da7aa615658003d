//! Operations: what runs after a request was accepted, until it ends with or without errors.

use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    catalogue::{PROJECT, url},
    errors::OperationError,
    model::Method,
};

/// What an operation does when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Insert,
    Delete,
    Protect(bool),
    DeleteDisk,
}

impl Effect {
    /// Its type in answers.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Delete | Self::DeleteDisk => "delete",
            Self::Protect(_) => "setDeletionProtection",
        }
    }

    /// The method that begins it.
    pub fn method(self) -> Method {
        match self {
            Self::Insert => Method::InsertInstance,
            Self::Delete => Method::DeleteInstance,
            Self::Protect(_) => Method::SetDeletionProtection,
            Self::DeleteDisk => Method::DeleteDisk,
        }
    }
}

/// The resource that an operation changes.
#[derive(Clone, Debug)]
pub struct Target {
    pub zone: String,
    pub name: String,
    pub id: String,
    collection: &'static str,
}

impl Target {
    /// A resource of a zone, with its zone and name.
    pub fn of(key: &(String, String), collection: &'static str, resource: &Value) -> Self {
        let id = resource["id"].as_str().unwrap_or_default().to_owned();
        Self { zone: key.0.clone(), name: key.1.clone(), id, collection }
    }
}

pub struct Operation {
    pub name: String,
    pub id: String,
    pub effect: Effect,
    pub target: Target,
    /// When it ends, unless operations are held.
    pub ends: Instant,
    pub errors: Vec<OperationError>,
    pub request_id: Option<String>,
    caller: String,
    began: Timestamp,
    ended: Option<Timestamp>,
}

impl Operation {
    pub fn new(number: u64, effect: Effect, target: Target, caller: &str, ends: Instant) -> Self {
        let began = Timestamp::now();
        Self {
            name: format!("operation-{}-{number:x}-5f3a1c2d-7e6b8a90", began.as_millisecond()),
            id: number.to_string(),
            effect,
            target,
            ends,
            errors: Vec::new(),
            request_id: None,
            caller: caller.to_owned(),
            began,
            ended: None,
        }
    }

    pub fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.is_running() && self.ends <= now
    }

    pub fn end(&mut self) {
        self.ended = Some(Timestamp::now());
    }

    /// The operation as answers show it.
    pub fn value(&self) -> Value {
        let zone = format!("projects/{PROJECT}/zones/{}", self.target.zone);
        let mut value = json!({
            "kind": "compute#operation", "id": self.id, "name": self.name, "zone": url(&zone), "operationType": self.effect.kind(),
            "targetLink": url(&format!("{zone}/{}/{}", self.target.collection, self.target.name)), "targetId": self.target.id,
            "status": "RUNNING", "user": self.caller, "progress": 0, "insertTime": self.began.to_string(), "startTime": self.began.to_string(),
            "selfLink": url(&format!("{zone}/operations/{}", self.name)),
        });
        if let Some(ended) = self.ended {
            value["status"] = json!("DONE");
            value["progress"] = json!(100);
            value["endTime"] = json!(ended.to_string());
            for (field, error) in OperationError::fields(&self.errors) {
                value[field] = error;
            }
        }
        value
    }
}
