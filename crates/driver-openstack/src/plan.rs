//! Decides what a creation and a deletion do next. Pure functions.

use std::time::Duration;

use cloud_client::{Failure, FailureKind};
use machine_driver::{Code, Status};

use crate::{
    lookup::Earlier,
    memory::Volumes,
    neutron::Port,
    nova::Server,
    state::{self, Disk, State},
    storage::Volume,
};

/// The source of the port or the volume for a new server.
#[derive(Clone, Debug, PartialEq)]
pub enum Supply<T> {
    /// This one is used.
    Use(T),
    /// A new one is made, after a request to delete these. A refusal of the request does no harm: they go with the machine.
    Make { instead_of: Vec<T> },
    /// The creation fails.
    Fail(Status),
}

/// The source of the port.
pub fn port(earlier: Earlier<Port>) -> Supply<Port> {
    match earlier {
        Earlier::Usable(port) => Supply::Use(port),
        Earlier::InUse(port) => {
            let message = format!("port {} of the machine is still in use by {}", port.id, port.device_id);
            Supply::Fail(Status::new(Code::Aborted, message))
        }
        // The old ports hold addresses.
        Earlier::Unusable(old) => Supply::Make { instead_of: old },
    }
}

/// The source of the volume.
pub fn volume(earlier: Earlier<Volume>) -> Supply<Volume> {
    match earlier {
        Earlier::Usable(volume) | Earlier::InUse(volume) => Supply::Use(volume),
        // The old volumes go with the machine, because the deletion of a volume takes time.
        Earlier::Unusable(_) => Supply::Make { instead_of: Vec::new() },
    }
}

/// Whether a look for the objects that a class names has found that it can't have a server. The creation cleans up then, so that a user may change
/// the project of the class. After any other failure the next attempt may succeed, and uses what earlier attempts have made.
pub fn is_refusal(status: &Status) -> bool {
    matches!(status.code, Code::NotFound | Code::OutOfRange | Code::InvalidArgument | Code::ResourceExhausted)
}

/// The outcome of a request that makes something.
#[derive(Clone, Debug, PartialEq)]
pub enum Made<T> {
    /// The service has made this.
    This(T),
    /// The service has made nothing.
    Nothing(Failure),
    /// The answer is lost. The driver looks for what the request may have made, because the core would wait a minute for a server before its next
    /// request.
    Unknown(Failure),
}

impl<T> From<Result<T, Failure>> for Made<T> {
    fn from(answer: Result<T, Failure>) -> Self {
        match answer {
            Ok(made) => Self::This(made),
            Err(failure) if failure.kind == FailureKind::Temporary => Self::Unknown(failure),
            Err(failure) => Self::Nothing(failure),
        }
    }
}

/// The next step of a creation that has the volume for its server.
#[derive(Clone, Debug, PartialEq)]
pub enum Boot {
    /// The server can boot from the volume.
    Ready,
    /// The volume is not ready yet.
    Wait,
    /// The creation fails.
    Fail(Status),
}

/// The next step with the volume of this id. `None` is a volume that does not exist.
pub fn boot(id: &str, volume: Option<&Volume>) -> Boot {
    let Some(volume) = volume else {
        return Boot::Fail(Status::new(Code::Aborted, format!("volume {id} was deleted meanwhile")));
    };
    match Disk::of(volume) {
        Disk::Ready => Boot::Ready,
        Disk::Changing => Boot::Wait,
        Disk::Broken | Disk::InUse => {
            let message = format!("volume {id} of the machine can't be booted from: it is {}", volume.status);
            Boot::Fail(Status::new(Code::Internal, message))
        }
    }
}

/// The number of looks in a row that must not find a server before it counts as deleted. One server of Nova's API may answer 404 for a server that
/// exists: between the request and the begin of the build, or because its database lags behind.
const UNSEEN_LOOKS: u32 = 3;

/// The observation of a server by its id, over several looks. The only rule by which a server counts as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// This number of looks in a row has not found the server.
    Unseen(u32),
    /// The last look has found the server, and Nova is deleting it.
    Ending,
}

impl Presence {
    /// The observation before the first look, or after a look that has found the server.
    pub const BEGIN: Self = Self::Unseen(0);

    /// The observation after a look. `None` if the server is surely gone.
    pub fn after(self, shown: Option<&Server>) -> Option<Self> {
        match (self, shown.map(State::of)) {
            (_, Some(State::SoftDeleted | State::Gone)) | (Self::Ending, None) => None,
            (_, Some(State::Ending)) => Some(Self::Ending),
            (_, Some(State::Building | State::Failed | State::Built)) => Some(Self::BEGIN),
            (Self::Unseen(looks), None) => (looks + 1 < UNSEEN_LOOKS).then_some(Self::Unseen(looks + 1)),
        }
    }
}

/// The time after which the deletion of a server is requested again, because Nova may lose it.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// The maximum number of requests for the deletion of one server in one call.
const MAX_REQUESTS: u32 = 2;
/// The time after which a wait for an object that does not change ends. The next call waits again.
const STALLED_AFTER: Duration = Duration::from_secs(120);

/// The next step of a deletion of a server that was requested.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerDeletion {
    /// The server exists, or Nova has not shown it in too few looks.
    Wait,
    /// The deletion is requested again.
    Repeat,
    /// The deletion fails.
    Fail(Status),
}

impl ServerDeletion {
    /// The next step for a server that is not surely gone.
    ///
    /// `requests` is the number of requests so far, and `since` the time since the last one. `unchanged` is the time for which the server has had its
    /// state. The failure is `FailedPrecondition` for a server that Nova does not delete, and `Aborted` for one that it is still deleting.
    pub fn next(server: Option<&Server>, requests: u32, since: Duration, unchanged: Duration) -> Self {
        let Some(server) = server else { return Self::Wait };
        let fail = |code| {
            let (id, state) = (&server.id, state::server_in_words(server));
            let message = format!("error while waiting for server [ID={id:?}] to be deleted: it is still {state}");
            Self::Fail(Status::new(code, message))
        };
        match State::of(server) {
            State::Ending if unchanged > STALLED_AFTER => fail(Code::Aborted),
            State::Building | State::Failed | State::Built if since > REPEAT_AFTER => {
                if requests < MAX_REQUESTS {
                    Self::Repeat
                } else {
                    fail(Code::FailedPrecondition)
                }
            }
            _ => Self::Wait,
        }
    }
}

/// The volumes of a machine if the login can't use Cinder.
///
/// # Errors
/// `FailedPrecondition` if the driver has made a volume for the machine: it would stay. The failure itself if the class requests one.
pub fn kept_out_of_cinder(volumes: Volumes, failure: Failure) -> Result<Vec<Volume>, Failure> {
    match volumes {
        Volumes::Unlikely | Volumes::Possible => Ok(Vec::new()),
        Volumes::Wanted => Err(failure),
        Volumes::Made => {
            let said = failure.status.message;
            let message = format!(
                "a volume was made for the machine and can't be looked for, the login needs a right in Cinder: {said}"
            );
            Err(Failure::permanent(Code::FailedPrecondition, message))
        }
    }
}

/// The maximum number of Cinder's refusals to delete a volume. The pauses between the requests take five seconds in total.
const MAX_REFUSALS: u32 = 3;

/// The progress in the deletion of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeDeletion {
    /// Cinder has not accepted the deletion. It has refused this number of requests.
    Refused(u32),
    /// Cinder has accepted the deletion.
    Accepted,
}

/// The next step in the deletion of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeStep {
    /// The deletion is requested.
    Request,
    /// The volume is looked at again after a pause.
    Wait,
    /// The deletion fails.
    Fail(Status),
}

impl VolumeDeletion {
    /// The progress before the first request.
    pub const BEGIN: Self = Self::Refused(0);

    /// The next step with a volume. `unchanged` is the time for which the volume has had its state.
    ///
    /// A wait that lasts fails with `Aborted` if Cinder works on the volume. Otherwise it fails with `FailedPrecondition`: an operator must act, for
    /// example at an attachment to a server that is gone.
    pub fn next(self, volume: &Volume, unchanged: Duration) -> VolumeStep {
        match (self, Disk::of(volume)) {
            (Self::Refused(_), Disk::Ready | Disk::Broken) => VolumeStep::Request,
            (Self::Accepted, Disk::Broken) => {
                let message = format!("volume {} can't be deleted: it is {}", volume.id, volume.status);
                VolumeStep::Fail(Status::new(Code::Internal, message))
            }
            (_, Disk::Ready | Disk::Changing | Disk::InUse) if unchanged > STALLED_AFTER => {
                let is_worked_on = matches!(volume.status.as_str(), "creating" | "downloading" | "deleting");
                let code = if is_worked_on { Code::Aborted } else { Code::FailedPrecondition };
                let state = state::volume_in_words(volume);
                let message =
                    format!("volume {} can't be deleted yet (it is tried again): it is still {state}", volume.id);
                VolumeStep::Fail(Status::new(code, message))
            }
            (Self::Refused(_) | Self::Accepted, Disk::Ready | Disk::Changing | Disk::InUse) => VolumeStep::Wait,
        }
    }

    /// Whether the volume is surely gone after this number of looks in a row that have not found it.
    pub const fn is_gone(self, unseen: u32) -> bool {
        match self {
            Self::Accepted => unseen > 0,
            // One look may be wrong, as with servers.
            Self::Refused(_) => unseen >= UNSEEN_LOOKS,
        }
    }

    /// The progress after the answer to a request. `None` is an answer that there is no such volume, which Cinder has just shown.
    ///
    /// # Errors
    /// The refusal that is one too many, and every other failure.
    pub fn after(self, id: &str, answer: Result<Option<()>, Failure>) -> Result<Self, Status> {
        let unknown = || Failure::permanent(Code::InvalidArgument, "Cinder shows it, and does not find it");
        match (self, answer.and_then(|answer| answer.ok_or_else(unknown))) {
            (_, Ok(())) => Ok(Self::Accepted),
            // The volume may still be attached, although its status is another one. Otherwise a user has to act: Cinder deletes no volume that
            // has snapshots, for example.
            (Self::Refused(before), Err(failure)) if failure.status.code == Code::InvalidArgument => {
                let refusals = before + 1;
                if refusals < MAX_REFUSALS {
                    return Ok(Self::Refused(refusals));
                }
                let said = failure.status.message;
                let message = format!("volume {id} can't be deleted yet (it is tried again): {said}");
                Err(Status::new(Code::FailedPrecondition, message))
            }
            (Self::Refused(_) | Self::Accepted, Err(failure)) => Err(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::storage::Attachment;

    fn port_of(id: &str) -> Port {
        Port { id: id.to_owned(), device_id: "s".to_owned(), ..Port::default() }
    }

    fn volume_of(status: &str) -> Volume {
        Volume { id: "v".to_owned(), status: status.to_owned(), ..Volume::default() }
    }

    fn failed(code: Code, message: &str) -> Status {
        Status::new(code, message)
    }

    #[rstest]
    #[case::it_fits(Earlier::Usable(port_of("p")), Supply::Use(port_of("p")))]
    #[case::a_server_has_it(
        Earlier::InUse(port_of("p")),
        Supply::Fail(failed(Code::Aborted, "port p of the machine is still in use by s"))
    )]
    #[case::they_do_not_fit(Earlier::Unusable(vec![port_of("p"), port_of("q")]), Supply::Make { instead_of: vec![port_of("p"), port_of("q")] })]
    #[case::there_is_none(Earlier::Unusable(Vec::new()), Supply::Make { instead_of: Vec::new() })]
    fn a_port_is_used_made_or_waited_for(#[case] earlier: Earlier<Port>, #[case] expected: Supply<Port>) {
        assert_eq!(port(earlier), expected);
    }

    #[rstest]
    #[case::it_fits(Earlier::Usable(volume_of("available")), Supply::Use(volume_of("available")))]
    #[case::a_server_has_it(Earlier::InUse(volume_of("in-use")), Supply::Use(volume_of("in-use")))]
    #[case::it_does_not_fit(Earlier::Unusable(vec![volume_of("available")]), Supply::Make { instead_of: Vec::new() })]
    fn a_volume_is_used_or_made(#[case] earlier: Earlier<Volume>, #[case] expected: Supply<Volume>) {
        assert_eq!(volume(earlier), expected);
    }

    #[rstest]
    #[case(Code::NotFound, true)]
    #[case(Code::OutOfRange, true)]
    #[case(Code::InvalidArgument, true)]
    #[case(Code::ResourceExhausted, true)]
    #[case(Code::Unavailable, false)]
    #[case(Code::DeadlineExceeded, false)]
    #[case(Code::PermissionDenied, false)]
    #[case(Code::Unauthenticated, false)]
    fn a_class_is_refused_by_what_the_cloud_says_of_its_names(#[case] code: Code, #[case] expected: bool) {
        assert_eq!(is_refusal(&failed(code, "no")), expected);
    }

    #[rstest]
    #[case::lost(FailureKind::Temporary, true)]
    #[case::refused(FailureKind::Permanent, false)]
    #[case::not_sent(FailureKind::NotSent, false)]
    #[case::throttled(FailureKind::Throttled, false)]
    fn only_a_lost_answer_leaves_the_outcome_unknown(#[case] kind: FailureKind, #[case] is_unknown: bool) {
        let failure = Failure::new(Code::Unavailable, "no", kind);
        let expected = if is_unknown { Made::Unknown(failure.clone()) } else { Made::Nothing(failure.clone()) };
        assert_eq!(Made::<()>::from(Err(failure)), expected);
        assert_eq!(Made::from(Ok(())), Made::This(()));
    }

    #[rstest]
    #[case::ready(Some("available"), Boot::Ready)]
    #[case::being_made(Some("downloading"), Boot::Wait)]
    #[case::failed(
        Some("error"),
        Boot::Fail(failed(Code::Internal, "volume v of the machine can't be booted from: it is error"))
    )]
    #[case::in_use(
        Some("in-use"),
        Boot::Fail(failed(Code::Internal, "volume v of the machine can't be booted from: it is in-use"))
    )]
    #[case::deleted(None, Boot::Fail(failed(Code::Aborted, "volume v was deleted meanwhile")))]
    fn a_server_boots_from_a_volume_that_is_ready(#[case] status: Option<&str>, #[case] expected: Boot) {
        assert_eq!(boot("v", status.map(volume_of).as_ref()), expected);
    }

    fn server_of(status: &str, task: Option<&str>) -> Server {
        Server { status: status.to_owned(), task_state: task.map(str::to_owned), ..Server::default() }
    }

    #[rstest]
    #[case::one_look_is_not_enough(Presence::BEGIN, None, Some(Presence::Unseen(1)))]
    #[case::two_are_not_either(Presence::Unseen(1), None, Some(Presence::Unseen(2)))]
    #[case::three_are(Presence::Unseen(2), None, None)]
    #[case::it_is_shown_again(Presence::Unseen(2), Some(server_of("ACTIVE", None)), Some(Presence::BEGIN))]
    #[case::it_is_being_built(Presence::Unseen(2), Some(server_of("BUILD", None)), Some(Presence::BEGIN))]
    #[case::it_has_failed(Presence::Ending, Some(server_of("ERROR", None)), Some(Presence::BEGIN))]
    #[case::it_is_being_deleted(
        Presence::Unseen(1),
        Some(server_of("ACTIVE", Some("deleting"))),
        Some(Presence::Ending)
    )]
    #[case::it_was_being_deleted(Presence::Ending, None, None)]
    #[case::it_is_marked_as_deleted(Presence::BEGIN, Some(server_of("DELETED", None)), None)]
    #[case::it_can_be_restored(Presence::BEGIN, Some(server_of("SOFT_DELETED", None)), None)]
    fn a_server_is_surely_gone_after_three_looks(
        #[case] before: Presence,
        #[case] shown: Option<Server>,
        #[case] expected: Option<Presence>,
    ) {
        assert_eq!(before.after(shown.as_ref()), expected);
    }

    fn still(code: Code, state: &str) -> ServerDeletion {
        let message = format!("error while waiting for server [ID=\"\"] to be deleted: it is still {state}");
        ServerDeletion::Fail(failed(code, &message))
    }

    #[rstest]
    #[case::it_is_not_shown(None, 1, 61, 121, ServerDeletion::Wait)]
    #[case::it_is_being_deleted(Some(("ACTIVE", Some("deleting"))), 1, 61, 120, ServerDeletion::Wait)]
    #[case::its_deletion_lasts(Some(("ACTIVE", Some("deleting"))), 1, 121, 121, still(Code::Aborted, "ACTIVE (deleting)"))]
    #[case::it_lives(Some(("ACTIVE", None)), 1, 60, 60, ServerDeletion::Wait)]
    #[case::it_still_lives(Some(("ACTIVE", None)), 1, 61, 61, ServerDeletion::Repeat)]
    #[case::it_is_still_being_built(Some(("BUILD", None)), 1, 61, 61, ServerDeletion::Repeat)]
    #[case::it_has_failed(Some(("ERROR", None)), 1, 61, 61, ServerDeletion::Repeat)]
    #[case::it_has_failed_twice(Some(("ERROR", None)), 2, 61, 61, still(Code::FailedPrecondition, "ERROR"))]
    fn the_deletion_of_a_server_is_repeated_after_a_minute(
        #[case] state: Option<(&str, Option<&str>)>,
        #[case] requests: u32,
        #[case] since: u64,
        #[case] unchanged: u64,
        #[case] expected: ServerDeletion,
    ) {
        let server = state.map(|(status, task)| server_of(status, task));
        let [since, unchanged] = [since, unchanged].map(Duration::from_secs);
        assert_eq!(ServerDeletion::next(server.as_ref(), requests, since, unchanged), expected);
    }

    #[rstest]
    #[case::no_sign(Volumes::Unlikely, None)]
    #[case::one_is_attached(Volumes::Possible, None)]
    #[case::an_earlier_class_has_requested_one(Volumes::Made, Some(Code::FailedPrecondition))]
    #[case::the_class_requests_one(Volumes::Wanted, Some(Code::PermissionDenied))]
    fn a_login_without_a_right_in_cinder_finds(#[case] volumes: Volumes, #[case] expected: Option<Code>) {
        let found = kept_out_of_cinder(volumes, Failure::permanent(Code::PermissionDenied, "no"));
        assert_eq!(found.err().map(|failure| failure.status.code), expected);
    }

    #[rstest]
    #[case::it_can_be_deleted(VolumeDeletion::BEGIN, "available", VolumeStep::Request)]
    #[case::it_is_broken(VolumeDeletion::BEGIN, "error", VolumeStep::Request)]
    #[case::a_request_was_refused(VolumeDeletion::Refused(2), "available", VolumeStep::Request)]
    #[case::it_is_attached(VolumeDeletion::BEGIN, "in-use", VolumeStep::Wait)]
    #[case::it_is_being_detached(VolumeDeletion::Refused(1), "detaching", VolumeStep::Wait)]
    #[case::it_is_being_deleted(VolumeDeletion::Accepted, "deleting", VolumeStep::Wait)]
    #[case::it_does_not_show_it_yet(VolumeDeletion::Accepted, "available", VolumeStep::Wait)]
    #[case::the_deletion_has_failed(
        VolumeDeletion::Accepted,
        "error_deleting",
        VolumeStep::Fail(failed(Code::Internal, "volume v can't be deleted: it is error_deleting"))
    )]
    fn a_deletion_of_a_volume_goes_on(
        #[case] progress: VolumeDeletion,
        #[case] status: &str,
        #[case] expected: VolumeStep,
    ) {
        assert_eq!(progress.next(&volume_of(status), Duration::from_secs(120)), expected);
    }

    #[rstest]
    #[case::a_stale_attachment(VolumeDeletion::BEGIN, "in-use", Code::FailedPrecondition)]
    #[case::it_is_reserved_for_ever(VolumeDeletion::BEGIN, "reserved", Code::FailedPrecondition)]
    #[case::its_detachment_hangs(VolumeDeletion::Refused(2), "detaching", Code::FailedPrecondition)]
    #[case::cinder_has_given_up_its_deletion(VolumeDeletion::Accepted, "available", Code::FailedPrecondition)]
    #[case::its_deletion_lasts(VolumeDeletion::Accepted, "deleting", Code::Aborted)]
    fn a_volume_that_does_not_change_is_told_of(
        #[case] progress: VolumeDeletion,
        #[case] status: &str,
        #[case] code: Code,
    ) {
        let attachments = vec![Attachment { server_id: Some("s".to_owned()) }];
        let volume = Volume { attachments, ..volume_of(status) };
        let message = format!("volume v can't be deleted yet (it is tried again): it is still {status} by server s");
        let expected = VolumeStep::Fail(failed(code, &message));
        assert_eq!(progress.next(&volume, Duration::from_secs(121)), expected);
    }

    #[rstest]
    #[case::accepted(0, None, Ok(VolumeDeletion::Accepted))]
    #[case::accepted_after_refusals(2, None, Ok(VolumeDeletion::Accepted))]
    #[case::the_first_refusal(0, Some(Code::InvalidArgument), Ok(VolumeDeletion::Refused(1)))]
    #[case::the_second_refusal(1, Some(Code::InvalidArgument), Ok(VolumeDeletion::Refused(2)))]
    #[case::the_third_refusal(
        2,
        Some(Code::InvalidArgument),
        Err(failed(Code::FailedPrecondition, "volume v can't be deleted yet (it is tried again): no"))
    )]
    #[case::no_right(0, Some(Code::PermissionDenied), Err(failed(Code::PermissionDenied, "no")))]
    #[case::no_answer(2, Some(Code::Unavailable), Err(failed(Code::Unavailable, "no")))]
    fn three_refusals_end_the_deletion_of_a_volume(
        #[case] refusals: u32,
        #[case] code: Option<Code>,
        #[case] expected: Result<VolumeDeletion, Status>,
    ) {
        let answer = code.map_or(Ok(Some(())), |code| Err(Failure::permanent(code, "no")));
        assert_eq!(VolumeDeletion::Refused(refusals).after("v", answer), expected);
    }

    #[test]
    fn a_volume_that_cinder_shows_and_does_not_find_is_requested_again() {
        assert_eq!(VolumeDeletion::BEGIN.after("v", Ok(None)), Ok(VolumeDeletion::Refused(1)));
        let refused = VolumeDeletion::Refused(2).after("v", Ok(None)).unwrap_err();
        assert_eq!(
            refused.message,
            "volume v can't be deleted yet (it is tried again): Cinder shows it, and does not find it"
        );
    }

    #[rstest]
    #[case::its_deletion_was_accepted(VolumeDeletion::Accepted, 1, true)]
    #[case::it_is_shown(VolumeDeletion::Accepted, 0, false)]
    #[case::two_looks_are_not_enough(VolumeDeletion::BEGIN, 2, false)]
    #[case::three_looks_are(VolumeDeletion::Refused(1), 3, true)]
    fn a_volume_is_surely_gone(#[case] progress: VolumeDeletion, #[case] unseen: u32, #[case] expected: bool) {
        assert_eq!(progress.is_gone(unseen), expected);
    }
}
