//! The code of the protocol in `src/generated` is the code that `proto/` gives. After a change there:
//! `UPDATE_PROTOCOL=1 cargo test -p driver-external --test protocol`.
//!
//! The code is stored, because a build that generates it builds the generator first: a quarter of a minute for each user, and for nothing. protox
//! compiles the files in this process, so that a change needs no `protoc`.

use std::{fs, path::Path};

const PROTOS: [&str; 3] = ["machine/driver/v1/driver.proto", "grpc/health/v1/health.proto", "google/rpc/status.proto"];

/// Messages that carry Secrets: they have a `Debug` that prints none, in `src/wire.rs`.
const WITH_SECRETS: [&str; 3] = [
    ".machine.driver.v1.MachineRequest",
    ".machine.driver.v1.ListMachinesRequest",
    ".machine.driver.v1.ValidateRequest",
];

#[test]
fn the_code_of_the_protocol_is_generated_from_its_files() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stored = home.join("src/generated");
    let made = tempfile::tempdir().unwrap();
    let target = if std::env::var_os("UPDATE_PROTOCOL").is_some() { &stored } else { made.path() };
    let protocol = protox::compile(PROTOS, [home.join("proto")]).unwrap();
    tonic_prost_build::configure().skip_debug(WITH_SECRETS).out_dir(target).compile_fds(protocol).unwrap();
    for package in ["machine.driver.v1", "grpc.health.v1", "google.rpc"] {
        let file = format!("{package}.rs");
        let [stored, made] = [&stored, target].map(|folder| fs::read_to_string(folder.join(&file)).unwrap());
        assert!(stored == made, "src/generated/{file} is not what proto/ gives: see the head of tests/protocol.rs");
    }
}
