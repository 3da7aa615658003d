//! `rollout history`: the revisions of a deployment, and what a revision changed in the template.
//!
//! Pure, apart from [`super`]'s requests. Source: spec/packaging §5.2.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::super::{
    fleet::{Fleet, is_current, revision},
    output::{Answer, Source, Style, length, table},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::{names::label, v1alpha1::MachineTemplateSpec};
use machine_controllers::snapshots::{DeploymentSnapshot, SetSnapshot};

/// A revision of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Revision {
    /// The revision.
    pub revision: i64,
    /// The set with its template.
    pub set: String,
    /// The class of its machines.
    pub class: String,
    /// The machines that it has now.
    pub machines: usize,
    /// When the set was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub created: Option<Timestamp>,
    /// Whether it is the present template.
    pub current: bool,
}

/// A field of the template that a revision changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Difference {
    /// The path of the field.
    pub path: String,
    /// The value in the revision before; absent: the field was not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value in the revision; absent: the field is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// What a revision changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Diff {
    /// The revision.
    pub revision: i64,
    /// The revision before; absent for the oldest that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<i64>,
    /// The changed fields. For the oldest revision: all fields.
    pub differences: Vec<Difference>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct History {
    /// The namespace of the deployment.
    pub namespace: String,
    /// The deployment.
    pub name: String,
    /// The revisions, the newest first.
    pub revisions: Vec<Revision>,
    /// What the requested revision changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<Diff>,
}

impl History {
    /// The revisions of a deployment.
    pub fn of(deployment: &DeploymentSnapshot, fleet: &Fleet) -> Self {
        let entry = |set: &SetSnapshot| Revision {
            revision: revision(set),
            set: set.name().to_owned(),
            class: set.template().spec.class.name.clone(),
            machines: fleet.machines_of(set).len(),
            created: set.created(),
            current: is_current(set, deployment),
        };
        Self {
            namespace: deployment.namespace().to_owned(),
            name: deployment.name().to_owned(),
            revisions: fleet.sets_of(deployment).into_iter().map(entry).collect(),
            diff: None,
        }
    }
}

/// What a revision changed, compared with the revision before it. `None` if the deployment has no such revision.
pub fn diff(deployment: &DeploymentSnapshot, fleet: &Fleet, wanted: i64) -> Option<Diff> {
    let sets = fleet.sets_of(deployment);
    let set = sets.iter().find(|set| revision(set) == wanted)?;
    let before = sets.iter().find(|set| revision(set) < wanted);
    let old = before.map(|set| fields(set.template())).unwrap_or_default();
    let new = fields(set.template());
    let paths: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differences = paths.into_iter().filter(|path| old.get(*path) != new.get(*path)).map(|path| Difference {
        path: path.clone(),
        before: old.get(path).cloned(),
        after: new.get(path).cloned(),
    });
    Some(Diff { revision: wanted, before: before.map(|set| revision(set)), differences: differences.collect() })
}

/// The fields of a template by their paths, without the label that distinguishes sets.
fn fields(template: &MachineTemplateSpec) -> BTreeMap<String, Value> {
    let mut template = template.clone();
    if let Some(labels) = &mut template.metadata.labels {
        labels.remove(label::MACHINE_TEMPLATE_HASH);
    }
    let mut all = BTreeMap::new();
    flatten("template", &serde_json::to_value(template).unwrap_or_default(), &mut all);
    all
}

fn flatten(path: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                // Keys of labels contain dots.
                let path = if name.contains('.') { format!("{path}[{name}]") } else { format!("{path}.{name}") };
                flatten(&path, value, all);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (place, value) in items.iter().enumerate() {
                flatten(&format!("{path}[{place}]"), value, all);
            }
        }
        value => {
            all.insert(path.to_owned(), value.clone());
        }
    }
}

impl Answer for History {
    const KIND: &'static str = "RolloutHistory";

    fn text(&self, _source: Source, style: &Style) -> String {
        if let Some(diff) = &self.diff {
            return diff_text(&self.name, diff);
        }
        let row = |one: &Revision| {
            let age = one.created.map(|created| length(style.now, created).to_string()).unwrap_or_default();
            let current = if one.current { "present" } else { "" };
            [
                one.revision.to_string(),
                one.set.clone(),
                one.class.clone(),
                one.machines.to_string(),
                age,
                current.to_owned(),
            ]
            .to_vec()
        };
        if self.revisions.is_empty() {
            return format!("deployment {} has no revision yet\n", self.name);
        }
        let rows: Vec<Vec<String>> = self.revisions.iter().map(row).collect();
        table(&["REVISION", "SET", "CLASS", "MACHINES", "AGE", "TEMPLATE"], &rows)
    }

    fn names(&self) -> Vec<String> {
        self.revisions.iter().map(|one| format!("set/{}", one.set)).collect()
    }
}

fn diff_text(name: &str, diff: &Diff) -> String {
    let compared = match diff.before {
        Some(before) => format!("compared with revision {before}"),
        None => "the oldest that is kept".to_owned(),
    };
    let mut text = format!("{name}, revision {} ({compared}):\n", diff.revision);
    if diff.differences.is_empty() {
        text.push_str("  no difference\n");
    }
    for one in &diff.differences {
        for (sign, value) in [("-", &one.before), ("+", &one.after)] {
            text.push_str(&value.as_ref().map(|value| format!("{sign} {}: {value}\n", one.path)).unwrap_or_default());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        output::testing::plain,
        testing::{fleet, now},
    };
    use super::*;

    #[test]
    fn revisions_are_listed_with_the_newest_first() {
        let fleet = fleet();
        let text = History::of(&fleet.deployments[0], &fleet).text(Source::Stored, &plain(now()));
        assert_eq!(
            text,
            "\
REVISION   SET     CLASS     MACHINES   AGE      TEMPLATE
2          web-2   class-2   2          16m38s   present
1          web-1   class-1   1          16m39s
"
        );
    }

    #[test]
    fn a_revision_shows_what_it_changed() {
        let fleet = fleet();
        let deployment = &fleet.deployments[0];
        let shown = |wanted| {
            let diff = diff(deployment, &fleet, wanted)?;
            Some(History { diff: Some(diff), ..History::of(deployment, &fleet) }.text(Source::Stored, &plain(now())))
        };
        assert_eq!(
            shown(2).unwrap(),
            "web, revision 2 (compared with revision 1):\n- template.spec.class.name: \"class-1\"\n+ \
             template.spec.class.name: \"class-2\"\n"
        );
        let oldest = shown(1).unwrap();
        assert!(
            oldest.starts_with("web, revision 1 (the oldest that is kept):\n+ template.metadata.labels.app"),
            "{oldest}"
        );
        assert_eq!(shown(9), None);
    }

    #[test]
    fn a_new_deployment_has_no_revision() {
        let fleet = super::super::super::fleet::Fleet { sets: Vec::new(), ..fleet() };
        let text = History::of(&fleet.deployments[0], &fleet).text(Source::Stored, &plain(now()));
        assert_eq!(text, "deployment web has no revision yet\n");
    }
}
