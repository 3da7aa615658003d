//! Reads the table of `tests/fixtures/admission-cases.yaml`.
//!
//! Both the unit tests and the tests against a real API server include this file, so that it depends on neither.

use serde_json::{Map, Value, json};

/// The finalizer that every base object has.
const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";

/// One line of the table.
#[derive(Debug)]
#[allow(dead_code, reason = "each of the tests that include this file asks for a part of a case")]
pub struct Case {
    pub id: String,
    pub kind: String,
    /// The stored object of an update or deletion.
    pub old: Option<Value>,
    /// The new object; none for a deletion.
    pub new: Option<Value>,
    pub user: String,
    pub profile: String,
    pub deny: Vec<String>,
    pub warn: Vec<String>,
    /// The errors of an API server without webhooks, if it refuses the object.
    pub live: Option<Vec<String>>,
    /// Whether the optional policies refuse the object.
    pub policy: bool,
    /// Fields of the object after defaulting.
    pub becomes: Option<Value>,
    /// Objects in the caches; none if there are no caches.
    pub others: Option<Vec<Value>>,
    pub terminating: bool,
}

/// All cases of the parsed table, for objects of this namespace.
pub fn cases(table: &Value, namespace: &str) -> Vec<Case> {
    let vocabulary = Vocabulary { table, namespace };
    table["cases"].as_array().expect("a list of cases").iter().map(|line| vocabulary.case(line)).collect()
}

/// The base object of a kind.
pub fn base(kind: &str, name: &str, namespace: &str) -> Value {
    let class = json!({"kind": "MachineClass", "name": "c1"});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"class": class}});
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut object = match kind {
        "Machine" => json!({"spec": {"class": class}}),
        "MachineSet" => json!({"spec": {"replicas": 1, "selector": selector, "template": template}}),
        "MachineDeployment" => json!({"spec": {"replicas": 3, "selector": selector, "template": template,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}),
        "MachineClass" => json!({"provider": "virtual", "providerSpec": {},
            "nodeTemplate": {"capacity": {"cpu": 4, "gpu": 0, "memory": "8Gi"}, "instanceType": "t", "region": "eu-west-1", "zone": "z"}}),
        "Secret" => json!({"data": {"userData": "eA=="}}),
        other => panic!("no base object of kind {other}"),
    };
    let version = if kind == "Secret" { "v1" } else { "machine.sapcloud.io/v1alpha1" };
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object["metadata"] = json!({ "name": name, "namespace": namespace });
    if kind != "Secret" {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    object
}

struct Vocabulary<'a> {
    table: &'a Value,
    namespace: &'a str,
}

impl Vocabulary<'_> {
    fn case(&self, line: &Value) -> Case {
        const KNOWN: [&str; 13] = [
            "id",
            "kind",
            "old",
            "new",
            "user",
            "profile",
            "deny",
            "warn",
            "live",
            "policy",
            "becomes",
            "others",
            "terminating",
        ];
        let fields = line.as_object().expect("a case is a map");
        for field in fields.keys() {
            assert!(KNOWN.contains(&field.as_str()), "{line}: no test reads {field}");
        }
        let text = |field: &str, default: &str| fields.get(field).and_then(Value::as_str).unwrap_or(default).to_owned();
        let flag = |field: &str| fields.get(field).and_then(Value::as_bool).unwrap_or_default();
        let (id, kind, terminating) = (text("id", ""), text("kind", ""), flag("terminating"));
        let name = id.to_lowercase();
        let object = |field: &str| fields.get(field).map(|patch| self.object(&kind, &name, patch, terminating));
        Case {
            old: object("old"),
            new: object("new"),
            user: text("user", "alice"),
            profile: text("profile", "compat"),
            deny: self.texts(fields, "deny").unwrap_or_default(),
            warn: self.texts(fields, "warn").unwrap_or_default(),
            live: self.texts(fields, "live"),
            policy: flag("policy"),
            becomes: fields.get("becomes").map(|value| self.value(value)),
            others: fields.get("others").and_then(Value::as_array).map(|others| self.others(others)),
            id,
            kind,
            terminating,
        }
    }

    fn object(&self, kind: &str, name: &str, patch: &Value, terminating: bool) -> Value {
        let mut object = base(kind, name, self.namespace);
        json_patch::merge(&mut object, &self.value(patch));
        if terminating {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object
    }

    fn others(&self, others: &[Value]) -> Vec<Value> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let other = |other: &Value| {
            let terminating = other["terminating"] == json!(true);
            let patch = other.get("patch").cloned().unwrap_or_else(|| json!({}));
            self.object(&text(&other["kind"]), &text(&other["name"]), &patch, terminating)
        };
        others.iter().map(other).collect()
    }

    fn texts(&self, fields: &Map<String, Value>, field: &str) -> Option<Vec<String>> {
        let texts = fields.get(field)?.as_array().expect("a list of texts");
        Some(texts.iter().map(|text| self.text(text.as_str().expect("a text"))).collect())
    }

    /// A text with its placeholders replaced.
    fn text(&self, text: &str) -> String {
        let mut out = text.replace("<ns>", self.namespace);
        for part in ["words", "values"] {
            for (word, meaning) in self.table[part].as_object().into_iter().flatten() {
                if let Some(meaning) = meaning.as_str() {
                    out = out.replace(&format!("<{word}>"), meaning);
                }
            }
        }
        out
    }

    /// A value with its placeholders replaced.
    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let word = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
                match word.and_then(|word| self.table["values"].get(word)) {
                    Some(meaning) => meaning.clone(),
                    None => Value::String(self.text(text)),
                }
            }
            Value::Array(elements) => elements.iter().map(|element| self.value(element)).collect(),
            Value::Object(members) => {
                members.iter().map(|(key, value)| (key.clone(), self.value(value))).collect::<Map<_, _>>().into()
            }
            other => other.clone(),
        }
    }
}

/// Whether a text is the expected one. `…` in the expected text matches anything.
pub fn fits(expected: &str, text: &str) -> bool {
    let mut pieces = expected.split('…');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(found) = rest.find(piece) else { return false };
        rest = &rest[found + piece.len()..];
    }
    rest.ends_with(last)
}

/// The same for a warning, which is truncated at the length that API servers allow.
pub fn fits_warning(expected: &str, text: &str) -> bool {
    match text.strip_suffix('…').filter(|text| text.chars().count() == 119) {
        Some(cut) => {
            let start = expected.split('…').next().unwrap_or_default();
            expected.starts_with(cut) || cut.starts_with(start)
        }
        None => fits(expected, text),
    }
}

/// The difference between a list of texts and the expected one, if there is one.
pub fn mismatch(what: &str, expected: &[String], texts: &[String], fits: fn(&str, &str) -> bool) -> Option<String> {
    let all = expected.len() == texts.len() && expected.iter().zip(texts).all(|(want, have)| fits(want, have));
    (!all).then(|| format!("{what}:\n    {}\n  expected:\n    {}", texts.join("\n    "), expected.join("\n    ")))
}

/// Whether an object has all expected fields. `null` means that the field is absent.
pub fn holds(object: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Null => object.is_null(),
        Value::Object(members) => {
            members.iter().all(|(key, wanted)| holds(object.get(key).unwrap_or(&Value::Null), wanted))
        }
        other => object == other,
    }
}
