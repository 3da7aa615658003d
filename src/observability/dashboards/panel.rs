//! What a panel is: its texts, its unit, its queries, and whether it may be empty.

/// A variable of a dashboard that the reader selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `$namespace`: any number of namespaces of machines.
    Namespaces,
    /// `$namespace`: one namespace.
    Namespace,
    /// `$deployment`: a deployment of the namespace.
    Deployment,
}

/// The unit of the values of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Events per second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// 1 is yes and 0 is no.
    YesNo,
}

impl Unit {
    /// The name of the unit in Grafana.
    pub const fn in_grafana(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "ops",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::YesNo => "bool_yes_no",
        }
    }
}

/// When a panel shows something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasData {
    /// Always.
    Always,
    /// While the event that it shows happens, and as long after it as the window of the query is. It is empty in quiet times.
    ByEvents,
}

/// A query of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// `PromQL` with variables of Grafana.
    pub expression: &'static str,
    /// The name of each of its lines. `{{x}}` is the value of the label x.
    pub legend: &'static str,
}

/// A panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panel {
    /// What it shows, in a few words.
    pub title: &'static str,
    /// What the values mean, and what to look for.
    pub description: &'static str,
    /// The unit of the values.
    pub unit: Unit,
    /// Whether it may be empty.
    pub has_data: HasData,
    /// What is asked.
    pub queries: &'static [Query],
}

/// A group of panels under a heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The heading.
    pub title: &'static str,
    /// Its panels.
    pub panels: &'static [Panel],
}
