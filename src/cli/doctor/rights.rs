//! Checks the rights of the manager's user by the roles of `mcm manifests rbac`. Pure functions.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    checks::{Finding, Health},
    commands::Installed,
};

/// The number of rights in a message. Further rights are counted.
const NAMED: usize = 5;

/// A right that the manager needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Its namespace; empty for the whole cluster.
    pub namespace: String,
    /// The API group; empty for the core API.
    pub group: String,
    /// The resource, with its subresource after a slash.
    pub resource: String,
    /// The verb.
    pub verb: String,
    /// The object; empty for all.
    pub name: String,
}

impl Right {
    /// The right as text.
    pub fn text(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let name = if self.name.is_empty() { String::new() } else { format!(" {}", self.name) };
        let place = if self.namespace.is_empty() { String::new() } else { format!(" in namespace {}", self.namespace) };
        format!("{} {}{dot}{}{name}{place}", self.verb, self.resource, self.group)
    }
}

/// The rights of the roles among these objects.
pub fn wanted(objects: &[Value]) -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for role in objects.iter().filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole") {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().into_iter().flatten() {
            let mut names = texts(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        rights.extend(names.iter().map(|name| Right {
                            namespace: namespace.to_owned(),
                            group: group.clone(),
                            resource: resource.clone(),
                            verb: verb.clone(),
                            name: name.clone(),
                        }));
                    }
                }
            }
        }
    }
    rights
}

/// The cluster in which rights were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightsOf {
    /// One cluster that has machine objects and Nodes.
    Both,
    /// The cluster with the machine objects.
    Control,
    /// The cluster with the Nodes.
    Target,
}

impl RightsOf {
    /// The value of `mcm manifests rbac --cluster`.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Control => "control",
            Self::Target => "target",
        }
    }
}

/// The answers to the access reviews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reviews {
    /// All were answered: the number of rights, and the missing ones.
    Answered {
        /// The number of rights.
        asked: usize,
        /// The missing rights.
        missing: Vec<Right>,
    },
    /// The service account does not exist, so that the manager has another user.
    NoAccount,
    /// They could not be made, for this reason.
    Refused(String),
}

/// The finding about the rights of a user.
pub fn rights(user: &str, place: RightsOf, reviews: &Reviews, installed: &Installed) -> Finding {
    let subject = format!("Rights of {user}");
    let grant = || {
        let further = if place == RightsOf::Both { String::new() } else { format!("--cluster {}", place.flag()) };
        installed.apply("rbac", &further)
    };
    match reviews {
        Reviews::Answered { asked, missing } if missing.is_empty() => {
            Finding::new(subject, Health::Fine, format!("all {asked} that the manager needs"))
        }
        Reviews::Answered { asked, missing } => {
            let named = missing.iter().take(NAMED).map(Right::text).collect::<Vec<_>>().join(", ");
            let more = missing.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let message = format!("{} of {asked} that the manager needs are missing: {named}{more}", missing.len());
            Finding::new(subject, Health::Bad, message).mended_by(grant())
        }
        Reviews::NoAccount => {
            let message =
                "there is no such service account: the manager runs as another user (--manager-user), or is not \
                           installed"
                    .to_owned();
            Finding::new(subject, Health::Off, message).mended_by(grant())
        }
        Reviews::Refused(why) => Finding::new(subject, Health::Unknown, why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::{
        rbac::{self, Installation, RightsIn},
        webhook_scope::WebhookScope,
    };

    fn right(verb: &str, group: &str, resource: &str, name: &str) -> Right {
        let text = str::to_owned;
        Right {
            namespace: text("ns"),
            group: text(group),
            resource: text(resource),
            verb: text(verb),
            name: text(name),
        }
    }

    #[test]
    fn the_rights_are_those_of_the_roles() {
        let role = json!({"kind": "Role", "metadata": {"namespace": "ns"}, "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["a", "b"]},
            {"apiGroups": ["g"], "resources": ["things/status"], "verbs": ["patch", "get"]},
        ]});
        let found: Vec<String> = wanted(&[role, json!({"kind": "Secret"})]).iter().map(Right::text).collect();
        assert_eq!(
            found,
            [
                "get secrets a in namespace ns",
                "get secrets b in namespace ns",
                "get things/status.g in namespace ns",
                "patch things/status.g in namespace ns",
            ]
        );
    }

    #[test]
    fn every_installation_needs_rights_in_both_clusters() {
        for cluster in [RightsIn::Both, RightsIn::Control, RightsIn::Target] {
            let installation = Installation {
                namespace: "ns",
                service_namespace: "ns",
                scope: WebhookScope::Cluster,
                half: None,
                cluster,
            };
            assert!(wanted(&rbac::manifests(&installation)).len() > 10, "{cluster:?}");
        }
    }

    #[rstest]
    #[case::all(Reviews::Answered { asked: 90, missing: vec![] }, Health::Fine, "all 90", false)]
    #[case::one_is_missing(
        Reviews::Answered { asked: 90, missing: vec![right("patch", "g", "things/status", "")] },
        Health::Bad, "1 of 90 that the manager needs are missing: patch things/status.g in namespace ns", true)]
    #[case::many_are_missing(
        Reviews::Answered { asked: 9, missing: vec![right("get", "", "secrets", "a"); 7] },
        Health::Bad, "secrets a in namespace ns and 2 more", true)]
    #[case::no_account(Reviews::NoAccount, Health::Off, "--manager-user", true)]
    #[case::the_user_may_not_ask(Reviews::Refused("lacks the right".to_owned()), Health::Unknown, "lacks the right", false)]
    fn pk_105_the_rights_are_judged(
        #[case] reviews: Reviews,
        #[case] health: Health,
        #[case] words: &str,
        #[case] is_mended: bool,
    ) {
        let installed = Installed::of("ns", WebhookScope::Cluster, &[]);
        let found = rights("system:serviceaccount:ns:m", RightsOf::Target, &reviews, &installed);
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        let command = found.command.unwrap_or_default();
        assert_eq!(
            command.starts_with("mcm manifests rbac --namespace ns --cluster target | kubectl"),
            is_mended,
            "{command}"
        );
    }
}
