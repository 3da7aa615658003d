//! What the driver remembers of its own requests, and since when it makes instances. Another process knows nothing of this.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use machine_driver::Instant;

use crate::{
    invisible::InvisibleInstances,
    lookup::{Assigned, Tenure},
    recent::Recent,
};

/// What the driver remembers of its requests, because EC2 shows their effects with a delay.
pub struct Memory {
    /// The client tokens that have made an instance which EC2 does not show.
    pub invisible: InvisibleInstances,
    /// The launched instances, by id.
    pub launches: Recent<()>,
    /// The client tokens with which an instance was asked for and perhaps launched, by the first part of the machine's tokens.
    pub asked: Recent<String>,
    /// The prefixes of network interfaces, by the ids of the interfaces.
    pub prefixes: Recent<Assigned>,
    /// Since when this process makes instances.
    tenure: Mutex<(Timestamp, Instant)>,
}

impl Memory {
    /// The memory of a process that begins now.
    pub fn beginning() -> Self {
        Self {
            invisible: InvisibleInstances::default(),
            launches: Recent::default(),
            asked: Recent::default(),
            prefixes: Recent::default(),
            tenure: Mutex::new((Timestamp::now(), Instant::now())),
        }
    }

    /// Begins a tenure: other processes may have launched instances until now.
    pub fn begin_tenure(&self) {
        *self.tenure.lock().unwrap_or_else(PoisonError::into_inner) = (Timestamp::now(), Instant::now());
    }

    /// The tenure of this process.
    pub fn tenure(&self) -> Tenure {
        let (began, since) = *self.tenure.lock().unwrap_or_else(PoisonError::into_inner);
        Tenure { began, lasts: since.elapsed() }
    }
}
