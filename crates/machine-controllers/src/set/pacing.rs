//! How often a status is written while the counts keep changing.
//!
//! Nothing in this program waits for a written status: the rollout decides on the machines themselves. A status is for
//! people and other programs, so while machines come and go it is written at most once per second and object, and at
//! once when a state of rest is reached or something other than a count changed. That keeps the writes of a thousand
//! machines below a tenth of a write per machine (spec/machine-controller §16).

use std::time::Duration;

use jiff::Timestamp;

use super::plan::Next;

/// Pause between two writes of a status whose counts keep changing.
pub const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// What kind of change a status write would bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing differs.
    None,
    /// Counts differ, and more changes are to be expected.
    Churn,
    /// A state of rest, a condition, or an answer to a user's change.
    Milestone,
}

/// Whether to write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Write now.
    Write,
    /// Do not write now; look again then.
    Hold(Next),
}

/// Decides about a write. `written` is when this process last wrote the status.
pub fn pace(news: News, written: Option<Timestamp>, now: Timestamp) -> Pace {
    // A write in the future is one of before the clock was set back: nobody waits for that moment to come again.
    match (news, written.filter(|written| *written <= now)) {
        (News::None, _) => Pace::Hold(Next::OnChange),
        (News::Milestone, _) | (News::Churn, None) => Pace::Write,
        (News::Churn, Some(written)) => {
            let since = Duration::try_from(now.duration_since(written)).unwrap_or_default();
            if since >= STATUS_PAUSE {
                Pace::Write
            } else {
                Pace::Hold(Next::After(STATUS_PAUSE.saturating_sub(since), "status is written once per second"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::at;

    #[rstest]
    #[case::s_msst_03_nothing_changed(News::None, Some(0), Pace::Hold(Next::OnChange))]
    #[case::the_first_change_is_written_at_once(News::Churn, None, Pace::Write)]
    #[case::the_second_waits(
        News::Churn,
        Some(0),
        Pace::Hold(Next::After(STATUS_PAUSE, "status is written once per second"))
    )]
    #[case::a_second_later_it_is_written(News::Churn, Some(-1), Pace::Write)]
    #[case::before_the_clock_was_set_back(News::Churn, Some(7200), Pace::Write)]
    #[case::rest_is_told_at_once(News::Milestone, Some(0), Pace::Write)]
    fn a_status_is_paced(#[case] news: News, #[case] written: Option<i64>, #[case] expected: Pace) {
        assert_eq!(pace(news, written.map(at), at(0)), expected);
    }
}
