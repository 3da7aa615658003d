//! Checks the versions of API servers and of the manager's replicas. Pure functions.

use std::collections::BTreeMap;

use controller_runtime::{
    error::ApiError,
    server_version::{Support, Supported, lacking},
};
use machine_api::names;
use serde_json::Value;

use super::{
    checks::{Finding, Health, List},
    commands::Installed,
};

/// The finding about the version of an API server. `cluster` is its name in messages.
pub fn api_server(cluster: &str, minor: &Result<u32, ApiError>, supported: Supported) -> Finding {
    let subject = format!("API server of the {cluster}");
    let range = format!("supported are {supported}");
    let minor = match minor {
        Ok(minor) => *minor,
        Err(error) => return Finding::new(subject, Health::Unknown, format!("its version can't be read: {error}")),
    };
    let lacking = lacking(minor).map(|lacking| format!("; {lacking}")).unwrap_or_default();
    match supported.judge(minor) {
        Support::TooOld => {
            let message = format!("version 1.{minor} is too old: {range}; upgrade it");
            // The older definitions are the part that can be mended without another API server.
            let older = format!(
                "mcm manifests crds --kube-version 1.{minor} | kubectl apply --server-side --force-conflicts -f -"
            );
            Finding::new(subject, Health::Bad, message).mended_by(older)
        }
        Support::BestEffort => {
            Finding::new(subject, Health::Fine, format!("version 1.{minor}, by best effort: {range}{lacking}"))
        }
        Support::TooNew => {
            let message = format!("version 1.{minor} is newer than what this program was tested with: {range}");
            Finding::new(subject, Health::Unknown, message)
        }
        Support::Full => Finding::new(subject, Health::Fine, format!("version 1.{minor} ({range}){lacking}")),
    }
}

/// The finding about the images of the manager's pods.
pub fn replicas(pods: &List, installed: &Installed) -> Finding {
    let subject = format!("Replicas in namespace {}", installed.home);
    let pods = match pods {
        List::Refused(why) => return Finding::new(subject, Health::Unknown, why.clone()),
        List::All(pods) => pods,
    };
    let mut images: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod["status"]["phase"] == "Running") {
        images.entry(image_of(pod)).or_default().push(pod["metadata"]["name"].as_str().unwrap_or_default());
    }
    let count: usize = images.values().map(Vec::len).sum();
    match images.len() {
        0 => Finding::new(
            subject,
            Health::Off,
            format!("no pod with the label app.kubernetes.io/name={} runs here", names::WEBHOOK_CONFIGURATION),
        )
        .mended_by(installed.run_replicas()),
        1 => {
            let image = images.keys().next().map(String::as_str).unwrap_or_default();
            Finding::new(subject, Health::Fine, format!("{count} of one version ({image})"))
        }
        _ => {
            let each: Vec<String> =
                images.iter().map(|(image, pods)| format!("{image} ({})", pods.join(", "))).collect();
            let message =
                format!("they run different versions, because a rollout goes on or is stuck: {}", each.join("; "));
            Finding::new(subject, Health::Bad, message).mended_by(installed.restart())
        }
    }
}

/// The image of a pod's first container: the one that was pulled, or else the one that was asked for.
fn image_of(pod: &Value) -> String {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let image = text("/status/containerStatuses/0/imageID").or_else(|| text("/spec/containers/0/image"));
    image.unwrap_or("an unknown image").to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use controller_runtime::server_version::{CONTROL, TARGET};

    use super::*;
    use crate::cli::webhook_scope::WebhookScope;

    #[rstest]
    #[case::supported(Ok(36), Health::Fine, "version 1.36 (supported are 1.31 to 1.37)")]
    #[case::the_oldest(Ok(31), Health::Fine, "version 1.31")]
    #[case::by_best_effort(Ok(30), Health::Fine, "by best effort")]
    #[case::too_old(Ok(29), Health::Bad, "too old")]
    #[case::newer(Ok(38), Health::Unknown, "newer than what this program was tested with")]
    #[case::unread(Err(ApiError::Unavailable("no".to_owned())), Health::Unknown, "can't be read")]
    fn pk_105_the_version_of_an_api_server_is_judged(
        #[case] minor: Result<u32, ApiError>,
        #[case] health: Health,
        #[case] words: &str,
    ) {
        let found = api_server("control cluster", &minor, CONTROL);
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        assert_eq!(found.command.is_some(), health == Health::Bad);
    }

    #[rstest]
    #[case::without_policies(28, true)]
    #[case::with_policies(30, false)]
    fn what_an_old_target_lacks_is_said(#[case] minor: u32, #[case] says: bool) {
        let found = api_server("target cluster", &Ok(minor), TARGET);
        assert_eq!(found.health, Health::Fine, "{found:?}");
        assert_eq!(found.message.contains("no ValidatingAdmissionPolicies"), says, "{found:?}");
    }

    fn pod(name: &str, phase: &str, image: &str, id: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"containers": [{"image": image}]},
            "status": {"phase": phase, "containerStatuses": [{"imageID": id}]}})
    }

    #[rstest]
    #[case::of_one_version(vec![pod("a", "Running", "i:1", ""), pod("b", "Running", "i:1", "")], Health::Fine, "2 of one version (i:1)")]
    #[case::of_two_tags(
        vec![pod("a", "Running", "i:1", ""), pod("b", "Running", "i:2", "")], Health::Bad, "i:1 (a); i:2 (b)")]
    #[case::of_two_digests_of_a_tag(
        vec![pod("a", "Running", "i:1", "i@x"), pod("b", "Running", "i:1", "i@y")], Health::Bad, "i@x (a); i@y (b)")]
    #[case::one_is_not_running(
        vec![pod("a", "Running", "i:1", ""), pod("b", "Succeeded", "i:2", "")], Health::Fine, "1 of one version")]
    #[case::none(vec![], Health::Off, "no pod")]
    fn pk_105_replicas_of_different_versions_are_found(
        #[case] pods: Vec<Value>,
        #[case] health: Health,
        #[case] words: &str,
    ) {
        let installed = Installed::of("ns", WebhookScope::Cluster, &[]);
        let found = replicas(&List::All(pods), &installed);
        assert!(found.health == health && found.message.contains(words), "{found:?}");
        assert_eq!(found.command.is_some(), health != Health::Fine);
        assert_eq!(replicas(&List::Refused("no right".to_owned()), &installed).health, Health::Unknown);
    }
}
