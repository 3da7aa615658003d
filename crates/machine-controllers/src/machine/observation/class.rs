//! A machine's class and Secrets in an observation. The contents of Secrets are not part of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

/// A class as a machine sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassView {
    /// Whether machines can be created from it.
    pub state: ClassState,
    /// Virtual capacity wanted on nodes; `None` when the class is not known, so that the capacity stays unchanged.
    pub virtual_capacity: Option<BTreeMap<String, Quantity>>,
    /// Whether the driver makes only one VM, however often it is asked.
    pub creation: CreationGuarantee,
    /// Whether the last good class and Secrets are in memory (decisions.md 15).
    pub last_good: LastGood,
}

/// Whether machines can be created from a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ClassState {
    /// The machine names no class.
    NotNamed,
    /// No class of this name exists.
    Absent,
    /// The class lacks our finalizer and may vanish at any time.
    WithoutFinalizer,
    /// The class lacks our finalizer and can't get it any more.
    DeletingWithoutFinalizer,
    /// Its node template is incomplete.
    NodeTemplateInvalid(String),
    /// Machines can be created from it.
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
    /// These Secrets (`namespace/name`) are missing.
    Missing(Vec<String>),
    /// All Secrets exist, or the class names none.
    Present(UserData),
}

/// The bootstrap token in the user data: whether the driver needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum UserData {
    /// The class names no Secret: the driver decides (decisions.md 33).
    NotNamed,
    /// The Secrets lack the key `userData`.
    KeyMissing,
    /// It holds no placeholder for a bootstrap token.
    WithoutToken,
    /// It holds a placeholder for a bootstrap token.
    NeedsToken,
}
