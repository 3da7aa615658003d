//! Kubernetes machine controller manager: the library behind the `mcm` binary.
//!
//! The floors, from the ground up: [`api`], `driver` and `cluster`, `controllers` and `admission`, `server`, `cli`. A file
//! imports from its own floor or from below, never from above; `docs/architecture.md` describes the house.

pub mod admission;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod dev_server;
pub mod driver;
pub mod extension;
pub mod manager;
pub mod metrics;
pub mod protocol;
pub mod server;
pub mod settings;
pub mod simulation;
