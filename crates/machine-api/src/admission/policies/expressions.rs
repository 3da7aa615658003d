//! The CEL variables of the policies. Objects are untyped in CEL: every field may be absent, so that each field is read with `?`.

/// The controllers of Kubernetes that change metadata of foreign objects.
pub const NOT_A_SYSTEM_CONTROLLER: &str = "!(request.userInfo.username in ['system:serviceaccount:kube-system:generic-garbage-collector', 'system:serviceaccount:kube-system:namespace-controller'])";

/// The variables of the checks. An absent part is empty, so that most checks need no case for it. No variable is an optional: the API server loses
/// the value of an optional between variable and expression.
pub const VARIABLES: &[(&str, &str)] = &[
    ("old", "oldObject == null ? dyn({}) : oldObject"),
    ("is_machine", "object.kind == 'Machine'"),
    ("is_class", "object.kind == 'MachineClass'"),
    ("is_scaled", "object.kind in ['MachineSet', 'MachineDeployment']"),
    ("annotations", "object.metadata.?annotations.orValue({})"),
    ("old_annotations", "variables.old.?metadata.?annotations.orValue({})"),
    ("priority", "variables.annotations[?'machinepriority.machine.sapcloud.io'].orValue('')"),
    ("old_priority", "variables.old_annotations[?'machinepriority.machine.sapcloud.io'].orValue('')"),
    ("preserve", "variables.annotations[?'node.machine.sapcloud.io/preserve'].orValue('')"),
    ("old_preserve", "variables.old_annotations[?'node.machine.sapcloud.io/preserve'].orValue('')"),
    ("creation_timeout", "variables.annotations[?'node.machine.sapcloud.io/effective-creation-timeout'].orValue('')"),
    (
        "old_creation_timeout",
        "variables.old_annotations[?'node.machine.sapcloud.io/effective-creation-timeout'].orValue('')",
    ),
    ("spec", "object.?spec.orValue({})"),
    ("old_spec", "variables.old.?spec.orValue({})"),
    ("machine", "variables.is_machine ? variables.spec : variables.spec.?template.?spec.orValue({})"),
    ("old_machine", "variables.is_machine ? variables.old_spec : variables.old_spec.?template.?spec.orValue({})"),
    ("class", "variables.machine.?class.orValue({})"),
    ("old_class", "variables.old_machine.?class.orValue({})"),
    ("class_name", "variables.class.?name.orValue('')"),
    ("old_class_name", "variables.old_class.?name.orValue('')"),
    ("provider_id", "variables.spec.?providerID.orValue('')"),
    ("old_provider_id", "variables.old_spec.?providerID.orValue('')"),
    ("node", "object.metadata.?labels[?'node'].orValue('')"),
    ("old_node", "variables.old.?metadata.?labels[?'node'].orValue('')"),
    ("conditions", "variables.machine.?nodeConditions.orValue('')"),
    ("old_conditions", "variables.old_machine.?nodeConditions.orValue('')"),
    ("node_labels", "variables.machine.?nodeTemplate.?metadata.?labels.orValue({})"),
    ("old_node_labels", "variables.old_machine.?nodeTemplate.?metadata.?labels.orValue({})"),
    ("node_annotations", "variables.machine.?nodeTemplate.?metadata.?annotations.orValue({})"),
    ("old_node_annotations", "variables.old_machine.?nodeTemplate.?metadata.?annotations.orValue({})"),
    ("taints", "variables.machine.?nodeTemplate.?spec.?taints.orValue([])"),
    ("old_taints", "variables.old_machine.?nodeTemplate.?spec.?taints.orValue([])"),
    ("template_metadata", "variables.spec.?template.?metadata.orValue({})"),
    ("old_template_metadata", "variables.old_spec.?template.?metadata.orValue({})"),
    ("selector", "variables.spec.?selector.orValue({})"),
    ("old_selector", "variables.old_spec.?selector.orValue({})"),
    ("expressions", "variables.selector.?matchExpressions.orValue([])"),
    ("old_expressions", "variables.old_selector.?matchExpressions.orValue([])"),
    ("match_labels", "variables.selector.?matchLabels.orValue({})"),
    ("old_match_labels", "variables.old_selector.?matchLabels.orValue({})"),
    ("selection", "[variables.selector, variables.template_metadata.?labels.orValue({})]"),
    ("old_selection", "[variables.old_selector, variables.old_template_metadata.?labels.orValue({})]"),
    ("strategy", "variables.spec.?strategy.orValue({})"),
    ("old_strategy", "variables.old_spec.?strategy.orValue({})"),
    ("provider", "object.?provider.orValue('')"),
    ("old_provider", "oldObject == null ? 'none' : variables.old.?provider.orValue('')"),
    ("secrets", "[object.?secretRef, object.?credentialsSecretRef].filter(r, r.hasValue()).map(r, r.value())"),
    (
        "old_secrets",
        "[variables.old.?secretRef, variables.old.?credentialsSecretRef].filter(r, r.hasValue()).map(r, r.value())",
    ),
    ("node_template", "object.?nodeTemplate.orValue({})"),
    ("old_node_template", "variables.old.?nodeTemplate.orValue({})"),
    ("skips", "variables.annotations[?'admission.machine.sapcloud.io/skip'].orValue('').split(',').map(s, s.trim())"),
];

/// CEL patterns of a name with an optional domain, and of the value of a label.
const QUALIFIED_NAME: &str = r"'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'";
const LABEL_VALUE: &str = r"'^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$'";

/// Inserts the patterns into an expression.
pub fn with_patterns(expression: &str) -> String {
    expression.replace("<name>", QUALIFIED_NAME).replace("<label>", LABEL_VALUE)
}
