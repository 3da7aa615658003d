//! The committed schema of the commands' answers, and that answers fit it and say what their texts say (PK-076).

use regex::Regex;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::{
    drain::Drain,
    events::Warning,
    output::{API_VERSION, Answer, Characters, Detail, Source, Style, testing::plain},
    rollout::{
        history::{History, diff},
        plan::Plan,
        progress::Progress,
    },
    subject::{Subject, find},
    testing::{ago, fleet, now},
    top::overview::{Overview, testing::overview},
    tree::{Folding, Tree, tree},
    views::Vm,
    wait::{Goal, Waited},
    why::{Why, why},
    write::{Changes, Written},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kubectl-mcm.schema.json");

fn schema_of<A: Answer + JsonSchema>() -> Value {
    let mut schema = serde_json::to_value(SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<A>())
        .expect("a schema is JSON");
    let fields = json!({
        "apiVersion": { "const": API_VERSION },
        "kind": { "const": A::KIND },
        "source": { "enum": ["views", "stored"], "description": "What the answer was made from." },
    });
    let own = schema["properties"].as_object_mut().expect("an object");
    own.extend(fields.as_object().expect("an object").clone());
    let required = schema["required"].as_array_mut().expect("required fields");
    required.extend(["apiVersion", "kind", "source"].map(Value::from));
    // A field that the schema does not know is a mistake.
    schema["unevaluatedProperties"] = json!(false);
    json!({ A::KIND: schema })
}

fn schemas() -> Value {
    let all = [
        schema_of::<Changes>(),
        schema_of::<Drain>(),
        schema_of::<History>(),
        schema_of::<Plan>(),
        schema_of::<Progress>(),
        schema_of::<Overview>(),
        schema_of::<Tree>(),
        schema_of::<Waited>(),
        schema_of::<Why>(),
    ];
    all.into_iter().fold(json!({}), |mut all, one| {
        json_patch::merge(&mut all, &one);
        all
    })
}

fn document<A: Answer>(answer: &A) -> Value {
    let mut document = json!({ "apiVersion": API_VERSION, "kind": A::KIND, "source": "stored" });
    json_patch::merge(&mut document, &serde_json::to_value(answer).expect("JSON"));
    document
}

fn faults(document: &Value) -> Vec<String> {
    let schema = schemas()[document["kind"].as_str().expect("a kind")].clone();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The answer fits the schema, and JSON has the times and the names of the text.
fn fits<A: Answer>(answer: &A) {
    let document = document(answer);
    assert_eq!(faults(&document), Vec::<String>::new(), "{}", A::KIND);
    let style = Style { characters: Characters::Ascii, detail: Detail::Wide, ..plain(now()) };
    let (text, json) = (answer.text(Source::Stored, &style), document.to_string());
    let times = Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").expect("an expression");
    for time in times.find_iter(&text) {
        assert!(json.contains(time.as_str()), "{}: {} of the text is not in {json}", A::KIND, time.as_str());
    }
    for name in answer.names() {
        let name = name.rsplit_once("//").map_or(name.as_str(), |(_, name)| name);
        let name = name.rsplit('/').next().unwrap_or_default();
        assert!(json.contains(name), "{}: {name} is not in {json}", A::KIND);
    }
}

/// The same, and the text has the sentences of JSON.
fn says_all<A: Answer>(answer: &A) {
    fits(answer);
    let text = answer.text(Source::Stored, &plain(now()));
    for fact in facts(&document(answer)) {
        assert!(text.contains(&fact), "{}: {fact:?} of the JSON is not in {text}", A::KIND);
    }
}

/// The facts of an answer that its text has too: summaries, waits with their ends, and what comes next.
fn facts(document: &Value) -> Vec<String> {
    const NAMED: [&str; 5] = ["summary", "message", "endsWhen", "sentence", "change"];
    match document {
        Value::Array(all) => all.iter().flat_map(facts).collect(),
        Value::Object(fields) => {
            let own = NAMED.into_iter().filter_map(|name| fields.get(name)?.as_str());
            let own = own.map(|fact| fact.strip_prefix("waiting for ").unwrap_or(fact).to_owned());
            own.chain(fields.values().flat_map(facts)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn pk_076_the_committed_schema_is_that_of_the_answers() {
    let text = format!("{}\n", serde_json::to_string_pretty(&schemas()).expect("JSON"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(PATH, &text).expect("the folder is writable");
    }
    let committed = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(committed == text, "docs/kubectl-mcm.schema.json is old; UPDATE_GOLDEN=1 writes it again");
}

#[test]
fn pk_076_the_schema_finds_faults() {
    let fleet = fleet();
    let good = document(&Progress::of(&fleet.deployments[0], &fleet));
    for fault in
        [json!({ "source": "guessed" }), json!({ "wanted": "three" }), json!({ "more": 1 }), json!({ "name": null })]
    {
        let mut bad = good.clone();
        json_patch::merge(&mut bad, &fault);
        assert!(!faults(&bad).is_empty(), "{fault}");
    }
}

#[test]
fn pk_076_answers_fit_the_schema_and_text_and_json_agree() {
    let outlooks = json!([{
        "metadata": { "namespace": "ns", "name": "web-1-a" }, "stage": "Drain",
        "blockers": [{ "reason": "DrainBlocked", "since": ago(2280), "message": "waiting for Pod shop/db-0",
            "resolvedBy": "the budget allows an eviction" }],
        "deadlines": [{ "name": "drain", "at": ago(-4320), "onExpiry": "pods are deleted by force" }],
        "nextEffects": [{ "effect": "DrainNode", "target": { "kind": "Node", "name": "node-a" }, "when": "now" },
            { "effect": "LookAgain (drain)", "at": ago(-30), "when": "at" }],
    }]);
    let outlooks = serde_json::from_value(outlooks).expect("outlooks");
    for fleet in [fleet(), fleet().with_outlooks(Some(outlooks))] {
        let deployment = &fleet.deployments[0];
        fits(&tree(&fleet, Folding::Whole));
        fits(&History::of(deployment, &fleet));
        for object in ["web", "web-1-a", "set/web-2", "node/node-a", "vm/virtual:///a"] {
            let found = find(&object.parse().expect("an object"), "ns", &fleet, &[]).expect("it is there");
            let mut answer = why(&found, "ns", &fleet);
            let (reason, message) = ("NoQuota".to_owned(), "no quota".to_owned());
            answer.warnings = vec![Warning { reason, message, last: Some(now()), count: 3 }];
            says_all(&answer);
        }
    }
    let fleet = fleet();
    let deployment = &fleet.deployments[0];
    fits(&overview());
    says_all(&Progress::of(deployment, &fleet));
    let history = History { diff: diff(deployment, &fleet, 2), ..History::of(deployment, &fleet) };
    assert_eq!(faults(&document(&history)), Vec::<String>::new());
    let vm: Vm = serde_json::from_value(json!({ "providerID": "virtual:///lost", "state": "Orphan",
        "orphan": { "since": ago(60), "willBeDeletedAfter": ago(-600), "reason": "no machine lost exists" } }))
    .expect("a VM");
    let orphan = why(&Subject::Vm(Box::new(vm)), "ns", &fleet);
    says_all(&orphan);
    says_all(&Waited {
        goal: Goal::Gone,
        namespace: "ns".to_owned(),
        object_kind: Some("machine"),
        name: "m".to_owned(),
        summary: "machine \"m\" is gone".to_owned(),
    });
    fits(&Changes { unchanged: Some("nothing".to_owned()), ..Changes::default() });
    let written = Written {
        object_kind: "Machine",
        namespace: "ns".to_owned(),
        name: "m".to_owned(),
        change: "delete machine m".to_owned(),
        dry_run: true,
    };
    says_all(&Changes { changes: vec![written], unchanged: None });
}

#[test]
fn pk_076_plans_fit_the_schema() {
    let drain = serde_json::from_value(json!({
        "machineName": "m", "nodeName": "n", "mode": "Normal", "estimatedDuration": "2m0s", "deadline": ago(-7200), "willForce": true,
        "waves": [{ "kind": "EvictParallel", "pods": [{ "namespace": "shop", "name": "db-0" }], "estimate": "30s" }],
        "blocked": [{ "namespace": "shop", "name": "db-0", "forcedAfter": ago(-3600), "misconfigured": true,
            "budget": { "namespace": "shop", "name": "db", "disruptionsAllowed": 0 } }],
        "totals": { "pods": 1, "withVolumes": 0, "ignored": 2 },
    }))
    .expect("a plan");
    fits(&Drain { namespace: "ns".to_owned(), plan: drain });
    let plan = serde_json::from_value(json!({
        "admission": { "allowed": true, "errors": [], "warnings": ["small"] }, "strategy": "RollingUpdate", "toCreate": 1,
        "toReplace": [{ "name": "web-1-a", "phase": "Running", "order": 1, "reason": "OldTemplate", "node": "n" }],
        "steps": [{ "machineSet": "web-2", "from": 0, "to": 1, "total": 2, "available": 1, "at": "0s" }],
        "peakMachines": 2, "minAvailable": 1, "estimatedDuration": "8m0s", "stuck": { "reason": "NoSurge", "message": "no surge" },
    }))
    .expect("a plan");
    fits(&Plan { namespace: "ns".to_owned(), name: "web".to_owned(), plan });
}
