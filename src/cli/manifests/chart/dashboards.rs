//! The dashboards as a template of the chart.

use super::{
    generated::{HOME, SUFFIX, labelled, placeholders, whole_template},
    template::{Condition, to_template, variant},
};
use crate::observability::dashboards::{DashboardOptions, Label, config_maps};

/// Stands for the job that is selected at first.
const JOB: &str = "<job>";
/// Stands for the label that Grafana's sidecar looks for. It may be several in the chart.
const LABEL: &str = "<label>";

/// The template of the objects.
pub(super) fn template() -> String {
    let label = Label { key: LABEL.to_owned(), value: String::new() };
    let mut objects = config_maps(HOME, &DashboardOptions { job: JOB.to_owned(), label });
    for labels in objects.iter_mut().filter_map(|object| object["metadata"]["labels"].as_object_mut()) {
        labels.remove(LABEL);
    }
    let labels = "\n  labels:\n{{- with .Values.dashboards.labels }}\n    {{- toYaml . | nindent 4 }}\n{{- end }}\n";
    let text = to_template(&variant(&labelled(objects)), &placeholders(SUFFIX));
    let text = text.replace("\n  labels:\n", labels).replace(JOB, "{{ .Values.metrics.job }}");
    whole_template(Condition("and .Values.dashboards.enabled (include \"mcm.hasPods\" .)"), &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observability::dashboards::DashboardName;

    #[test]
    fn each_dashboard_is_in_the_template_and_no_placeholder_is_left() {
        let text = template();
        for name in DashboardName::ALL {
            assert!(text.contains(&format!("  {}.json: ", name.uid())), "{name}");
        }
        assert_eq!(text.matches("toYaml").count(), DashboardName::ALL.len());
        assert!([JOB, LABEL, HOME].iter().all(|placeholder| !text.contains(placeholder)), "{text}");
        // Braces of Grafana are no expressions of Helm.
        assert!(text.contains("{{`{{`}}phase}}") && !text.contains("{{phase}}"), "{text}");
    }
}
