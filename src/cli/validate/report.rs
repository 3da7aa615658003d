//! The report of `mcm validate`: one line per finding for people, JSON or YAML for programs.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::inventory::Identity;
use crate::cli::documents::{Document, ObjectRef, to_yaml};
use kube_values::field::{Finding, Findings, more};

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The findings in one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectReport {
    /// The name of the object in messages: file, document number, kind and name.
    pub label: String,
    source: String,
    document: usize,
    item: Option<usize>,
    api_version: String,
    kind: String,
    identity: Identity,
    /// The findings.
    pub findings: Findings,
}

impl ObjectReport {
    /// The report about an object of a document.
    pub fn new(document: &Document, object: ObjectRef<'_>, default_namespace: &str, findings: Findings) -> Self {
        let text = |field: &str| object.value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            label: document.describe(object),
            source: document.source.clone(),
            document: document.index,
            item: object.item,
            api_version: text("apiVersion"),
            kind: text("kind"),
            identity: Identity::of(object.value, default_namespace),
            findings,
        }
    }

    /// The number of findings that are only counted.
    fn left_out(&self) -> usize {
        self.findings.denied() + self.findings.warned() - self.findings.iter().count()
    }

    fn to_value(&self) -> Value {
        let mut object = Map::new();
        object.insert("source".to_owned(), json!(self.source));
        object.insert("document".to_owned(), json!(self.document));
        if let Some(item) = self.item {
            object.insert("item".to_owned(), json!(item));
        }
        object.insert("apiVersion".to_owned(), json!(self.api_version));
        object.insert("kind".to_owned(), json!(self.kind));
        object.insert("namespace".to_owned(), json!(self.identity.namespace));
        object.insert("name".to_owned(), json!(self.identity.name));
        object.insert("valid".to_owned(), json!(!self.findings.denies()));
        object.insert("findings".to_owned(), self.findings.iter().map(finding_value).collect());
        if self.left_out() > 0 {
            object.insert("findingsLeftOut".to_owned(), json!(self.left_out()));
        }
        Value::Object(object)
    }
}

fn severity(finding: &Finding) -> &'static str {
    if finding.denies() { "error" } else { "warning" }
}

fn finding_value(finding: &Finding) -> Value {
    json!({
        "severity": severity(finding),
        "rule": finding.rule.as_str(),
        "field": finding.error.path.as_str(),
        "reason": finding.error.kind.cause_reason(),
        "message": finding.warning(),
    })
}

/// The findings in an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The objects of our kinds, in their order.
    pub objects: Vec<ObjectReport>,
    /// Objects that look like objects of our kinds but were not checked, with the reason.
    pub passed_over: Vec<String>,
    /// Inputs that could not be read, with the reason.
    pub unreadable: Vec<String>,
}

impl Report {
    /// Whether all inputs could be read, and there are objects of our kinds, and all of them would be admitted.
    pub fn is_good(&self) -> bool {
        self.unreadable.is_empty() && !self.objects.is_empty() && self.errors() == 0
    }

    fn errors(&self) -> usize {
        self.objects.iter().map(|object| object.findings.denied()).sum()
    }

    fn warnings(&self) -> usize {
        self.objects.iter().map(|object| object.findings.warned()).sum()
    }

    /// Writes the report.
    ///
    /// # Errors
    /// When the report can't be written.
    pub fn write(&self, format: OutputFormat, out: &mut dyn Write) -> io::Result<()> {
        match format {
            OutputFormat::Text => self.write_text(out),
            OutputFormat::Json => writeln!(out, "{:#}", self.to_value()),
            OutputFormat::Yaml => out.write_all(to_yaml([&self.to_value()]).map_err(io::Error::other)?.as_bytes()),
        }
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for reason in &self.unreadable {
            writeln!(out, "{reason}")?;
        }
        for reason in &self.passed_over {
            writeln!(out, "{reason}")?;
        }
        for object in &self.objects {
            for finding in object.findings.iter() {
                let text = finding.warning();
                writeln!(out, "{}: {}: {text} ({})", object.label, severity(finding), finding.rule)?;
            }
            let left_out = object.left_out();
            if left_out > 0 {
                writeln!(out, "{}: {}", object.label, more(left_out))?;
            }
        }
        if self.objects.is_empty() {
            return writeln!(out, "no object of group machine.sapcloud.io in the input");
        }
        let counted = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
        writeln!(
            out,
            "{} checked: {}, {}",
            counted(self.objects.len(), "object"),
            counted(self.errors(), "error"),
            counted(self.warnings(), "warning")
        )
    }

    fn to_value(&self) -> Value {
        json!({
            "valid": self.is_good(),
            "objects": self.objects.iter().map(ObjectReport::to_value).collect::<Vec<_>>(),
            "passedOver": self.passed_over,
            "unreadable": self.unreadable,
            "errors": self.errors(),
            "warnings": self.warnings(),
        })
    }
}
