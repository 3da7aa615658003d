//! The values of the chart for alerts: which are installed, and their limits. [`super::alerts`] makes the template that reads them.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    alerts,
    values::{Fields, Texts},
};
use crate::observability::{Threshold, rules::DEFAULT_RUNBOOKS};

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Alerts {
    /// Whether a `PrometheusRule` is installed. It needs the definitions of the Prometheus operator
    enabled: bool,
    /// Labels by which a Prometheus selects the alerts
    labels: Texts,
    /// Beginning of the URLs of runbooks; the name of the alert and ".md" follow
    #[schemars(regex(pattern = r#"^[^\s"\\{}]*$"#))]
    runbook_url: String,
    /// Limits of the alerts
    #[schemars(schema_with = "thresholds_schema")]
    thresholds: Fields,
    /// Alerts to add. They need metrics of the API server
    with: Vec<RequestedAlert>,
    /// Alerts to leave out, by name, such as `MachineFailed`
    without: Vec<AnyAlert>,
}

impl Default for Alerts {
    fn default() -> Self {
        let limit = |limit: Threshold| (limit.name().to_owned(), number(limit.default_value()));
        Self {
            enabled: false,
            labels: Texts::new(),
            runbook_url: DEFAULT_RUNBOOKS.to_owned(),
            thresholds: alerts::limits().map(limit).collect(),
            with: Vec::new(),
            without: Vec::new(),
        }
    }
}

/// A number without a fraction if it has none, as people write it. JSON has no number for values that are not finite.
fn number(value: f64) -> Value {
    serde_json::from_str(&value.to_string()).unwrap_or_default()
}

fn thresholds_schema(_: &mut SchemaGenerator) -> Schema {
    let property = |limit: Threshold| {
        let (kind, minimum) = if limit.is_duration() { ("integer", 1) } else { ("number", 0) };
        let default = number(limit.default_value());
        let schema = json!({ "type": kind, "minimum": minimum, "description": limit.meaning().trim_end_matches('.'), "default": default });
        (limit.name().to_owned(), schema)
    };
    let properties: Fields = alerts::limits().map(property).collect();
    schemars::json_schema!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Declares a type for the names of some alerts.
macro_rules! alert_type {
    ($(#[$meta:meta])* $name:ident, $names:path) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Serialize)]
        struct $name(String);

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({ "type": "string", "enum": $names() })
            }
        }
    };
}

alert_type! {
    /// The name of an alert.
    AnyAlert, alerts::all_names
}
alert_type! {
    /// The name of an alert that is left out by default.
    RequestedAlert, alerts::on_request
}
