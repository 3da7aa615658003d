//! Everything that is tested from outside: the binary, a real API server, kubectl. One binary, so that it links once.

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/mod.rs"]
mod conformance;

mod admission_cases;
mod aggregation;
mod aggregation_drains;
mod aggregation_kubectl;
mod aggregation_plans;
mod aggregation_views;
mod autoscaler;
#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "aws")]
mod aws_driver;
#[cfg(feature = "aws")]
mod aws_faults;
mod certificates;
mod command_line;
mod conversion;
mod crash;
mod definitions;
mod deletion;
mod deploy;
mod dev;
mod dev_conformance;
mod dev_limits;
mod docs;
mod end_to_end;
mod example_driver;
mod examples;
mod extension;
#[cfg(feature = "external")]
mod external_driver;
mod fleet;
mod forgiven;
mod go_client;
mod go_fleet;
mod go_halves;
mod guard;
mod half_by_half;
mod halves;
mod hollow;
mod hostile_bytes;
mod late;
mod lies;
mod lockout;
mod lying;
mod machine_life;
mod neighbours;
mod nightly_write_rate;
mod one_thread;
#[cfg(feature = "openstack")]
mod openstack;
#[cfg(feature = "openstack")]
mod openstack_faults;
mod protocol;
mod quick_start;
mod refusals;
mod rig;
mod rollout;
mod rollout_overshoot;
mod rollout_takeover;
mod shutdown;
mod simulation_state;
mod storage_migration;
mod taken_over;
mod uninstall;
mod versions;
mod weather;
mod weather_api_server;
mod weather_clock;
mod weather_drain;
mod weather_lists;
mod weather_nodes;
mod weather_provider;
mod weather_stages;
mod whole_histories;
mod write_budget;
mod write_rate;
