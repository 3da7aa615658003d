//! §7.2 and §7.3: discovery, documents, negotiation, tables, errors.

use serde_json::json;

use super::{Fact::*, Probe, config_map, delete, get, post, put, thing};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const G: &str = "/apis/probe.example.com";

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition of the kind `Widget` with this plural.
fn definition_of(plural: &str) -> serde_json::Value {
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.names.example.com")},
        "spec": {
            "group": "names.example.com", "scope": "Cluster",
            "names": {"plural": plural, "singular": plural.trim_end_matches('s'), "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}

pub fn probes() -> Vec<Probe> {
    let red = || post("$T", thing("a", json!({"color": "red"})));
    vec![
        Probe::new(
            "XA-001",
            [get("/api").facts([
                Is("/kind", json!("APIVersions")),
                Is("/versions", json!(["v1"])),
                Is("/serverAddressByClientCIDRs/0/clientCIDR", json!("0.0.0.0/0")),
            ])],
        ),
        Probe::new(
            "XA-002",
            [get("/apis").facts([
                Is("/kind", json!("APIGroupList")),
                Text("apiextensions.k8s.io"),
                Text("probe.example.com"),
            ])],
        ),
        Probe::new(
            "XA-003",
            [
                get(G).facts([Is("/kind", json!("APIGroup")), Is("/preferredVersion/version", json!("v1"))]),
                get("/apis/probe.example.com/").facts([Is("/preferredVersion/version", json!("v1"))]),
            ],
        ),
        Probe::new(
            "XA-004",
            [get("/apis/probe.example.com/v1").facts([
                Is("/resources/0/name", json!("things")),
                Is("/resources/0/shortNames", json!(["th"])),
                Count("/resources/0/verbs", 8),
                Text("things/status"),
                Text("things/scale"),
                Text("autoscaling"),
            ])],
        ),
        Probe::new("XA-005", [get("/apis/probe.example.com/v9").status(404).facts([Text("404 page not found")])]),
        Probe::new(
            "XA-006",
            [get("/apis").with("accept", AGGREGATED).facts([
                Is("/kind", json!("APIGroupDiscoveryList")),
                Header("content-type", AGGREGATED),
                Header("etag", "\""),
                Header("vary", "Accept"),
                Header("cache-control", "public"),
                Text("\"singularResource\":\"thing\""),
            ])],
        ),
        Probe::new(
            "XA-007",
            [
                get("/apis").with("accept", AGGREGATED).facts([KeepHeader("$TAG", "etag")]),
                get("/apis").with("accept", AGGREGATED).with("if-none-match", "$TAG").status(304),
            ],
        ),
        Probe::new(
            "XA-008",
            [
                get("/apis").with("accept", AGGREGATED).facts([KeepHeader("$TAG", "etag")]),
                post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", late_definition()),
                get("/apis")
                    .with("accept", AGGREGATED)
                    .with("if-none-match", "$TAG")
                    .eventually()
                    .facts([Text("late.example.com"), Header("etag", "\"")]),
                delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/laters.late.example.com"),
            ],
        ),
        Probe::new(
            "XA-009",
            [get("/apis")
                .with("accept", format!("application/vnd.kubernetes.protobuf;q=0,{AGGREGATED},application/json"))
                .facts([Is("/kind", json!("APIGroupDiscoveryList"))])],
        ),
        Probe::new(
            "XA-010",
            [get("/openapi/v3").eventually().facts([Text("/openapi/v3/apis/probe.example.com/v1?hash=")])],
        ),
        Probe::new(
            "XA-011",
            [
                get("/openapi/v3").eventually().facts([
                    Keep("$URL", "/paths/apis~1probe.example.com~1v1/serverRelativeURL"),
                    Present("/paths/apis~1probe.example.com~1v1"),
                ]),
                get("$URL").facts([
                    Holds("/openapi", "3.0"),
                    Header("cache-control", "public, immutable"),
                    // A real server writes UTC instead of GMT.
                    Header("expires", "20"),
                    Header("etag", "\""),
                ]),
            ],
        ),
        Probe::new(
            "XA-012",
            [get("/openapi/v3/apis/probe.example.com/v1?hash=ABC")
                .status(301)
                .facts([Header("location", "hash=")])
                .eventually()],
        ),
        Probe::new(
            "XA-013",
            [
                get("/openapi/v3/apis/probe.example.com/v1")
                    .eventually()
                    .facts([KeepHeader("$TAG", "etag"), Header("cache-control", "no-cache, private")]),
                get("/openapi/v3/apis/probe.example.com/v1").with("if-none-match", "$TAG").status(304),
            ],
        ),
        Probe::new("XA-014", [get("/openapi/v3/apis/nope/v1").status(404)]),
        Probe::new("XA-015", [get("/openapi/v2").facts([Is("/swagger", json!("2.0")), Header("etag", "\"")])]),
        Probe::new("XA-016", [get("/openapi/v2").with("accept", "text/html").status(406)]),
        Probe::new(
            "XA-018",
            [get("/version").facts([Present("/major"), Present("/minor"), Holds("/gitVersion", "v1.")])],
        ),
        Probe::new("XA-019", [get("/readyz?verbose").facts([Text("[+]ping ok\n"), Text("readyz check passed")])]),
        Probe::new(
            "XA-020",
            [get("/readyz?verbose&exclude=ping&exclude=zz").facts([
                Text("[+]ping excluded: ok"),
                Text("warn: some health checks cannot be excluded: no matches for \"zz\""),
            ])],
        ),
        Probe::new("XA-021", [get("/livez/ping").facts([Text("ok")]), get("/livez/nope").status(404)]),
        Probe::new("XA-022", [get("/").facts([Text("/apis/probe.example.com/v1"), Text("/openapi/v3")]).eventually()]),
        Probe::new(
            "XA-023",
            [get("/nothing").status(404).facts([Header("content-type", "text/plain"), Text("404 page not found")])],
        ),
        Probe::new(
            "XA-025",
            [get("$T/x").status(404).facts([
                Is("/reason", json!("NotFound")),
                Is("/details/kind", json!("things")),
                Is("/details/group", json!("probe.example.com")),
                Is("/details/name", json!("x")),
                Is("/message", json!("things.probe.example.com \"x\" not found")),
            ])],
        ),
        Probe::new(
            "XA-026",
            [get("$M/x")
                .status(404)
                .facts([Is("/message", json!("configmaps \"x\" not found")), Absent("/details/group")])],
        ),
        Probe::new(
            "XA-027",
            [get("/apis/probe.example.com/v1/namespaces/$NS/nothings").status(404).facts([Text("404 page not found")])],
        ),
        Probe::new(
            "XA-028",
            [
                red(),
                get("$T/a")
                    .with("accept", "application/yaml")
                    .facts([Header("content-type", "application/yaml"), Text("apiVersion:")]),
            ],
        ),
        // A real server writes the reason in protobuf.
        Probe::new("XA-029", [get("$T").with("accept", "application/vnd.kubernetes.protobuf").status(406)]),
        Probe::new(
            "XA-030",
            [get("$T")
                .with("accept", "application/vnd.kubernetes.protobuf;q=0,application/json")
                .facts([Is("/kind", json!("ThingList"))])],
        ),
        Probe::new("XA-031", [get("$M").with("accept", "text/html").status(406)]),
        Probe::new(
            "XA-032",
            [super::Step::new("POST", "$M")
                .with("content-type", "text/plain")
                .status(415)
                .facts([Text("the body of the request was in an unknown format")])],
        ),
        Probe::new(
            "XA-033",
            [
                red(),
                get("$T?limit=1").with("accept", TABLE).facts([
                    Is("/kind", json!("Table")),
                    Is("/apiVersion", json!("meta.k8s.io/v1")),
                    Is("/columnDefinitions/0/name", json!("Name")),
                    Is("/columnDefinitions/1/name", json!("Color")),
                    Is("/columnDefinitions/5/name", json!("Items")),
                    Is("/columnDefinitions/5/priority", json!(1)),
                    Is("/rows/0/cells/4", json!(null)),
                    Is("/rows/0/cells/1", json!("red")),
                    Is("/rows/0/cells/2", json!(1)),
                    Is("/rows/0/object/kind", json!("PartialObjectMetadata")),
                ]),
            ],
        ),
        Probe::new(
            "XA-034",
            [
                red(),
                get("$T/a?includeObject=None")
                    .with("accept", TABLE)
                    .facts([Count("/rows", 1), Absent("/rows/0/object")]),
            ],
        ),
        Probe::new(
            "XA-035",
            [
                red(),
                get("$T/a?includeObject=Foo")
                    .with("accept", TABLE)
                    .status(400)
                    .facts([Holds("/message", "includeObject: Invalid value: \"Foo\"")]),
            ],
        ),
        Probe::new(
            "XA-036",
            [
                red(),
                get("$T/a")
                    .with("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
                    .facts([Is("/kind", json!("PartialObjectMetadata")), Absent("/spec")]),
            ],
        ),
        Probe::new(
            "XA-037",
            [red(), get("$T/a").with("accept", "application/json;as=Nope;v=v1;g=meta.k8s.io").status(406)],
        ),
        Probe::new(
            "XA-038",
            [
                red(),
                get("$T/a")
                    .with("accept", "application/json;as=Nope;v=v1;g=meta.k8s.io,application/json")
                    .facts([Is("/kind", json!("Thing"))]),
            ],
        ),
        Probe::new(
            "XA-040",
            [
                red(),
                get("$T/a").with("user-agent", "curl/8").facts([Text("\n  \"")]),
                get("$T/a?pretty=false").with("user-agent", "curl/8").facts([Lacks("\n  \"")]),
            ],
        ),
        Probe::new(
            "XA-041",
            [
                get("$M?timeout=abc").status(400).facts([Text("invalid timeout specified in the request URL")]),
                get("$M?timeout=0s"),
                // A watch has no deadline, so its timeout is not parsed.
                get("$M?watch=1&timeout=abc&timeoutSeconds=1"),
            ],
        ),
        Probe::new(
            "XA-042",
            [super::Step::new("OPTIONS", "$M").status(405).facts([Is("/reason", json!("MethodNotAllowed"))])],
        ),
        Probe::new("XA-043", [delete("/api/v1/namespaces").status(405)]),
        Probe::new("XA-044", [get("$M/..").status(400).facts([Text("Name parameter invalid")])]),
        Probe::new(
            "XA-045",
            [
                get("$M").facts([KeepHeader("$AUDIT", "audit-id"), Header("cache-control", "no-cache, private")]),
                get("$M").with("audit-id", "abc-1").facts([Header("audit-id", "abc-1")]),
            ],
        ),
        // A user without a role: a user with separate credentials would give the same result.
        Probe::new(
            "XA-136",
            [
                get("/api/v1/nodes").with("impersonate-user", "alice").status(403).facts([
                    Is("/reason", json!("Forbidden")),
                    Is(
                        "/message",
                        json!(
                            "nodes is forbidden: User \"alice\" cannot list resource \"nodes\" in API group \"\" at the \
                             cluster scope"
                        ),
                    ),
                ]),
                get("/metrics").with("impersonate-user", "alice").status(403).facts([
                    Is("/reason", json!("Forbidden")),
                    Is("/message", json!("forbidden: User \"alice\" cannot get path \"/metrics\"")),
                ]),
                // Every user may use discovery and may review their own access.
                get("/apis").with("impersonate-user", "alice"),
            ],
        ),
        // The names of a kind belong to one definition of a group. After its deletion they belong to the next one.
        Probe::new(
            "XA-023-NAMES",
            [
                post(DEFINITIONS, definition_of("widgets")),
                get(&format!("{DEFINITIONS}/widgets.names.example.com"))
                    .eventually()
                    .facts([Is("/status/conditions/1/status", json!("True"))]),
                post(DEFINITIONS, definition_of("gadgets")),
                get(&format!("{DEFINITIONS}/gadgets.names.example.com")).eventually().facts([
                    Is("/status/conditions/0/type", json!("NamesAccepted")),
                    Is("/status/conditions/0/status", json!("False")),
                    Is("/status/conditions/0/message", json!("\"WidgetList\" is already in use")),
                    Is("/status/conditions/0/reason", json!("ListKindConflict")),
                    Is("/status/conditions/1/type", json!("Established")),
                    Is("/status/conditions/1/status", json!("False")),
                    Is("/status/conditions/1/reason", json!("NotAccepted")),
                    Is("/status/acceptedNames/kind", json!("")),
                ]),
                get("/apis/names.example.com/v1/gadgets").status(404),
                delete(&format!("{DEFINITIONS}/widgets.names.example.com")),
                get(&format!("{DEFINITIONS}/gadgets.names.example.com")).eventually().facts([
                    Is("/status/conditions/0/status", json!("True")),
                    Is("/status/acceptedNames/kind", json!("Widget")),
                ]),
                get("/apis/names.example.com/v1/gadgets").eventually(),
                delete(&format!("{DEFINITIONS}/gadgets.names.example.com")),
            ],
        ),
        // An object that exists from the start, and which programs in a cluster look for.
        Probe::new(
            "XA-001-SERVICE",
            [get("/api/v1/namespaces/default/services/kubernetes").eventually().facts([
                Is("/metadata/labels/component", json!("apiserver")),
                Is("/spec/ports/0/name", json!("https")),
                Is("/spec/ports/0/port", json!(443)),
            ])],
        ),
        Probe::new("XA-137", reviews()),
        Probe::new(
            "XA-067",
            [
                put("$T/zz", thing("zz", json!({"color": "red"}))).one_of(&[404, 422]),
                put(
                    "/apis/coordination.k8s.io/v1/namespaces/$NS/leases/l",
                    json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {},
                    }),
                )
                .status(201),
                put("$M/zz", config_map("zz")).status(404),
            ],
        ),
    ]
}

/// Access reviews, and a token of a service account from its creation to its review.
fn reviews() -> Vec<super::Step> {
    let authorization = "/apis/authorization.k8s.io/v1";
    let accounts = "/api/v1/namespaces/$NS/serviceaccounts";
    let nodes = json!({"verb": "list", "resource": "nodes"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"$TOKEN"}}"#;
    vec![
        post(&format!("{authorization}/selfsubjectaccessreviews"), json!({"spec": {"resourceAttributes": nodes}}))
            .facts([Is("/status/allowed", json!(true))]),
        post(&format!("{authorization}/selfsubjectaccessreviews"), json!({"spec": {"resourceAttributes": nodes}}))
            .with("impersonate-user", "alice")
            .facts([Is("/status/allowed", json!(false))]),
        post(
            &format!("{authorization}/subjectaccessreviews"),
            json!({"spec": {"resourceAttributes": nodes, "user": "bob"}}),
        )
        .facts([Is("/status/allowed", json!(false))]),
        post(
            &format!("{authorization}/subjectaccessreviews"),
            json!({"spec": {"resourceAttributes": nodes, "user": "bob", "groups": ["system:masters"]}}),
        )
        .facts([Is("/status/allowed", json!(true))]),
        post(accounts, account),
        post(&format!("{accounts}/robot/token"), request)
            .facts([Is("/kind", json!("TokenRequest")), Keep("$TOKEN", "/status/token")]),
        post("/apis/authentication.k8s.io/v1/tokenreviews", token).facts([
            Is("/status/authenticated", json!(true)),
            Is("/status/user/username", json!("system:serviceaccount:$NS:robot")),
            Is(
                "/status/user/groups",
                json!(["system:serviceaccounts", "system:serviceaccounts:$NS", "system:authenticated"]),
            ),
        ]),
        post("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": "wrong"}}))
            .facts([Absent("/status/user/username"), Present("/status/error")]),
    ]
}

/// A definition that is created while a client reads discovery.
fn late_definition() -> serde_json::Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "laters.late.example.com"},
        "spec": {
            "group": "late.example.com", "scope": "Namespaced",
            "names": {"plural": "laters", "singular": "later", "kind": "Later", "listKind": "LaterList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    })
}
