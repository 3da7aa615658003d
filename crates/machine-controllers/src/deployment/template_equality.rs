//! Whether two templates describe equal machines.
//!
//! The comparison ignores the fields that reach existing machines without a rollout (node template, machine
//! configuration, kind of the class) and the label that distinguishes sibling sets. Absent and empty are equal. Source:
//! spec/deployment-and-set §8.3 with D-25 (labels are compared as maps).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::template_hash::pruned;
use kube_values::selector::Labels;
use machine_api::{names::label, v1alpha1::MachineTemplateSpec};

/// Whether machines of one template match the other template without being replaced.
///
/// Called for every set in every pass. Therefore the parts that differ most often are compared first, and JSON is made
/// only for metadata that differs.
pub fn is_equal(one: &MachineTemplateSpec, other: &MachineTemplateSpec) -> bool {
    let (mine, theirs) = (&one.spec, &other.spec);
    mine.class.name == theirs.class.name
        && mine.class.api_group == theirs.class.api_group
        && mine.provider_id == theirs.provider_id
        && (one.metadata == other.metadata || compared(&one.metadata) == compared(&other.metadata))
}

/// Labels and annotations are compared as maps: a key with an empty value differs from an absent key.
fn compared(metadata: &ObjectMeta) -> (Labels, Labels, Value) {
    let mut metadata = metadata.clone();
    let mut labels = metadata.labels.take().unwrap_or_default();
    labels.remove(label::MACHINE_TEMPLATE_HASH);
    let annotations = metadata.annotations.take().unwrap_or_default();
    (labels, annotations, pruned(&metadata))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::set;
    use kube_values::duration::GoDuration;

    fn changed(change: impl FnOnce(&mut MachineTemplateSpec)) -> MachineTemplateSpec {
        let mut template = set(1).build().spec.template;
        change(&mut template);
        template
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case::s_hash_08_the_hash_label(
        |t: &mut MachineTemplateSpec| t.metadata.labels = Some(labels(&[("set", "x"), (label::MACHINE_TEMPLATE_HASH, "1")])), true)]
    #[case::s_hash_09_the_node_template(|t: &mut MachineTemplateSpec| t.spec.node_template.metadata.labels = Some(labels(&[("a", "b")])), true)]
    #[case::s_hash_09_the_configuration(|t: &mut MachineTemplateSpec| t.spec.configuration.drain_timeout = Some(GoDuration::from_secs(1)), true)]
    #[case::s_hash_09_the_kind_of_the_class(|t: &mut MachineTemplateSpec| t.spec.class.kind = "Other".to_owned(), true)]
    #[case::s_hash_10_the_name_of_the_class(|t: &mut MachineTemplateSpec| t.spec.class.name = "other".to_owned(), false)]
    #[case::s_hash_11_empty_and_absent_annotations(|t: &mut MachineTemplateSpec| t.metadata.annotations = Some(Labels::new()), true)]
    #[case::s_md_17_the_group_of_the_class(|t: &mut MachineTemplateSpec| t.spec.class.api_group = "x".to_owned(), false)]
    #[case::s_md_18_an_annotation(|t: &mut MachineTemplateSpec| t.metadata.annotations = Some(labels(&[("a", "b")])), false)]
    #[case::d_25_an_empty_label_is_not_an_absent_one(
        |t: &mut MachineTemplateSpec| t.metadata.labels = Some(labels(&[("set", "x"), ("a", "")])), false)]
    fn templates_are_compared(#[case] change: fn(&mut MachineTemplateSpec), #[case] equal: bool) {
        assert_eq!(is_equal(&changed(|_| {}), &changed(change)), equal);
    }
}
