//! The Node of a machine: its owner, the repair of a lost link, and the data of the machine that is copied to the Node.

pub mod capacity;
pub mod identity;
pub mod lost_link;
pub mod metadata;
pub mod ownership;
pub mod replacement;
pub mod steps;
#[cfg(test)]
mod tests;
