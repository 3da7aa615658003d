//! Everything that is tested from outside: the binary, a real API server, kubectl. One binary, so that it links once.

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/mod.rs"]
mod conformance;

mod command_line;
mod conversion;
mod crash;
mod definitions;
mod deploy;
mod dev;
mod dev_conformance;
mod end_to_end;
mod examples;
mod fleet;
mod guard;
mod refusals;
mod rig;
mod write_budget;
