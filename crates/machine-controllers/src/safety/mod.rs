//! The safety loops: they collect what no machine owns, and freeze the machine loops during outages.
//!
//! [`orphans`] decides which VMs without a machine are deleted. [`unmanaged`] decides which Nodes without a machine are
//! released. Both run in [`collector`], the loop `machinesafetyorphanvms`; [`routing`] selects the changes that wake
//! it. [`freeze`] decides when the loops freeze because an API server does not answer; it runs in
//! [`api_server_monitor`], the loop `machinesafetyapiserver`. Decisions are pure and read no clock. Source:
//! spec/machine-controller §9.
//!
//! Sets with too many machines (`machinesafetyovershooting`) belong to the other half and are not handled here.

pub mod api_server_monitor;
pub mod collector;
pub mod freeze;
pub mod orphans;
mod patches;
pub mod routing;
pub mod unmanaged;
