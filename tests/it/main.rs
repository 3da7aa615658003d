//! Everything that is tested from outside: the binary, a real API server, kubectl. One binary, so that it links once.

#[path = "../support/mod.rs"]
mod support;

mod certificates;
mod command_line;
mod conversion;
mod crash;
mod definitions;
mod deploy;
mod end_to_end;
mod examples;
mod fleet;
mod guard;
mod hostile_bytes;
mod lockout;
mod protocol;
mod refusals;
mod rig;
mod storage_migration;
mod uninstall;
mod versions;
mod write_budget;
