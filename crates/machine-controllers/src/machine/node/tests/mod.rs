//! Tests of what happens to the Node of a machine.

mod lost_link;
mod metadata;
