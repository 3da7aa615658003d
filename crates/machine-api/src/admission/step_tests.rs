//! How the steps of the rules grow with the objects at the limits (`tests/limits`). What a review takes of memory is in
//! `tests/cost.rs`.

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

/// Twice the object takes at most 2.2 times the steps: members, elements and bytes of texts that are looked at, and findings.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "steps are counted in debug builds")]
fn steps_grow_no_faster_than_the_object() {
    let mut failed = Vec::new();
    for (half, whole) in samples(1, 2).iter().zip(&samples(1, 1)) {
        let (few, many) = (steps_of(half), steps_of(whole));
        // A sample may grow in two directions at once; then the body says by how much.
        let growth = (whole.body.len() * 11).max(half.body.len() * 22);
        // What a small review takes beside its object does not grow, and does not count.
        if many * half.body.len() * 10 > few.max(2_000) * growth {
            failed.push(format!("{} ({:?}): {few} steps become {many}", whole.name, whole.review_kind));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// So that the test above can fail: a rule that looks at a list once for each of its elements.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "steps are counted in debug builds")]
fn a_square_shows() {
    let steps = |length: usize| {
        let list: kube_values::json::Json<'_> = (0..length).map(|_| kube_values::json::Json::from(true)).collect();
        steps::of(|| (0..length).for_each(|_| assert!(list.as_array().is_some())))
    };
    assert!(steps(2_000) * 10 > steps(1_000) * 22);
}
