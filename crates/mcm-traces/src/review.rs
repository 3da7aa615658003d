//! Which reviews are recorded. Source: spec/packaging §7.2.

use crate::context::TraceParent;

/// One review in so many is recorded if its caller doesn't say whether to record it.
const ONE_IN: u64 = 100;

/// Whether a review is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// It is not.
    No,
    /// It is, as a part of the caller's trace.
    InTraceOf(TraceParent),
    /// It is, with a trace of its own.
    Alone,
}

/// Whether a review is recorded: the caller decides, and one in a hundred if the caller says nothing. `draw` is a random number.
pub const fn is_sampled(caller: Option<TraceParent>, draw: u64) -> Sampled {
    match caller {
        Some(parent) if parent.is_sampled => Sampled::InTraceOf(parent),
        None if draw.is_multiple_of(ONE_IN) => Sampled::Alone,
        Some(_) | None => Sampled::No,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::context::{SpanId, TraceId};

    #[rstest]
    #[case::the_caller_wants_it(Some("01"), 1, true)]
    #[case::the_caller_does_not(Some("00"), 100, false)]
    #[case::nobody_says_so_and_the_draw_is_good(None, 100, true)]
    #[case::nobody_says_so_and_the_draw_is_bad(None, 101, false)]
    fn pk_103_the_caller_decides_which_reviews_are_recorded(
        #[case] caller: Option<&str>,
        #[case] draw: u64,
        #[case] recorded: bool,
    ) {
        let caller = caller.and_then(|flags| {
            let (trace, span) = (TraceId::of_number(7), SpanId::of_number(8));
            TraceParent::parse(&format!("00-{trace}-{span}-{flags}"))
        });
        let sampled = is_sampled(caller, draw);
        assert_eq!(sampled != Sampled::No, recorded);
        if let Sampled::InTraceOf(parent) = sampled {
            assert_eq!((parent.trace, parent.span), (TraceId::of_number(7), SpanId::of_number(8)));
        }
    }

    #[test]
    fn one_review_in_a_hundred_is_recorded() {
        assert_eq!((0..10_000).filter(|draw| is_sampled(None, *draw) != Sampled::No).count(), 100);
    }
}
