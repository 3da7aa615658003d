//! The Node of a machine: its owner, how a lost link is found again, and what of the machine is copied to the Node.

pub mod capacity;
pub mod identity;
pub mod lost_link;
pub mod metadata;
pub mod ownership;
pub mod steps;
#[cfg(test)]
mod tests;
