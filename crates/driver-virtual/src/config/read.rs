//! Reads a configuration that overrides another one. Reports all mistakes with the paths of their keys.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::Value;

use super::{
    ClockMode, NodeIdSpelling, NodeNaming, NodeSettings, Quota, QuotaLimit, RateLimit, Scope, SimulationConfig, Spot,
};
use crate::{
    distribution::Distribution,
    persistence::StatePlace,
    reader::{Section, object, set},
    rules::{FailureRule, OutcomeRule, Pattern},
};
use kube_values::{
    field::{FieldPath, Findings},
    quantity::Quantity,
};

/// The keys that exist once per simulation.
const GLOBAL_KEYS: [&str; 6] = ["seed", "clock", "quota", "rateLimit", "persistence", "impersonate"];

impl SimulationConfig {
    /// Reads the text of a configuration file, which overrides the defaults.
    ///
    /// # Errors
    /// All mistakes with the paths of their keys.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::default().overlaid_by_text(text)
    }

    /// Reads the text of a configuration file, which overrides this configuration.
    ///
    /// # Errors
    /// All mistakes with the paths of their keys.
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

    /// This configuration with the overrides of `value`.
    #[must_use]
    pub fn overlaid(&self, value: &Value, path: &FieldPath, scope: Scope, found: &mut Findings) -> Self {
        let mut config = self.clone();
        if !value.is_null() {
            object(value, path, found, |section| config.read(section, scope));
        }
        config
    }

    fn read(&mut self, section: &mut Section<'_, '_>, scope: Scope) {
        match scope {
            Scope::Simulation => self.read_global(section),
            Scope::Class => {
                for key in GLOBAL_KEYS {
                    section.forbid(key, "may only be set for the whole simulation");
                }
            }
        }
        section.object("latency", |part| {
            set(&mut self.latency.create, part.read("create", Distribution::read));
            set(&mut self.latency.boot, part.read("boot", Distribution::read));
            set(&mut self.latency.ready, part.read("ready", Distribution::read));
            set(&mut self.latency.delete, part.read("delete", Distribution::read));
            set(&mut self.latency.api, part.read("api", Distribution::read));
        });
        section.object("consistency", |part| {
            set(&mut self.consistency.list_lag, part.duration("listLag"));
            set(&mut self.consistency.get_lag, part.duration("getLag"));
        });
        set(&mut self.failures, section.objects("failures", FailureRule::read));
        set(&mut self.outcomes, section.objects("outcomes", |_, part| OutcomeRule::read(part)));
        set(&mut self.spot, section.object("spot", Spot::read));
        section.object("nodes", |part| self.nodes.read(part));
        section.object("pods", |part| {
            set(&mut self.pods.run, part.switch("run"));
            set(&mut self.pods.start_latency, part.duration("startLatency"));
            set(&mut self.pods.termination_latency, part.duration("terminationLatency"));
            set(&mut self.pods.honour_termination_grace, part.switch("honourTerminationGrace"));
        });
        section.object("volumes", |part| {
            set(&mut self.volumes.attach, part.duration("attach"));
            set(&mut self.volumes.detach, part.duration("detach"));
            set(&mut self.volumes.max_per_node, part.number("maxPerNode"));
            self.volumes.drivers.extend(part.names("drivers", "must be a list of CSI drivers").unwrap_or_default());
        });
    }

    fn read_global(&mut self, section: &mut Section<'_, '_>) {
        set(&mut self.seed, section.number("seed"));
        let clock = "must be real, virtual or virtual(rate: NUMBER)";
        set(&mut self.clock, section.value("clock", clock, ClockMode::read));
        set(&mut self.quota, section.objects("quota", |_, part| Quota::read(part)));
        set(&mut self.rate_limit, section.object("rateLimit", RateLimit::read));
        set(&mut self.persistence, section.object("persistence", read_persistence));
        if let Some(names) = section.names("impersonate", "must be a list of provider names such as AWS") {
            self.impersonate = Some(names);
        }
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
    fn read(section: &mut Section<'_, '_>) -> Option<Self> {
        let pattern = Pattern::read(section);
        let limit = match (section.number("max"), section.number("vcpus")) {
            (Some(max), None) => QuotaLimit::Machines(max),
            (None, Some(vcpus)) => QuotaLimit::Vcpus(vcpus),
            _ => {
                section.invalid("must have either max or vcpus");
                return None;
            }
        };
        Some(Self { pattern, limit })
    }
}

impl Spot {
    fn read(section: &mut Section<'_, '_>) -> Option<Self> {
        let pattern = section.object("match", Pattern::read).unwrap_or_default();
        let mean = section.required_duration("meanTimeToInterrupt");
        let notice = section.duration("notice").unwrap_or(Duration::from_secs(120));
        Some(Self { pattern, mean_time_to_interrupt: mean?, notice })
    }
}

impl RateLimit {
    fn read(section: &mut Section<'_, '_>) -> Option<Self> {
        let positive = |value: &Value| value.as_f64().filter(|number| *number > 0.0);
        let mut number = |key| section.value(key, "must be a number above 0", positive);
        let (qps, burst) = (number("qps"), number("burst"));
        Some(Self { qps: qps?, burst: burst.or(qps)?.max(1.0) })
    }
}

impl NodeSettings {
    fn read(&mut self, section: &mut Section<'_, '_>) {
        set(&mut self.lease_interval, section.duration("leaseInterval"));
        set(&mut self.lease_duration, section.duration("leaseDuration"));
        set(&mut self.status_period, section.duration("statusPeriod"));
        set(&mut self.reregister, section.duration("reregister"));
        set(&mut self.ccm, section.switch("ccm"));
        let naming = [("machine-name", NodeNaming::MachineName), ("private-dns", NodeNaming::PrivateDns)];
        set(&mut self.node_name, section.word("nodeName", &naming));
        let spelling = [("cloud", NodeIdSpelling::Cloud), ("machine", NodeIdSpelling::Machine)];
        set(&mut self.provider_id, section.word("providerID", &spelling));
        section.object("allocatableReserved", |part| {
            for name in part.map().keys() {
                let amount = part.value(name, "must be a quantity such as \"80m\" or \"1Gi\"", quantity);
                self.allocatable_reserved.extend(amount.map(|amount| (name.clone(), amount)));
            }
        });
        if !self.lease_interval.is_zero() && self.lease_interval >= self.lease_duration {
            let detail = "must be longer than leaseInterval, else the lease runs out between two renewals";
            section.invalid_key("leaseDuration", format!("{:?}", self.lease_duration), detail);
        }
    }
}

fn quantity(value: &Value) -> Option<resource::Quantity> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse::<Quantity>().is_ok().then_some(resource::Quantity(text))
}

fn read_persistence(section: &mut Section<'_, '_>) -> Option<StatePlace> {
    let path = section.text("path").filter(|path| !path.is_empty());
    let kinds = ["none", "file", "json", "configMap"].map(|kind| (kind, kind));
    match (section.word("kind", &kinds), path) {
        (None | Some("none"), _) => Some(StatePlace::None),
        (Some(kind), Some(path)) => format!("{}:{path}", kind.to_lowercase()).parse().ok(),
        (Some(_), None) => {
            section.required("path", "this kind needs to know where");
            None
        }
    }
}
