//! A machine's class and Secrets in an observation. Of Secrets only what they offer is known.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

/// A class as a machine sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView {
    /// Whether machines can be made from it.
    pub state: ClassState,
    /// Virtual capacity wanted on nodes; `None` when the class is not known and capacity must be left alone.
    pub virtual_capacity: Option<BTreeMap<String, Quantity>>,
    /// Whether the driver makes one VM only, however often it is asked.
    pub creation: CreationGuarantee,
    /// Whether an earlier form of the class and its Secrets is in memory (decisions.md 15).
    pub last_good: LastGood,
}

/// Whether machines can be made from a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ClassState {
    /// The machine names none.
    NotNamed,
    /// There is none of this name.
    Absent,
    /// It lacks our finalizer and could vanish any time.
    WithoutFinalizer,
    /// It lacks our finalizer and can't get it any more.
    DeletingWithoutFinalizer,
    /// Its node template is incomplete.
    NodeTemplateInvalid(String),
    /// Yes.
    Usable,
}

/// Whether a repeated create is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CreationGuarantee {
    /// The driver makes one VM per machine name.
    Idempotent,
    /// The intent has to be stored before the first call.
    RecordIntent,
}

/// Whether an earlier, usable form of class and Secrets is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LastGood {
    /// No.
    Unknown,
    /// Yes, in this process's memory.
    Remembered,
}

/// The Secrets of a class as a machine sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum SecretView {
    /// Those named here (`namespace/name`) are missing.
    Missing(Vec<String>),
    /// All are there, or none is named.
    Present(UserData),
}

/// What the user data asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum UserData {
    /// The class names no Secret: the driver decides (decisions.md 33).
    NotNamed,
    /// The Secrets lack the key.
    KeyMissing,
    /// It holds no placeholder for a bootstrap token.
    WithoutToken,
    /// It holds one.
    NeedsToken,
}
