//! Tests of the whole machine controller, and of what several of its parts do together.

mod controller;
mod drains;
mod end_of_leader;
mod refusals;
mod safety;
mod scenarios;
mod tokens;
mod waiting_events;
mod waiting_table;
mod waits;
