//! Checks how the steps of the rules grow with objects at the limits (`tests/limits`). `tests/cost.rs` checks the memory of a review.

#[path = "../../../../tests/limits/mod.rs"]
mod limits;

use self::limits::{ReviewKind, Sample, samples};
use super::{Admission, convert};
use crate::validation::Policy;
use kube_values::json::steps;

fn steps_of(sample: &Sample) -> usize {
    steps::of(|| match sample.review_kind {
        ReviewKind::Admission(endpoint) => drop(Admission::new(Policy::default()).review(endpoint, &sample.body)),
        ReviewKind::Conversion => drop(convert(&sample.body)),
    })
}

/// When an object doubles, the steps grow at most 2.2 times. Steps are members, elements and bytes of texts that are read, and findings.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "steps are counted in debug builds")]
fn steps_grow_no_faster_than_the_object() {
    let mut failed = Vec::new();
    for (half, whole) in samples(1, 2).iter().zip(&samples(1, 1)) {
        let (few, many) = (steps_of(half), steps_of(whole));
        // A sample may grow in two directions at once. Then the factor of the length of the body is used.
        let growth = (whole.body.len() * 11).max(half.body.len() * 22);
        // The constant steps of a small review are subtracted.
        if many * half.body.len() * 10 > few.max(2_000) * growth {
            failed.push(format!("{} ({:?}): {few} steps become {many}", whole.name, whole.review_kind));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Proves that the test above can fail, with a rule that reads a list once for each of its elements.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "steps are counted in debug builds")]
fn quadratic_steps_are_detected() {
    let steps = |length: usize| {
        let list: kube_values::json::Json<'_> = (0..length).map(|_| kube_values::json::Json::from(true)).collect();
        steps::of(|| (0..length).for_each(|_| assert!(list.as_array().is_some())))
    };
    assert!(steps(2_000) * 10 > steps(1_000) * 22);
}
