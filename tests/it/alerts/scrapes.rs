//! Scrapes of running managers as series of a promtool test.
//!
//! A test takes scrapes as fast as its scenario needs, and lays them out on a slower clock, as if Prometheus had scraped that often. Then a
//! scenario of seconds fills windows of minutes. All rates become lower by the same factor, so that only the form of a curve says
//! anything. Ages keep their real length: the times of last events are moved along with the clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Mutex,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::{manager::request, wait::expect, wait_until};

/// Metrics whose values are times in the past.
const PAST_TIMES: [&str; 2] = ["mcm_cache_last_event_seconds", "mcm_machine_deployment_rollout_started_seconds"];

/// The scrapes of all replicas at one moment. None from a replica that did not answer.
struct Moment {
    at: Timestamp,
    texts: Vec<Option<String>>,
}

/// Scrapes of the replicas of a job, each time of all of them.
#[derive(Default)]
pub struct Scrapes(Mutex<Vec<Moment>>);

/// Scrapes on the clock of a promtool test.
pub struct LaidOut {
    /// The entries of `input_series`.
    pub series: Vec<Value>,
    /// The Unix time of the first scrape in seconds.
    pub start: i64,
    /// The time between two scrapes.
    pub step: Duration,
    /// The number of scrapes.
    pub scrapes: u32,
    /// How often the last scrape is repeated after them.
    pub quiet: u32,
}

impl LaidOut {
    /// The time of the last scrape, since the first one.
    pub fn last(&self) -> Duration {
        self.step * self.scrapes.saturating_sub(1)
    }

    /// The time of its last repetition.
    pub fn end(&self) -> Duration {
        self.last() + self.step * self.quiet
    }
}

impl Scrapes {
    /// Scrapes the replicas at these ports until the future is dropped.
    pub async fn take(&self, ports: &[u16], every: Duration) -> Infallible {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut texts = Vec::new();
            for port in ports {
                let answer = request(*port, "GET", "/metrics", "").await;
                texts.push(answer.ok().filter(|(status, _)| *status == 200).map(|(_, body)| body));
            }
            self.0.lock().expect("no holder of the lock panics").push(Moment { at: Timestamp::now(), texts });
        }
    }

    /// The number of moments so far.
    pub fn count(&self) -> usize {
        self.0.lock().expect("no holder of the lock panics").len()
    }

    /// Waits for this many further scrapes.
    pub async fn further(&self, count: usize, timeout: Duration) {
        let wanted = self.count() + count;
        wait_until("further scrapes", timeout, || async {
            expect(self.count() >= wanted, || format!("{} of {wanted}", self.count()))
        })
        .await;
    }

    /// Waits until the newest scrape of a replica is as it must be.
    pub async fn until(&self, what: &str, timeout: Duration, is_so: impl Fn(&str) -> bool) {
        wait_until(what, timeout, || async {
            let taken = self.0.lock().expect("no holder of the lock panics");
            let newest = taken.last().map(|moment| moment.texts.iter().flatten().cloned().collect::<Vec<_>>());
            let newest = newest.unwrap_or_default();
            expect(newest.iter().any(|text| is_so(text)), || newest.concat())
        })
        .await;
    }

    /// The first `count` moments as if they were `step` apart, and then the last one repeated `quiet` times.
    pub fn laid_out(&self, count: usize, step: Duration, quiet: u32) -> LaidOut {
        let taken = self.0.lock().expect("no holder of the lock panics");
        let moments = &taken[..count];
        let start = moments.first().expect("a scrape").at.as_second();
        let replicas = moments.iter().map(|moment| moment.texts.len()).max().unwrap_or_default();
        let series = (0..replicas).flat_map(|replica| {
            let texts: Vec<Option<String>> = moments
                .iter()
                .zip(0_u32..)
                .map(|(moment, number)| {
                    let shown = seconds(start) + (step * number).as_secs_f64();
                    let moved = shown - moment.at.as_duration().as_secs_f64();
                    moment.texts.get(replica).cloned().flatten().map(|text| with_moved_times(&text, moved))
                })
                .collect();
            series_of(&texts, &format!("replica-{replica}"), step, quiet)
        });
        let scrapes = u32::try_from(count).expect("a few hundred scrapes");
        LaidOut { series: series.collect(), start, step, scrapes, quiet }
    }
}

#[allow(clippy::cast_precision_loss)] // Unix times stay far below 2^52.
fn seconds(unix: i64) -> f64 {
    unix as f64
}

/// The samples of a scrape.
fn samples(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '))
}

fn is_past_time(series: &str) -> bool {
    PAST_TIMES.iter().any(|name| series.starts_with(name))
}

/// The scrape with times of the past that are later by this many seconds.
fn with_moved_times(text: &str, moved: f64) -> String {
    let line = |(series, value): (&str, &str)| match value.parse::<f64>() {
        Ok(time) if is_past_time(series) => format!("{series} {:.3}\n", time + moved),
        _ => format!("{series} {value}\n"),
    };
    samples(text).map(line).collect()
}

/// The input series of a replica: a value for each scrape. A series that a scrape lacks ends there, as in Prometheus.
fn series_of(texts: &[Option<String>], instance: &str, step: Duration, quiet: u32) -> Vec<Value> {
    let scrapes: Vec<BTreeMap<&str, &str>> =
        texts.iter().map(|text| samples(text.as_deref().unwrap_or_default()).collect()).collect();
    let all: BTreeSet<&str> = scrapes.iter().flat_map(|scrape| scrape.keys().copied()).collect();
    let one = |series: &str| {
        let mut values = Vec::new();
        let mut exists = false;
        for scrape in &scrapes {
            let value = scrape.get(series).copied();
            values.push(value.unwrap_or(if exists { "stale" } else { "_" }).to_owned());
            exists = value.is_some();
        }
        if let Some(last) = values.last().cloned().filter(|_| exists && quiet > 0) {
            // `a+dxn` is a, and n further values that each are d more. Events that come all the time go on in quiet times.
            let more = if is_past_time(series) { step.as_secs() } else { 0 };
            values.pop();
            values.push(format!("{last}+{more}x{quiet}"));
        }
        json!({ "series": targeted(series, "machine-controller-manager", instance), "values": values.join(" ") })
    };
    all.into_iter().map(one).collect()
}

/// A series with the labels of its target.
pub fn targeted(series: &str, job: &str, instance: &str) -> String {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}');
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{job=\"{job}\",instance=\"{instance}\"{comma}{labels}}}")
}

#[test]
fn a_series_that_is_gone_is_stale_and_the_last_scrape_is_repeated() {
    let texts = ["a{x=\"}\"} 1\nb 2\n", "# HELP b\nb 3\n", "b 4\n"].map(|text| Some(text.to_owned()));
    let mut texts = texts.to_vec();
    texts.insert(0, None);
    let found: Vec<String> = series_of(&texts, "r", Duration::from_secs(60), 9)
        .iter()
        .map(|series| format!("{} {}", series["series"].as_str().unwrap(), series["values"].as_str().unwrap()))
        .collect();
    let job = "job=\"machine-controller-manager\",instance=\"r\"";
    assert_eq!(found, [format!("a{{{job},x=\"}}\"}} _ 1 stale _"), format!("b{{{job}}} _ 2 3 4+0x9")]);
}

#[test]
fn an_age_keeps_its_length_when_scrapes_are_laid_out() {
    let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
    let text = |time: u32| vec![Some(format!("mcm_cache_last_event_seconds{{kind=\"nodes\"}} {time}\n"))];
    // The event is 5 s old in the first scrape, and 6 s old in the second one.
    let scrapes = Scrapes(Mutex::new(vec![
        Moment { at: at(0), texts: text(999_995) },
        Moment { at: at(1), texts: text(999_995) },
    ]));
    let laid_out = scrapes.laid_out(2, Duration::from_secs(60), 0);
    assert_eq!(laid_out.series[0]["values"], "999995.000 1000054.000");
    assert_eq!((laid_out.start, laid_out.last().as_secs()), (1_000_000, 60));
}
