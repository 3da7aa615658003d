//! What follows from the answer of a collector, or from its silence: pure, by table.
//!
//! Source: the specification of OTLP over HTTP, "Failures"; spec/packaging §7.2.

use std::time::Duration;

use mcm_metrics::SpanLoss;

/// The answer of a collector to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It took the batch, apart from this number of spans.
    Taken {
        /// The spans that it refused.
        refused: u64,
    },
    /// It answered with this HTTP status, and may have named a time after which it wants to be asked again.
    Status(u16, Option<Duration>),
    /// It answered with a page, as a web server or a proxy does. No collector is there.
    Page,
    /// It didn't answer in time, or could not be reached.
    Silence,
    /// Nothing can be sent: the settings of TLS are unusable.
    Unusable,
}

/// A batch that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of its spans.
    pub spans: u64,
    /// How often it was sent, counted from 1.
    pub tries: u32,
}

/// What happens to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing: these numbers of spans were taken and refused.
    None {
        /// The spans that were taken.
        taken: u64,
        /// The spans that were refused.
        refused: u64,
    },
    /// It is sent again after this time.
    Again(Duration),
    /// It is too large: each half is sent at once.
    Halve,
    /// It is dropped.
    Drop(SpanLoss),
}

/// How often a batch is sent.
const MOST_TRIES: u32 = 5;
/// The pause after the first try. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, also if the collector asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What happens to a batch after this answer.
pub fn after(delivery: &Delivery, batch: Batch) -> Refusal {
    let asked = match delivery {
        Delivery::Taken { refused } => {
            let refused = (*refused).min(batch.spans);
            return Refusal::None { taken: batch.spans - refused, refused };
        }
        Delivery::Status(429 | 502 | 503 | 504, asked) => *asked,
        Delivery::Silence => None,
        Delivery::Status(413, _) if batch.spans > 1 => return Refusal::Halve,
        Delivery::Status(..) | Delivery::Page => return Refusal::Drop(SpanLoss::Refused),
        Delivery::Unusable => return Refusal::Drop(SpanLoss::Unreachable),
    };
    if batch.tries >= MOST_TRIES {
        return Refusal::Drop(SpanLoss::Unreachable);
    }
    let doubled = FIRST_PAUSE.saturating_mul(1 << batch.tries.saturating_sub(1).min(10));
    Refusal::Again(asked.unwrap_or(doubled).clamp(FIRST_PAUSE, LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn again(seconds: u64) -> Refusal {
        Refusal::Again(Duration::from_secs(seconds))
    }

    #[rstest]
    #[case::all_taken(Delivery::Taken { refused: 0 }, 1, Refusal::None { taken: 10, refused: 0 })]
    #[case::some_refused(Delivery::Taken { refused: 3 }, 1, Refusal::None { taken: 7, refused: 3 })]
    #[case::more_refused_than_sent(Delivery::Taken { refused: 30 }, 1, Refusal::None { taken: 0, refused: 10 })]
    #[case::busy(Delivery::Status(429, None), 1, again(1))]
    #[case::busy_for_a_time(Delivery::Status(503, Some(Duration::from_secs(7))), 1, again(7))]
    #[case::busy_for_a_day(Delivery::Status(503, Some(Duration::from_secs(86_400))), 1, again(30))]
    #[case::busy_for_no_time(Delivery::Status(503, Some(Duration::ZERO)), 1, again(1))]
    #[case::a_proxy_without_a_collector(Delivery::Status(502, None), 2, again(2))]
    #[case::silence(Delivery::Silence, 4, again(8))]
    #[case::silence_for_long(Delivery::Silence, 5, Refusal::Drop(SpanLoss::Unreachable))]
    #[case::not_understood(Delivery::Status(400, None), 1, Refusal::Drop(SpanLoss::Refused))]
    #[case::no_rights(Delivery::Status(401, None), 1, Refusal::Drop(SpanLoss::Refused))]
    #[case::a_defect(Delivery::Status(500, None), 1, Refusal::Drop(SpanLoss::Refused))]
    #[case::a_redirection(Delivery::Status(301, None), 1, Refusal::Drop(SpanLoss::Refused))]
    #[case::too_large(Delivery::Status(413, None), 1, Refusal::Halve)]
    #[case::a_page(Delivery::Page, 1, Refusal::Drop(SpanLoss::Refused))]
    #[case::no_certificate(Delivery::Unusable, 1, Refusal::Drop(SpanLoss::Unreachable))]
    fn pk_104_a_batch_is_sent_again_or_dropped(
        #[case] delivery: Delivery,
        #[case] tries: u32,
        #[case] expected: Refusal,
    ) {
        assert_eq!(after(&delivery, Batch { spans: 10, tries }), expected);
    }

    #[test]
    fn pk_104_one_span_can_not_be_halved() {
        let refusal = after(&Delivery::Status(413, None), Batch { spans: 1, tries: 1 });
        assert_eq!(refusal, Refusal::Drop(SpanLoss::Refused));
    }
}
