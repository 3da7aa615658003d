//! Why another machine takes the place of a machine that is being deleted.
//!
//! `node::replacement` finds it out. Source: spec/packaging §7.3.

use serde::Serialize;

/// Why another machine takes the place of a machine that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Replacement {
    /// The machine had failed.
    Unhealthy {
        /// The set that makes the other machine.
        set: String,
    },
    /// Its deployment has a newer template.
    Rollout {
        /// The deployment.
        deployment: String,
    },
    /// The machine was deleted by a person or a program, and its set still wants as many machines.
    Deleted {
        /// The set that makes the other machine.
        set: String,
    },
}

impl Replacement {
    /// The reason as the end of a sentence.
    pub fn text(&self) -> String {
        match self {
            Self::Unhealthy { set } => format!("it was unhealthy; MachineSet {set} makes another"),
            Self::Rollout { deployment } => format!("MachineDeployment {deployment} has a newer template"),
            Self::Deleted { set } => format!("it was deleted, and MachineSet {set} makes another"),
        }
    }
}
