//! Checks the flow schemas that keep the manager's requests apart from those of others. Pure functions.

use serde_json::Value;

use super::{
    checks::{Finding, Health, Read},
    commands::Installed,
};
use machine_api::names;

/// The file with both schemas and their priority level.
const FILE: &str = "deploy/base/flowcontrol.yaml";

/// The names of the flow schemas.
pub fn schema_names() -> [String; 2] {
    [format!("{}-leases", names::WEBHOOK_CONFIGURATION), names::WEBHOOK_CONFIGURATION.to_owned()]
}

/// The finding about a flow schema.
pub fn flow_schema(name: &str, read: &Read, installed: &Installed) -> Finding {
    let subject = format!("FlowSchema {name}");
    let apply = || apply(&installed.home);
    match read {
        Read::Refused(why) => Finding::new(subject, Health::Unknown, format!("cannot be read: {why}")),
        Read::Missing => {
            let message = "is not there: on a busy API server the manager's requests wait behind the requests of all service accounts";
            Finding::new(subject, Health::Off, message.to_owned()).mended_by(apply())
        }
        Read::There(schema) => {
            let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
            let dangles = schema["status"]["conditions"].as_array().into_iter().flatten();
            let dangles = dangles.filter(|condition| condition["type"] == "Dangling" && condition["status"] == "True");
            if dangles.count() > 0 {
                let message = format!("has no effect: there is no PriorityLevelConfiguration {level}");
                return Finding::new(subject, Health::Bad, message).mended_by(apply());
            }
            if matches(schema, &installed.home) {
                return Finding::new(subject, Health::Fine, format!("in force, with priority level {level}"));
            }
            let account = format!("{}/{}", installed.home, names::WEBHOOK_CONFIGURATION);
            let message =
                format!("names another service account than {account}, so that it has no effect for this manager");
            Finding::new(subject, Health::Bad, message).mended_by(apply())
        }
    }
}

/// The command that installs the schemas for the service account of a namespace.
fn apply(home: &str) -> String {
    let usual = names::WEBHOOK_CONFIGURATION;
    if home == usual {
        return format!("kubectl apply -f {FILE}");
    }
    let edits = format!("s/namespace: {usual}/namespace: {home}/; s/namespaces: .{usual}./namespaces: [{home}]/");
    format!("sed '{edits}' {FILE} | kubectl apply -f -")
}

/// Whether a schema names the service account of the manager.
fn matches(schema: &Value, home: &str) -> bool {
    let rules = schema["spec"]["rules"].as_array().into_iter().flatten();
    let mut subjects = rules.flat_map(|rule| rule["subjects"].as_array().into_iter().flatten());
    subjects.any(|subject| {
        let account = &subject["serviceAccount"];
        account["name"] == names::WEBHOOK_CONFIGURATION && account["namespace"] == home
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::webhook_scope::WebhookScope;

    fn schema(namespace: &str, dangling: &str) -> Read {
        let subject = json!({"kind": "ServiceAccount",
            "serviceAccount": {"name": "machine-controller-manager", "namespace": namespace}});
        Read::There(json!({
            "spec": {"priorityLevelConfiguration": {"name": "level"}, "rules": [{"subjects": [subject]}]},
            "status": {"conditions": [{"type": "Dangling", "status": dangling}]},
        }))
    }

    #[rstest]
    #[case::in_force(schema("ns", "False"), Health::Fine, "priority level level", false)]
    #[case::its_level_is_missing(schema("ns", "True"), Health::Bad, "no PriorityLevelConfiguration level", true)]
    #[case::of_another_manager(schema("other", "False"), Health::Bad, "another service account than ns/", true)]
    #[case::missing(Read::Missing, Health::Off, "is not there", true)]
    #[case::refused(Read::Refused("no".to_owned()), Health::Unknown, "cannot be read: no", false)]
    fn pk_105_flow_schemas_are_judged(
        #[case] read: Read,
        #[case] health: Health,
        #[case] words: &str,
        #[case] is_mended: bool,
    ) {
        let found = flow_schema("f", &read, &Installed::of("ns", WebhookScope::Cluster, &[]));
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        assert_eq!(found.command.is_some_and(|command| command.contains(FILE)), is_mended);
    }

    #[test]
    fn the_file_has_both_schemas() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/flowcontrol.yaml")).unwrap();
        for name in schema_names() {
            assert!(text.contains(&format!("kind: FlowSchema\nmetadata:\n  name: {name}\n")), "{name}");
        }
    }
}
