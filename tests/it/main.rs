//! All tests that use the program from outside: the binary, a real API server, kubectl. They are one binary, because linking is slow.

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/mod.rs"]
mod conformance;

mod admission_cases;
mod aggregation;
mod alerts;
#[cfg(feature = "alicloud")]
mod alicloud;
mod autoscaler;
#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "azure")]
mod azure;
mod both_versions;
mod certificates;
mod changelog;
mod chart;
mod class_migration;
#[cfg(any(feature = "alicloud", feature = "azure", feature = "gcp", feature = "openstack"))]
mod cloud;
mod command_line;
mod conversion;
mod crash;
mod dashboards;
mod definitions;
mod deletion;
mod deploy;
mod dev;
mod docs;
mod doctor;
mod end_to_end;
mod example_driver;
mod examples;
mod extension;
#[cfg(feature = "external")]
mod external_driver;
mod first_start;
mod fleet;
mod forgiven;
#[cfg(feature = "gcp")]
mod gcp;
mod go;
mod guard;
mod half_by_half;
mod halves;
mod hollow;
mod hostile_bytes;
mod image;
mod late;
mod lies;
#[cfg(feature = "local")]
mod local_machines;
mod lockout;
mod log_lines;
mod lying;
mod machine_life;
mod metrics;
mod neighbours;
mod nightly_write_rate;
mod node_events;
mod older_definitions;
mod one_thread;
#[cfg(feature = "openstack")]
mod openstack;
mod plain_words;
mod protocol;
mod quick_start;
mod reference;
mod refusals;
mod releases;
mod rig;
mod rollout;
mod shutdown;
mod simulation_state;
mod storage_migration;
mod support_bundle;
mod taken_over;
mod traces;
mod tutorials;
mod uninstall;
mod versions;
mod weather;
mod whole_histories;
mod write_budget;
mod write_rate;
