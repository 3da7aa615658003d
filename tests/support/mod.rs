//! The rig of the tests against an API server of its own: a real one or the development server, kubectl and `mcm`.
//!
//! Nothing outlives the tests: every process hangs on a rope ([`process`]) that breaks when the test binary ends, however it
//! ends, and the scratch folder goes with it ([`scratch`]). Without the programs ([`assets`]) a test says so and is
//! counted as skipped.

pub mod aggregation;
pub mod assets;
pub mod backend;
pub mod clouds;
pub mod cluster_object;
pub mod kubectl;
pub mod lying;
pub mod manager;
pub mod moto;
pub mod one_thread;
#[cfg(feature = "openstack")]
pub mod openstack;
pub mod ports;
pub mod process;
pub mod rig;
pub mod scratch;
pub mod secure;
pub mod trusting;
pub mod wait;

pub use backend::Backend;
pub use manager::{ManagerOptions, TestManager};
pub use rig::{Namespace, Rig, Rights};
pub use wait::wait_until;
