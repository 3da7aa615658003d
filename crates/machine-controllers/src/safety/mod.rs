//! The loops that protect machines from the world and the world from machines.
//!
//! [`orphans`]: VMs that no machine stands behind are deleted. [`unmanaged`]: Nodes that no machine stands behind are let
//! go. Both are done by [`collector`], the loop `machinesafetyorphanvms`; [`routing`] says what wakes it. [`freeze`]:
//! while an API server is silent nothing is concluded from an old view; done by [`watchman`], the loop
//! `machinesafetyapiserver`. Decisions are pure and clock-free. Source: spec/machine-controller §9.
//!
//! Not here: sets with too many machines (`machinesafetyovershooting`), which belongs to the other half.

pub mod collector;
pub mod freeze;
pub mod orphans;
mod patches;
pub mod routing;
pub mod unmanaged;
pub mod watchman;
