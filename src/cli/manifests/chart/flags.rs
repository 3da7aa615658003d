//! The flags of `mcm serve` as values of the chart: name, type, default and description of each, from the definition of the command line.
//!
//! The schema refuses a flag that does not exist, or a value of another type, before anything is installed. The chart sets some
//! flags itself ([`SET_BY_CHART`]).

use std::{any::TypeId, fmt::Write};

use clap::{Arg, ArgAction, Args, Command};
use serde_json::{Map, Value, json};

use crate::cli::serve::args::ServeArgs;
use kube_values::duration::GoDuration;

/// Flags that the chart sets itself, and what to do instead. A second source for one flag would make the Deployment contradict the
/// Service or the rights.
const SET_BY_CHART: [(&str, &str); 13] = [
    ("admission-profile", "set webhooks.profile"),
    ("cert-mode", "set certificates.mode"),
    ("control-kubeconfig", "set control.kubeconfig"),
    ("controller-users", "set webhooks.controllerUsers"),
    ("extension-apiserver", "set views.enabled"),
    ("namespace", "set machineNamespace"),
    ("secure-port", "set webhooks.port"),
    ("service-name", "it is the Service of the chart"),
    ("service-namespace", "it is the namespace of the release"),
    ("target-kubeconfig", "set target.mode"),
    ("tls-cert-file", "set certificates.secretName"),
    ("tls-private-key-file", "set certificates.secretName"),
    ("webhook-scope", "set scope"),
];

/// A Go duration that is not negative.
const DURATION: &str =
    r"^\+?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$";

/// Nothing, or an http or https address without user, password and query. The command line also checks the host.
const ADDRESS: &str = r"^\s*(https?://[^\s/?#@:][^\s/?#@]*(/[^\s?]*)?\s*)?$";

/// The type of a flag's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FlagType {
    Boolean,
    Integer,
    /// 0 means off.
    Port,
    Number,
    Duration,
    /// The address of a server.
    Address,
    Text,
    /// A flag of klog that may stand alone.
    Switch,
    OneOf(Vec<String>),
    /// The flag is repeated for each item.
    List,
}

impl FlagType {
    fn of(argument: &Arg) -> Self {
        let parsed = argument.get_value_parser().type_id();
        let choices: Vec<String> =
            argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let is = |type_id: TypeId| parsed == type_id;
        if matches!(argument.get_action(), ArgAction::Append) {
            Self::List
        } else if is(TypeId::of::<bool>()) {
            Self::Boolean
        } else if !choices.is_empty() {
            Self::OneOf(choices)
        } else if is(TypeId::of::<GoDuration>()) {
            Self::Duration
        } else if is(TypeId::of::<i64>()) && is_port(argument) {
            Self::Port
        } else if is(TypeId::of::<i64>()) || is(TypeId::of::<i32>()) {
            Self::Integer
        } else if is(TypeId::of::<f32>()) {
            Self::Number
        } else if argument.get_num_args().is_some_and(|count| count.min_values() == 0) {
            Self::Switch
        } else if argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == "URL")) {
            Self::Address
        } else {
            Self::Text
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::Boolean => json!({ "type": "boolean" }),
            Self::Integer => json!({ "type": "integer" }),
            Self::Port => json!({ "type": "integer", "minimum": 0, "maximum": u16::MAX }),
            Self::Number => json!({ "type": "number" }),
            Self::Duration => json!({ "type": "string", "pattern": DURATION }),
            Self::Address => json!({ "type": "string", "pattern": ADDRESS }),
            Self::Text => json!({ "type": "string" }),
            Self::Switch => json!({ "type": ["boolean", "string"] }),
            Self::OneOf(choices) => json!({ "type": "string", "enum": choices }),
            Self::List => json!({ "type": "array", "items": { "type": "string" } }),
        }
    }

    /// A default of the command line as a value of the chart.
    fn value(&self, defaults: &[String]) -> Option<Value> {
        let first = defaults.first()?;
        Some(match self {
            Self::Boolean => json!(first == "true"),
            Self::Integer | Self::Port => json!(first.parse::<i64>().ok()?),
            Self::Number => serde_json::from_str(first).ok()?,
            Self::List => json!(defaults.iter().flat_map(|text| text.split(',')).collect::<Vec<_>>()),
            Self::Duration | Self::Address | Self::Text | Self::Switch | Self::OneOf(_) => json!(first),
        })
    }

    fn word(&self) -> String {
        match self {
            Self::Boolean => "boolean".to_owned(),
            Self::Integer => "integer".to_owned(),
            Self::Port => "port".to_owned(),
            Self::Number => "number".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::Address => "address".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Switch => "boolean or text".to_owned(),
            Self::OneOf(choices) => choices.join(", "),
            Self::List => "list".to_owned(),
        }
    }
}

fn is_port(argument: &Arg) -> bool {
    argument.get_long().is_some_and(|long| long == "port" || long.ends_with("-port"))
}

/// A flag of `mcm serve`.
#[derive(Clone, Debug)]
pub struct ServeFlag {
    name: String,
    flag_type: FlagType,
    /// `None` if the flag is unset by default.
    default: Option<Value>,
    /// One sentence or more, without a full stop at the end.
    help: String,
}

/// All long flags of `mcm serve`, by name.
pub fn of_serve() -> Vec<ServeFlag> {
    let command = ServeArgs::augment_args(Command::new("serve"));
    let mut flags: Vec<_> = command.get_arguments().filter_map(flag).collect();
    flags.sort_by(|one, other| one.name.cmp(&other.name));
    flags
}

fn flag(argument: &Arg) -> Option<ServeFlag> {
    let name = argument.get_long()?.to_owned();
    let flag_type = FlagType::of(argument);
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = flag_type.value(&defaults);
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    Some(ServeFlag { name, flag_type, default, help })
}

/// The schema of `flags` in the values.
pub fn schema(flags: &[ServeFlag]) -> Value {
    let property = |flag: &ServeFlag| {
        let mut schema = flag.flag_type.schema();
        schema["description"] = json!(flag.help);
        if let Some(default) = &flag.default {
            schema["default"] = default.clone();
        }
        (flag.name.clone(), schema)
    };
    let properties: Map<String, Value> = flags.iter().map(property).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// The rows of the reference: flag, type, default, description.
pub fn rows(flags: &[ServeFlag]) -> Vec<[String; 4]> {
    let row = |flag: &ServeFlag| {
        let default = flag.default.as_ref().map_or_else(|| "unset".to_owned(), |value| format!("`{value}`"));
        let help = match SET_BY_CHART.iter().find(|(name, _)| *name == flag.name) {
            Some((_, instead)) => format!("set by the chart: {instead}"),
            None => flag.help.clone(),
        };
        [format!("`{}`", flag.name), flag.flag_type.word(), default, help]
    };
    flags.iter().map(row).collect()
}

/// The template that refuses flags that follow from other values.
pub fn template() -> String {
    let mut text =
        "{{- /* generated by `mcm manifests chart`: do not edit */ -}}\n{{- define \"mcm.refuseOwnFlags\" -}}\n"
            .to_owned();
    for (flag, instead) in SET_BY_CHART {
        let refusal = format!("{{{{ fail \"flags.{flag}: the chart sets this flag; {instead}\" }}}}");
        let _ = writeln!(text, "{{{{- if hasKey .Values.flags \"{flag}\" }}}}{refusal}{{{{ end }}}}");
    }
    text.push_str("{{- end }}\n");
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn named(name: &str) -> ServeFlag {
        of_serve().into_iter().find(|flag| flag.name == name).unwrap_or_else(|| panic!("no flag {name}"))
    }

    #[rstest]
    #[case("leader-elect", FlagType::Boolean, json!(true))]
    #[case("safety-up", FlagType::Integer, json!(2))]
    #[case("v", FlagType::Integer, json!(0))]
    #[case("compat-port", FlagType::Port, json!(10259))]
    #[case("kube-api-qps", FlagType::Number, json!(20))]
    #[case("machine-drain-timeout", FlagType::Duration, json!("2h"))]
    #[case("controllers", FlagType::List, json!(["*"]))]
    #[case("authorization-always-allow-paths", FlagType::List, json!(["/healthz", "/readyz", "/livez"]))]
    #[case("address", FlagType::Text, json!("0.0.0.0"))]
    #[case("webhook-scope", FlagType::OneOf(vec!["cluster".into(), "namespace".into()]), json!("cluster"))]
    fn pk_024_a_flag_has_its_type_and_default(#[case] name: &str, #[case] flag_type: FlagType, #[case] default: Value) {
        let flag = named(name);
        assert_eq!((flag.flag_type, flag.default), (flag_type, Some(default)));
    }

    #[test]
    fn pk_024_every_long_flag_is_in_the_schema_and_no_other() {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let mut long: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        long.sort_unstable();
        let schema = schema(&of_serve());
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.keys().map(String::as_str).collect::<Vec<_>>(), long);
        assert!(long.len() > 100);
        for (name, property) in properties {
            assert!(property.get("type").is_some() && property["description"] != "", "{name}");
        }
    }

    #[rstest]
    #[case("1h30m", true)]
    #[case("0", true)]
    #[case("1.5s", true)]
    #[case("10", false)]
    #[case("10 s", false)]
    #[case("-1s", false)]
    #[case("", false)]
    fn a_duration_of_the_schema_is_one_that_the_flag_accepts(#[case] text: &str, #[case] accepted: bool) {
        let is_flag = text.parse::<GoDuration>().is_ok_and(|duration| !duration.is_negative());
        let pattern = regex::Regex::new(DURATION).unwrap();
        assert_eq!((pattern.is_match(text), is_flag), (accepted, accepted));
    }

    #[rstest]
    #[case("http://collector:4318", true)]
    #[case("https://[::1]:4318/otlp", true)]
    #[case("", true)]
    #[case("http://user:secret@collector:4318", false)]
    #[case("https://collector?token=secret", false)]
    #[case("grpc://collector:4317", false)]
    #[case("collector:4318", false)]
    #[case("http://", false)]
    #[case("http://:4318", false)]
    fn an_address_of_the_schema_is_one_that_the_flag_accepts(#[case] text: &str, #[case] accepted: bool) {
        assert_eq!(named("tracing-endpoint").flag_type, FlagType::Address);
        assert_eq!(regex::Regex::new(ADDRESS).unwrap().is_match(text), accepted);
        let line = ["mcm", "serve", "--control-kubeconfig=/c", "--target-kubeconfig=/t", "--tracing-endpoint", text];
        let parsed = <crate::cli::Cli as clap::Parser>::try_parse_from(line).unwrap();
        let crate::cli::Command::Serve(args) = parsed.command else { panic!("the line runs mcm serve") };
        let host = crate::cli::serve::validate::HostInfo { host_name: "pod".to_owned(), pod_namespace: None };
        let problems = args.validate(&host).err().unwrap_or_default().concat();
        assert_eq!(!problems.contains("--tracing-endpoint"), accepted, "{problems}");
    }

    #[test]
    fn flags_that_the_chart_sets_exist() {
        for (name, _) in SET_BY_CHART {
            named(name);
        }
    }
}
