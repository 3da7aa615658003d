//! Merges the documents of extension API servers into the documents of this server: discovery in both forms, and `OpenAPI` v2. Pure functions.
//!
//! Source: spec/extension-apiserver §5.4, §5.5.

use serde_json::{Value, json};

use super::registration::GroupVersion;

/// The discovery data of a group-version of an extension API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Foreign {
    pub(super) serves: GroupVersion,
    pub(super) group_priority: i64,
    pub(super) version_priority: i64,
    /// The entry in aggregated discovery. `None` while the server is unavailable.
    pub(super) entry: Option<Value>,
}

/// The groups of extension API servers with their versions, both sorted by descending priority.
fn grouped(foreign: &[Foreign]) -> Vec<(&str, i64, Vec<&Foreign>)> {
    let mut groups: Vec<(&str, i64, Vec<&Foreign>)> = Vec::new();
    for one in foreign {
        match groups.iter_mut().find(|(group, ..)| *group == one.serves.group) {
            Some((_, priority, versions)) => {
                *priority = one.group_priority.max(*priority);
                versions.push(one);
            }
            None => groups.push((&one.serves.group, one.group_priority, vec![one])),
        }
    }
    for (_, _, versions) in &mut groups {
        versions.sort_by_key(|one| std::cmp::Reverse(one.version_priority));
    }
    groups.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(other.0)));
    groups
}

/// Adds groups to a list of groups. `name_at` is the JSON pointer to the name of a group. An existing group gets the additional versions. A new group
/// is inserted by its priority.
fn add_groups(
    groups: &mut Vec<Value>,
    foreign: &[Foreign],
    name_at: &str,
    priority_of: impl Fn(&str) -> i64,
    version: impl Fn(&Foreign) -> Value,
    whole: impl Fn(&str, Vec<Value>) -> Value,
) {
    let name = |group: &Value| group.pointer(name_at).and_then(Value::as_str).unwrap_or_default().to_owned();
    for (group, priority, versions) in grouped(foreign) {
        let versions: Vec<Value> = versions.into_iter().map(&version).collect();
        if let Some(known) = groups.iter_mut().find(|known| name(known) == group) {
            if let Some(all) = known["versions"].as_array_mut() {
                all.extend(versions);
            }
            continue;
        }
        let at = groups.iter().position(|known| {
            let other = foreign.iter().find(|one| one.serves.group == name(known)).map(|one| one.group_priority);
            other.unwrap_or_else(|| priority_of(&name(known))) < priority
        });
        groups.insert(at.unwrap_or(groups.len()), whole(group, versions));
    }
}

/// `/apis` in the plain form. Groups of unavailable servers are listed, too.
pub(super) fn group_list(mut list: Value, foreign: &[Foreign], priority_of: impl Fn(&str) -> i64) -> Value {
    if let Some(groups) = list["groups"].as_array_mut() {
        add_groups(
            groups,
            foreign,
            "/name",
            priority_of,
            plain_version,
            |group, versions| json!({"name": group, "preferredVersion": versions[0], "versions": versions}),
        );
    }
    list
}

/// `/apis/<group>`. `local` is the document of this server about the group.
pub(super) fn group(local: Option<Value>, foreign: &[Foreign], name: &str) -> Option<Value> {
    let versions: Vec<Value> = grouped(foreign)
        .into_iter()
        .filter(|(group, ..)| *group == name)
        .flat_map(|(_, _, versions)| versions)
        .map(plain_version)
        .collect();
    if let Some(mut body) = local {
        if let Some(all) = body["versions"].as_array_mut() {
            all.extend(versions);
        }
        return Some(body);
    }
    let preferred = versions.first()?.clone();
    Some(json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions, "preferredVersion": preferred,
    }))
}

fn plain_version(one: &Foreign) -> Value {
    json!({"groupVersion": one.serves.to_string(), "version": one.serves.version})
}

/// `/apis` in the aggregated form. The group-version of an unavailable server is stale and has no resources.
pub(super) fn aggregated(mut list: Value, foreign: &[Foreign], priority_of: impl Fn(&str) -> i64) -> Value {
    let version = |one: &Foreign| {
        one.entry.clone().unwrap_or_else(|| json!({"version": one.serves.version, "freshness": "Stale"}))
    };
    if let Some(groups) = list["items"].as_array_mut() {
        add_groups(
            groups,
            foreign,
            "/metadata/name",
            priority_of,
            version,
            |group, versions| json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions}),
        );
    }
    list
}

/// The entry of a group-version in the aggregated discovery of its server.
pub(super) fn entry_of(document: &Value, serves: &GroupVersion) -> Option<Value> {
    let group = document["items"].as_array()?.iter().find(|item| item["metadata"]["name"] == *serves.group)?;
    let version = group["versions"].as_array()?.iter().find(|version| version["version"] == *serves.version)?;
    let mut entry = version.clone();
    entry["freshness"] = json!("Current");
    Some(entry)
}

/// The entry made from the plain list of resources, for a server without aggregated discovery.
pub(super) fn entry_of_plain(list: &Value, serves: &GroupVersion) -> Option<Value> {
    let kind = |resource: &Value| {
        let or =
            |key: &str, own: &str| resource[key].as_str().filter(|text| !text.is_empty()).unwrap_or(own).to_owned();
        json!({"group": or("group", &serves.group), "version": or("version", &serves.version), "kind": resource["kind"]})
    };
    let all = list["resources"].as_array()?;
    let name = |resource: &Value| resource["name"].as_str().unwrap_or_default().to_owned();
    let mut resources: Vec<Value> = Vec::new();
    for resource in all.iter().filter(|resource| !name(resource).contains('/')) {
        let scope = if resource["namespaced"] == json!(true) { "Namespaced" } else { "Cluster" };
        let mut entry = json!({
            "resource": name(resource), "responseKind": kind(resource), "scope": scope,
            "singularResource": resource["singularName"], "verbs": resource["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if resource[key].is_array() {
                entry[key] = resource[key].clone();
            }
        }
        let prefix = format!("{}/", name(resource));
        let subresources: Vec<Value> = all
            .iter()
            .filter_map(|other| Some((name(other).strip_prefix(&prefix)?.to_owned(), other)))
            .map(|(name, other)| json!({"subresource": name, "responseKind": kind(other), "verbs": other["verbs"]}))
            .collect();
        if !subresources.is_empty() {
            entry["subresources"] = json!(subresources);
        }
        resources.push(entry);
    }
    Some(json!({"version": serves.version, "resources": resources, "freshness": "Current"}))
}

/// Adds the paths of a group-version and the schemas of its server to the `OpenAPI` v2 document. Existing schemas stay.
pub(super) fn add_swagger(all: &mut Value, other: &Value, serves: &GroupVersion) {
    let place = serves.path();
    let ours = |path: &String| path == &place || path.strip_prefix(&place).is_some_and(|rest| rest.starts_with('/'));
    let mut add = |section: &str, wanted: &dyn Fn(&String) -> bool| {
        let Some(into) = all[section].as_object_mut() else { return };
        for (name, value) in other[section].as_object().into_iter().flatten().filter(|(name, _)| wanted(name)) {
            into.entry(name.clone()).or_insert_with(|| value.clone());
        }
    };
    add("paths", &ours);
    add("definitions", &|_| true);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(group: &str, version: &str, priorities: (i64, i64), entry: Option<Value>) -> Foreign {
        Foreign {
            serves: GroupVersion { group: group.to_owned(), version: version.to_owned() },
            group_priority: priorities.0,
            version_priority: priorities.1,
            entry,
        }
    }

    fn fleet() -> Vec<Foreign> {
        let entry = json!({"version": "v1", "resources": [{"resource": "pets"}], "freshness": "Current"});
        vec![
            foreign("low.example.com", "v1", (100, 5), None),
            foreign("high.example.com", "v1", (2000, 10), Some(entry.clone())),
            foreign("high.example.com", "v2", (2000, 20), None),
        ]
    }

    fn priority(group: &str) -> i64 {
        if group == "apps" { 17_000 } else { 1000 }
    }

    #[test]
    fn groups_are_inserted_by_their_priority() {
        let list = json!({"groups": [{"name": "apps"}, {"name": "custom.example.com"}]});
        let merged = group_list(list, &fleet(), priority);
        let names: Vec<&Value> = merged["groups"].as_array().unwrap().iter().map(|group| &group["name"]).collect();
        assert_eq!(names, ["apps", "high.example.com", "custom.example.com", "low.example.com"]);
        assert_eq!(merged["groups"][1]["preferredVersion"]["version"], "v2", "the higher priority");
        assert_eq!(merged["groups"][1]["versions"][1]["groupVersion"], "high.example.com/v1");
    }

    #[test]
    fn xa_153_versions_of_unavailable_servers_are_stale() {
        let list = json!({"items": [{"metadata": {"name": "apps"}, "versions": [{"version": "v1"}]}]});
        let merged = aggregated(list, &fleet(), priority);
        assert_eq!(merged["items"][0]["versions"], json!([{"version": "v1"}]));
        assert_eq!(merged["items"][1]["versions"][0], json!({"version": "v2", "freshness": "Stale"}));
        assert_eq!(merged["items"][1]["versions"][1]["resources"][0]["resource"], "pets");
    }

    #[test]
    fn a_group_has_the_versions_of_all_its_servers() {
        let local = json!({"kind": "APIGroup", "name": "high.example.com", "versions": [{"version": "v3"}]});
        let versions = |body: Option<Value>| -> Vec<String> {
            let body = body.unwrap_or_default();
            let all = body["versions"].as_array().cloned().unwrap_or_default();
            all.iter().filter_map(|one| one["version"].as_str()).map(str::to_owned).collect()
        };
        assert_eq!(versions(group(Some(local), &fleet(), "high.example.com")), ["v3", "v2", "v1"]);
        assert_eq!(versions(group(None, &fleet(), "low.example.com")), ["v1"]);
        assert_eq!(group(None, &fleet(), "nobody.example.com"), None);
    }

    #[test]
    fn a_plain_list_becomes_an_entry() {
        let serves = GroupVersion { group: "g.example.com".to_owned(), version: "v1".to_owned() };
        let list = json!({"resources": [
            {"name": "pets", "singularName": "pet", "namespaced": true, "kind": "Pet", "verbs": ["get"], "shortNames": ["p"]},
            {"name": "pets/scale", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": ["get"]},
        ]});
        let entry = entry_of_plain(&list, &serves).unwrap();
        let kind = |group: &str, kind: &str| json!({"group": group, "version": "v1", "kind": kind});
        assert_eq!(
            entry["resources"],
            json!([{
                "resource": "pets", "responseKind": kind("g.example.com", "Pet"), "scope": "Namespaced",
                "singularResource": "pet", "verbs": ["get"], "shortNames": ["p"],
                "subresources": [{
                    "subresource": "scale", "responseKind": kind("autoscaling", "Scale"), "verbs": ["get"],
                }],
            }])
        );
    }

    #[test]
    fn known_schemas_stay_and_paths_of_other_group_versions_are_left_out() {
        let serves = GroupVersion { group: "g.example.com".to_owned(), version: "v1".to_owned() };
        let mut all = json!({"paths": {"/api/v1": 1}, "definitions": {"meta": 1}});
        let other = json!({
            "paths": {"/apis/g.example.com/v1/pets": 2, "/apis/g.example.com/v1beta1/pets": 3, "/version": 4},
            "definitions": {"meta": 2, "pet": 2},
        });
        add_swagger(&mut all, &other, &serves);
        let expected = json!({
            "paths": {"/api/v1": 1, "/apis/g.example.com/v1/pets": 2}, "definitions": {"meta": 1, "pet": 2},
        });
        assert_eq!(all, expected);
    }
}
