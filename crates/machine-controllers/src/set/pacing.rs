//! Limits how often a status is written while its counts keep changing.
//!
//! Nothing in this program waits for a written status: the rollout decides from the machines themselves. The status is
//! for users and other programs. While machines are created and deleted it is written at most once per second and
//! object. It is written at once when the object is at rest or something other than a count has changed. So a thousand
//! machines cost less than a tenth of a write per machine (spec/machine-controller §16).

use std::time::Duration;

use jiff::Timestamp;

use super::plan::Next;

/// Pause between two writes of a status whose counts keep changing.
pub const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// The kind of change that a status write would bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Nothing differs.
    None,
    /// Counts differ, and more changes are likely.
    Churn,
    /// The object is at rest, a condition has changed, or the status answers a change by the user.
    Milestone,
}

/// Whether to write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Write now.
    Write,
    /// Do not write now; decide again at that time.
    Hold(Next),
}

/// Decides whether to write. `written` is when this process last wrote the status.
pub fn pace(change: ChangeKind, written: Option<Timestamp>, now: Timestamp) -> Pace {
    // A write in the future is from before the clock was set back, and is ignored.
    match (change, written.filter(|written| *written <= now)) {
        (ChangeKind::None, _) => Pace::Hold(Next::OnChange),
        (ChangeKind::Milestone, _) | (ChangeKind::Churn, None) => Pace::Write,
        (ChangeKind::Churn, Some(written)) => {
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
    #[case::s_msst_03_nothing_changed(ChangeKind::None, Some(0), Pace::Hold(Next::OnChange))]
    #[case::the_first_change_is_written_at_once(ChangeKind::Churn, None, Pace::Write)]
    #[case::the_second_waits(
        ChangeKind::Churn,
        Some(0),
        Pace::Hold(Next::After(STATUS_PAUSE, "status is written once per second"))
    )]
    #[case::a_second_later_it_is_written(ChangeKind::Churn, Some(-1), Pace::Write)]
    #[case::before_the_clock_was_set_back(ChangeKind::Churn, Some(7200), Pace::Write)]
    #[case::rest_is_told_at_once(ChangeKind::Milestone, Some(0), Pace::Write)]
    fn a_status_is_paced(#[case] change: ChangeKind, #[case] written: Option<i64>, #[case] expected: Pace) {
        assert_eq!(pace(change, written.map(at), at(0)), expected);
    }
}
