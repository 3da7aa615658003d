//! §7.7: lists and watches.

use serde_json::json;

use super::{Fact::*, Probe, Step, config_map, delete, get, merge, post, thing};

pub fn probes() -> Vec<Probe> {
    let maps =
        |count: usize| -> Vec<Step> { (1..=count).map(|at| post("$M", config_map(&format!("m{at}")))).collect() };
    let list = |name: &str, color: &str| post("$T", thing(name, json!({"color": color})));
    let options =
        |query: &str| get(&format!("$M?{query}")).status(422).facts([Is("/details/kind", json!("ListOptions"))]);
    vec![
        // Controllers may create kube-root-ca.crt in a namespace; the selector excludes it.
        Probe::new("XA-112", [maps(5), vec![
            get("$M?limit=2").facts([
                Count("/items", 2), Is("/items/0/metadata/name", json!("m1")), Is("/metadata/remainingItemCount", json!(3)),
                Absent("/items/0/kind"), Keep("$NEXT", "/metadata/continue"), Keep("$RV", "/metadata/resourceVersion"),
            ]),
            get("$M?limit=2&continue=$NEXT").facts([
                Count("/items", 2), Is("/metadata/remainingItemCount", json!(1)), Keep("$NEXT", "/metadata/continue"),
                Same("/metadata/resourceVersion", "$RV"),
            ]),
            get("$M?limit=2&continue=$NEXT").facts([
                Count("/items", 1), Absent("/metadata/remainingItemCount"), Same("/metadata/resourceVersion", "$RV"),
            ]),
        ]]
        .concat()),
        Probe::new("XA-113", [maps(3), vec![
            get("$M?limit=2").facts([Keep("$NEXT", "/metadata/continue")]),
            delete("$M/m3"),
            post("$M", config_map("m4")),
            get("$M?limit=2&continue=$NEXT").facts([Count("/items", 1), Is("/items/0/metadata/name", json!("m3"))]),
        ]]
        .concat()),
        Probe::new("XA-114", [maps(3), vec![
            get("$M?limit=1&continue=abc").status(400).facts([Text("continue key is not valid")]),
            get("$M?limit=1").facts([Keep("$NEXT", "/metadata/continue")]),
            get("$M?limit=1&continue=$NEXT&resourceVersion=5").status(400).facts([
                Text("specifying resource version is not allowed when using continue"),
            ]),
        ]]
        .concat()),
        Probe::new("XA-115", [get("$M?limit=abc").status(400), get("$M?limit=-1")]),
        Probe::new("XA-116", [get("$M?resourceVersion=99999999").status(504).facts([
            Is("/reason", json!("Timeout")), Text("ResourceVersionTooLarge"), Header("retry-after", "1"),
        ])]),
        Probe::new("XA-117", [
            options("resourceVersionMatch=Exact"),
            options("resourceVersionMatch=Exact&resourceVersion=0"),
            options("resourceVersionMatch=Foo&resourceVersion=5"),
        ]),
        Probe::new("XA-118", [get("$M?resourceVersion=abc").status(400)]),
        Probe::new("XA-119", [
            get("$M?labelSelector=a%20b").status(400).facts([Text("unable to parse requirement")]),
            get("$M?labelSelector=a%3Eb").status(400).facts([Text("unable to parse requirement")]),
        ]),
        Probe::new("XA-120", [
            get("$M?fieldSelector=data.a%3D1").status(400),
            get("$T?fieldSelector=spec.replicas%3D1").status(400).facts([Text("field label not supported: spec.replicas")]),
        ]),
        Probe::new("XA-121", [
            list("t1", "green"),
            list("t2", "green"),
            list("t3", "red"),
            get("$T?fieldSelector=spec.color%3Dgreen,metadata.name!%3Dt1").facts([
                Count("/items", 1), Is("/items/0/metadata/name", json!("t2")),
            ]),
        ]),
        Probe::new("XA-122", [list("a", "red"), get("$T?watch=1&timeoutSeconds=1").facts([
            Is("/type", json!("ADDED")), Is("/object/metadata/name", json!("a")),
        ])]),
        Probe::new("XA-123", [
            get("$T").facts([Keep("$RV", "/metadata/resourceVersion")]),
            list("a", "red"),
            merge("$T/a", json!({"spec": {"replicas": 2}})),
            delete("$T/a"),
            get("$T?watch=1&resourceVersion=$RV&timeoutSeconds=1").facts([
                Count("", 3), Is("/0/type", json!("ADDED")), Is("/1/type", json!("MODIFIED")), Is("/2/type", json!("DELETED")),
            ]),
        ]),
        Probe::new("XA-124", [get("$T?watch=1&resourceVersion=1&timeoutSeconds=1").facts([
            Is("/type", json!("ERROR")), Is("/object/code", json!(410)), Is("/object/reason", json!("Expired")),
            Holds("/object/message", "too old resource version"),
        ])]),
        // The list waits until the cache contains the object. A request with revision 0 reads the cache.
        Probe::new("XA-125", [list("a", "red"), get("$T"), get("$T?watch=1&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=2").facts([
            Is("/0/type", json!("ADDED")), Is("/1/type", json!("BOOKMARK")), Is("/1/object/kind", json!("Thing")),
            Present("/1/object/metadata/resourceVersion"),
        ])]),
        Probe::new("XA-126", [
            list("a", "red"),
            get("$T?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1")
                .facts([
                    Is("/0/type", json!("ADDED")), Is("/1/type", json!("BOOKMARK")),
                    Is("/1/object/metadata/annotations/k8s.io~1initial-events-end", json!("true")),
                ]),
        ]),
        Probe::new("XA-127", [
            get("$T?watch=1&sendInitialEvents=true").status(422).facts([
                Text("requires setting resourceVersionMatch to NotOlderThan"),
            ]),
            get("$T?sendInitialEvents=true").status(422).facts([Text("sendInitialEvents is forbidden for list")]),
        ]),
        Probe::new("XA-128", [
            list("a", "red").facts([Keep("$RV", "/metadata/resourceVersion")]),
            merge("$T/a", json!({"metadata": {"labels": {"x": "1"}}})),
            merge("$T/a", json!({"metadata": {"labels": {"x": "2"}}})),
            get("$T?watch=1&labelSelector=x%3D1&resourceVersion=$RV&timeoutSeconds=1").facts([
                Count("", 2), Is("/0/type", json!("ADDED")), Is("/1/type", json!("DELETED")),
            ]),
        ]),
        Probe::new("XA-129", [
            list("a", "red"),
            list("b", "red"),
            get("$T?watch=1&timeoutSeconds=1").with("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").facts([
                Is("/0/object/kind", json!("Table")), Count("/0/object/rows", 1), Count("/0/object/columnDefinitions", 6),
                Count("/1/object/columnDefinitions", 0),
            ]),
        ]),
        Probe::new("XA-130", [get("$T?watch=false").facts([Is("/kind", json!("ThingList"))])]),
        Probe::new("XA-131", [get("$T?watch=1&resourceVersionMatch=Exact&resourceVersion=5").status(422)]),
    ]
}
