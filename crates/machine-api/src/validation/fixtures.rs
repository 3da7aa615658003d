//! The base objects of spec/api-and-admission §12, and questions that change them.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use serde_json::{Value, json};

use super::*;
use crate::{
    defaulting::{DefaultingRequest, FinalizerDefault, default_patch},
    names::finalizer,
};
use kube_values::json::Json;

pub const ALICE: &str = "alice";
pub const CONTROLLER: &str = "ctl";

/// The base object of a kind, changed by a JSON merge patch.
pub fn object(kind: Kind, patch: &Value) -> Value {
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}}});
    let selector = json!({"matchLabels": {"a": "b"}});
    let mut object = match kind {
        Kind::Machine => json!({"metadata": {"name": "m1"}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}}}),
        Kind::MachineSet => {
            json!({"metadata": {"name": "s1"}, "spec": {"replicas": 1, "selector": selector, "template": template}})
        }
        Kind::MachineDeployment => json!({"metadata": {"name": "d1"}, "spec": {
            "replicas": 3, "selector": selector, "template": template,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}),
        Kind::MachineClass => json!({"metadata": {"name": "c1"}, "provider": "virtual", "providerSpec": {},
            "nodeTemplate": {"capacity": {"cpu": 4, "gpu": 0, "memory": "8Gi"}, "instanceType": "t", "region": "r", "zone": "z"}}),
    };
    object["metadata"]["namespace"] = json!("default");
    object["metadata"]["finalizers"] = json!([finalizer::MACHINE]);
    json_patch::merge(&mut object, patch);
    object
}

/// A question: the user, the change and the settings.
pub struct Question {
    kind: Kind,
    old: Option<Value>,
    new: Option<Value>,
    user: &'static str,
    providers: Box<dyn Providers>,
    references: Box<dyn References>,
    dependents: Dependents,
}

fn question(kind: Kind, old: Option<Value>, new: Option<Value>) -> Question {
    let (providers, references) = (Box::new(NoProviders), Box::new(NoReferences));
    let dependents = Dependents::Collected;
    Question { kind, old, new, user: ALICE, providers, references, dependents }
}

/// Creation of the base object with these changes.
pub fn create(kind: Kind, patch: Value) -> Question {
    question(kind, None, Some(object(kind, &patch)))
}

/// An update of the base object. Both patches change the base object.
pub fn update(kind: Kind, old: Value, new: Value) -> Question {
    question(kind, Some(object(kind, &old)), Some(object(kind, &new)))
}

/// Deletion of the base object with these changes.
pub fn delete(kind: Kind, old: Value) -> Question {
    question(kind, Some(object(kind, &old)), None)
}

impl Question {
    pub fn by(mut self, user: &'static str) -> Self {
        self.user = user;
        self
    }

    pub fn providers(mut self, providers: impl Providers + 'static) -> Self {
        self.providers = Box::new(providers);
        self
    }

    pub fn knowing(mut self, references: impl References + 'static) -> Self {
        self.references = Box::new(references);
        self
    }

    /// The deletion keeps the dependents of the object.
    pub fn orphaning(mut self) -> Self {
        self.dependents = Dependents::Orphaned;
        self
    }

    /// Applies the defaults, then the rules, as an API server would.
    pub fn answer(mut self) -> Findings {
        if let Some(new) = &mut self.new {
            let (old, given) = (self.old.as_ref().map(Json::from), Json::from(&*new));
            let change = match &old {
                Some(old) => Change::Update { old, new: &given },
                None => Change::Create { new: &given },
            };
            let patch = default_patch(&DefaultingRequest {
                kind: self.kind,
                version: ApiVersion::V1alpha1,
                change,
                namespace: "default",
                finalizers: FinalizerDefault::Add,
            });
            json_patch::patch(new, &patch).unwrap();
        }
        let policy = Policy { profile: Profile::Compat, controllers: ControllerUsers::named([CONTROLLER]) };
        let (old, new) = (self.old.as_ref().map(Json::from), self.new.as_ref().map(Json::from));
        let change = match (&old, &new) {
            (Some(old), Some(new)) => Change::Update { old, new },
            (None, Some(new)) => Change::Create { new },
            (old, None) => Change::Delete { old: old.as_ref(), dependents: self.dependents },
        };
        validate(&ValidationRequest {
            kind: self.kind,
            version: ApiVersion::V1alpha1,
            change,
            namespace: "default",
            user: User { name: self.user, groups: &[] },
            policy: &policy,
            providers: &*self.providers,
            references: &*self.references,
        })
    }

    /// Asserts all refusals and all warnings, in order. An expected text with `…` at its end is a prefix.
    pub fn gives(self, denials: &[&str], warnings: &[&str]) {
        let found = self.answer();
        compare("denials", &found.errors().map(ToString::to_string).collect::<Vec<_>>(), denials);
        compare("warnings", &found.warnings().collect::<Vec<_>>(), warnings);
    }
}

impl Question {
    /// Asserts all refusals, in order.
    pub fn refuses(self, denials: &[&str]) {
        let found = self.answer();
        compare("denials", &found.errors().map(ToString::to_string).collect::<Vec<_>>(), denials);
        assert_eq!(found.denied(), denials.len());
    }
}

/// Expands abbreviations of long texts in tables.
fn spelled_out(text: &str) -> String {
    const DURATION: &str = "must be a duration such as \"30s\", \"10m\" or \"1h30m\"";
    const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
    const INCOMPLETE: &str =
        "Required value: MachineClass NodeTemplate Capacity should mandatorily have CPU, GPU and Memory configured";
    const NOWHERE: &str = "Required value: MachineClass NodeTemplate Instance Type, region and zone cannot be empty";
    text.replace("<duration>", DURATION)
        .replace("<percent>", PERCENT)
        .replace("<incomplete>", INCOMPLETE)
        .replace("<nowhere>", NOWHERE)
        .replace("<64 x>", &"x".repeat(64))
}

fn compare(what: &str, actual: &[String], expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|text| spelled_out(text)).collect();
    let fits = |(actual, expected): (&String, &String)| match expected.strip_suffix('…') {
        Some(start) => actual.starts_with(start),
        None => actual == expected,
    };
    let all_fit = actual.len() == expected.len() && actual.iter().zip(&expected).all(fits);
    assert!(all_fit, "{what}:\n{}\nexpected:\n{}", actual.join("\n"), expected.join("\n"));
}
