//! What the driver remembers of its own requests. Another process knows nothing of this.

use crate::{invisible::InvisibleInstances, lookup::Assigned, recent::Recent};

/// What the driver remembers of its requests, because EC2 shows their effects with a delay.
#[derive(Default)]
pub struct Memory {
    /// The client tokens that have made an instance which EC2 does not show.
    pub invisible: InvisibleInstances,
    /// The launched instances, by id.
    pub launches: Recent<()>,
    /// The client tokens with which an instance was asked for and perhaps launched, by the first part of the machine's tokens.
    pub asked: Recent<String>,
    /// The prefixes of network interfaces, by the ids of the interfaces.
    pub prefixes: Recent<Assigned>,
}
