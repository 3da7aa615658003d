//! The test environment (rig) with an API server, kubectl and `mcm`. The API server is a real one or the development server.
//!
//! Nothing remains after the tests. Every process has a pipe to the test binary ([`process`]) and is killed when the test binary ends,
//! in every case. Then the scratch folder is removed ([`scratch`]). Without the programs ([`assets`]) a test prints that it is skipped,
//! and is counted.

pub mod aggregation;
pub mod assets;
#[cfg(feature = "azure")]
pub mod azure;
pub mod backend;
pub mod clouds;
pub mod cluster_object;
pub mod collector;
#[cfg(feature = "alicloud")]
pub mod ecs;
#[cfg(feature = "gcp")]
pub mod gce;
pub mod helm;
pub mod kubectl;
pub mod lying;
pub mod manager;
pub mod moto;
pub mod one_thread;
#[cfg(feature = "openstack")]
pub mod openstack;
pub mod ports;
pub mod process;
pub mod reader;
pub mod rig;
pub mod scratch;
pub mod secure;
pub mod trusting;
pub mod wait;

pub use backend::Backend;
pub use manager::{ManagerOptions, TestManager};
pub use rig::{Namespace, Rig, Rights};
pub use wait::wait_until;
