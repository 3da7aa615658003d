//! The dashboards of the manager as values, and their JSON for Grafana.
//!
//! [`panel`] has the types. Each dashboard has a file with its panels: [`fleet`], [`deployment`], [`controller`], [`admission`].
//! [`grafana`] renders them. Metrics are not declared here, and nothing is read or written.
//!
//! Queries contain the variables of Grafana: `$job`, `$namespace`, `$deployment`, and `$__rate_interval` for windows. Every replica
//! reports the gauges of machines, sets and deployments, so that `max by` makes one series of them first.
//!
//! Source: spec/packaging §4.2, §4.5.

mod admission;
mod controller;
mod deployment;
mod fleet;
pub mod grafana;
pub mod panel;

use std::{fmt, str::FromStr};

use super::rules::UnknownName;
pub use grafana::{DashboardOptions, Label, config_maps, dashboard_file};
pub use panel::{HasData, Panel, Query, Row, Unit, Variable};

/// The name of a dashboard in flags and in names of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DashboardName {
    /// All machines.
    Fleet,
    /// The machines of one deployment.
    Deployment,
    /// The process and its loops.
    Controller,
    /// The webhooks.
    Admission,
}

impl DashboardName {
    /// All names.
    pub const ALL: [Self; 4] = [Self::Fleet, Self::Deployment, Self::Controller, Self::Admission];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Deployment => "deployment",
            Self::Controller => "controller",
            Self::Admission => "admission",
        }
    }

    /// The identity in Grafana, which never changes: URLs and bookmarks contain it.
    pub const fn uid(self) -> &'static str {
        match self {
            Self::Fleet => "mcm-fleet",
            Self::Deployment => "mcm-deployment",
            Self::Controller => "mcm-controller",
            Self::Admission => "mcm-admission",
        }
    }

    /// The dashboard.
    pub const fn dashboard(self) -> &'static Dashboard {
        match self {
            Self::Fleet => &fleet::DASHBOARD,
            Self::Deployment => &deployment::DASHBOARD,
            Self::Controller => &controller::DASHBOARD,
            Self::Admission => &admission::DASHBOARD,
        }
    }
}

impl fmt::Display for DashboardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DashboardName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|name| name.as_str() == text);
        found.ok_or_else(|| UnknownName::dashboard(text))
    }
}

/// A dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dashboard {
    /// What it is about, in a few words.
    pub title: &'static str,
    /// What a reader finds here, in one sentence.
    pub description: &'static str,
    /// Its variables besides the data source and the job, which every dashboard has.
    pub variables: &'static [Variable],
    /// Its panels, in groups.
    pub rows: &'static [Row],
}

impl Dashboard {
    /// All its panels.
    pub fn panels(&self) -> impl Iterator<Item = &'static Panel> {
        self.rows.iter().flat_map(|row| row.panels)
    }
}
