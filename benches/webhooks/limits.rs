//! Measures the processor time of reviews of objects at the limits, in one thread and without network. None should take more than
//! 50 ms.

use std::{hint::black_box, time::Duration};

use machine_api::{
    admission::{Admission, convert},
    validation::Policy,
};

#[path = "../../tests/limits/mod.rs"]
mod samples;

use samples::ReviewKind;

pub fn run() {
    let admission = Admission::new(Policy::default());
    let mut times: Vec<_> = samples::samples(1, 1)
        .iter()
        .map(|sample| {
            let time = mean(|| match sample.review_kind {
                ReviewKind::Admission(endpoint) => drop(black_box(admission.review(endpoint, &sample.body))),
                ReviewKind::Conversion => drop(black_box(convert(&sample.body))),
            });
            (time, sample.name, sample.review_kind, sample.body.len())
        })
        .collect();
    times.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    for (time, name, review_kind, bytes) in &times {
        println!("{time:>8.1?}  {name} ({review_kind:?}, {bytes} bytes)");
    }
    let quick = times.iter().filter(|(time, ..)| *time <= WANTED).count();
    println!("{quick} of {} within {WANTED:?}", times.len());
}

/// The most processor time that a review should take.
const WANTED: Duration = Duration::from_millis(50);

/// The mean processor time of some work. The work runs so often that the scheduler's clock, which counts ticks, is exact enough.
fn mean(work: impl Fn()) -> Duration {
    let before = processor_time();
    let mut times = 0;
    loop {
        work();
        times += 1;
        let taken = processor_time().saturating_sub(before);
        if taken >= Duration::from_millis(150) || times == 1_000 {
            return taken / times;
        }
    }
}

/// The processor time of this thread, as Linux reports it.
fn processor_time() -> Duration {
    let statistics =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux reports the times of threads");
    let nanoseconds = statistics.split(' ').next().and_then(|number| number.parse().ok()).expect("it is a number");
    Duration::from_nanos(nanoseconds)
}
