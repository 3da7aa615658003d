//! Tests of the whole deployment controller, and drawn rollouts.

mod controller;
mod names;
mod rollout_property;
mod takeover;
