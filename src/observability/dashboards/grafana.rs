//! Renders the dashboards as JSON for Grafana, and as objects from which the sidecar of Grafana's chart reads them.

use std::str::FromStr;

use serde_json::{Map, Value, json};

use super::{
    Dashboard, DashboardName,
    panel::{HasData, Panel, Query, Row, Variable},
};
use crate::observability::rules::DEFAULT_JOB;
use machine_api::names::WEBHOOK_CONFIGURATION;

/// The label that the sidecar looks for if its chart is not changed.
pub const DEFAULT_LABEL: &str = "grafana_dashboard=1";

/// The version of the format, of Grafana 10. Later versions of Grafana read it too.
const SCHEMA_VERSION: u32 = 39;
/// The width of a dashboard in Grafana's grid.
const GRID_WIDTH: usize = 24;
const PANELS_PER_LINE: usize = 2;
const PANEL_HEIGHT: usize = 8;

/// A label of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// `KEY=VALUE`.
impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            _ => Err("must be a key and a value, such as grafana_dashboard=1".to_owned()),
        }
    }
}

/// What an operator may choose about the dashboards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DashboardOptions {
    /// The job that is selected at first.
    pub job: String,
    /// The label that Grafana's sidecar looks for.
    pub label: Label,
}

impl Default for DashboardOptions {
    fn default() -> Self {
        let label = Label { key: "grafana_dashboard".to_owned(), value: "1".to_owned() };
        Self { job: DEFAULT_JOB.to_owned(), label }
    }
}

/// An object with the JSON for each dashboard.
pub fn config_maps(namespace: &str, options: &DashboardOptions) -> Vec<Value> {
    DashboardName::ALL.into_iter().map(|name| config_map(namespace, name, options)).collect()
}

fn config_map(namespace: &str, name: DashboardName, options: &DashboardOptions) -> Value {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/name".to_owned(), WEBHOOK_CONFIGURATION.into());
    labels.insert(options.label.key.clone(), options.label.value.clone().into());
    let mut data = Map::new();
    // Two dashboards of the sidecar must not have the same name of a file.
    data.insert(format!("{}.json", name.uid()), dashboard_file(name, options).into());
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": format!("{WEBHOOK_CONFIGURATION}-{name}"), "namespace": namespace, "labels": labels },
        "data": data,
    })
}

/// The JSON of a dashboard as text, indented, with a line break at its end.
pub fn dashboard_file(name: DashboardName, options: &DashboardOptions) -> String {
    format!("{:#}\n", dashboard(name, options))
}

/// The JSON of a dashboard.
pub fn dashboard(name: DashboardName, options: &DashboardOptions) -> Value {
    let Dashboard { title, description, variables, rows } = name.dashboard();
    let selected = json!({ "selected": true, "text": options.job, "value": options.job });
    let mut list = vec![
        json!({ "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" }),
        variable("job", "Job", "label_values(mcm_build_info, job)", &json!({ "current": selected })),
    ];
    list.extend(variables.iter().map(|selected| variable_of(*selected)));
    let links = json!([{
        "asDropdown": false, "icon": "external link", "includeVars": true, "keepTime": true, "tags": [WEBHOOK_CONFIGURATION],
        "targetBlank": false, "title": "", "type": "dashboards",
    }]);
    json!({
        "uid": name.uid(),
        "title": format!("Machine controller manager / {title}"),
        "description": description,
        "tags": [WEBHOOK_CONFIGURATION],
        "schemaVersion": SCHEMA_VERSION,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": { "from": "now-6h", "to": "now" },
        "links": links,
        "templating": { "list": list },
        "panels": panels(rows),
    })
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn variable_of(variable: Variable) -> Value {
    const NAMESPACES: &str = r#"label_values(mcm_machine_deployment_info{job="$job"}, namespace)"#;
    match variable {
        Variable::Namespaces => {
            let all = json!({ "selected": true, "text": ["All"], "value": ["$__all"] });
            let extras = json!({ "multi": true, "includeAll": true, "current": all });
            self::variable("namespace", "Namespaces", NAMESPACES, &extras)
        }
        Variable::Namespace => self::variable("namespace", "Namespace", NAMESPACES, &json!({})),
        Variable::Deployment => {
            let query = r#"label_values(mcm_machine_deployment_info{job="$job", namespace="$namespace"}, name)"#;
            self::variable("deployment", "Deployment", query, &json!({}))
        }
    }
}

/// A variable whose values are the answers of a query. `extras` are further fields of it.
fn variable(name: &str, label: &str, query: &str, extras: &Value) -> Value {
    // 2 means that the values are asked again when the time changes: a deployment may be new. 1 sorts them.
    let mut variable = json!({
        "name": name, "label": label, "type": "query", "datasource": source(), "definition": query,
        "query": { "query": query, "refId": name }, "refresh": 2, "sort": 1,
    });
    if let (Some(variable), Some(extras)) = (variable.as_object_mut(), extras.as_object()) {
        variable.extend(extras.clone());
    }
    variable
}

/// All panels of the rows at their places, with a heading for each row.
fn panels(rows: &[Row]) -> Vec<Value> {
    let (mut all, mut y) = (Vec::new(), 0);
    for Row { title, panels } in rows {
        let place = json!({ "x": 0, "y": y, "w": GRID_WIDTH, "h": 1 });
        all.push(json!({ "id": all.len() + 1, "type": "row", "title": title, "collapsed": false, "gridPos": place, "panels": [] }));
        y += 1;
        for line in panels.chunks(PANELS_PER_LINE) {
            let width = GRID_WIDTH / PANELS_PER_LINE;
            for (number, panel) in line.iter().enumerate() {
                let place = json!({ "x": number * width, "y": y, "w": width, "h": PANEL_HEIGHT });
                all.push(self::panel(all.len() + 1, panel, &place));
            }
            y += PANEL_HEIGHT;
        }
    }
    all
}

fn panel(id: usize, panel: &Panel, place: &Value) -> Value {
    let Panel { title, description, unit, has_data, queries } = panel;
    let description = match has_data {
        HasData::Always => (*description).to_owned(),
        HasData::ByEvents => format!("{description} The panel is empty while nothing of that happens."),
    };
    let targets: Vec<Value> = queries.iter().zip('A'..).map(|(query, name)| target(*query, name)).collect();
    json!({
        "id": id,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source(),
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {
            "defaults": { "unit": unit.in_grafana(), "custom": { "fillOpacity": 10, "showPoints": "auto", "spanNulls": false } },
            "overrides": [],
        },
        "options": {
            "legend": { "displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"] },
            "tooltip": { "mode": "multi", "sort": "desc" },
        },
    })
}

fn target(query: Query, name: char) -> Value {
    json!({
        "refId": name.to_string(),
        "datasource": source(),
        "expr": query.expression,
        "legendFormat": query.legend,
        "range": true,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("grafana_dashboard=1", Some(("grafana_dashboard", "1")))]
    #[case("example.org/dashboards=", Some(("example.org/dashboards", "")))]
    #[case("grafana_dashboard", None)]
    #[case("=1", None)]
    fn a_label_is_a_key_and_a_value(#[case] text: &str, #[case] expected: Option<(&str, &str)>) {
        let expected = expected.map(|(key, value)| Label { key: key.to_owned(), value: value.to_owned() });
        assert_eq!(text.parse::<Label>().ok(), expected);
    }

    #[test]
    fn the_default_label_is_the_one_of_the_flag() {
        assert_eq!(DEFAULT_LABEL.parse(), Ok(DashboardOptions::default().label));
    }

    #[test]
    fn panels_stand_two_in_a_line_below_the_heading_of_their_row() {
        let of = |name: DashboardName| dashboard(name, &DashboardOptions::default());
        let fleet = of(DashboardName::Fleet);
        let places: Vec<[u64; 4]> = fleet["panels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|panel| ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap()))
            .collect();
        assert_eq!(places[..4], [[0, 0, 24, 1], [0, 1, 12, 8], [12, 1, 12, 8], [0, 9, 12, 8]]);
    }

    #[test]
    fn a_name_is_read_and_another_one_is_refused_with_all_names() {
        for name in DashboardName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let error = "fleets".parse::<DashboardName>().unwrap_err().to_string();
        assert_eq!(error, "\"fleets\" is the name of no dashboard; there are fleet, deployment, controller, admission");
    }
}
