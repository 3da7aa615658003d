//! The tasks of a driver while its process leads.

use futures::future::BoxFuture;

/// A background task of a driver, such as the refresh of a cache. The process runs it after [`super::Driver::begin`]. It must end
/// when the token of `begin` is cancelled.
pub struct DriverTask {
    /// Its name in logs.
    pub name: &'static str,
    /// The work.
    pub run: BoxFuture<'static, ()>,
}

impl std::fmt::Debug for DriverTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverTask").field("name", &self.name).finish_non_exhaustive()
    }
}
