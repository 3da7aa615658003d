//! What a driver tells of itself, and whether that is acceptable.
//!
//! A driver is asked on every connection. It must serve the provider that the configuration names, speak a protocol of our major version,
//! and stay what it was: after a reconnection other providers or an older protocol are refused. Source: spec/providers §9.3, §9.5.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    time::Duration,
};

use serde_json::Value;

use crate::wire::driver::{GetInfoResponse, NodeIdCompare, Op};

/// The protocol that this program speaks.
pub const PROTOCOL: Protocol = Protocol { major: 1, minor: 0 };

/// A version of the protocol. Within a major version fields are only added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Protocol {
    /// Equal on both sides.
    pub major: u32,
    /// The lower of both sides counts.
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

/// What a driver that is served tells of itself.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // what the protocol has as bools
pub struct Accepted {
    /// Its name, for logs.
    pub name: String,
    /// Its version, for logs.
    pub version: String,
    /// The protocol that both sides speak.
    pub protocol: Protocol,
    /// The `provider` strings of classes that it serves.
    pub providers: BTreeSet<String>,
    /// What it can be asked.
    pub capabilities: BTreeSet<Op>,
    /// JSON Schema of `providerSpec`, or what is wrong with the one that was told.
    pub schema: Result<Option<Value>, String>,
    /// The longest time that a call may take.
    pub limits: BTreeMap<Op, Duration>,
    /// How many calls may run at once.
    pub at_once: Option<usize>,
    /// Lists depend on owner and credentials alone.
    pub lists_by_owner: bool,
    /// Keys that Secrets must hold.
    pub required_secret_keys: Vec<String>,
    /// How ids of machines and Nodes are compared.
    pub compare: NodeIdCompare,
    /// A repeated creation never makes a second VM.
    pub create_is_idempotent: bool,
    /// Lists say when a VM was made.
    pub lists_creation_time: bool,
    /// The driver reads in the class whose VMs it deals with.
    pub owner_in_class: bool,
}

/// Why a driver is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another major version, or a text that is no version.
    #[error("it speaks protocol {told:?}, this program speaks {PROTOCOL}")]
    Protocol {
        /// What it said.
        told: String,
    },
    /// An older protocol than on an earlier connection.
    #[error("it speaks protocol {now}, and spoke {before} before; restart this program if that is meant")]
    LowerProtocol {
        /// The earlier one.
        before: Protocol,
        /// The present one.
        now: Protocol,
    },
    /// It does not serve what the configuration names.
    #[error("it serves {}, and the configuration names it for {wanted}", named(.serves))]
    Provider {
        /// What it serves.
        serves: BTreeSet<String>,
        /// What it should serve.
        wanted: String,
    },
    /// It serves other providers than on an earlier connection.
    #[error("it serves {}, and served {} before; restart this program if that is meant", named(.now), named(.before))]
    ChangedProviders {
        /// The earlier ones.
        before: BTreeSet<String>,
        /// The present ones.
        now: BTreeSet<String>,
    },
    /// It can't do what every driver does.
    #[error("its capabilities lack {}", .lacks.as_str_name())]
    Lacks {
        /// What it can't do.
        lacks: Op,
    },
}

/// Names of providers, for a text.
fn named(providers: &BTreeSet<String>) -> String {
    if providers.is_empty() {
        return "no provider".to_owned();
    }
    providers.iter().map(|provider| format!("{provider:?}")).collect::<Vec<_>>().join(", ")
}

/// Whether a driver is served that tells this of itself; `before` is what it told on an earlier connection.
///
/// # Errors
/// Why it is not.
pub fn accept(wanted: &str, before: Option<&Accepted>, told: GetInfoResponse) -> Result<Accepted, Refusal> {
    let spoken = told.protocol.parse::<Protocol>().ok().filter(|spoken| spoken.major == PROTOCOL.major);
    let protocol = spoken.ok_or_else(|| Refusal::Protocol { told: told.protocol.clone() })?.min(PROTOCOL);
    let capabilities: BTreeSet<Op> = told.capabilities().collect();
    let compare = told.node_id_compare();
    let providers: BTreeSet<String> = told.providers.into_iter().collect();
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
    let schema = match told.provider_spec_json_schema.as_slice() {
        [] => Ok(None),
        json => serde_json::from_slice(json).map(Some).map_err(|error| error.to_string()),
    };
    let limit = |(op, seconds): (String, u32)| {
        Some((Op::from_str_name(&op)?, Duration::from_secs(seconds.into()))).filter(|(_, limit)| !limit.is_zero())
    };
    Ok(Accepted {
        name: told.name,
        version: told.version,
        protocol,
        providers,
        capabilities,
        schema,
        limits: told.max_deadline_seconds.into_iter().filter_map(limit).collect(),
        at_once: usize::try_from(told.max_concurrency).ok().filter(|at_once| *at_once > 0),
        lists_by_owner: told.shares_vms_across_classes,
        required_secret_keys: told.required_secret_keys,
        compare,
        create_is_idempotent: told.create_is_idempotent,
        lists_creation_time: told.lists_creation_time,
        owner_in_class: told.owner_in_class,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn told(change: impl FnOnce(&mut GetInfoResponse)) -> GetInfoResponse {
        let mut told = GetInfoResponse {
            protocol: "1.0".to_owned(),
            providers: vec!["folder".to_owned()],
            capabilities: vec![Op::Create.into(), Op::Delete.into()],
            ..GetInfoResponse::default()
        };
        change(&mut told);
        told
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[rstest]
    #[case::as_it_should_be(told(|_| {}), Ok("1.0"))]
    #[case::a_newer_minor_version(told(|told| told.protocol = "1.7".to_owned()), Ok("1.0"))]
    #[case::another_major_version(told(|told| told.protocol = "2.0".to_owned()), Err(Refusal::Protocol { told: "2.0".to_owned() }))]
    #[case::no_version(told(|told| told.protocol = "one".to_owned()), Err(Refusal::Protocol { told: "one".to_owned() }))]
    #[case::e07_a_provider_that_nobody_gave_it(
        told(|told| told.providers = vec!["AWS".to_owned()]),
        Err(Refusal::Provider { serves: set(&["AWS"]), wanted: "folder".to_owned() })
    )]
    #[case::no_deletion(told(|told| { told.capabilities.pop(); }), Err(Refusal::Lacks { lacks: Op::Delete }))]
    #[case::abilities_that_are_not_known(told(|told| told.capabilities.push(99)), Ok("1.0"))]
    fn a_first_connection(#[case] told: GetInfoResponse, #[case] expected: Result<&str, Refusal>) {
        let accepted = accept("folder", None, told).map(|accepted| accepted.protocol.to_string());
        assert_eq!(accepted, expected.map(str::to_owned));
    }

    #[rstest]
    #[case::the_same_again(told(|_| {}), (1, 0), None)]
    #[case::another_version_of_the_driver(told(|told| told.version = "9".to_owned()), (1, 0), None)]
    #[case::a_lower_protocol(
        told(|_| {}), (1, 3), Some(Refusal::LowerProtocol { before: Protocol { major: 1, minor: 3 }, now: PROTOCOL })
    )]
    #[case::another_provider_more(
        told(|told| told.providers.push("AWS".to_owned())), (1, 0),
        Some(Refusal::ChangedProviders { before: set(&["folder"]), now: set(&["AWS", "folder"]) })
    )]
    fn a_reconnection(#[case] again: GetInfoResponse, #[case] before: (u32, u32), #[case] refusal: Option<Refusal>) {
        let mut earlier = accept("folder", None, told(|_| {})).unwrap();
        earlier.protocol = Protocol { major: before.0, minor: before.1 };
        assert_eq!(accept("folder", Some(&earlier), again).err(), refusal);
    }

    #[test]
    fn what_else_it_tells_is_read() {
        let accepted = accept(
            "folder",
            None,
            told(|told| {
                told.provider_spec_json_schema = b"{}".to_vec();
                told.max_deadline_seconds =
                    [("CREATE".to_owned(), 5), ("DELETE".to_owned(), 0), ("ODD".to_owned(), 5)].into_iter().collect();
                told.max_concurrency = 3;
                told.node_id_compare = NodeIdCompare::Whole.into();
            }),
        )
        .unwrap();
        assert_eq!(accepted.schema, Ok(Some(serde_json::json!({}))));
        assert_eq!(accepted.limits, BTreeMap::from([(Op::Create, Duration::from_secs(5))]));
        assert_eq!((accepted.at_once, accepted.compare), (Some(3), NodeIdCompare::Whole));
    }

    #[test]
    fn a_schema_that_is_no_json_keeps_no_driver_away() {
        let accepted = accept("folder", None, told(|told| told.provider_spec_json_schema = b"{".to_vec())).unwrap();
        assert!(accepted.schema.is_err());
    }
}
