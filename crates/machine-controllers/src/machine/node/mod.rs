//! The Node of a machine: whose it is, how a link that was lost is found again, and what of the machine is mirrored to it.

pub mod capacity;
pub mod identity;
pub mod lost_link;
pub mod metadata;
pub mod ownership;
pub mod steps;
#[cfg(test)]
mod tests;
