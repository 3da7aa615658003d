//! Discovery documents: the groups, versions and resources of a server, in the plain and in the aggregated form.
//!
//! Source: spec/extension-apiserver §2.3.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::resource::{Resource, Subresource};

/// Compares versions in the order that clients expect: stable before beta before alpha, higher numbers first.
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    match (version_rank(one), version_rank(other)) {
        (Some(one), Some(other)) => other.cmp(&one),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cmp(other),
    }
}

/// Stability, major version, and number of the alpha or beta version. `None` for a name that is not a version.
fn version_rank(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    let rest = &rest[digits..];
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, number) = rest
        .strip_prefix("beta")
        .map(|number| (1, number))
        .or_else(|| rest.strip_prefix("alpha").map(|number| (0, number)))?;
    Some((stability, major, if number.is_empty() { 0 } else { number.parse().ok()? }))
}

/// The groups of the resources, each with its versions. The preferred version is first.
pub fn groups(resources: &[&Resource]) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for resource in resources {
        let (name, version) = (&resource.kind.group, &resource.kind.version);
        let at = groups.iter().position(|(group, _)| group == name).unwrap_or_else(|| {
            groups.push((name.clone(), Vec::new()));
            groups.len() - 1
        });
        if !groups[at].1.contains(version) {
            groups[at].1.push(version.clone());
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by(|one, other| compare_versions(one, other));
    }
    groups
}

/// `/api`.
pub fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`.
pub fn group_list(resources: &[&Resource]) -> Value {
    let groups: Vec<Value> = groups(resources)
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_body(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_body(name: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
}

/// `/apis/<group>`. `None` for a group without resources.
pub fn group(resources: &[&Resource], name: &str) -> Option<Value> {
    let (_, versions) = groups(resources).into_iter().find(|(group, _)| group == name)?;
    let mut body = group_body(name, &versions);
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Some(body)
}

/// `/apis/<group>/<version>` or `/api/v1`. `None` for a version without resources.
pub fn resource_list(resources: &[&Resource], group: &str, version: &str) -> Option<Value> {
    let mut served: Vec<&&Resource> =
        resources.iter().filter(|resource| resource.kind.group == group && resource.kind.version == version).collect();
    if served.is_empty() {
        return None;
    }
    served.sort_by(|one, other| one.plural.cmp(&other.plural));
    let group_version = served[0].kind.api_version();
    let entries: Vec<Value> = served.iter().flat_map(|resource| legacy_entries(resource)).collect();
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}))
}

fn legacy_entries(resource: &Resource) -> Vec<Value> {
    let namespaced = resource.scope == super::resource::ResourceScope::Namespaced;
    let mut entry = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": namespaced,
        "kind": resource.kind.kind, "verbs": verbs(&resource.verbs),
    });
    add_names(&mut entry, resource);
    let mut entries = vec![entry];
    let mut subresources: Vec<&Subresource> = resource.subresources.iter().collect();
    subresources.sort_by(|one, other| one.name.cmp(&other.name));
    for subresource in subresources {
        let mut entry = json!({
            "name": format!("{}/{}", resource.plural, subresource.name), "singularName": "", "namespaced": namespaced,
            "kind": subresource.kind.kind, "verbs": verbs(&subresource.verbs),
        });
        if (&subresource.kind.group, &subresource.kind.version) != (&resource.kind.group, &resource.kind.version) {
            entry["group"] = json!(subresource.kind.group);
            entry["version"] = json!(subresource.kind.version);
        }
        entries.push(entry);
    }
    entries
}

fn verbs(verbs: &[super::request::Verb]) -> Vec<&'static str> {
    let mut names: Vec<_> = verbs.iter().map(|verb| verb.name()).collect();
    names.sort_unstable();
    names
}

fn add_names(entry: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

/// `/api` or `/apis` in the aggregated form. `version` is a version of `apidiscovery.k8s.io`.
pub fn aggregated(resources: &[&Resource], version: &str) -> Value {
    let items: Vec<Value> = groups(resources)
        .into_iter()
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let mut served: Vec<&&Resource> = resources
                        .iter()
                        .filter(|resource| resource.kind.group == name && &resource.kind.version == version)
                        .collect();
                    served.sort_by(|one, other| one.plural.cmp(&other.plural));
                    let served: Vec<Value> = served.iter().map(|resource| aggregated_entry(resource)).collect();
                    json!({"version": version, "resources": served, "freshness": "Current"})
                })
                .collect();
            json!({"metadata": {"name": name, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {},
        "items": items,
    })
}

fn kind_body(kind: &super::resource::GroupVersionKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn aggregated_entry(resource: &Resource) -> Value {
    let mut entry = json!({
        "resource": resource.plural, "responseKind": kind_body(&resource.kind), "scope": resource.scope.name(),
        "singularResource": resource.singular, "verbs": verbs(&resource.verbs),
    });
    add_names(&mut entry, resource);
    if !resource.subresources.is_empty() {
        let mut subresources: Vec<&Subresource> = resource.subresources.iter().collect();
        subresources.sort_by(|one, other| one.name.cmp(&other.name));
        let body = |subresource: &&Subresource| {
            json!({
                "subresource": subresource.name, "responseKind": kind_body(&subresource.kind),
                "verbs": verbs(&subresource.verbs),
            })
        };
        entry["subresources"] = json!(subresources.iter().map(body).collect::<Vec<_>>());
    }
    entry
}

/// The content type of the aggregated form. Clients recognise the form by it.
pub fn aggregated_content_type(version: &str) -> String {
    format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
}

/// A strong entity tag of a document: equal contents have equal tags.
pub fn entity_tag(content: &[u8]) -> String {
    // FNV-1a, twice with different starting values. The tag only distinguishes contents. It does not protect against
    // forgery.
    let hash = |start: u64| {
        content.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    format!("{:016X}{:016X}", hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_by_stability_and_number() {
        let mut versions = vec!["v1alpha1", "v1beta1", "v10", "v1beta2", "foo", "v2"];
        versions.sort_by(|one, other| compare_versions(one, other));
        assert_eq!(versions, ["v10", "v2", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }
}
