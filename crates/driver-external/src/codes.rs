//! Codes and statuses on the wire, both ways.
//!
//! gRPC has the numbers 0 to 16; a failure that needs 17 (`Uninitialized`), a partial answer or a state carries a [`StatusDetail`], whose
//! code wins over the number. Source: spec/providers §9.4.

use kube_values::field::cut;
use machine_driver::{Code, Status};
use prost::Message;

use crate::{
    convert,
    wire::{driver::StatusDetail, rpc},
};

/// The type of a detail within `google.rpc.Status`.
const DETAIL_TYPE: &str = "type.googleapis.com/machine.driver.v1.StatusDetail";
/// The part of a type's URL that names the type; what stands before the slash may differ.
const DETAIL_NAME: &str = "machine.driver.v1.StatusDetail";
/// A message travels in a header, twice where there is a detail, and peers limit the size of headers.
const LONGEST_MESSAGE: usize = 2000;
/// What the text of a status of the Go drivers begins with, and what stands before its message.
const TEXT_FORM: (&str, &str) = ("machine codes error: code = [", "] message = [");

/// The machine code of a number: what is no machine code is `Unknown`.
pub fn code_of(number: i32) -> Code {
    usize::try_from(number).ok().and_then(|number| Code::ALL.get(number).copied()).unwrap_or(Code::Unknown)
}

/// A failed call as a server answers it.
pub fn to_wire(status: &Status) -> tonic::Status {
    let number = match status.code {
        Code::Uninitialized => Code::FailedPrecondition,
        code => code,
    };
    let (code, message) =
        (tonic::Code::from_i32(i32::from(number.number())), cut(status.message.clone(), LONGEST_MESSAGE));
    if number == status.code && status.partial.is_none() && status.last_known_state.is_none() {
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

/// What tonic's own words for a message beyond the limit begin with; its code for that is one that means something else here.
const TOO_LONG: [&str; 2] = ["Error, decoded message length too large", "Error, encoded message length too large"];

/// A failed call as the peer answered it.
pub fn from_wire(answer: &tonic::Status) -> Status {
    if answer.code() == tonic::Code::OutOfRange && TOO_LONG.iter().any(|words| answer.message().starts_with(words)) {
        return Status::new(Code::Internal, answer.message());
    }
    let number = code_of(answer.code() as i32);
    let detail = detail(answer.details());
    let told = detail.as_ref().map(|detail| detail.machine_code).filter(|code| *code != 0).map(code_of);
    let text = text_form(answer.message());
    let code = told.or(text.map(|(code, _)| code)).unwrap_or(number);
    let message = text.map_or_else(|| answer.message(), |(_, message)| message).to_owned();
    // A failure that says OK says nothing.
    let mut status = Status::new(if code == Code::OK { Code::Unknown } else { code }, message);
    if let Some(StatusDetail { partial, last_known_state, .. }) = detail {
        status.partial = partial.map(|vm| Box::new(convert::identity(vm)));
        status.last_known_state = convert::unless_empty(last_known_state);
    }
    status
}

/// Whether the deadline ended a call: tonic says on both sides that the call was cancelled, in words of its own.
pub fn is_late(answer: &tonic::Status) -> bool {
    answer.code() == tonic::Code::Cancelled && answer.message() == tonic::TimeoutExpired(()).to_string()
}

/// The detail of a failure, if there is one that can be read.
fn detail(details: &[u8]) -> Option<StatusDetail> {
    let wrapped = rpc::Status::decode(details).ok()?;
    let is_ours = |url: &str| url.rsplit('/').next() == Some(DETAIL_NAME);
    let ours = wrapped.details.iter().find(|any| is_ours(&any.type_url))?;
    StatusDetail::decode(ours.value.as_slice()).ok()
}

/// Code and message of a text in which Go drivers tell both.
fn text_form(text: &str) -> Option<(Code, &str)> {
    let (code, message) = text.strip_prefix(TEXT_FORM.0)?.split_once(TEXT_FORM.1)?;
    Some((Code::from_name(code)?, message.strip_suffix(']')?))
}

#[cfg(test)]
mod tests {
    use machine_driver::VmIdentity;
    use rstest::rstest;

    use super::*;

    fn round(status: &Status) -> Status {
        from_wire(&to_wire(status))
    }

    #[test]
    fn every_code_but_ok_comes_over_the_wire_as_it_is() {
        for code in Code::ALL.iter().copied().filter(|code| *code != Code::OK) {
            let status = Status::new(code, "the cloud says no: ümläut [1]");
            assert_eq!(round(&status), status);
        }
    }

    #[test]
    fn a_partial_answer_and_a_state_come_along() {
        let vm = VmIdentity { provider_id: "p:///1".to_owned(), node_name: "n".to_owned(), addresses: Vec::new() };
        let mut status = Status::new(Code::Uninitialized, "half").with_partial(vm);
        status.last_known_state = Some("state".to_owned());
        assert_eq!(to_wire(&status).code(), tonic::Code::FailedPrecondition);
        assert_eq!(round(&status), status);
        let mut status = Status::new(Code::Aborted, "again");
        status.last_known_state = Some("state".to_owned());
        assert_eq!(round(&status), status);
    }

    #[rstest]
    #[case::e02_a_number_that_grpc_does_not_have(tonic::Code::from_i32(42), "x", Code::Unknown, "x")]
    #[case::e02_seventeen_without_a_detail(tonic::Code::from_i32(17), "x", Code::Unknown, "x")]
    #[case::a_failure_that_says_ok(tonic::Code::Ok, "x", Code::Unknown, "x")]
    #[case::the_text_of_a_go_driver(
        tonic::Code::Internal,
        "machine codes error: code = [NotFound] message = [no VM [i-1]]",
        Code::NotFound,
        "no VM [i-1]"
    )]
    #[case::a_text_with_a_code_that_is_none(
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
    #[case::the_codes_of_details_win(DETAIL_TYPE, 8, Code::ResourceExhausted)]
    #[case::the_host_of_a_type_does_not_matter(
        "example.com/machine.driver.v1.StatusDetail",
        8,
        Code::ResourceExhausted
    )]
    #[case::zero_says_nothing(DETAIL_TYPE, 0, Code::Internal)]
    #[case::a_code_that_is_none(DETAIL_TYPE, 99, Code::Unknown)]
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
    fn a_message_that_is_too_long_says_nothing_of_vms() {
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
    fn a_call_that_its_deadline_ended(#[case] code: tonic::Code, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_late(&tonic::Status::new(code, text)), expected);
    }

    #[test]
    fn details_that_can_not_be_read_are_left_out() {
        let answer = tonic::Status::with_details(tonic::Code::Aborted, "m", vec![0xff; 9].into());
        assert_eq!(from_wire(&answer), Status::new(Code::Aborted, "m"));
    }

    #[test]
    fn a_long_message_does_not_fill_the_headers() {
        assert!(to_wire(&Status::new(Code::Internal, "x".repeat(100_000))).message().len() < 2 * LONGEST_MESSAGE);
    }
}
