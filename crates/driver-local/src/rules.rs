//! The rules for the fields of a `providerSpec` for machines as pods (spec/providers §8).
//!
//! The text for a missing image is that of provider-local. Names are checked, because they become parts of URLs and of annotations. The schema reports
//! fields of the wrong type, so the rules ignore them.

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    syntax::dns1123_subdomain,
};
use machine_api::{
    v1alpha1::MachineClass,
    validation::{CLS_6, Node},
};

/// The rule id of all findings in this file.
const RULE: RuleId = CLS_6.id;
/// The maximum length of the name of a namespace, or of a part of a DNS name.
pub const LABEL_MAX: usize = 63;

/// The place of a class's machines, as far as the class itself shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home<'c> {
    /// The control cluster. The value is the namespace of the class.
    Control(&'c str),
    /// A cluster that the Secret of `credentialsSecretRef` names.
    Elsewhere,
}

impl<'c> Home<'c> {
    /// The place of the machines of a class.
    pub fn of(class: &'c MachineClass) -> Self {
        if class.credentials_secret_ref.is_some() {
            Self::Elsewhere
        } else {
            Self::Control(class.metadata.namespace.as_deref().unwrap_or_default())
        }
    }
}

/// Runs all rules.
pub fn provider_spec(spec: Node<'_>, home: Home<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.members().is_none() {
        return;
    }
    if spec.get("image").text_or_empty() == Some("") {
        found.required(RULE, path.child("image"), "image is required");
    }
    if let Some(namespace) = spec.get("namespace").text().filter(|namespace| !namespace.is_empty()) {
        let path = path.child("namespace");
        if !is_dns_label(namespace) {
            found.invalid(RULE, path, namespace, "must be the name of a namespace");
        } else if let Home::Control(own) = home
            && !own.is_empty()
            && namespace != own
        {
            // Without this rule, users of one namespace could make privileged pods in any other.
            let detail = "machines in the control cluster are pods in the namespace of their class; for another cluster, set \
                          credentialsSecretRef to a Secret with its kubeconfig";
            found.forbidden(RULE, path, detail);
        }
    }
    for pool in ["ipPoolNameV4", "ipPoolNameV6"] {
        if let Some(name) = spec.get(pool).text().filter(|name| !name.is_empty() && !dns1123_subdomain(name).is_empty())
        {
            found.invalid(RULE, path.child(pool), name, "must be the name of an IPPool");
        }
    }
}

/// Whether a text can be the name of a namespace, or a part of a DNS name.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= LABEL_MAX && !text.contains('.') && dns1123_subdomain(text).is_empty()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{CLASSES, LOCAL};

    const NO_IMAGE: &str = "providerSpec.image: Required value: image is required";
    const ELSEWHERE: &str = "providerSpec.namespace: Forbidden: machines in the control cluster are pods in the namespace of their class; for another cluster, set credentialsSecretRef to a Secret with its kubeconfig";

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::a_good_class(json!({}), &[])]
    #[case::no_image(json!({"image": null}), &[NO_IMAGE])]
    #[case::an_empty_image(json!({"image": ""}), &[NO_IMAGE])]
    #[case::go_reads_keys_in_any_case(json!({"image": null, "Image": "node:1"}), &[])]
    #[case::its_own_namespace(json!({"namespace": "machines"}), &[])]
    #[case::no_namespace(json!({"namespace": ""}), &[])]
    #[case::another_namespace(json!({"namespace": "kube-system"}), &[ELSEWHERE])]
    #[case::a_path_as_namespace(json!({"namespace": "a/../kube-system"}), &["providerSpec.namespace: Invalid value: \"a/../kube-system\": must be the name of a namespace"])]
    #[case::a_dotted_namespace(json!({"namespace": "a.b"}), &["providerSpec.namespace: Invalid value: \"a.b\": must be the name of a namespace"])]
    #[case::pools(json!({"ipPoolNameV4": "shoot-machine-pods.v4", "ipPoolNameV6": ""}), &[])]
    #[case::no_pools(json!({"ipPoolNameV4": "a\",\"b", "ipPoolNameV6": "B"}), &["providerSpec.ipPoolNameV4: Invalid value: \"a\\\",\\\"b\": must be the name of an IPPool", "providerSpec.ipPoolNameV6: Invalid value: \"B\": must be the name of an IPPool"])]
    #[case::a_wrong_type_is_reported_elsewhere(json!({"image": 4, "namespace": 4, "ipPoolNameV4": 4}), &[])]
    fn a_class_breaks_rules(#[case] patch: Value, #[case] expected: &[&str]) {
        assert_eq!(told(&class(&patch)), expected);
    }

    #[test]
    fn a_class_for_another_cluster_may_name_any_namespace() {
        let mut class = class(&json!({"namespace": "shoot--a--b"}));
        assert_eq!(told(&class), [ELSEWHERE]);
        class.credentials_secret_ref = Some(machine_api::v1alpha1::SecretReference::default());
        assert!(told(&class).is_empty());
    }

    fn class(patch: &Value) -> MachineClass {
        let mut provider_spec = json!({"apiVersion": "mcm.gardener.cloud/v1alpha1", "image": "node:1"});
        json_patch::merge(&mut provider_spec, patch);
        let mut class = MachineClass { provider: LOCAL.to_owned(), provider_spec, ..MachineClass::default() };
        class.metadata.namespace = Some("machines".to_owned());
        class
    }

    fn told(class: &MachineClass) -> Vec<String> {
        let mut found = Findings::new();
        CLASSES.validate(class, &mut found);
        found.errors().map(ToString::to_string).collect()
    }
}
