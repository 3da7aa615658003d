//! Manifests that `kubectl apply` must refuse, and the words that the user reads then.
//!
//! Each case is one of the manifests of the design notes with one mistake. The test does not check whether the schema, a CEL rule or the webhook
//! refuses it: the output of kubectl must contain the path and the reason.

use serde_json::{Value, json};

use crate::support::{Namespace, Rig};

/// One of the manifests of the design notes.
#[derive(Clone, Copy)]
pub enum Seed {
    Class,
    Set,
    Deployment,
}

impl Seed {
    /// The text of the manifest.
    pub fn yaml(self) -> &'static str {
        match self {
            Self::Class => include_str!("../manifests/machineclass.yaml"),
            Self::Set => include_str!("../manifests/machineset.yaml"),
            Self::Deployment => include_str!("../manifests/machinedeployment.yaml"),
        }
    }

    /// The object in the manifest.
    pub fn object(self) -> Value {
        let documents = machine_controller_manager::cli::documents::parse_documents("seed", self.yaml());
        documents.expect("the seed is YAML").remove(0).value
    }
}

/// A mistake and its description.
struct Refusal {
    mistake: &'static str,
    seed: Seed,
    pointer: &'static str,
    /// The wrong value; `None` removes the field.
    value: Option<Value>,
    path: &'static str,
    words: &'static str,
    refused_by: RefusedBy,
}

/// The part that refuses the mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedBy {
    /// The definition of the kind; it refuses also while no webhook answers.
    Definition,
    /// Only the webhook.
    Webhook,
}

fn refusals() -> Vec<Refusal> {
    [refused_deployments(), refused_sets(), refused_classes()].into_iter().flatten().collect()
}

fn refused_deployments() -> Vec<Refusal> {
    let case = |mistake, pointer, value, path, words, refused_by| Refusal {
        mistake,
        seed: Seed::Deployment,
        pointer,
        value,
        path,
        words,
        refused_by,
    };
    vec![
        case(
            "a surge that is a word",
            "/spec/strategy/rollingUpdate/maxSurge",
            Some(json!("one")),
            "spec.strategy.rollingUpdate.maxSurge",
            "a valid percent string must be a numeric string followed by an ending '%'",
            RefusedBy::Definition,
        ),
        case(
            "a negative surge",
            "/spec/strategy/rollingUpdate/maxSurge",
            Some(json!(-1)),
            "spec.strategy.rollingUpdate.maxSurge",
            "greater than or equal to 0",
            RefusedBy::Definition,
        ),
        case(
            "a share that no number holds",
            "/spec/strategy/rollingUpdate/maxUnavailable",
            Some(json!("99999999999%")),
            "spec.strategy.rollingUpdate.maxUnavailable",
            "must fit a 32-bit integer",
            RefusedBy::Webhook,
        ),
        case(
            "an empty selector",
            "/spec/selector",
            Some(json!({})),
            "spec.selector",
            "empty selector is invalid",
            RefusedBy::Definition,
        ),
        case(
            "a template that the selector does not select",
            "/spec/template/metadata/labels/name",
            Some(json!("other")),
            "spec.template.metadata.labels",
            "`selector` does not match template `labels`",
            RefusedBy::Webhook,
        ),
        case(
            "fewer machines than none",
            "/spec/replicas",
            Some(json!(-3)),
            "spec.replicas",
            "greater than or equal to 0",
            RefusedBy::Definition,
        ),
        case(
            "a strategy that does not exist",
            "/spec/strategy/type",
            Some(json!("Rolling")),
            "spec.strategy.type",
            "\"RollingUpdate\"",
            RefusedBy::Definition,
        ),
        case(
            "a class name that no object can have",
            "/spec/template/spec/class/name",
            Some(json!("Not A Name")),
            "spec.template.spec.class.name",
            "RFC 1123 subdomain",
            RefusedBy::Definition,
        ),
        case(
            "a duration in words",
            "/spec/template/spec/drainTimeout",
            Some(json!("5 minutes")),
            "spec.template.spec.drainTimeout",
            "5 minutes",
            RefusedBy::Definition,
        ),
    ]
}

fn refused_sets() -> Vec<Refusal> {
    let case = |mistake, pointer, value, path, words, refused_by| Refusal {
        mistake,
        seed: Seed::Set,
        pointer,
        value,
        path,
        words,
        refused_by,
    };
    vec![
        case(
            "an in-tree class kind",
            "/spec/template/spec/class/kind",
            Some(json!("AWSMachineClass")),
            "spec.template.spec.class.kind",
            "MachineClass",
            RefusedBy::Definition,
        ),
        case(
            "a class without a name",
            "/spec/template/spec/class/name",
            None,
            "spec.template.spec.class",
            "Name is required",
            RefusedBy::Definition,
        ),
        case(
            "one VM for every machine of a template",
            "/spec/template/spec/providerID",
            Some(json!("aws:///eu-west-1/i-1")),
            "spec.template.spec.providerID",
            "may not be set in a template",
            RefusedBy::Definition,
        ),
    ]
}

fn refused_classes() -> Vec<Refusal> {
    let case = |mistake, pointer, value, path, words, refused_by| Refusal {
        mistake,
        seed: Seed::Class,
        pointer,
        value,
        path,
        words,
        refused_by,
    };
    vec![
        case(
            "a class whose machines have no GPU count",
            "/nodeTemplate/capacity/gpu",
            None,
            "nodeTemplate",
            "should mandatorily have CPU, GPU and Memory configured",
            RefusedBy::Definition,
        ),
        case(
            "a class without a zone",
            "/nodeTemplate/zone",
            Some(json!("")),
            "nodeTemplate.zone",
            "MachineClass NodeTemplate Instance Type, region and zone cannot be empty",
            RefusedBy::Webhook,
        ),
        case(
            "a class without a driver",
            "/provider",
            Some(json!("")),
            "provider",
            "name of the driver",
            RefusedBy::Webhook,
        ),
        case("a class without a spec", "/providerSpec", None, "providerSpec", "Required value", RefusedBy::Definition),
    ]
}

/// Applies every case. Each case must be refused with its path and its words, and store no object.
pub async fn check_all_refusals(namespace: &Namespace) {
    try_all(namespace, &refusals()).await;
}

async fn try_all(namespace: &Namespace, refusals: &[Refusal]) {
    for refusal in refusals {
        let mut object = refusal.object();
        object["metadata"]["namespace"] = json!(namespace.name);
        let said = namespace.apply(&object.to_string()).await.fail();
        for wanted in [refusal.path, refusal.words] {
            assert!(said.contains(wanted), "{}: missing {wanted:?} in:\n{said}", refusal.mistake);
        }
    }
    for resource in ["machineclasses", "machinesets", "machinedeployments"] {
        assert!(namespace.list(resource).await.is_empty(), "a refused object of {resource} is stored");
    }
}

impl Refusal {
    /// The manifest with its mistake.
    fn object(&self) -> Value {
        let mut object = self.seed.object();
        set(&mut object, self.pointer, self.value.clone());
        object
    }
}

/// Sets or removes the value at a pointer; the parent must exist.
fn set(object: &mut Value, pointer: &str, value: Option<Value>) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer has a slash");
    let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is an object");
    match value {
        Some(value) => parent.insert(key.to_owned(), value),
        None => parent.remove(key),
    };
}

#[test]
fn every_case_changes_its_seed() {
    for refusal in refusals() {
        assert_ne!(refusal.object(), refusal.seed.object(), "{}", refusal.mistake);
    }
}

#[tokio::test]
async fn most_mistakes_are_refused_without_a_webhook() {
    let Some(rig) = Rig::shared("refusals::most_mistakes_are_refused_without_a_webhook").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("refusals").await;
    let (by_definition, by_webhook): (Vec<_>, Vec<_>) =
        refusals().into_iter().partition(|refusal| refusal.refused_by == RefusedBy::Definition);
    try_all(&namespace, &by_definition).await;
    // When the definitions refuse one of these mistakes too, the case belongs to the other group.
    for refusal in by_webhook {
        let mut object = refusal.object();
        object["metadata"]["namespace"] = json!(namespace.name);
        namespace.apply(&object.to_string()).await.succeed();
    }
}
