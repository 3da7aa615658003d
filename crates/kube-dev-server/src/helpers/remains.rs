//! The remaining contents of a namespace that is being deleted, and the conditions about them. The texts are the same as in the namespace controller
//! of a cluster, because clients read them.
//!
//! Source: k8s.io/kubernetes/pkg/controller/namespace/deletion.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    aggregator::GroupVersion,
    object::{self, text},
    store::Collection,
};

/// Type, reason and message of the conditions without a problem, in the order of the list.
const NO_PROBLEM: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

/// The remaining contents of a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Remains {
    /// The groups whose contents are unknown.
    undiscovered: Vec<String>,
    /// The messages of refused deletions.
    failures: Vec<String>,
    /// The number of objects of each resource.
    resources: BTreeMap<String, usize>,
    /// The number of objects with each finalizer.
    finalizers: BTreeMap<String, usize>,
}

impl Remains {
    pub(super) fn undiscovered(groups: &[GroupVersion]) -> Self {
        Self { undiscovered: groups.iter().map(ToString::to_string).collect(), ..Self::default() }
    }

    /// Adds the message of a refused deletion.
    pub(super) fn fail(&mut self, message: String) {
        self.failures.push(message);
    }

    /// Adds the remaining objects of a resource.
    pub(super) fn add(&mut self, collection: &Collection, left: &[&Value]) {
        if left.is_empty() {
            return;
        }
        self.resources.insert(format!("{}.{}", collection.resource, collection.group), left.len());
        for finalizer in left.iter().flat_map(|value| object::finalizers(value)) {
            *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
        }
    }

    /// Removes all numbers. They are not complete while pods remain, because other resources are not counted then.
    pub(super) fn count_nothing(&mut self) {
        self.resources.clear();
        self.finalizers.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reason and message of a condition. `None` without a problem.
    fn problem(&self, condition: &str) -> Option<(&'static str, String)> {
        let counted = |counts: &BTreeMap<String, usize>, between: &str| {
            let entries = counts.iter().map(|(name, count)| format!("{name} {between} {count} resource instances"));
            let mut entries: Vec<String> = entries.collect();
            entries.sort();
            entries.join(", ")
        };
        match condition {
            "NamespaceDeletionDiscoveryFailure" if !self.undiscovered.is_empty() => Some((
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
                    self.undiscovered.len(),
                    self.undiscovered.join(", ")
                ),
            )),
            "NamespaceDeletionContentFailure" if !self.failures.is_empty() => {
                let mut failures = self.failures.clone();
                failures.sort();
                let count = failures.len();
                let text = failures.join(", ");
                Some((
                    "ContentDeletionFailed",
                    format!("Failed to delete all resource types, {count} remaining: {text}"),
                ))
            }
            "NamespaceContentRemaining" if !self.resources.is_empty() => Some((
                "SomeResourcesRemain",
                format!("Some resources are remaining: {}", counted(&self.resources, "has")),
            )),
            "NamespaceFinalizersRemaining" if !self.finalizers.is_empty() => Some((
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {}", counted(&self.finalizers, "in")),
            )),
            _ => None,
        }
    }

    /// The new conditions of a namespace. `None` if it has them already.
    pub(super) fn conditions(&self, namespace: &Value, now: Timestamp) -> Option<Value> {
        let mut conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let before = conditions.clone();
        for (kind, default_reason, default_message) in NO_PROBLEM {
            let (status, reason, message) = match self.problem(kind) {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", default_reason, default_message.to_owned()),
            };
            let known = conditions.iter().position(|condition| condition["type"] == kind);
            let since = known.map(|at| &conditions[at]).filter(|known| text(known, "/status") == status);
            let since = since.map_or_else(|| object::time(now), |known| known["lastTransitionTime"].clone());
            let condition = json!({
                "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            });
            match known {
                Some(at) => conditions[at] = condition,
                None => conditions.push(condition),
            }
        }
        (conditions != before).then(|| json!(conditions))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn held(finalizers: &[&str]) -> Value {
        json!({"metadata": {"finalizers": finalizers}})
    }

    fn of(failures: &[&str], left: &[(&str, &str, Vec<Value>)]) -> Remains {
        let mut remains = Remains::default();
        for failure in failures {
            remains.fail((*failure).to_owned());
        }
        for (group, resource, values) in left {
            remains.add(&Collection::new(group, resource), &values.iter().collect::<Vec<_>>());
        }
        remains
    }

    #[rstest]
    #[case::nothing(of(&[], &[]), "NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed")]
    #[case::refused(
        of(&["two", "one"], &[]), "NamespaceDeletionContentFailure", "True", "ContentDeletionFailed",
        "Failed to delete all resource types, 2 remaining: one, two"
    )]
    #[case::left(
        of(&[], &[("", "configmaps", vec![held(&[]), held(&[])]), ("example.com", "things", vec![held(&[])])]),
        "NamespaceContentRemaining", "True", "SomeResourcesRemain",
        "Some resources are remaining: configmaps. has 2 resource instances, things.example.com has 1 resource instances"
    )]
    #[case::held(
        of(&[], &[("", "configmaps", vec![held(&["b/b"]), held(&["a/a", "b/b"])])]),
        "NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain",
        "Some content in the namespace has finalizers remaining: a/a in 1 resource instances, b/b in 2 resource instances"
    )]
    #[case::not_held(
        of(&[], &[("", "configmaps", vec![held(&[])])]), "NamespaceFinalizersRemaining", "False",
        "ContentHasNoFinalizers", "All content-preserving finalizers finished"
    )]
    fn the_conditions_of_remaining_contents(
        #[case] remains: Remains,
        #[case] kind: &str,
        #[case] status: &str,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let conditions = remains.conditions(&json!({}), Timestamp::UNIX_EPOCH).expect("there were none");
        let conditions = conditions.as_array().expect("a list");
        assert_eq!(conditions.len(), 5);
        let found = conditions.iter().find(|condition| condition["type"] == kind).expect("it is there");
        assert_eq!(
            [text(found, "/status"), text(found, "/reason"), text(found, "/message")],
            [status, reason, message]
        );
    }

    #[test]
    fn times_change_only_with_the_status_and_equal_conditions_are_not_written() {
        let left = |count| of(&[], &[("", "configmaps", vec![held(&[]); count])]);
        let at = |seconds| Timestamp::from_second(seconds).expect("in range");
        let time = |namespace: &Value| {
            let conditions = namespace["status"]["conditions"].as_array().expect("a list");
            let found = conditions.iter().find(|condition| condition["type"] == "NamespaceContentRemaining");
            text(found.expect("it is there"), "/lastTransitionTime").to_owned()
        };
        let mut namespace = json!({"status": {"conditions": [{"type": "Ours"}]}});
        namespace["status"]["conditions"] = left(2).conditions(&namespace, at(1)).expect("new");
        assert_eq!(namespace["status"]["conditions"][0], json!({"type": "Ours"}));
        assert_eq!(left(2).conditions(&namespace, at(2)), None);
        namespace["status"]["conditions"] = left(1).conditions(&namespace, at(3)).expect("another message");
        assert_eq!(time(&namespace), "1970-01-01T00:00:01Z");
        namespace["status"]["conditions"] = left(0).conditions(&namespace, at(4)).expect("another status");
        assert_eq!(time(&namespace), "1970-01-01T00:00:04Z");
    }
}
