//! Reading a configuration over another one, with all mistakes and the paths of their keys.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::{
    ClockMode, NodeIdSpelling, NodeNaming, NodeSettings, Quota, QuotaLimit, RateLimit, Scope, SimulationConfig, Spot,
    VolumeSettings,
};
use crate::{
    distribution::Distribution,
    persistence::StatePlace,
    quantity,
    reader::{RULE, Section},
    rules::{FailureRule, OutcomeRule, Pattern},
};
use kube_values::field::{FieldPath, Findings};

/// Keys that exist once per simulation.
const GLOBAL_KEYS: [&str; 6] = ["seed", "clock", "quota", "rateLimit", "persistence", "impersonate"];

impl SimulationConfig {
    /// Reads the text of a configuration file over the defaults.
    ///
    /// # Errors
    /// All mistakes, with the paths of their keys.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::default().overlaid_by_text(text)
    }

    /// Reads the text of a configuration file over this configuration.
    ///
    /// # Errors
    /// All mistakes, with the paths of their keys.
    pub fn overlaid_by_text(&self, text: &str) -> Result<Self, String> {
        let value: Value = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str(text).map_err(|error| format!("not readable as YAML: {error}"))?
        };
        let mut found = Findings::new();
        let config = self.overlaid(&value, &FieldPath::default(), Scope::Simulation, &mut found);
        if found.denies() { Err(found.aggregate()) } else { Ok(config) }
    }

    /// This configuration with the keys of `value` laid over it.
    #[must_use]
    pub fn overlaid(&self, value: &Value, path: &FieldPath, scope: Scope, found: &mut Findings) -> Self {
        let mut config = self.clone();
        if value.is_null() {
            return config;
        }
        let Some(mut section) = Section::of(value, path, found) else { return config };
        match scope {
            Scope::Simulation => config.read_global(&mut section, found),
            Scope::Class => {
                for key in GLOBAL_KEYS {
                    if let Some((_, path)) = section.take(key) {
                        found.forbidden(RULE, path, "may only be set for the whole simulation");
                    }
                }
            }
        }
        config.read_latency(&mut section, found);
        if let Some(mut part) = section.section("consistency", found) {
            part.duration("listLag", &mut config.consistency.list_lag, found);
            part.duration("getLag", &mut config.consistency.get_lag, found);
            part.finish(found);
        }
        if let Some((list, path)) = section.list("failures", found) {
            config.failures = FailureRule::read_all(list, &path, found);
        }
        if let Some((list, path)) = section.list("outcomes", found) {
            config.outcomes = OutcomeRule::read_all(list, &path, found);
        }
        if let Some(part) = section.section("spot", found) {
            config.spot = Spot::read(part, found);
        }
        if let Some(part) = section.section("nodes", found) {
            config.nodes.read(part, found);
        }
        if let Some(mut part) = section.section("pods", found) {
            part.switch("run", &mut config.pods.run, found);
            part.duration("startLatency", &mut config.pods.start_latency, found);
            part.duration("terminationLatency", &mut config.pods.termination_latency, found);
            part.switch("honourTerminationGrace", &mut config.pods.honour_termination_grace, found);
            part.finish(found);
        }
        if let Some(part) = section.section("volumes", found) {
            config.volumes.read(part, found);
        }
        section.finish(found);
        config
    }

    fn read_global(&mut self, section: &mut Section<'_>, found: &mut Findings) {
        if let Some(seed) = section.number("seed", found) {
            self.seed = seed;
        }
        if let Some((value, path)) = section.take("clock") {
            match ClockMode::read(value) {
                Some(mode) => self.clock = mode,
                None => found.invalid(RULE, path, value.clone(), "must be real, virtual or virtual(rate: NUMBER)"),
            }
        }
        if let Some((list, path)) = section.list("quota", found) {
            self.quota = list.iter().enumerate().filter_map(|(at, v)| Quota::read(v, &path.index(at), found)).collect();
        }
        if let Some(mut part) = section.section("rateLimit", found) {
            self.rate_limit = RateLimit::read(&mut part, found);
            part.finish(found);
        }
        if let Some(part) = section.section("persistence", found) {
            self.persistence = read_persistence(part, found);
        }
        if let Some((list, path)) = section.list("impersonate", found) {
            let names: Vec<String> = list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
            if names.len() != list.len() || names.iter().any(String::is_empty) {
                found.invalid(RULE, path, Value::from(list.to_vec()), "must be a list of provider names such as AWS");
            }
            self.impersonate = Some(names);
        }
    }

    fn read_latency(&mut self, section: &mut Section<'_>, found: &mut Findings) {
        let Some(mut part) = section.section("latency", found) else { return };
        let targets = [
            ("create", &mut self.latency.create),
            ("boot", &mut self.latency.boot),
            ("ready", &mut self.latency.ready),
            ("delete", &mut self.latency.delete),
            ("api", &mut self.latency.api),
        ];
        for (key, target) in targets {
            if let Some((value, path)) = part.take(key)
                && let Some(read) = Distribution::read(value, &path, found)
            {
                *target = read;
            }
        }
        part.finish(found);
    }
}

impl ClockMode {
    /// `real`, `virtual` (stands still), `virtual(rate: 60)` or `{virtual: {rate: 60}}`.
    fn read(value: &Value) -> Option<Self> {
        let rate = match value {
            Value::String(word) if word == "real" => return Some(Self::Real),
            Value::String(word) if word == "virtual" => 0.0,
            Value::String(word) => word.strip_prefix("virtual(rate:")?.strip_suffix(')')?.trim().parse::<f64>().ok()?,
            Value::Object(map) if map.len() == 1 => match map.get("virtual")? {
                Value::Null => 0.0,
                Value::Object(inner) if inner.is_empty() => 0.0,
                Value::Object(inner) if inner.len() == 1 => inner.get("rate")?.as_f64()?,
                _ => return None,
            },
            _ => return None,
        };
        (0.0..=1_000_000.0).contains(&rate).then_some(Self::Virtual { rate })
    }
}

impl Quota {
    fn read(value: &Value, path: &FieldPath, found: &mut Findings) -> Option<Self> {
        let mut section = Section::of(value, path, found)?;
        let pattern = Pattern::read(&mut section, found);
        let limits = (section.number("max", found), section.number("vcpus", found));
        section.finish(found);
        let limit = match limits {
            (Some(max), None) => QuotaLimit::Machines(max),
            (None, Some(vcpus)) => QuotaLimit::Vcpus(vcpus),
            _ => {
                found.invalid(RULE, path.clone(), value.clone(), "must have either max or vcpus");
                return None;
            }
        };
        Some(Self { pattern, limit })
    }
}

impl Spot {
    fn read(mut section: Section<'_>, found: &mut Findings) -> Option<Self> {
        let mut pattern = Pattern::default();
        if let Some(mut part) = section.section("match", found) {
            pattern = Pattern::read(&mut part, found);
            part.finish(found);
        }
        let mean = section.required_duration("meanTimeToInterrupt", found);
        let notice = section.optional_duration("notice", found).unwrap_or(Duration::from_secs(120));
        section.finish(found);
        Some(Self { pattern, mean_time_to_interrupt: mean?, notice })
    }
}

impl RateLimit {
    fn read(section: &mut Section<'_>, found: &mut Findings) -> Option<Self> {
        let mut positive = |key| {
            let (value, path) = section.take(key)?;
            let number = value.as_f64().filter(|number| *number > 0.0);
            if number.is_none() {
                found.invalid(RULE, path, value.clone(), "must be a number above 0");
            }
            number
        };
        let (qps, burst) = (positive("qps"), positive("burst"));
        let qps = qps?;
        Some(Self { qps, burst: burst.unwrap_or(qps).max(1.0) })
    }
}

impl NodeSettings {
    fn read(&mut self, mut section: Section<'_>, found: &mut Findings) {
        section.duration("leaseInterval", &mut self.lease_interval, found);
        section.duration("leaseDuration", &mut self.lease_duration, found);
        section.duration("statusPeriod", &mut self.status_period, found);
        section.duration("reregister", &mut self.reregister, found);
        section.switch("ccm", &mut self.ccm, found);
        if let Some(word) = section.text("nodeName", found) {
            match word.as_str() {
                "machine-name" => self.node_name = NodeNaming::MachineName,
                "private-dns" => self.node_name = NodeNaming::PrivateDns,
                other => {
                    found.not_supported(RULE, section.path_of("nodeName"), other, &["machine-name", "private-dns"]);
                }
            }
        }
        if let Some(word) = section.text("providerID", found) {
            match word.as_str() {
                "cloud" => self.provider_id = NodeIdSpelling::Cloud,
                "machine" => self.provider_id = NodeIdSpelling::Machine,
                other => found.not_supported(RULE, section.path_of("providerID"), other, &["cloud", "machine"]),
            }
        }
        if let Some((Value::Object(map), path)) = section.take("allocatableReserved") {
            for (name, value) in map {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                if quantity::parse(&text).is_none() {
                    found.invalid(
                        RULE,
                        path.child(name),
                        value.clone(),
                        "must be a quantity such as \"80m\" or \"1Gi\"",
                    );
                }
                self.allocatable_reserved.insert(name.clone(), Quantity(text));
            }
        }
        if !self.lease_interval.is_zero() && self.lease_interval >= self.lease_duration {
            let detail = "must be longer than leaseInterval, else the lease runs out between two renewals";
            found.invalid(RULE, section.path_of("leaseDuration"), format!("{:?}", self.lease_duration), detail);
        }
        section.finish(found);
    }
}

impl VolumeSettings {
    fn read(&mut self, mut section: Section<'_>, found: &mut Findings) {
        section.duration("attach", &mut self.attach, found);
        section.duration("detach", &mut self.detach, found);
        if let Some(max) = section.number("maxPerNode", found) {
            self.max_per_node = max;
        }
        if let Some((list, path)) = section.list("drivers", found) {
            for (at, name) in list.iter().enumerate() {
                match name.as_str() {
                    Some(name) => self.drivers.push(name.to_owned()),
                    None => found.invalid(RULE, path.index(at), name.clone(), "must be the name of a CSI driver"),
                }
            }
        }
        section.finish(found);
    }
}

fn read_persistence(mut section: Section<'_>, found: &mut Findings) -> Option<StatePlace> {
    let kind = section.text("kind", found).unwrap_or_else(|| "none".to_owned());
    let path = section.text("path", found);
    let place = match (kind.as_str(), path) {
        ("none", _) => Some(StatePlace::None),
        ("file" | "json" | "configMap", None) => {
            found.required(RULE, section.path_of("path"), format!("kind {kind} needs to know where"));
            None
        }
        ("file", Some(path)) => Some(StatePlace::File(path.into())),
        ("json", Some(path)) => Some(StatePlace::Json(path.into())),
        ("configMap", Some(name)) => Some(StatePlace::ConfigMap(name)),
        (other, _) => {
            found.not_supported(RULE, section.path_of("kind"), other, &["none", "file", "json", "configMap"]);
            None
        }
    };
    section.finish(found);
    place
}
