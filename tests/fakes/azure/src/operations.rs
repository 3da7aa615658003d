//! Long-running operations: what runs after a request was accepted, until it ends `Succeeded` or `Failed`, and the URLs that tell its state.

use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{LOCATION, SUBSCRIPTION, errors::OperationError, model::Method};

/// Resource group and name, in lower case.
pub type Key = (String, String);

/// Which headers an accepted request answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// `Azure-AsyncOperation` only.
    Async,
    /// `Location` only.
    Location,
    /// Both.
    Both,
}

pub struct Operation {
    pub id: String,
    pub method: Method,
    pub target: Key,
    /// When it ends, unless operations are held.
    pub ends: Instant,
    pub error: Option<OperationError>,
    pub links: Links,
    version: String,
    began: Timestamp,
    ended: Option<Timestamp>,
}

impl Operation {
    pub fn new(number: u64, method: Method, target: Key, links: Links, version: &str, ends: Instant) -> Self {
        let id = format!("0a1b2c3d-0000-4000-8000-{number:012x}");
        let version = version.to_owned();
        Self { id, method, target, ends, error: None, links, version, began: Timestamp::now(), ended: None }
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

    /// Ends it with an error.
    pub fn fail(&mut self, error: OperationError) {
        self.error = Some(error);
        self.end();
    }

    /// The answer to a request for its state.
    pub fn value(&self) -> Value {
        let status = match (self.is_running(), &self.error) {
            (true, _) => "InProgress",
            (false, Some(error)) => error.status(),
            (false, None) => "Succeeded",
        };
        let mut value = json!({"startTime": self.began.to_string(), "status": status, "name": self.id});
        if let Some(ended) = self.ended {
            value["endTime"] = json!(ended.to_string());
            if let Some(error) = &self.error {
                value["error"] = error.value().clone();
            }
        }
        value
    }

    /// The headers with its URLs. `base` is scheme and host of the request that began it.
    pub fn headers(&self, base: &str) -> Vec<(&'static str, String)> {
        let of_subscription = format!("{base}/subscriptions/{SUBSCRIPTION}/providers");
        // Callers send these parameters back as they are.
        let query = format!("p=0a1b2c3d&api-version={}&t={}&c=c1&s={SIGNATURE}&h=h1", self.version, self.id.len());
        let (state, result) = match self.method {
            Method::CreateNic | Method::DeleteNic => {
                let network = format!("{of_subscription}/Microsoft.Network/locations/{LOCATION}");
                (
                    format!("{network}/operations/{}?{query}", self.id),
                    format!("{network}/operationResults/{}?{query}", self.id),
                )
            }
            method => {
                let disk = matches!(method, Method::CreateDisk | Method::DeleteDisk);
                let collection = if disk { "DiskOperations" } else { "operations" };
                let url = format!(
                    "{of_subscription}/Microsoft.Compute/locations/{LOCATION}/{collection}/{}?{query}",
                    self.id
                );
                (url.clone(), format!("{url}&monitor=true"))
            }
        };
        let mut headers = Vec::new();
        if self.links != Links::Location {
            headers.push(("azure-asyncoperation", state));
        }
        if self.links != Links::Async {
            headers.push(("location", result));
        }
        headers
    }
}

/// A part of the URLs of operations that no caller can know.
pub const SIGNATURE: &str = "sig-of-the-service";
