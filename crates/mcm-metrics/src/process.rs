//! The metrics `process_*` of this process.
//!
//! The collector of the library counts CPU time in whole seconds, so that a rate over a minute shows steps of 1.7 % of a core. This
//! one reads the same file and keeps the fractions (spec/packaging §0 F5).

use prometheus::{
    core::{Collector, Desc},
    process_collector::ProcessCollector,
    proto::{Counter, MetricFamily, MetricType},
};

use super::FamilyKind;

/// The metric that the library rounds.
const CPU: &str = "process_cpu_seconds_total";
/// The status of this process. Linux documents its fields in proc(5).
const STATUS: &str = "/proc/self/stat";
/// Ticks per second in [`STATUS`]: `USER_HZ`, which is 100 on every architecture that this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;
/// Position of `utime` among the fields after the name of the program; `stime` follows.
const USER_TIME: usize = 11;

/// Collects the metrics of this process.
pub(super) struct Process(ProcessCollector);

impl Process {
    pub(super) fn new() -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        Self(ProcessCollector::new(pid, ""))
    }
}

/// The families of this process with their types and help texts, for the reference.
pub fn families() -> Vec<(String, FamilyKind, String)> {
    let mut families: Vec<_> = Process::new()
        .collect()
        .into_iter()
        .map(|family| {
            let kind =
                if family.get_field_type() == MetricType::COUNTER { FamilyKind::Counter } else { FamilyKind::Gauge };
            (family.name().to_owned(), kind, family.help().to_owned())
        })
        .collect();
    families.sort_by(|one, other| one.0.cmp(&other.0));
    families
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        let used = std::fs::read_to_string(STATUS).ok().and_then(|status| cpu_seconds(&status));
        let family = families.iter_mut().find(|family| family.name() == CPU);
        if let (Some(used), Some(family)) = (used, family) {
            for metric in family.mut_metric() {
                let mut counter = Counter::default();
                counter.set_value(used);
                metric.set_counter(counter);
            }
        }
        families
    }
}

/// The CPU time in a process status, in seconds: user time and system time.
fn cpu_seconds(status: &str) -> Option<f64> {
    // The name of the program is in parentheses, and may contain blanks and parentheses.
    let (_, fields) = status.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(USER_TIME);
    let mut ticks = || times.next()?.parse::<u32>().ok();
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::pk_061_hundredths("7 (mcm) S 1 7 7 0 -1 4194560 900 0 3 0 137 5 0 0 20 0 9 0 33 1 2", Some(1.42))]
    #[case::a_name_like_fields("7 (a) 1 2 (b) S 1 7 7 0 -1 4194560 900 0 3 0 100 0 0 0 20 0", Some(1.0))]
    #[case::too_short("7 (mcm) S 1 7", None)]
    #[case::no_status("", None)]
    fn cpu_time_has_a_resolution_of_ten_milliseconds(#[case] status: &str, #[case] expected: Option<f64>) {
        assert_eq!(cpu_seconds(status), expected);
    }

    #[test]
    fn pk_061_the_scraped_cpu_time_is_that_of_the_process() {
        let scraped = || {
            let families = Process::new().collect();
            let cpu = families.iter().find(|family| family.name() == CPU).unwrap();
            cpu.get_metric()[0].get_counter().get_value()
        };
        let now = || cpu_seconds(&std::fs::read_to_string(STATUS).unwrap()).unwrap();
        let (before, between, after) = (now(), scraped(), now());
        assert!(before <= between && between <= after, "{before} {between} {after}");
    }
}
