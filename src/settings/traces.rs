//! Where traces are sent.

use http::Uri;

/// The collector of traces (spec/packaging §7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingSettings {
    /// The address to which spans are sent, with its path.
    pub endpoint: Uri,
    /// The name of this process in traces: the host's name, which is the pod's name in a cluster.
    pub instance: String,
}
