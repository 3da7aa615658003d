//! The CEL of the policies. Objects are untyped there: every field may be absent, so that each is read through `?`.

use kube_values::field::RuleId;

/// One expression that must hold.
pub struct Check {
    /// The webhook rule that says the same.
    pub rule: RuleId,
    /// The variable that is judged; one that equals its stored counterpart `old_…` is forgiven.
    pub part: Option<&'static str>,
    pub expression: &'static str,
    pub message: &'static str,
}

/// Kubernetes' own controllers that rewrite metadata of foreign objects.
pub const NOT_A_SYSTEM_CONTROLLER: &str = "!(request.userInfo.username in ['system:serviceaccount:kube-system:generic-garbage-collector', 'system:serviceaccount:kube-system:namespace-controller'])";

/// What the checks speak of. Absent parts are empty, so that most checks need no case for them. No variable is an optional:
/// the API server loses what it holds on the way into an expression.
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

const fn check(rule: RuleId, part: &'static str, expression: &'static str, message: &'static str) -> Check {
    Check { rule, part: Some(part), expression, message }
}

const fn transition(rule: RuleId, expression: &'static str, message: &'static str) -> Check {
    Check { rule, part: None, expression, message }
}

/// Names with an optional domain, as a pattern of CEL.
macro_rules! qualified {
    () => {
        r"'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'"
    };
}

/// Label values, as a pattern of CEL.
macro_rules! label_value {
    () => {
        r"'^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$'"
    };
}

/// P-1: what an object says.
pub const STATIC_CHECKS: &[Check] = &[
    check(
        "META-1",
        "priority",
        "!variables.is_machine || variables.priority == '' || variables.priority.matches('^[+-]?[0-9]{1,19}$')",
        "metadata.annotations[machinepriority.machine.sapcloud.io]: must be an integer",
    ),
    check(
        "META-2",
        "preserve",
        "!variables.is_machine || variables.preserve in ['', 'auto-preserved', 'false', 'now', 'when-failed']",
        "metadata.annotations[node.machine.sapcloud.io/preserve]: supported values: \"auto-preserved\", \"false\", \"now\", \"when-failed\"",
    ),
    check(
        "META-5",
        "creation_timeout",
        r"variables.is_class || variables.creation_timeout == '' || variables.creation_timeout.matches('^[+]?(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$') && variables.creation_timeout.matches('[1-9]')",
        "metadata.annotations[node.machine.sapcloud.io/effective-creation-timeout]: must be a duration such as \"30s\", \"10m\" or \"1h30m\", greater than 0",
    ),
    check(
        "MCH-1",
        "class",
        "variables.is_class || variables.class.?kind.orValue('') != ''",
        "class.kind: Kind is required",
    ),
    check("MCH-2", "class", "variables.is_class || variables.class_name != ''", "class.name: Name is required"),
    check(
        "MCH-10",
        "conditions",
        concat!(
            "variables.conditions == '' || variables.conditions.split(',').all(e, e.matches(",
            qualified!(),
            ") && variables.conditions.split(',').exists_one(f, f == e))"
        ),
        "nodeConditions: must be condition types, each once, separated by commas without blanks",
    ),
    check(
        "MCH-12",
        "node_labels",
        concat!(
            "variables.node_labels.all(k, k.matches(",
            qualified!(),
            ") && variables.node_labels[k].matches(",
            label_value!(),
            "))"
        ),
        "nodeTemplate.metadata.labels: keys must be qualified names and values label values",
    ),
    check(
        "MCH-13",
        "node_annotations",
        concat!("variables.node_annotations.all(k, k.lowerAscii().matches(", qualified!(), "))"),
        "nodeTemplate.metadata.annotations: keys must be qualified names",
    ),
    check(
        "MCH-13",
        "node_annotations",
        "variables.node_annotations.map(k, size(bytes(k)) + size(bytes(variables.node_annotations[k]))).sum() <= 262144",
        "nodeTemplate.metadata.annotations: may not be more than 262144 bytes",
    ),
    check(
        "MCH-14",
        "taints",
        concat!("variables.taints.all(t, t.?key.orValue('').matches(", qualified!(), "))"),
        "nodeTemplate.spec.taints: every key must be a qualified name",
    ),
    check(
        "MCH-15",
        "taints",
        concat!("variables.taints.all(t, t.?value.orValue('').matches(", label_value!(), "))"),
        "nodeTemplate.spec.taints: every value must be a label value",
    ),
    check(
        "MCH-16",
        "taints",
        "variables.taints.all(t, t.?effect.orValue('') in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
        "nodeTemplate.spec.taints: every effect must be \"NoSchedule\", \"PreferNoSchedule\" or \"NoExecute\"",
    ),
    check(
        "MCH-17",
        "taints",
        "variables.taints.all(t, variables.taints.exists_one(u, u.?key == t.?key && u.?effect == t.?effect))",
        "nodeTemplate.spec.taints: taints must be unique by key and effect pair",
    ),
    check(
        "MCH-24",
        "template_metadata",
        concat!(
            "variables.template_metadata.?labels.orValue({}).all(k, k.matches(",
            qualified!(),
            ") && variables.template_metadata.labels[k].matches(",
            label_value!(),
            ")) && variables.template_metadata.?annotations.orValue({}).all(k, k.lowerAscii().matches(",
            qualified!(),
            ")) && variables.template_metadata.?finalizers.orValue([]).all(f, f.contains('/') && f.matches(",
            qualified!(),
            "))"
        ),
        "spec.template.metadata: labels, annotations and finalizers must be well formed",
    ),
    check(
        "SEL-3",
        "expressions",
        "variables.expressions.all(e, e.?operator.orValue('') in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",
        "spec.selector.matchExpressions: not a valid selector operator",
    ),
    check(
        "SEL-4",
        "expressions",
        "variables.expressions.all(e, e.?operator.orValue('') in ['In', 'NotIn'] ? size(e.?values.orValue([])) > 0 : size(e.?values.orValue([])) == 0)",
        "spec.selector.matchExpressions: values must be specified when `operator` is 'In' or 'NotIn', and only then",
    ),
    check(
        "SEL-5",
        "selector",
        concat!(
            "variables.match_labels.all(k, k.matches(",
            qualified!(),
            ") && variables.match_labels[k].matches(",
            label_value!(),
            ")) && variables.expressions.all(e, e.?key.orValue('').matches(",
            qualified!(),
            ") && e.?values.orValue([]).all(v, v.matches(",
            label_value!(),
            ")))"
        ),
        "spec.selector: keys must be qualified names and values label values",
    ),
    check(
        "SEL-6",
        "selection",
        "variables.match_labels.all(k, variables.selection[1][?k].orValue('') == variables.match_labels[k] && k in variables.selection[1]) && variables.expressions.all(e, e.operator == 'In' ? (e.key in variables.selection[1] && variables.selection[1][e.key] in e.values) : e.operator == 'NotIn' ? !(e.key in variables.selection[1] && variables.selection[1][e.key] in e.values) : e.operator == 'Exists' ? e.key in variables.selection[1] : !(e.key in variables.selection[1]))",
        "spec.template.metadata.labels: `selector` does not match template `labels`",
    ),
    check(
        "STR-2",
        "strategy",
        "object.kind != 'MachineDeployment' || variables.strategy.?type.orValue('') != '' || !has(variables.strategy.inPlaceUpdate)",
        "spec.strategy.type: must be set when inPlaceUpdate is specified",
    ),
    check(
        "STR-3",
        "strategy",
        "variables.strategy.?type.orValue('') != 'RollingUpdate' || has(variables.strategy.rollingUpdate)",
        "spec.strategy.rollingUpdate: RollingUpdate parameter cannot be nil for rolling update strategy",
    ),
    check(
        "STR-4",
        "strategy",
        "variables.strategy.?type.orValue('') != 'InPlaceUpdate' || has(variables.strategy.inPlaceUpdate)",
        "spec.strategy.inPlaceUpdate: InPlaceUpdate parameter cannot be nil for in-place update strategy",
    ),
    check(
        "STR-6",
        "strategy",
        "[['rollingUpdate', 'InPlaceUpdate'], ['inPlaceUpdate', 'RollingUpdate']].all(s, variables.strategy.?type.orValue('') in ['Recreate', s[1]] || !(s[0] in variables.strategy) || ['maxSurge', 'maxUnavailable'].all(f, f in variables.strategy[s[0]]))",
        "spec.strategy: maxSurge and maxUnavailable must be specified",
    ),
    check(
        "STR-12",
        "strategy",
        "variables.strategy.?type.orValue('') in ['Recreate', 'RollingUpdate'] || !has(variables.strategy.inPlaceUpdate) || variables.strategy.inPlaceUpdate.?orchestrationType.orValue('') != ''",
        "spec.strategy.inPlaceUpdate.orchestrationType: must be one of \"Auto\", \"Manual\"",
    ),
    check("CLS-1", "provider", "!variables.is_class || variables.provider != ''", "provider: name of the driver"),
    check(
        "CLS-7",
        "secrets",
        "!variables.is_class || variables.secrets.all(r, r.?name.orValue('') != '')",
        "secretRef, credentialsSecretRef: name is required",
    ),
    check(
        "CLS-8",
        "secrets",
        "!variables.is_class || variables.secrets.all(r, r.?namespace.orValue('') != '')",
        "secretRef, credentialsSecretRef: namespace is required",
    ),
    check(
        "CLS-11",
        "node_template",
        "!variables.is_class || size(variables.node_template) == 0 || ['instanceType', 'region', 'zone'].all(f, variables.node_template[?f].orValue('') != '')",
        "nodeTemplate: MachineClass NodeTemplate Instance Type, region and zone cannot be empty",
    ),
    check(
        "CLS-14",
        "node_template",
        concat!(
            "['capacity', 'virtualCapacity'].all(f, variables.node_template[?f].orValue({}).all(k, k.matches(",
            qualified!(),
            ")))"
        ),
        "nodeTemplate: names of resources must be qualified names",
    ),
];

/// P-2: what may not change, unless the object asks to skip the rule.
pub const TRANSITION_CHECKS: &[Check] = &[
    transition(
        "MCH-19",
        "!variables.is_machine || 'MCH-19' in variables.skips || variables.old_provider_id == '' || variables.old_provider_id == variables.provider_id",
        "spec.providerID: field is immutable once set",
    ),
    transition(
        "MCH-20",
        "!variables.is_machine || 'MCH-20' in variables.skips || has(object.metadata.deletionTimestamp) || variables.old_provider_id == '' || variables.old_class_name == '' || variables.old_class_name == variables.class_name",
        "spec.class.name: may not be changed once spec.providerID is set",
    ),
    transition(
        "META-8",
        "!variables.is_machine || 'META-8' in variables.skips || variables.node == '' || variables.old_node == '' || variables.old_node == variables.node || (variables.old_provider_id == '' && variables.provider_id != '')",
        "metadata.labels[node]: field is immutable once set",
    ),
    transition(
        "SEL-7",
        "!variables.is_scaled || 'SEL-7' in variables.skips || has(object.metadata.deletionTimestamp) || size(variables.old_match_labels) + size(variables.old_expressions) == 0 || (variables.old_match_labels.all(k, variables.match_labels[?k].orValue('') == variables.old_match_labels[k]) && variables.match_labels.all(k, k in variables.old_match_labels || k == 'machine-template-hash') && size(variables.expressions) == size(variables.old_expressions) && variables.expressions.all(e, variables.old_expressions.exists(o, o.?key == e.?key && o.?operator == e.?operator && sets.equivalent(o.?values.orValue([]), e.?values.orValue([])))))",
        "spec.selector: field is immutable",
    ),
];
