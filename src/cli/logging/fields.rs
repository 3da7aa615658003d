//! The fields of log lines: a closed list, so that a search or a log pipeline finds the same thing under the same name everywhere.
//!
//! The message of a line is constant, and every value is a field (spec/packaging §7.1). A test reads all log calls of the sources and
//! compares their fields with this list.

use serde_json::{Map, Value, json};

/// The members of a line in JSON that are no fields: time, level, message, and the module that wrote the line.
pub const FRAME: [&str; 4] = ["ts", "level", "msg", "target"];

/// All fields: name and meaning.
pub const FIELDS: [(&str, &str); 34] = [
    ("cluster", "the cluster: control or target"),
    ("kind", "the kind of the object that the line is about"),
    ("namespace", "its namespace"),
    ("name", "its name"),
    ("uid", "its UID"),
    ("deployment", "a MachineDeployment"),
    ("set", "a MachineSet"),
    ("class", "a MachineClass"),
    ("node", "a Node"),
    ("vm", "the identity of a VM at its provider"),
    ("pod", "a Pod"),
    ("controller", "the control loop, by its name in --controllers"),
    ("rule", "the rule that decided"),
    ("effect", "what is changed"),
    ("stage", "the stage of a life, a shutdown or a renewal"),
    ("pass", "the number of the pass of a control loop, counted from the start of the process"),
    ("provider", "the provider or its driver"),
    ("operation", "what was asked for, such as a call or a request"),
    ("code", "a code or a reason from a closed set"),
    ("took_ms", "a duration that has passed, in milliseconds"),
    ("retry_in_ms", "the time until the next try, in milliseconds"),
    ("lease", "a Lease"),
    ("identity", "a process, by its name in Leases"),
    ("request_uid", "the UID of an admission review"),
    ("user", "the user of a request"),
    ("peer", "the address of a client"),
    ("error", "the cause, as text"),
    ("address", "an address on which the process listens, or which it calls"),
    ("count", "a number of things, such as lines that were held back"),
    ("expires", "when a certificate ends"),
    ("path", "a file, or the path of a request"),
    ("seed", "the seed of the virtual cloud"),
    ("task", "a task of the process"),
    ("version", "a version of an API, of a driver or of the program"),
];

/// The JSON Schema of a line of `--logging-format=json`.
pub fn schema() -> Value {
    let mut members: Map<String, Value> =
        FRAME.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
    members["level"] = json!({"enum": ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]});
    for (name, meaning) in FIELDS {
        members.insert(name.to_owned(), json!({"type": ["string", "number", "boolean"], "description": meaning}));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": members, "required": FRAME, "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_field_is_listed_twice_or_has_no_meaning() {
        let mut names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).chain(FRAME).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIELDS.len() + FRAME.len());
        assert!(FIELDS.iter().all(|(_, meaning)| !meaning.is_empty()));
    }
}
