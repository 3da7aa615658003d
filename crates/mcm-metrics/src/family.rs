//! Typed families: a metric together with the type of its labels.
//!
//! The label names of a family and the label values of a sample come from one declaration ([`label_set!`]), so they always have
//! the same number. A different number made the original panic (spec/machine-controller M-40).

use std::{marker::PhantomData, time::Duration};

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector, core::MetricVecBuilder,
};

/// A label value.
pub trait LabelValue {
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

    /// Calls `use_values` with the values, in the order of the names.
    fn with_values<R>(&self, use_values: impl FnOnce(&[&str]) -> R) -> R;
}

/// A family without labels.
impl LabelSet for () {
    type Of<'a> = ();

    const NAMES: &'static [&'static str] = &[];

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
        $($(#[$field_meta:meta])* $field:ident: $type:ty = $label:literal),+ $(,)?
    }) => {
        $($meta)*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $($life)* { $($(#[$field_meta])* pub $field: $type),+ }

        impl $($life)* $crate::LabelSet for $name $($life)* {
            type Of<'of> = $name $($of)*;

            const NAMES: &'static [&'static str] = &[$($label),+];

            fn with_values<R>(&self, use_values: impl FnOnce(&[&str]) -> R) -> R {
                use_values(&[$($crate::LabelValue::label(&self.$field)),+])
            }
        }
    };
}
pub(super) use label_set;

/// Declares an enum with one variant for each value of a label.
macro_rules! label_values {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl $crate::LabelValue for $name {
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
    pub(super) fn register(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Self> {
        Self::register_opts(registry, Opts::new(name, help))
    }

    pub(super) fn register_opts(registry: &Registry, opts: Opts) -> prometheus::Result<Self> {
        Ok(Self(registered(registry, IntCounterVec::new(opts, L::NAMES)?)?, PhantomData))
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
    pub(super) fn register(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Self> {
        Ok(Self(registered(registry, GaugeVec::new(Opts::new(name, help), L::NAMES)?)?, PhantomData))
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
    pub(super) fn register(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Self> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        Ok(Self(registered(registry, HistogramVec::new(opts, L::NAMES)?)?, PhantomData))
    }

    /// Records one observation.
    pub fn observe(&self, labels: &L::Of<'_>, took: Duration) {
        if let Ok(histogram) = labels.with_values(|values| self.0.get_metric_with_label_values(values)) {
            histogram.observe(took.as_secs_f64());
        }
    }
}

fn registered<B>(
    registry: &Registry,
    vec: prometheus::core::MetricVec<B>,
) -> prometheus::Result<prometheus::core::MetricVec<B>>
where
    B: MetricVecBuilder + 'static,
    prometheus::core::MetricVec<B>: Collector,
{
    registry.register(Box::new(vec.clone()))?;
    Ok(vec)
}
