//! What a driver has for as long as its process leads.

use futures::future::BoxFuture;

/// Work of a driver beside its calls, such as a cache that it keeps fresh. The process runs it from [`super::Driver::begin`] on; it
/// ends when the token it was begun with is cancelled.
pub struct DriverTask {
    /// Its name, for logs.
    pub name: &'static str,
    /// The work.
    pub run: BoxFuture<'static, ()>,
}

impl std::fmt::Debug for DriverTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverTask").field("name", &self.name).finish_non_exhaustive()
    }
}
