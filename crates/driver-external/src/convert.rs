//! Converts requests and answers between the types of `machine_driver` and the types of the protocol. Pure functions.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_values::field::{ErrorKind, FieldError, FieldPath, Finding, Findings, Severity};
use machine_driver::{
    Code, CreatedVm, DeletedVm, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, NodeAddress, Owner,
    PersistentVolumeSpec, SecretData, Status, VmIdentity, VolumeIdsRequest,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::wire::driver as wire;

/// The API version of the objects in requests.
const API_VERSION: &str = "machine.sapcloud.io/v1alpha1";
/// The maximum number of VMs in one chunk of a list. A chunk of this size is far smaller than the largest message.
const CHUNK: usize = 500;

/// The fields of a request beside the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallHead {
    /// The same id for all attempts at one operation on one machine.
    pub request_id: String,
    /// The number of the attempt. The first attempt has number 1.
    pub attempt: u32,
    /// The owner of the VMs. `None` if the driver reads the owner in the class.
    pub owner: Option<Owner>,
    /// The time until which the caller waits.
    pub deadline: Option<Timestamp>,
}

/// The request of a call about one machine.
///
/// # Errors
/// `Internal` when an object can't be written as JSON.
pub fn machine_request(head: CallHead, request: &MachineRequest) -> Result<wire::MachineRequest, Status> {
    Ok(wire::MachineRequest {
        machine: Some(object("Machine", &*request.machine)?),
        machine_class: Some(object("MachineClass", &*request.class)?),
        secret: secret(&request.secret),
        request_id: head.request_id,
        attempt: head.attempt,
        owner: head.owner.map(wire_owner),
        deadline: head.deadline.map(wire_time),
    })
}

/// The request of a call about all machines of a class.
///
/// # Errors
/// `Internal` when the class can't be written as JSON.
pub fn list_request(head: CallHead, request: &ListRequest) -> Result<wire::ListMachinesRequest, Status> {
    Ok(wire::ListMachinesRequest {
        machine_class: Some(object("MachineClass", &*request.class)?),
        secret: secret(&request.secret),
        owner: head.owner.map(wire_owner),
        deadline: head.deadline.map(wire_time),
    })
}

/// The request of a call about volumes.
///
/// # Errors
/// `Internal` when a volume can't be written as JSON.
pub fn volumes_request(head: &CallHead, request: &VolumeIdsRequest) -> Result<wire::GetVolumeIDsRequest, Status> {
    let pv_spec_json = request.volumes.iter().map(json).collect::<Result<_, _>>()?;
    Ok(wire::GetVolumeIDsRequest { pv_spec_json, deadline: head.deadline.map(wire_time) })
}

/// The request to validate a class before a VM is made.
///
/// # Errors
/// `Internal` when the class can't be written as JSON.
pub fn validate_request(
    head: &CallHead,
    class: &MachineClass,
    data: &SecretData,
) -> Result<wire::ValidateRequest, Status> {
    Ok(wire::ValidateRequest {
        machine_class: Some(object("MachineClass", class)?),
        secret: secret(data),
        has_secret: true,
        is_create: false,
        deadline: head.deadline.map(wire_time),
    })
}

/// Reads the request of a call about one machine.
///
/// # Errors
/// `InvalidArgument` when an object is missing or can't be read.
pub fn read_machine_request(request: wire::MachineRequest) -> Result<(CallHead, MachineRequest), Status> {
    let head = CallHead {
        request_id: request.request_id,
        attempt: request.attempt,
        owner: request.owner.map(owner),
        deadline: request.deadline.and_then(time),
    };
    let machine: Machine = read_object("machine", request.machine)?;
    let class: MachineClass = read_object("machine_class", request.machine_class)?;
    let (machine, class, secret) = (Arc::new(machine), Arc::new(class), read_secret(request.secret));
    Ok((head, MachineRequest { machine, class, secret }))
}

/// Reads the request of a call about all machines of a class.
///
/// # Errors
/// `InvalidArgument` when the class is missing or can't be read.
pub fn read_list_request(request: wire::ListMachinesRequest) -> Result<(CallHead, ListRequest), Status> {
    let head =
        CallHead { owner: request.owner.map(owner), deadline: request.deadline.and_then(time), ..CallHead::default() };
    let class = Arc::new(read_object("machine_class", request.machine_class)?);
    Ok((head, ListRequest { class, secret: read_secret(request.secret) }))
}

/// Reads the request of a call about volumes.
///
/// # Errors
/// `InvalidArgument` when a volume can't be read.
pub fn read_volumes_request(request: &wire::GetVolumeIDsRequest) -> Result<(CallHead, VolumeIdsRequest), Status> {
    let head = CallHead { deadline: request.deadline.and_then(time), ..CallHead::default() };
    let volumes = request.pv_spec_json.iter().map(|spec| read_json::<PersistentVolumeSpec>("pv_spec_json", spec));
    Ok((head, VolumeIdsRequest { volumes: volumes.collect::<Result<_, _>>()? }))
}

/// Reads the class of a request to validate it.
///
/// # Errors
/// `InvalidArgument` when the class is missing or can't be read.
pub fn read_validate_request(request: wire::ValidateRequest) -> Result<MachineClass, Status> {
    read_object("machine_class", request.machine_class)
}

/// The identity of a VM.
pub fn identity(vm: wire::MachineResponse) -> VmIdentity {
    let address = |address: wire::NodeAddress| NodeAddress { type_: address.r#type, address: address.address };
    VmIdentity {
        provider_id: vm.provider_id,
        node_name: vm.node_name,
        addresses: vm.addresses.into_iter().map(address).collect(),
    }
}

/// The VM in the answer of a creation.
///
/// # Errors
/// `Internal` when the answer has no provider id.
pub fn created(answer: wire::MachineResponse) -> Result<CreatedVm, Status> {
    if answer.provider_id.is_empty() {
        return Err(Status::new(Code::Internal, "driver returned no providerID"));
    }
    let last_known_state = state(answer.last_known_state.clone());
    Ok(CreatedVm { vm: identity(answer), last_known_state })
}

/// The answer of a deletion.
pub fn deleted(answer: wire::DeleteMachineResponse) -> DeletedVm {
    DeletedVm { last_known_state: state(answer.last_known_state) }
}

/// The message for the answer of a deletion.
pub fn wire_deleted(deleted: DeletedVm) -> wire::DeleteMachineResponse {
    wire::DeleteMachineResponse { last_known_state: deleted.last_known_state.unwrap_or_default() }
}

/// The message for a VM and the last known state.
pub fn wire_machine(vm: VmIdentity, last_known_state: Option<String>) -> wire::MachineResponse {
    let address = |address: NodeAddress| wire::NodeAddress { r#type: address.type_, address: address.address };
    wire::MachineResponse {
        provider_id: vm.provider_id,
        node_name: vm.node_name,
        last_known_state: last_known_state.unwrap_or_default(),
        addresses: vm.addresses.into_iter().map(address).collect(),
    }
}

/// The VMs of a chunk of a list.
pub fn listed(chunk: wire::ListMachinesChunk) -> impl Iterator<Item = ListedVm> {
    let wire::ListMachinesChunk { machines, mut created, .. } = chunk;
    machines.into_iter().map(move |(provider_id, machine_name)| {
        let created = created.remove(&provider_id).and_then(time);
        ListedVm { provider_id, machine_name, created }
    })
}

/// The chunks of a list. The last chunk is marked as such.
pub fn chunks(vms: &[ListedVm]) -> Vec<wire::ListMachinesChunk> {
    let chunk = |vms: &[ListedVm]| wire::ListMachinesChunk {
        machines: vms.iter().map(|vm| (vm.provider_id.clone(), vm.machine_name.clone())).collect(),
        created: vms.iter().filter_map(|vm| Some((vm.provider_id.clone(), wire_time(vm.created?)))).collect(),
        last: false,
    };
    let mut all: Vec<_> = vms.chunks(CHUNK).map(chunk).collect();
    match all.last_mut() {
        Some(last) => last.last = true,
        None => all.push(wire::ListMachinesChunk { last: true, ..wire::ListMachinesChunk::default() }),
    }
    all
}

/// All errors that a driver found in a class, in one text. `None` when there are only warnings or nothing.
pub fn refusal(answer: wire::ValidateResponse) -> Option<String> {
    let errors: Vec<String> = answer
        .errors
        .into_iter()
        .filter(|error| !error.warning)
        .map(|error| {
            let kind = error_kind(error.kind());
            let (path, value) = (FieldPath::new(error.path), error.value.into());
            FieldError { path, kind, value, detail: error.detail.into() }.to_string()
        })
        .collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// The message for what was found in a class.
pub fn wire_findings(found: &Findings) -> wire::ValidateResponse {
    let error = |finding: &Finding| wire::FieldError {
        path: finding.error.path.as_str().to_owned(),
        kind: wire_kind(finding.error.kind).into(),
        value: match &finding.error.value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => String::new(),
            value => value.to_string(),
        },
        detail: finding.error.detail.clone().into_owned(),
        warning: finding.severity != Severity::Deny,
    };
    wire::ValidateResponse { errors: found.iter().map(error).collect() }
}

fn error_kind(kind: wire::Kind) -> ErrorKind {
    match kind {
        wire::Kind::Required => ErrorKind::Required,
        wire::Kind::NotSupported => ErrorKind::NotSupported,
        wire::Kind::Forbidden => ErrorKind::Forbidden,
        wire::Kind::Duplicate => ErrorKind::Duplicate,
        wire::Kind::Invalid | wire::Kind::Unspecified => ErrorKind::Invalid,
    }
}

fn wire_kind(kind: ErrorKind) -> wire::Kind {
    match kind {
        ErrorKind::Required => wire::Kind::Required,
        ErrorKind::NotSupported => wire::Kind::NotSupported,
        ErrorKind::Forbidden => wire::Kind::Forbidden,
        ErrorKind::Duplicate => wire::Kind::Duplicate,
        ErrorKind::Invalid | ErrorKind::TooLong | ErrorKind::TypeInvalid => wire::Kind::Invalid,
    }
}

/// The longest state of a driver that is kept. It becomes a part of the machine's status, and an API server refuses an object above 1.5 MiB.
const MAX_STATE_BYTES: usize = 256 * 1024;

/// The state in an answer. `None` for an empty text, because a string field of the protocol has no other value for "not set", and for a state that is too
/// long to be kept.
pub fn state(text: String) -> Option<String> {
    if text.len() > MAX_STATE_BYTES {
        tracing::warn!(count = text.len(), "the state of a driver has too many bytes and is not kept");
        return None;
    }
    (!text.is_empty()).then_some(text)
}

/// The time `left` after `now`. `None` beyond what a timestamp can hold.
pub fn ahead(now: Timestamp, left: Duration) -> Option<Timestamp> {
    now.checked_add(left).ok()
}

fn owner(owner: wire::Owner) -> Owner {
    Owner { cluster: owner.cluster, role: owner.role }
}

fn wire_owner(owner: Owner) -> wire::Owner {
    wire::Owner { cluster: owner.cluster, role: owner.role }
}

fn time(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

fn wire_time(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

fn secret(data: &SecretData) -> HashMap<String, Vec<u8>> {
    data.iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect()
}

fn read_secret(data: HashMap<String, Vec<u8>>) -> SecretData {
    let mut secret = SecretData::default();
    for (key, value) in data {
        secret.set(key, value);
    }
    secret
}

fn object(kind: &str, object: &impl Serialize) -> Result<wire::ObjectJson, Status> {
    Ok(wire::ObjectJson { api_version: API_VERSION.to_owned(), kind: kind.to_owned(), json: json(object)? })
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(value)
        .map_err(|error| Status::new(Code::Internal, format!("a request can't be written: {error}")))
}

fn read_object<T: DeserializeOwned>(field: &str, object: Option<wire::ObjectJson>) -> Result<T, Status> {
    let object = object.ok_or_else(|| Status::new(Code::InvalidArgument, format!("{field} is missing")))?;
    read_json(field, &object.json)
}

fn read_json<T: DeserializeOwned>(field: &str, json: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(json).map_err(|error| {
        // The category and the position of the error reveal no value of the JSON, which may hold a secret.
        let (line, column) = (error.line(), error.column());
        Status::new(
            Code::InvalidArgument,
            format!("{field}: {:?} error in line {line}, column {column}", error.classify()),
        )
    })
}

#[cfg(test)]
mod tests {
    use kube_values::field::RuleId;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn request() -> MachineRequest {
        let (mut machine, mut class) = (Machine::default(), MachineClass::default());
        machine.metadata.name = Some("worker-1".to_owned());
        machine.spec.provider_id = "s:///1".to_owned();
        class.provider = "scripted".to_owned();
        class.provider_spec = json!({ "size": "small", "deep": { "list": [1, null] } });
        let mut secret = SecretData::default();
        secret.set("userData", vec![0, 255, 10]);
        MachineRequest { machine: Arc::new(machine), class: Arc::new(class), secret }
    }

    fn head() -> CallHead {
        CallHead {
            request_id: "u1-CREATE".to_owned(),
            attempt: 3,
            owner: Some(Owner::new("shoot", "worker")),
            deadline: Some("2026-01-02T03:04:05.678Z".parse().unwrap()),
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let sent = request();
        let (read, got) = read_machine_request(machine_request(head(), &sent).unwrap()).unwrap();
        assert_eq!(read, head());
        assert_eq!((&got.machine, &got.class, &got.secret), (&sent.machine, &sent.class, &sent.secret));
        let list = ListRequest { class: sent.class, secret: sent.secret };
        let (read, got) = read_list_request(list_request(head(), &list).unwrap()).unwrap();
        assert_eq!(read, CallHead { request_id: String::new(), attempt: 0, ..head() });
        assert_eq!((got.class, got.secret), (list.class, list.secret));
        let volume = PersistentVolumeSpec { volume_mode: Some("Block".to_owned()), ..PersistentVolumeSpec::default() };
        let volumes = VolumeIdsRequest { volumes: vec![volume] };
        let (_, got) = read_volumes_request(&volumes_request(&head(), &volumes).unwrap()).unwrap();
        assert_eq!(got.volumes, volumes.volumes);
    }

    #[rstest]
    #[case::no_machine(wire::MachineRequest::default(), "machine is missing")]
    #[case::no_class(
        wire::MachineRequest { machine: Some(wire::ObjectJson { json: b"{}".to_vec(), ..Default::default() }), ..Default::default() },
        "machine_class is missing"
    )]
    #[case::no_json(
        wire::MachineRequest { machine: Some(wire::ObjectJson { json: b"{\"hunter2".to_vec(), ..Default::default() }), ..Default::default() },
        "machine: Eof error in line 1, column 9"
    )]
    fn a_request_that_can_not_be_read(#[case] request: wire::MachineRequest, #[case] expected: &str) {
        let refused = read_machine_request(request).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, expected));
    }

    #[rstest]
    #[case::an_empty_list(0, 1)]
    #[case::one_chunk(CHUNK, 1)]
    #[case::two(CHUNK + 1, 2)]
    fn a_list_is_cut_into_chunks_and_the_last_one_is_marked(#[case] vms: usize, #[case] expected: usize) {
        let created = Some("2026-01-02T03:04:05Z".parse().unwrap());
        let vm = |number| ListedVm {
            provider_id: format!("s:///{number:06}"),
            machine_name: format!("m-{number}"),
            created,
        };
        let all: Vec<ListedVm> = (0..vms).map(vm).collect();
        let chunks = chunks(&all);
        assert_eq!(chunks.len(), expected);
        assert_eq!(chunks.iter().rposition(|chunk| !chunk.last).map_or(0, |last| last + 1), expected - 1);
        let mut read: Vec<ListedVm> = chunks.into_iter().flat_map(listed).collect();
        read.sort_by(|one, other| one.provider_id.cmp(&other.provider_id));
        assert_eq!(read, all);
    }

    #[test]
    fn a_state_that_no_object_can_hold_is_not_kept() {
        assert_eq!(state("s".repeat(MAX_STATE_BYTES)).map(|state| state.len()), Some(MAX_STATE_BYTES));
        assert_eq!(state("s".repeat(MAX_STATE_BYTES + 1)), None);
        assert_eq!(state(String::new()), None);
    }

    #[test]
    fn findings_of_a_class_are_sent_and_warnings_refuse_nothing() {
        let mut found = Findings::new();
        found.required(RuleId::declare("X-1"), FieldPath::new("providerSpec").child("size"), "say how large");
        found.invalid(
            RuleId::declare("X-2"),
            FieldPath::new("providerSpec").child("zone"),
            "z9",
            "there is no such zone",
        );
        found.warn(RuleId::declare("X-3"), FieldPath::new("providerSpec").child("old"), "x", "is not used any more");
        let refusal_text = refusal(wire_findings(&found)).unwrap();
        assert_eq!(
            refusal_text,
            "providerSpec.size: Required value: say how large; \
             providerSpec.zone: Invalid value: \"z9\": there is no such zone"
        );
        assert_eq!(refusal(wire::ValidateResponse::default()), None);
    }
}
