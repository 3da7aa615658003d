//! Converts machine codes and statuses to and from gRPC.
//!
//! gRPC has the codes 0 to 16. A failure with code 17 (`Uninitialized`), with a partial answer, with a state, or with a code that proxies use as well
//! (`Unimplemented`) carries a [`StatusDetail`].
//! The code of that detail has precedence over the gRPC code. Source: spec/providers §9.4.

use kube_values::field::cut;
use machine_driver::{Code, Status};
use prost::Message;

use crate::{
    convert,
    wire::{driver::StatusDetail, rpc},
};

/// The type URL of a detail within `google.rpc.Status`.
const DETAIL_TYPE: &str = "type.googleapis.com/machine.driver.v1.StatusDetail";
/// The part of the type URL that names the type. The part before the slash may differ.
const DETAIL_NAME: &str = "machine.driver.v1.StatusDetail";
/// The longest message of a failure, in bytes. A header carries the message, a detail repeats it, and peers limit the size of headers.
const LONGEST_MESSAGE: usize = 2000;
/// The texts before the code and before the message in a status text of the Go drivers.
const TEXT_FORM: (&str, &str) = ("machine codes error: code = [", "] message = [");

/// The machine code with this number, or `Unknown` if there is none.
pub fn code_of(number: i32) -> Code {
    usize::try_from(number).ok().and_then(|number| Code::ALL.get(number).copied()).unwrap_or(Code::Unknown)
}

/// The gRPC status with which a server answers a failed call.
pub fn to_wire(status: &Status) -> tonic::Status {
    let number = match status.code {
        Code::Uninitialized => Code::FailedPrecondition,
        code => code,
    };
    let (code, message) =
        (tonic::Code::from_i32(i32::from(number.number())), cut(status.message.clone(), LONGEST_MESSAGE));
    // A proxy without a route answers `Unimplemented`, too. The detail says that the driver did.
    let is_plain = number == status.code && status.code != Code::Unimplemented;
    if is_plain && status.partial.is_none() && status.last_known_state.is_none() {
        return tonic::Status::new(code, message);
    }
    let detail = StatusDetail {
        machine_code: i32::from(status.code.number()),
        partial: status.partial.as_deref().map(|vm| convert::wire_machine(vm.clone(), None)),
        last_known_state: status.last_known_state.clone().unwrap_or_default(),
    };
    let value = prost_types::Any { type_url: DETAIL_TYPE.to_owned(), value: detail.encode_to_vec() };
    let wrapped = rpc::Status { code: i32::from(number.number()), message: message.clone(), details: vec![value] };
    tonic::Status::with_details(code, message, wrapped.encode_to_vec().into())
}

/// The beginnings of tonic's error texts for a message that is too long. tonic uses `OutOfRange`, which has another meaning for drivers.
const TOO_LONG: [&str; 2] = ["Error, decoded message length too large", "Error, encoded message length too large"];

/// The beginning of tonic's error text for an answer that is no gRPC. A proxy has sent it, and the driver has not decided anything: a proxy's 404 is
/// not the `Unimplemented` that tonic makes of it.
const NO_GRPC: &str = "grpc-status header missing";

/// The failure in a gRPC status that the peer sent.
pub fn from_wire(answer: &tonic::Status) -> Status {
    if answer.message().starts_with(NO_GRPC) {
        return Status::new(Code::Unavailable, answer.message());
    }
    if answer.code() == tonic::Code::OutOfRange && TOO_LONG.iter().any(|text| answer.message().starts_with(text)) {
        return Status::new(Code::Internal, answer.message());
    }
    let number = code_of(answer.code() as i32);
    let detail = detail(answer.details());
    let detailed = detail.as_ref().map(|detail| detail.machine_code).filter(|code| *code != 0).map(code_of);
    let text = text_form(answer.message());
    let code = detailed.or(text.map(|(code, _)| code)).unwrap_or(number);
    let message = text.map_or_else(|| answer.message(), |(_, message)| message).to_owned();
    // A failure can't have code OK.
    let mut status = Status::new(if code == Code::OK { Code::Unknown } else { code }, message);
    if let Some(StatusDetail { partial, last_known_state, .. }) = detail {
        status.partial = partial.map(|vm| Box::new(convert::identity(vm)));
        status.last_known_state = convert::state(last_known_state);
    }
    status
}

/// The sender of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The driver: the failure has the form of drivers.
    Driver,
    /// The driver, or a proxy that speaks gRPC.
    Unclear,
}

/// The sender of a failure.
pub fn sender_of(answer: &tonic::Status) -> Sender {
    if detail(answer.details()).is_some() || text_form(answer.message()).is_some() {
        Sender::Driver
    } else {
        Sender::Unclear
    }
}

/// Whether the deadline ended a call. tonic reports this on both sides as `Cancelled`, with a fixed text.
pub fn is_late(answer: &tonic::Status) -> bool {
    answer.code() == tonic::Code::Cancelled && answer.message() == tonic::TimeoutExpired(()).to_string()
}

/// The [`StatusDetail`] of a failure, if there is a readable one.
fn detail(details: &[u8]) -> Option<StatusDetail> {
    let wrapped = rpc::Status::decode(details).ok()?;
    let is_ours = |url: &str| url.rsplit('/').next() == Some(DETAIL_NAME);
    let ours = wrapped.details.iter().find(|any| is_ours(&any.type_url))?;
    StatusDetail::decode(ours.value.as_slice()).ok()
}

/// The code and the message in a status text of the Go drivers.
fn text_form(text: &str) -> Option<(Code, &str)> {
    let (code, message) = text.strip_prefix(TEXT_FORM.0)?.split_once(TEXT_FORM.1)?;
    Some((Code::from_name(code)?, message.strip_suffix(']')?))
}

#[cfg(test)]
mod tests {
    use machine_driver::VmIdentity;
    use rstest::rstest;

    use super::*;

    fn sent_and_read(status: &Status) -> Status {
        from_wire(&to_wire(status))
    }

    #[test]
    fn every_code_but_ok_is_the_same_after_sending() {
        for code in Code::ALL.iter().copied().filter(|code| *code != Code::OK) {
            let status = Status::new(code, "the cloud says no: ümläut [1]");
            assert_eq!(sent_and_read(&status), status);
        }
    }

    #[test]
    fn a_partial_answer_and_a_state_are_sent() {
        let vm = VmIdentity { provider_id: "p:///1".to_owned(), node_name: "n".to_owned(), addresses: Vec::new() };
        let mut status = Status::new(Code::Uninitialized, "half").with_partial(vm);
        status.last_known_state = Some("state".to_owned());
        assert_eq!(to_wire(&status).code(), tonic::Code::FailedPrecondition);
        assert_eq!(sent_and_read(&status), status);
        let mut status = Status::new(Code::Aborted, "again");
        status.last_known_state = Some("state".to_owned());
        assert_eq!(sent_and_read(&status), status);
    }

    #[rstest]
    #[case::e02_an_unknown_grpc_code(tonic::Code::from_i32(42), "x", Code::Unknown, "x")]
    #[case::a_proxys_404(
        tonic::Code::Unimplemented,
        "grpc-status header missing, mapped from HTTP status code 404",
        Code::Unavailable,
        "grpc-status header missing, mapped from HTTP status code 404"
    )]
    #[case::e02_seventeen_without_a_detail(tonic::Code::from_i32(17), "x", Code::Unknown, "x")]
    #[case::a_failure_with_code_ok(tonic::Code::Ok, "x", Code::Unknown, "x")]
    #[case::the_text_of_a_go_driver(
        tonic::Code::Internal,
        "machine codes error: code = [NotFound] message = [no VM [i-1]]",
        Code::NotFound,
        "no VM [i-1]"
    )]
    #[case::a_text_with_an_unknown_code(
        tonic::Code::Internal,
        "machine codes error: code = [Odd] message = [m]",
        Code::Internal,
        "machine codes error: code = [Odd] message = [m]"
    )]
    fn answers_without_a_detail(
        #[case] code: tonic::Code,
        #[case] text: &str,
        #[case] read: Code,
        #[case] message: &str,
    ) {
        assert_eq!(from_wire(&tonic::Status::new(code, text)), Status::new(read, message));
    }

    #[rstest]
    #[case::the_code_of_the_detail_has_precedence(DETAIL_TYPE, 8, Code::ResourceExhausted)]
    #[case::the_host_of_the_type_url_does_not_matter(
        "example.com/machine.driver.v1.StatusDetail",
        8,
        Code::ResourceExhausted
    )]
    #[case::code_zero_is_ignored(DETAIL_TYPE, 0, Code::Internal)]
    #[case::an_unknown_code(DETAIL_TYPE, 99, Code::Unknown)]
    #[case::a_negative_code(DETAIL_TYPE, -1, Code::Unknown)]
    #[case::a_detail_of_another_type("type.googleapis.com/google.rpc.ErrorInfo", 8, Code::Internal)]
    fn a_detail(#[case] type_url: &str, #[case] machine_code: i32, #[case] read: Code) {
        let detail = StatusDetail { machine_code, ..StatusDetail::default() };
        let any = prost_types::Any { type_url: type_url.to_owned(), value: detail.encode_to_vec() };
        let wrapped = rpc::Status { code: 13, message: String::new(), details: vec![any] };
        let answer = tonic::Status::with_details(tonic::Code::Internal, "m", wrapped.encode_to_vec().into());
        assert_eq!(from_wire(&answer).code, read);
    }

    #[test]
    fn a_message_that_is_too_long_is_an_internal_error() {
        let answer = tonic::Status::out_of_range(
            "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes",
        );
        assert_eq!(from_wire(&answer).code, Code::Internal);
        assert_eq!(from_wire(&tonic::Status::out_of_range("two VMs")).code, Code::OutOfRange);
    }

    #[rstest]
    #[case::tonics_deadline(tonic::Code::Cancelled, "Timeout expired", true)]
    #[case::a_driver_that_gives_up(tonic::Code::Cancelled, "no longer wanted", false)]
    #[case::another_code(tonic::Code::Unavailable, "Timeout expired", false)]
    fn a_call_that_was_ended_by_its_deadline(#[case] code: tonic::Code, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_late(&tonic::Status::new(code, text)), expected);
    }

    #[test]
    fn a_failure_in_the_form_of_drivers_is_of_the_driver() {
        assert_eq!(sender_of(&to_wire(&Status::new(Code::Unimplemented, "no"))), Sender::Driver);
        let mut status = Status::new(Code::Internal, "no");
        assert_eq!(sender_of(&to_wire(&status)), Sender::Unclear);
        status.last_known_state = Some("state".to_owned());
        assert_eq!(sender_of(&to_wire(&status)), Sender::Driver);
        assert_eq!(sender_of(&tonic::Status::internal(status.to_string())), Sender::Driver);
    }

    #[test]
    fn unreadable_details_are_ignored() {
        let answer = tonic::Status::with_details(tonic::Code::Aborted, "m", vec![0xff; 9].into());
        assert_eq!(from_wire(&answer), Status::new(Code::Aborted, "m"));
    }

    #[test]
    fn a_long_message_does_not_fill_the_headers() {
        assert!(to_wire(&Status::new(Code::Internal, "x".repeat(100_000))).message().len() < 2 * LONGEST_MESSAGE);
    }
}
