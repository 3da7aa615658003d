//! Tests of the whole deployment controller, and random rollouts.

mod controller;
mod names;
mod rollout_property;
mod takeover;
