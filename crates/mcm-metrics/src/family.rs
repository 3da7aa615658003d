//! Typed families: a metric together with the type of its labels.
//!
//! The label names of a family and the label values of a sample come from one declaration ([`label_set!`]), so they always have
//! the same number. A different number made the original panic (spec/machine-controller M-40).

use std::{cell::RefCell, marker::PhantomData, time::Duration};

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, MetricVec, MetricVecBuilder},
};

/// What a family is, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// A number of events.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// A distribution of durations in seconds.
    Histogram,
}

impl FamilyKind {
    /// The word of Prometheus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A declared family, for the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: FamilyKind,
    /// The help text of a scrape.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [Label],
    /// A label with one value for all samples of this declaration.
    pub constant: Option<(&'static str, &'static str)>,
}

/// A label of a family, for the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// The doc comment of its field, with the blanks of the source.
    pub doc: &'static str,
    /// Its values with their doc comments, if they are the variants of an enum.
    pub values: &'static [(&'static str, &'static str)],
}

impl Label {
    /// What its values mean, as one line.
    pub fn meaning(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The registry of a manager while its families are declared, and the list of them.
#[derive(Default)]
pub(super) struct Declarations {
    pub(super) registry: Registry,
    pub(super) families: RefCell<Vec<Family>>,
}

impl Declarations {
    fn declare<B>(&self, family: Family, vec: MetricVec<B>) -> prometheus::Result<MetricVec<B>>
    where
        B: MetricVecBuilder + 'static,
        MetricVec<B>: Collector,
    {
        self.registry.register(Box::new(vec.clone()))?;
        self.families.borrow_mut().push(family);
        Ok(vec)
    }
}

/// A label value.
pub trait LabelValue {
    /// All values with their doc comments, if they are the variants of an enum.
    const VALUES: &'static [(&'static str, &'static str)] = &[];

    /// The text of the label value.
    fn label(&self) -> &str;
}

impl LabelValue for &str {
    fn label(&self) -> &str {
        self
    }
}

/// The labels of a family, as a type.
pub trait LabelSet {
    /// The same labels with values that live as long as `'a`: a family lives longer than the values of one sample.
    type Of<'a>: LabelSet;

    /// Names of the labels.
    const NAMES: &'static [&'static str];

    /// The labels, for the reference.
    const LABELS: &'static [Label];

    /// Calls `use_values` with the values, in the order of the names.
    fn with_values<R>(&self, use_values: impl FnOnce(&[&str]) -> R) -> R;
}

/// A family without labels.
impl LabelSet for () {
    type Of<'a> = ();

    const NAMES: &'static [&'static str] = &[];
    const LABELS: &'static [Label] = &[];

    fn with_values<R>(&self, use_values: impl FnOnce(&[&str]) -> R) -> R {
        use_values(&[])
    }
}

/// Declares a struct whose fields are the labels of a family.
macro_rules! label_set {
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)+ }) => {
        $crate::family::label_set!(@declare [$(#[$meta])*] $name [] [] { $($fields)+ });
    };
    ($(#[$meta:meta])* pub struct $name:ident<$life:lifetime> { $($fields:tt)+ }) => {
        $crate::family::label_set!(@declare [$(#[$meta])*] $name [<$life>] [<'of>] { $($fields)+ });
    };
    (@declare [$($meta:tt)*] $name:ident [$($life:tt)*] [$($of:tt)*] {
        $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $label:literal),+ $(,)?
    }) => {
        $($meta)*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $($life)* { $($(#[doc = $doc])+ pub $field: $type),+ }

        impl $($life)* $crate::LabelSet for $name $($life)* {
            type Of<'of> = $name $($of)*;

            const NAMES: &'static [&'static str] = &[$($label),+];
            const LABELS: &'static [$crate::Label] = &[$($crate::Label {
                name: $label,
                doc: concat!($($doc),+),
                values: <$type as $crate::LabelValue>::VALUES,
            }),+];

            fn with_values<R>(&self, use_values: impl FnOnce(&[&str]) -> R) -> R {
                use_values(&[$($crate::LabelValue::label(&self.$field)),+])
            }
        }
    };
}
pub(super) use label_set;

/// Declares an enum with one variant for each value of a label.
macro_rules! label_values {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant),+ }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl $crate::LabelValue for $name {
            const VALUES: &'static [(&'static str, &'static str)] = &[$(($text, concat!($($doc),+))),+];

            fn label(&self) -> &str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}
pub(super) use label_values;

/// Counters of one name, distinguished by labels.
pub struct Counters<L>(IntCounterVec, PhantomData<fn(&L)>);

impl<L> Clone for Counters<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<L: LabelSet> Counters<L> {
    pub(super) fn register(to: &Declarations, name: &'static str, help: &'static str) -> prometheus::Result<Self> {
        Self::register_with(to, name, help, None)
    }

    /// Declares counters, all of which have this label with this value.
    pub(super) fn register_with(
        to: &Declarations,
        name: &'static str,
        help: &'static str,
        constant: Option<(&'static str, &'static str)>,
    ) -> prometheus::Result<Self> {
        let family = Family { name, kind: FamilyKind::Counter, help, labels: L::LABELS, constant };
        let opts =
            constant.into_iter().fold(Opts::new(name, help), |opts, (label, value)| opts.const_label(label, value));
        Ok(Self(to.declare(family, IntCounterVec::new(opts, L::NAMES)?)?, PhantomData))
    }

    /// Adds 1.
    pub fn inc(&self, labels: &L::Of<'_>) {
        self.add(labels, 1);
    }

    /// Adds `more`. Adding 0 creates the series.
    pub fn add(&self, labels: &L::Of<'_>, more: u64) {
        if let Ok(counter) = labels.with_values(|values| self.0.get_metric_with_label_values(values)) {
            counter.inc_by(more);
        }
    }
}

/// Gauges of one name, distinguished by labels.
pub struct Gauges<L>(GaugeVec, PhantomData<fn(&L)>);

impl<L> Clone for Gauges<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<L: LabelSet> Gauges<L> {
    pub(super) fn register(to: &Declarations, name: &'static str, help: &'static str) -> prometheus::Result<Self> {
        let family = Family { name, kind: FamilyKind::Gauge, help, labels: L::LABELS, constant: None };
        Ok(Self(to.declare(family, GaugeVec::new(Opts::new(name, help), L::NAMES)?)?, PhantomData))
    }

    /// Sets the value.
    pub fn set(&self, labels: &L::Of<'_>, value: f64) {
        self.each(labels, |gauge| gauge.set(value));
    }

    /// Adds `change` to the value.
    pub fn add(&self, labels: &L::Of<'_>, change: f64) {
        self.each(labels, |gauge| gauge.add(change));
    }

    /// Removes the series.
    pub fn remove(&self, labels: &L::Of<'_>) {
        // It is no error if the series does not exist.
        let _ = labels.with_values(|values| self.0.remove_label_values(values));
    }

    fn each(&self, labels: &L::Of<'_>, use_gauge: impl FnOnce(prometheus::Gauge)) {
        if let Ok(gauge) = labels.with_values(|values| self.0.get_metric_with_label_values(values)) {
            use_gauge(gauge);
        }
    }
}

/// Histograms of one name, distinguished by labels. Values are seconds.
pub struct Histograms<L>(HistogramVec, PhantomData<fn(&L)>);

impl<L> Clone for Histograms<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<L: LabelSet> Histograms<L> {
    pub(super) fn register(
        to: &Declarations,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> prometheus::Result<Self> {
        let family = Family { name, kind: FamilyKind::Histogram, help, labels: L::LABELS, constant: None };
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        Ok(Self(to.declare(family, HistogramVec::new(opts, L::NAMES)?)?, PhantomData))
    }

    /// Records one observation.
    pub fn observe(&self, labels: &L::Of<'_>, took: Duration) {
        if let Ok(histogram) = labels.with_values(|values| self.0.get_metric_with_label_values(values)) {
            histogram.observe(took.as_secs_f64());
        }
    }
}
