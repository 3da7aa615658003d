//! Scenarios of spec/machine-controller §17.11 on the pure comparison.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use rstest::rstest;

use crate::machine::{
    node::metadata::wanted,
    observation::NodeStep,
    plan::{Effect, Next, Plan, node_dress::NodeDress},
    testing,
};
use machine_api::{
    names::{annotation, finalizer, label},
    v1alpha1::NodeTemplateSpec,
};

fn template(labels: &[(&str, &str)], taints: &[(&str, &str)]) -> NodeTemplateSpec {
    let mut template = NodeTemplateSpec::default();
    template.metadata.labels =
        Some(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
    template.spec.taints = Some(taints.iter().map(|(key, effect)| taint(key, effect)).collect());
    template
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
}

fn node(labels: &[(&str, &str)], taints: &[(&str, &str)], memory: Option<&str>) -> Node {
    let mut node = testing::node(Vec::new());
    for (key, value) in labels {
        node.labels_mut().insert((*key).to_owned(), (*value).to_owned());
    }
    node.spec.get_or_insert_default().taints = Some(taints.iter().map(|(key, effect)| taint(key, effect)).collect());
    if let Some(memory) = memory {
        node.annotations_mut().insert(annotation::LAST_APPLIED_TEMPLATE.to_owned(), memory.to_owned());
    }
    node
}

fn applied(template: &NodeTemplateSpec, before: &Node) -> Node {
    let dress = Box::new(wanted("m-abcde", template, &before.clone().into()).dress);
    let effects = vec![Effect::Dress { step: NodeStep::Metadata, dress }];
    testing::node_after(&Plan::new("dress-node", effects, Next::Again), before)
}

fn is_settled(template: &NodeTemplateSpec, node: &Node) -> bool {
    wanted("m-abcde", template, &node.clone().into()).dress.is_empty()
}

#[test]
fn a_new_node_gets_finalizer_name_template_and_memory_in_one_patch() {
    let mut bare = node(&[], &[], None);
    bare.metadata.finalizers = None;
    bare.metadata.labels = None;
    let template = template(&[("pool", "a")], &[("dedicated", "NoSchedule")]);
    let dressed = applied(&template, &bare);
    assert_eq!(dressed.finalizers(), [finalizer::NODE]);
    assert_eq!(dressed.labels()[label::MACHINE_NAME], "m-abcde");
    assert_eq!(dressed.labels()["pool"], "a");
    assert_eq!(dressed.spec.as_ref().unwrap().taints.as_ref().unwrap().len(), 1);
    assert_eq!(
        dressed.annotations()[annotation::LAST_APPLIED_TEMPLATE],
        r#"{"metadata":{"labels":{"pool":"a"}},"spec":{"taints":[{"effect":"NoSchedule","key":"dedicated"}]}}"#
    );
    assert!(is_settled(&template, &dressed));
}

#[test]
fn mc_228_the_template_wins_over_the_node() {
    let template = template(&[("a", "1")], &[]);
    let dressed = applied(&template, &node(&[("a", "2")], &[], None));
    assert_eq!(dressed.labels()["a"], "1");
    assert!(dressed.annotations().contains_key(annotation::LAST_APPLIED_TEMPLATE));
}

#[test]
fn mc_229_only_entries_that_left_the_template_leave_the_node() {
    let memory = r#"{"metadata":{"labels":{"a":"1"}},"spec":{}}"#;
    let dressed = applied(&NodeTemplateSpec::default(), &node(&[("a", "9"), ("b", "2")], &[], Some(memory)));
    assert!(!dressed.labels().contains_key("a"));
    assert_eq!(dressed.labels()["b"], "2");
    assert!(is_settled(&NodeTemplateSpec::default(), &dressed));
}

#[test]
fn mc_230_the_memory_is_written_even_when_the_node_has_it_all() {
    let full = template(&[("a", "1")], &[]);
    let dressed = applied(&full, &node(&[("a", "1")], &[], None));
    let later = applied(&NodeTemplateSpec::default(), &dressed);
    assert!(!later.labels().contains_key("a"));
}

#[test]
fn mc_231_a_taint_is_known_by_key_and_effect() {
    let dressed = applied(&template(&[], &[("k", "NoSchedule")]), &node(&[], &[("k", "NoExecute")], None));
    assert_eq!(dressed.spec.unwrap().taints.unwrap().len(), 2);
}

#[test]
fn mc_232_the_time_of_a_taint_does_not_count() {
    let mut template = template(&[], &[("k", "NoSchedule")]);
    template.spec.taints.as_mut().unwrap()[0].time_added = Some(Time(Timestamp::UNIX_EPOCH));
    let dressed = applied(&template, &node(&[], &[], None));
    assert!(is_settled(&template, &dressed));
    let mut other_time = dressed;
    other_time.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].time_added = None;
    assert!(is_settled(&template, &other_time));
}

#[test]
fn mc_236_a_taint_that_left_the_template_leaves_the_node() {
    let memory = r#"{"metadata":{},"spec":{"taints":[{"effect":"NoSchedule","key":"k"}]}}"#;
    let dressed =
        applied(&NodeTemplateSpec::default(), &node(&[], &[("k", "NoSchedule"), ("x", "NoSchedule")], Some(memory)));
    assert_eq!(dressed.spec.unwrap().taints.unwrap(), [taint("x", "NoSchedule")]);
}

#[test]
fn mc_237_an_unreadable_memory_counts_as_empty_and_is_written_anew() {
    let full = template(&[("a", "1")], &[]);
    let spoiled = node(&[], &[], Some("not JSON"));
    assert!(!wanted("m-abcde", &full, &spoiled.clone().into()).last_applied_is_readable);
    let dressed = applied(&full, &spoiled);
    assert!(wanted("m-abcde", &full, &dressed.clone().into()).last_applied_is_readable);
    assert!(is_settled(&full, &dressed));
}

#[rstest]
#[case::with_creation_timestamp(
    r#"{"metadata":{"creationTimestamp":null,"labels":{"pool":"a"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}"#
)]
#[case::without(r#"{"metadata":{"labels":{"pool":"a"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}"#)]
fn mc_238_a_memory_that_go_wrote_costs_no_write(#[case] memory: &str) {
    let template = template(&[("pool", "a")], &[("k", "NoSchedule")]);
    assert!(is_settled(&template, &node(&[("pool", "a")], &[("k", "NoSchedule")], Some(memory))));
}

#[test]
fn mc_240_a_removed_taint_is_restored() {
    let template = template(&[], &[("k", "NoSchedule")]);
    let mut dressed = applied(&template, &node(&[], &[], None));
    dressed.spec.as_mut().unwrap().taints = None;
    assert_eq!(applied(&template, &dressed).spec.unwrap().taints.unwrap(), [taint("k", "NoSchedule")]);
}

#[test]
fn protected_keys_of_a_template_are_ignored() {
    let template = template(&[(label::MACHINE_NAME, "other"), ("kubernetes.io/hostname", "other")], &[]);
    let dressed = applied(&template, &node(&[], &[], None));
    assert_eq!(dressed.labels()[label::MACHINE_NAME], "m-abcde");
    assert!(!dressed.labels().contains_key("kubernetes.io/hostname"));
}

#[test]
fn a_node_that_is_being_deleted_gets_no_finalizer() {
    let mut going = node(&[], &[], None);
    going.metadata.finalizers = None;
    going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(is_settled(&NodeTemplateSpec::default(), &going));
}

#[test]
fn a_machine_that_links_to_a_node_makes_it_managed() {
    let mut ignored = node(&[], &[], None);
    ignored.annotations_mut().insert(annotation::NOT_MANAGED.to_owned(), "1".to_owned());
    let dress = wanted("m-abcde", &NodeTemplateSpec::default(), &ignored.into()).dress;
    let annotations = [(annotation::NOT_MANAGED.to_owned(), None)].into();
    assert_eq!(dress, NodeDress { annotations, ..NodeDress::default() });
}
