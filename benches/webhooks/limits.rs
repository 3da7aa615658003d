//! What reviews of objects at the limits cost, each once, in one thread and without a network. None should take more than
//! 50 ms.

use std::{hint::black_box, time::Instant};

use machine_controller_manager::{
    admission::{Admission, convert},
    api::validation::Policy,
};

#[path = "../../tests/limits/mod.rs"]
mod samples;

use samples::Door;

pub fn run() {
    let admission = Admission::new(Policy::default());
    let mut times: Vec<_> = samples::samples(1, 1)
        .iter()
        .map(|sample| {
            let began = Instant::now();
            match sample.door {
                Door::Admission(endpoint) => drop(black_box(admission.review(endpoint, &sample.body))),
                Door::Conversion => drop(black_box(convert(&sample.body))),
            }
            (began.elapsed(), sample.name, sample.door, sample.body.len())
        })
        .collect();
    times.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    for (time, name, door, bytes) in times {
        println!("{time:>8.1?}  {name} ({door:?}, {bytes} bytes)");
    }
}
