//! §7.6: deletions, finalizers, garbage collection, namespaces, evictions.

use serde_json::{Value, json};

use super::{Fact::*, Probe, config_map, delete, get, merge, post, thing};

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]},
    })
}

fn held(name: &str) -> Value {
    let mut held = thing(name, json!({"color": "red"}));
    held["metadata"]["finalizers"] = json!(["probe.example.com/hold"]);
    held
}

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// The type and the status of a condition of a namespace. The conditions have a fixed order.
fn condition(at: usize, kind: &'static str, status: &'static str) -> super::Fact {
    let pointer = ["/status/conditions/0", "/status/conditions/1", "/status/conditions/2"][at];
    Part(pointer, json!({"type": kind, "status": status}))
}

/// A webhook for deletions of config maps in the namespace of the probe. No server listens on its port.
fn webhook_without_server() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "$NS"},
        "webhooks": [{
            "name": "w.probe.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "$NS"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}],
        }],
    })
}

/// A config map whose owner is a config map in the namespace `default`.
fn owned_map(name: &str) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner-$NS", "uid": "$UID"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}})
}

fn owned_role() -> Value {
    let mut role = owned_map("owned-$NS");
    role["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    role["kind"] = json!("ClusterRole");
    role
}

/// An owner that exists in a namespace where it cannot own the dependent: an event reports it. A dependent in a namespace is deleted, as if the owner
/// did not exist. A cluster-scoped dependent stays, because its owner cannot be looked up.
fn unreachable_owner(id: &'static str, event_namespace: &str, dependent: &Value, place: &str) -> Probe {
    let (name, namespace) = (dependent["metadata"]["name"].as_str().unwrap_or_default(), &dependent["kind"]);
    let stays = namespace == "ClusterRole";
    let shown_namespace = if stays { "" } else { "$NS" };
    let events = format!(
        "/api/v1/namespaces/{event_namespace}/events?fieldSelector=reason%3DOwnerRefInvalidNamespace,involvedObject.name%3D{name}"
    );
    let mut owner = config_map("owner-$NS");
    owner["metadata"]["labels"] = json!({"probe": "$NS"});
    let dependent_is = |status: u16| get(&format!("{place}/{name}")).status(status);
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: {shown_namespace}, name: owner-$NS, uid: $UID] does not exist in namespace \"{shown_namespace}\""
    );
    let mut steps = vec![
        post("/api/v1/namespaces/default/configmaps", owner).facts([Keep("$UID", "/metadata/uid")]),
        post(place, dependent),
        get(&events).eventually().facts([
            Count("/items", 1),
            Is("/items/0/type", json!("Warning")),
            Is("/items/0/message", json!(message)),
            Is("/items/0/source/component", json!("garbage-collector-controller")),
            Is("/items/0/involvedObject/kind", dependent["kind"].clone()),
        ]),
        if stays { dependent_is(200) } else { dependent_is(404).eventually() },
        get("/api/v1/namespaces/default/configmaps/owner-$NS"),
        delete("/api/v1/namespaces/default/configmaps/owner-$NS"),
    ];
    if stays {
        steps.push(delete(&format!("{place}/{name}")));
    }
    Probe::new(id, steps).with_controllers()
}

pub fn probes() -> Vec<Probe> {
    let red = || post("$T", thing("a", json!({"color": "red"})));
    let pods = "/api/v1/namespaces/$NS/pods";
    let account = "/api/v1/namespaces/$NS/serviceaccounts/default";
    let running = || merge("/api/v1/namespaces/$NS/pods/p/status", json!({"status": {"phase": "Running"}}));
    let ready = |name: &str| {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        merge(&format!("{pods}/{name}/status"), json!({"status": status}))
    };
    let budgets = "/apis/policy/v1/namespaces/$NS/poddisruptionbudgets";
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    });
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let evict = || post("/api/v1/namespaces/$NS/pods/p/eviction", &eviction);
    let dependent = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d","ownerReferences":[{"apiVersion":"probe.example.com/v1","kind":"Thing","name":"a","uid":"$UID","blockOwnerDeletion":true}]}}"#;
    let owner = || [red().facts([Keep("$UID", "/metadata/uid")]), post("$M", dependent)];
    let [one, two] = owner();
    let background = Probe::new(
        "XA-103",
        [one, two, delete("$T/a?propagationPolicy=Background"), get("$M/d").status(404).eventually()],
    );
    let [one, two] = owner();
    let foreground = Probe::new(
        "XA-104",
        [
            one,
            two,
            delete("$T/a?propagationPolicy=Foreground")
                .facts([Is("/metadata/finalizers", json!(["foregroundDeletion"]))]),
            get("$M/d").status(404).eventually(),
            get("$T/a").status(404).eventually(),
        ],
    );
    let [one, two] = owner();
    let orphan = Probe::new(
        "XA-105",
        [
            one,
            two,
            delete("$T/a?propagationPolicy=Orphan"),
            get("$T/a").status(404).eventually(),
            get("$M/d").facts([Absent("/metadata/ownerReferences")]),
        ],
    );
    let two_owners = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d","ownerReferences":[{"apiVersion":"probe.example.com/v1","kind":"Thing","name":"a","uid":"$UID"},{"apiVersion":"probe.example.com/v1","kind":"Thing","name":"b","uid":"$OTHER"}]}}"#;
    vec![
        Probe::new(
            "XA-094",
            [
                red().facts([Keep("$UID", "/metadata/uid")]),
                delete("$T/a").facts([
                    Is("/kind", json!("Status")),
                    Is("/status", json!("Success")),
                    Same("/details/uid", "$UID"),
                    Is("/details/kind", json!("things")),
                ]),
                get("$T/a").status(404),
            ],
        ),
        Probe::new(
            "XA-095",
            [
                post("$T", held("a")),
                delete("$T/a").facts([
                    Is("/kind", json!("Thing")),
                    Present("/metadata/deletionTimestamp"),
                    Is("/metadata/deletionGracePeriodSeconds", json!(0)),
                    Is("/metadata/generation", json!(2)),
                ]),
            ],
        ),
        Probe::new(
            "XA-096",
            [
                post("$T", held("a")),
                delete("$T/a")
                    .facts([Keep("$RV", "/metadata/resourceVersion"), Keep("$AT", "/metadata/deletionTimestamp")]),
                delete("$T/a")
                    .facts([Same("/metadata/resourceVersion", "$RV"), Same("/metadata/deletionTimestamp", "$AT")]),
            ],
        ),
        Probe::new(
            "XA-097",
            [
                post("$T", held("a")),
                delete("$T/a"),
                merge(
                    "$T/a",
                    json!({"metadata": {"finalizers": ["probe.example.com/hold", "probe.example.com/more"]}}),
                )
                .status(422)
                .facts([Text("no new finalizers can be added if the object is being deleted")]),
            ],
        ),
        Probe::new(
            "XA-098",
            [
                post("$T", held("a")),
                delete("$T/a").facts([Keep("$RV", "/metadata/resourceVersion")]),
                merge("$T/a", json!({"metadata": {"finalizers": null}})).facts([Absent("/metadata/finalizers")]),
                get("$T/a").status(404),
                get("$T?watch=1&resourceVersion=$RV&timeoutSeconds=1").facts([
                    Is("/type", json!("DELETED")),
                    Is("/object/metadata/finalizers", json!(["probe.example.com/hold"])),
                    Differs("/object/metadata/resourceVersion", "$RV"),
                ]),
            ],
        ),
        Probe::new(
            "XA-099",
            [
                red(),
                merge("$T/a", json!({"metadata": {"finalizers": ["nodomain"]}}))
                    .facts([Header("warning", "prefer a domain-qualified finalizer name")]),
                merge("$T/a", json!({"metadata": {"finalizers": null}})),
            ],
        ),
        Probe::new(
            "XA-100",
            [
                red(),
                super::Step { body: json!({"preconditions": {"uid": "other"}}).to_string(), ..delete("$T/a") }
                    .with("content-type", "application/json")
                    .status(409)
                    .facts([Text("UID in the precondition")]),
            ],
        ),
        Probe::new(
            "XA-101",
            [
                red(),
                delete("$T/a?propagationPolicy=Sideways")
                    .status(422)
                    .facts([Is("/details/kind", json!("DeleteOptions"))]),
                delete("$T/a?propagationPolicy=Orphan&orphanDependents=true").status(422),
                delete("$T/a?dryRun=Some").status(422),
            ],
        ),
        Probe::new(
            "XA-102",
            [
                red(),
                merge("$T/a", json!({"metadata": {"labels": {"l": "1"}}})),
                post("$T", thing("b", json!({"color": "red"}))),
                delete("$T?labelSelector=l%3D1").facts([Is("/kind", json!("ThingList")), Count("/items", 1)]),
                get("$T/a").status(404),
                get("$T/b"),
            ],
        ),
        background.with_controllers(),
        unreachable_owner("XA-103-REACH", "$NS", &owned_map("d"), "$M"),
        unreachable_owner("XA-103-CLUSTER", "default", &owned_role(), ROLES),
        // A dependent with another owner stays, and the reference to the deleted owner is removed.
        Probe::new(
            "XA-103-LETS-GO",
            [
                red().facts([Keep("$UID", "/metadata/uid")]),
                post("$T", thing("b", json!({"color": "red"}))).facts([Keep("$OTHER", "/metadata/uid")]),
                post("$M", two_owners),
                delete("$T/b"),
                get("$M/d")
                    .facts([Count("/metadata/ownerReferences", 1), Same("/metadata/ownerReferences/0/uid", "$UID")])
                    .eventually(),
            ],
        )
        .with_controllers(),
        foreground.with_controllers(),
        orphan.with_controllers(),
        Probe::new(
            "XA-106",
            [
                post("$T", held("a")),
                delete("/api/v1/namespaces/$NS")
                    .facts([Is("/status/phase", json!("Terminating")), Is("/spec/finalizers", json!(["kubernetes"]))]),
                post("$M", config_map("m")).status(403).facts([Text("NamespaceTerminating")]),
                merge("$T/a", json!({"metadata": {"finalizers": null}})),
                get("/api/v1/namespaces/$NS").status(404).eventually(),
            ],
        )
        .with_controllers(),
        Probe::new(
            "XA-106-REMAINS",
            [
                post("$T", held("a")),
                delete("/api/v1/namespaces/$NS"),
                get("/api/v1/namespaces/$NS").eventually().facts([
                    condition(2, "NamespaceDeletionContentFailure", "False"),
                    Is("/status/conditions/3/reason", json!("SomeResourcesRemain")),
                    Is(
                        "/status/conditions/3/message",
                        json!("Some resources are remaining: things.probe.example.com has 1 resource instances"),
                    ),
                    Is("/status/conditions/4/reason", json!("SomeFinalizersRemain")),
                    Is(
                        "/status/conditions/4/message",
                        json!(
                            "Some content in the namespace has finalizers remaining: probe.example.com/hold in 1 resource instances"
                        ),
                    ),
                ]),
                merge("$T/a", json!({"metadata": {"finalizers": null}})),
                get("/api/v1/namespaces/$NS").status(404).eventually(),
            ],
        )
        .with_controllers(),
        // A webhook refuses a deletion: the namespace reports it, and is deleted when no webhook refuses any more.
        Probe::new(
            "XA-106-REFUSED",
            [
                post("$M", config_map("m")),
                post(WEBHOOKS, webhook_without_server()),
                delete("$M/m?dryRun=All").status(500).eventually(),
                delete("/api/v1/namespaces/$NS"),
                get("/api/v1/namespaces/$NS").eventually().facts([
                    condition(2, "NamespaceDeletionContentFailure", "True"),
                    Is("/status/conditions/2/reason", json!("ContentDeletionFailed")),
                    Holds("/status/conditions/2/message", "Failed to delete all resource types, 1 remaining: "),
                    Holds("/status/conditions/2/message", "failed calling webhook"),
                ]),
                delete(&format!("{WEBHOOKS}/$NS")),
                get("/api/v1/namespaces/$NS").status(404).eventually(),
            ],
        )
        .with_controllers(),
        // Every namespace gets a default service account soon. A deleted account is created again, and it does not block the deletion of the
        // namespace.
        Probe::new(
            "XA-106-ACCOUNT",
            [
                get(account).eventually().facts([Keep("$UID", "/metadata/uid")]),
                get("/api/v1/namespaces/kube-node-lease/serviceaccounts/default").eventually(),
                delete(account),
                get(account).eventually().facts([Differs("/metadata/uid", "$UID")]),
                post("$T", held("a")),
                delete("/api/v1/namespaces/$NS"),
                get(account).status(404).eventually(),
                merge("$T/a", json!({"metadata": {"finalizers": null}})),
                get("/api/v1/namespaces/$NS").status(404).eventually(),
            ],
        )
        .with_controllers(),
        Probe::new(
            "XA-107",
            [delete("/api/v1/namespaces/default").status(403).facts([Text("this namespace may not be deleted")])],
        ),
        Probe::new(
            "XA-108",
            [
                post(pods, pod("p")),
                running(),
                post(budgets, &budget),
                evict().status(429).facts([
                    Is("/reason", json!("TooManyRequests")),
                    Is("/details/causes/0/reason", json!("DisruptionBudget")),
                    Is("/details/retryAfterSeconds", json!(10)),
                    Header("retry-after", "10"),
                ]),
            ],
        )
        .with_uncounted_budgets(),
        Probe::new(
            "XA-109",
            [
                post(pods, pod("p")),
                running(),
                evict().facts([Is("/kind", json!("Status")), Is("/status", json!("Success")), Is("/code", json!(201))]),
                get("/api/v1/namespaces/$NS/pods/p").facts([
                    Present("/metadata/deletionTimestamp"),
                    Is("/metadata/deletionGracePeriodSeconds", json!(30)),
                    Is("/metadata/generation", json!(2)),
                ]),
            ],
        ),
        Probe::new(
            "XA-110",
            [
                post(pods, pod("p")),
                delete("/api/v1/namespaces/$NS/pods/p?gracePeriodSeconds=0").facts([Is("/kind", json!("Pod"))]),
                get("/api/v1/namespaces/$NS/pods/p").status(404),
            ],
        ),
        Probe::new(
            "XA-109-ALLOWANCE",
            [
                post(pods, pod("p")),
                post(pods, pod("q")),
                ready("p"),
                ready("q"),
                post(budgets, &budget),
                get(&format!("{budgets}/b")).eventually().facts([
                    Is("/status/disruptionsAllowed", json!(1)),
                    Is("/status/conditions/0/type", json!("DisruptionAllowed")),
                    Is("/status/conditions/0/status", json!("True")),
                    Is("/status/conditions/0/reason", json!("SufficientPods")),
                ]),
                evict().eventually(),
                get(&format!("{budgets}/b")).eventually().facts([
                    Is("/status/disruptionsAllowed", json!(0)),
                    Is("/status/currentHealthy", json!(1)),
                    Is("/status/conditions/0/status", json!("False")),
                    Is("/status/conditions/0/reason", json!("InsufficientPods")),
                ]),
            ],
        )
        .with_controllers(),
        Probe::new("XA-111", [evict().status(404)]),
    ]
}
