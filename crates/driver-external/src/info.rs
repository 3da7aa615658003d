//! Decides whether the answer of a driver to `GetInfo` is acceptable.
//!
//! `GetInfo` is called on every connection. The driver must serve the provider that the configuration names, and its protocol must have the
//! major version of this program. After a reconnection, other providers or an older protocol are refused. Source: spec/providers §9.3, §9.5.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    time::Duration,
};

use serde_json::Value;

use crate::wire::driver::{GetInfoResponse, NodeIdCompare, Op};

/// The protocol version of this program.
pub const PROTOCOL: Protocol = Protocol { major: 1, minor: 0 };

/// A version of the protocol. A new minor version only adds fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Protocol {
    /// Must be equal on both sides.
    pub major: u32,
    /// Both sides use the lower of their minor versions.
    pub minor: u32,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Protocol {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once('.').ok_or(())?;
        Ok(Self { major: major.parse().map_err(drop)?, minor: minor.parse().map_err(drop)? })
    }
}

/// An answer of `GetInfo` that is accepted.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // these fields are bools in the protocol
pub struct Accepted {
    /// The name of the driver, for logs.
    pub name: String,
    /// The version of the driver, for logs.
    pub version: String,
    /// The protocol version that both sides use.
    pub protocol: Protocol,
    /// The `provider` strings of the classes that the driver serves.
    pub providers: BTreeSet<String>,
    /// The calls that the driver implements.
    pub capabilities: BTreeSet<Op>,
    /// The JSON Schema of `providerSpec`, or why the driver's schema can't be read.
    pub schema: Result<Option<Value>, String>,
    /// The longest time that a call may take.
    pub limits: BTreeMap<Op, Duration>,
    /// How many calls may run at once. `None` means any number.
    pub at_once: Option<usize>,
    /// Lists depend on owner and credentials only.
    pub lists_by_owner: bool,
    /// The keys that the Secrets of a class must have.
    pub required_secret_keys: Vec<String>,
    /// How the ids of machines and Nodes are compared.
    pub compare: NodeIdCompare,
    /// A repeated creation never makes a second VM.
    pub create_is_idempotent: bool,
    /// Lists contain the creation time of each VM.
    pub lists_creation_time: bool,
    /// The driver reads the owner of the VMs in the class.
    pub owner_in_class: bool,
}

/// Why the answer of a driver to `GetInfo` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The protocol has another major version, or the text is no version.
    #[error("it speaks protocol {spoken:?}, this program speaks {PROTOCOL}")]
    Protocol {
        /// The text that the driver sent.
        spoken: String,
    },
    /// The protocol is older than on an earlier connection.
    #[error("it speaks protocol {now}, and spoke {before} before; restart this program if that is meant")]
    LowerProtocol {
        /// The earlier version.
        before: Protocol,
        /// The present version.
        now: Protocol,
    },
    /// The driver does not serve the provider that the configuration names.
    #[error("it serves {}, and the configuration names it for {wanted}", named(.serves))]
    Provider {
        /// The providers that the driver serves.
        serves: BTreeSet<String>,
        /// The provider in the configuration.
        wanted: String,
    },
    /// The driver serves other providers than on an earlier connection.
    #[error("it serves {}, and served {} before; restart this program if that is meant", named(.now), named(.before))]
    ChangedProviders {
        /// The earlier providers.
        before: BTreeSet<String>,
        /// The present providers.
        now: BTreeSet<String>,
    },
    /// The driver lacks a call that every driver must implement.
    #[error("its capabilities lack {}", .lacks.as_str_name())]
    Lacks {
        /// The missing call.
        lacks: Op,
    },
}

/// The names of providers, for messages.
fn named(providers: &BTreeSet<String>) -> String {
    if providers.is_empty() {
        return "no provider".to_owned();
    }
    providers.iter().map(|provider| format!("{provider:?}")).collect::<Vec<_>>().join(", ")
}

/// Checks an answer of `GetInfo`. `before` is the answer on an earlier connection.
///
/// # Errors
/// Why the answer is refused.
pub fn accept(wanted: &str, before: Option<&Accepted>, answer: GetInfoResponse) -> Result<Accepted, Refusal> {
    let supported = answer.protocol.parse::<Protocol>().ok().filter(|version| version.major == PROTOCOL.major);
    let protocol = supported.ok_or_else(|| Refusal::Protocol { spoken: answer.protocol.clone() })?.min(PROTOCOL);
    let capabilities: BTreeSet<Op> = answer.capabilities().collect();
    let compare = answer.node_id_compare();
    let providers: BTreeSet<String> = answer.providers.into_iter().collect();
    if !providers.contains(wanted) {
        return Err(Refusal::Provider { serves: providers, wanted: wanted.to_owned() });
    }
    if let Some(before) = before {
        if protocol < before.protocol {
            return Err(Refusal::LowerProtocol { before: before.protocol, now: protocol });
        }
        if providers != before.providers {
            return Err(Refusal::ChangedProviders { before: before.providers.clone(), now: providers });
        }
    }
    if let Some(lacks) = [Op::Create, Op::Delete].into_iter().find(|op| !capabilities.contains(op)) {
        return Err(Refusal::Lacks { lacks });
    }
    let schema = match answer.provider_spec_json_schema.as_slice() {
        [] => Ok(None),
        json => serde_json::from_slice(json).map(Some).map_err(|error| error.to_string()),
    };
    let limit = |(op, seconds): (String, u32)| {
        Some((Op::from_str_name(&op)?, Duration::from_secs(seconds.into()))).filter(|(_, limit)| !limit.is_zero())
    };
    Ok(Accepted {
        name: answer.name,
        version: answer.version,
        protocol,
        providers,
        capabilities,
        schema,
        limits: answer.max_deadline_seconds.into_iter().filter_map(limit).collect(),
        at_once: usize::try_from(answer.max_concurrency).ok().filter(|at_once| *at_once > 0),
        lists_by_owner: answer.shares_vms_across_classes,
        required_secret_keys: answer.required_secret_keys,
        compare,
        create_is_idempotent: answer.create_is_idempotent,
        lists_creation_time: answer.lists_creation_time,
        owner_in_class: answer.owner_in_class,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn answer(change: impl FnOnce(&mut GetInfoResponse)) -> GetInfoResponse {
        let mut answer = GetInfoResponse {
            protocol: "1.0".to_owned(),
            providers: vec!["folder".to_owned()],
            capabilities: vec![Op::Create.into(), Op::Delete.into()],
            ..GetInfoResponse::default()
        };
        change(&mut answer);
        answer
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[rstest]
    #[case::an_acceptable_answer(answer(|_| {}), Ok("1.0"))]
    #[case::a_newer_minor_version(answer(|answer| answer.protocol = "1.7".to_owned()), Ok("1.0"))]
    #[case::another_major_version(answer(|answer| answer.protocol = "2.0".to_owned()), Err(Refusal::Protocol { spoken: "2.0".to_owned() }))]
    #[case::no_version(answer(|answer| answer.protocol = "one".to_owned()), Err(Refusal::Protocol { spoken: "one".to_owned() }))]
    #[case::e07_a_provider_that_is_not_configured(
        answer(|answer| answer.providers = vec!["AWS".to_owned()]),
        Err(Refusal::Provider { serves: set(&["AWS"]), wanted: "folder".to_owned() })
    )]
    #[case::no_deletion(answer(|answer| { answer.capabilities.pop(); }), Err(Refusal::Lacks { lacks: Op::Delete }))]
    #[case::an_unknown_capability(answer(|answer| answer.capabilities.push(99)), Ok("1.0"))]
    fn a_first_connection(#[case] answer: GetInfoResponse, #[case] expected: Result<&str, Refusal>) {
        let accepted = accept("folder", None, answer).map(|accepted| accepted.protocol.to_string());
        assert_eq!(accepted, expected.map(str::to_owned));
    }

    #[rstest]
    #[case::the_same_again(answer(|_| {}), (1, 0), None)]
    #[case::another_version_of_the_driver(answer(|answer| answer.version = "9".to_owned()), (1, 0), None)]
    #[case::a_lower_protocol(
        answer(|_| {}), (1, 3), Some(Refusal::LowerProtocol { before: Protocol { major: 1, minor: 3 }, now: PROTOCOL })
    )]
    #[case::an_additional_provider(
        answer(|answer| answer.providers.push("AWS".to_owned())), (1, 0),
        Some(Refusal::ChangedProviders { before: set(&["folder"]), now: set(&["AWS", "folder"]) })
    )]
    fn a_reconnection(#[case] again: GetInfoResponse, #[case] before: (u32, u32), #[case] refusal: Option<Refusal>) {
        let mut earlier = accept("folder", None, answer(|_| {})).unwrap();
        earlier.protocol = Protocol { major: before.0, minor: before.1 };
        assert_eq!(accept("folder", Some(&earlier), again).err(), refusal);
    }

    #[test]
    fn the_other_fields_are_read() {
        let accepted = accept(
            "folder",
            None,
            answer(|answer| {
                answer.provider_spec_json_schema = b"{}".to_vec();
                answer.max_deadline_seconds =
                    [("CREATE".to_owned(), 5), ("DELETE".to_owned(), 0), ("ODD".to_owned(), 5)].into_iter().collect();
                answer.max_concurrency = 3;
                answer.node_id_compare = NodeIdCompare::Whole.into();
            }),
        )
        .unwrap();
        assert_eq!(accepted.schema, Ok(Some(serde_json::json!({}))));
        assert_eq!(accepted.limits, BTreeMap::from([(Op::Create, Duration::from_secs(5))]));
        assert_eq!((accepted.at_once, accepted.compare), (Some(3), NodeIdCompare::Whole));
    }

    #[test]
    fn a_driver_with_an_unreadable_schema_is_accepted() {
        let accepted =
            accept("folder", None, answer(|answer| answer.provider_spec_json_schema = b"{".to_vec())).unwrap();
        assert!(accepted.schema.is_err());
    }
}
