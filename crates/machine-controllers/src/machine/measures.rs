//! Metrics of machines (spec/machine-controller §13.1).
//!
//! Durations are whole seconds, and zero is not recorded, as in the Go original. The original records nothing for a machine
//! without the label `name`, which only Gardener sets. This program then takes the deployment from the machine's owner, or
//! leaves it empty. The metrics that the original does not have ([`Measures::stage`], [`Measures::wrote`]) count every
//! machine.

use std::time::Duration;

use crate::{snapshots::MachineSnapshot, views::ControlViews};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use machine_api::{
    names::label,
    v1alpha1::{MachineClass, NodeTemplateSpec},
};
use mcm_metrics::{ApiWrite, Counters, Gauges, Metrics, OfDeployment, PlacedMachine, Stage};
use serde::Serialize;

/// Label of a node template that holds the zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Something that metrics record about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Measurement {
    /// `CreateMachine` succeeded this long after the machine was created.
    Created(Duration),
    /// `InitializeMachine` took this long.
    Initialized(Duration),
    /// The machine became Running for the first time this long after its creation.
    Joined(Duration),
    /// The machine did not join in time.
    FailedJoin,
    /// The successful attempt of a drain took this long.
    Drained(Duration),
    /// The VM was gone this long after the machine's deletion.
    Deleted(Duration),
}

/// Records the metrics of machines.
#[derive(Clone)]
pub struct Measures(Metrics);

impl Measures {
    /// Records into these metrics.
    pub fn new(metrics: Metrics) -> Self {
        Self(metrics)
    }

    /// The metrics that are recorded into.
    pub fn metrics(&self) -> &Metrics {
        &self.0
    }

    /// Records one measurement of a machine.
    pub fn machine(&self, what: Measurement, machine: &MachineSnapshot, class: Option<&MachineClass>) {
        let (gauge, stage, took) = match what {
            Measurement::Created(took) => (&self.0.machine.create_duration, "create", took),
            Measurement::Initialized(took) => (&self.0.machine.initialize_duration, "initialize", took),
            Measurement::Joined(took) => (&self.0.machine.join_duration, "join", took),
            Measurement::Deleted(took) => (&self.0.machine.delete_duration, "delete", took),
            Measurement::Drained(took) => {
                self.stage("drain", took);
                let deployment = deployment(machine);
                let namespace = machine.namespace();
                let labels = OfDeployment { namespace, machine_deployment: deployment };
                if took.as_secs() > 0 {
                    self.0.machine.drain_duration.set(&labels, whole_seconds(took));
                }
                return;
            }
            Measurement::FailedJoin => {
                self.0.machine.num_failed_join.inc(&placed(machine, class));
                return;
            }
        };
        self.stage(stage, took);
        set(gauge, machine, class, took);
    }

    /// Counts a bootstrap token whose name was taken by another machine's token.
    pub fn token_collided(&self) {
        self.0.machine.bootstrap_token_collisions.inc(&());
    }

    /// Counts a write to an object that a rule asked for, whatever its outcome is.
    pub fn wrote(&self, object: &str, rule: &str) {
        self.0.machine.api_writes.inc(&ApiWrite { object, reason: rule });
    }

    fn stage(&self, stage: &str, took: Duration) {
        self.0.machine.stage_duration.observe(&Stage { stage }, took);
    }
}

fn set(
    gauge: &Gauges<PlacedMachine<'static>>,
    machine: &MachineSnapshot,
    class: Option<&MachineClass>,
    took: Duration,
) {
    if took.as_secs() > 0 {
        gauge.set(&placed(machine, class), whole_seconds(took));
    }
}

#[allow(clippy::cast_precision_loss)] // Seconds of a machine's life fit.
fn whole_seconds(took: Duration) -> f64 {
    took.as_secs() as f64
}

/// The machine's deployment: Gardener's label, or else the name of the machine's set without its last part, which is made of the
/// hash of the template. Empty for a machine of no deployment, whose set has no such hash.
fn deployment(machine: &MachineSnapshot) -> &str {
    let labels = machine.labels();
    let by_set = || {
        labels.get(label::MACHINE_TEMPLATE_HASH)?;
        machine.controller()?.name.rsplit_once('-').map(|(deployment, _)| deployment)
    };
    let labelled = labels.get(label::NAME).map(String::as_str).filter(|name| !name.is_empty());
    labelled.or_else(by_set).unwrap_or_default()
}

/// Creates the counters of machines that fail to join, for each deployment, so that an alert on an increase notices the first
/// one (spec/packaging §4.1).
pub fn show_failed_joins(counter: &Counters<PlacedMachine<'static>>, views: &ControlViews) {
    for deployment in views.deployments.snapshot() {
        let template = deployment.template();
        let class = views.classes.get(&ObjectKey::new(deployment.namespace(), template.spec.class.name.clone()));
        let labelled = template.metadata.labels.as_ref().and_then(|labels| labels.get(label::NAME));
        let labels = PlacedMachine {
            namespace: deployment.namespace(),
            machine_deployment: labelled
                .map(String::as_str)
                .filter(|name| !name.is_empty())
                .unwrap_or(deployment.name()),
            instance_type: instance_type(class.as_deref()),
            zone: zone(&template.spec.node_template),
        };
        counter.add(&labels, 0);
    }
}

/// The labels of a machine's metrics. Labels that the class does not set are empty (M-40).
fn placed<'a>(machine: &'a MachineSnapshot, class: Option<&'a MachineClass>) -> PlacedMachine<'a> {
    PlacedMachine {
        namespace: machine.namespace(),
        machine_deployment: deployment(machine),
        instance_type: instance_type(class),
        zone: zone(machine.node_template()),
    }
}

fn instance_type(class: Option<&MachineClass>) -> &str {
    let template = class.and_then(|class| class.node_template.as_ref());
    template.map(|template| template.instance_type.as_str()).unwrap_or_default()
}

fn zone(template: &NodeTemplateSpec) -> &str {
    let labels = template.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(ZONE)).map(String::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use kube::ResourceExt;
    use machine_api::v1alpha1::{Machine, MachineDeployment};

    fn machine(deployment: &str) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.namespace = Some("shoot".to_owned());
        machine.labels_mut().insert(label::NAME.to_owned(), deployment.to_owned());
        let labels = machine.spec.node_template.metadata.labels.get_or_insert_default();
        labels.insert(ZONE.to_owned(), "eu-1a".to_owned());
        machine
    }

    fn scrape(deployment: &str, class: Option<&MachineClass>) -> String {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let measures = Measures::new(metrics.clone());
        let took = Duration::from_millis(7900);
        let machine = MachineSnapshot::from(machine(deployment));
        for what in [
            Measurement::Created(took),
            Measurement::Initialized(took),
            Measurement::Joined(took),
            Measurement::FailedJoin,
            Measurement::Drained(took),
            Measurement::Deleted(took),
        ] {
            measures.machine(what, &machine, class);
        }
        metrics.render().unwrap()
    }

    fn class() -> MachineClass {
        serde_json::from_value(
            json!({ "nodeTemplate": { "instanceType": "m5", "region": "eu-1", "zone": "eu-1a", "capacity": {} } }),
        )
        .unwrap()
    }

    #[rstest]
    #[case::with_everything(Some(class()), "m5")]
    #[case::mc_273_a_class_without_node_template(None, "")]
    fn durations_are_whole_seconds_with_the_labels_of_the_original(
        #[case] class: Option<MachineClass>,
        #[case] kind: &str,
    ) {
        let text = scrape("pool", class.as_ref());
        let labels = format!(r#"{{instance_type="{kind}",machine_deployment="pool",namespace="shoot",zone="eu-1a"}}"#);
        for name in [
            "create_duration_seconds",
            "initialize_duration_seconds",
            "join_duration_seconds",
            "delete_duration_seconds",
        ] {
            let line = format!("mcm_machine_{name}{labels} 7\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("mcm_machine_num_failed_join{labels} 1\n")), "{text}");
        let drain = r#"mcm_machine_drain_duration_seconds{machine_deployment="pool",namespace="shoot"} 7"#;
        assert!(text.contains(drain), "{text}");
        for stage in ["create", "initialize", "join", "drain", "delete"] {
            let line = format!(r#"mcm_machine_stage_duration_seconds_count{{stage="{stage}"}} 1"#);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[rstest]
    #[case::gardeners_label(json!({"name": "pool"}), "pool")]
    #[case::the_deployments_own_name(json!({"app": "x"}), "web")]
    fn a_deployment_shows_its_failed_joins_before_the_first_one(
        #[case] labels: serde_json::Value,
        #[case] deployment: &str,
    ) {
        let views = ControlViews::default();
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let mut known = class();
        known.metadata.name = Some("small".to_owned());
        known.metadata.namespace = Some("shoot".to_owned());
        views.classes.apply(known);
        let object = json!({
            "metadata": {"name": "web", "namespace": "shoot", "resourceVersion": "1"},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"class": {"name": "small"},
                "nodeTemplate": {"metadata": {"labels": {ZONE: "eu-1a"}}}}}},
        });
        views.deployments.apply(serde_json::from_value::<MachineDeployment>(object).unwrap());
        let line = |count: u32| {
            format!(
                "mcm_machine_num_failed_join{{instance_type=\"m5\",machine_deployment=\"{deployment}\",\
                 namespace=\"shoot\",zone=\"eu-1a\"}} {count}\n"
            )
        };
        show_failed_joins(&metrics.machine.num_failed_join, &views);
        let text = metrics.render().unwrap();
        assert!(text.contains(&line(0)), "{} is not in\n{text}", line(0));
        // A machine of this deployment counts in the same series.
        let mut failing = machine(deployment);
        failing.labels_mut().retain(|_, name| name == "pool");
        failing.labels_mut().insert(label::MACHINE_TEMPLATE_HASH.to_owned(), "5d8f9".to_owned());
        failing.metadata.owner_references =
            Some(vec![OwnerReference { name: "web-5d8f9".to_owned(), controller: Some(true), ..Default::default() }]);
        let measures = Measures::new(metrics.clone());
        measures.machine(Measurement::FailedJoin, &MachineSnapshot::from(failing), Some(&class()));
        let text = metrics.render().unwrap();
        assert!(text.contains(&line(1)), "{} is not in\n{text}", line(1));
    }

    #[test]
    fn mc_274_pk_060_a_machine_without_gardeners_label_is_measured_under_the_deployment_of_its_set_or_none() {
        let mut owned = Machine::default();
        owned.metadata.owner_references = Some(vec![OwnerReference {
            name: "my-web-5d8f9".to_owned(),
            controller: Some(true),
            ..Default::default()
        }]);
        owned.labels_mut().insert(label::MACHINE_TEMPLATE_HASH.to_owned(), "1473981537".to_owned());
        let mut of_a_set_alone = owned.clone();
        of_a_set_alone.labels_mut().clear();
        for (machine, expected) in [(owned, "my-web"), (of_a_set_alone, ""), (Machine::default(), "")] {
            let machine = MachineSnapshot::from(machine);
            let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
            let measures = Measures::new(metrics.clone());
            for what in [Measurement::Created(Duration::from_secs(7)), Measurement::Drained(Duration::from_secs(7))] {
                measures.machine(what, &machine, None);
            }
            let text = metrics.render().unwrap();
            let labels = format!(r#"machine_deployment="{expected}",namespace="""#);
            assert!(text.contains(&format!("mcm_machine_drain_duration_seconds{{{labels}}} 7")), "{text}");
            let labels = format!(r#"instance_type="",{labels},zone="""#);
            assert!(text.contains(&format!("mcm_machine_create_duration_seconds{{{labels}}} 7")), "{text}");
        }
    }
}
