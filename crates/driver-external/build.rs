//! Compiles the protocol; protox does that in this process, so that nobody needs `protoc`.

const PROTOS: [&str; 3] = ["machine/driver/v1/driver.proto", "grpc/health/v1/health.proto", "google/rpc/status.proto"];

/// Messages that carry Secrets: they have a `Debug` that prints none, in `src/wire.rs`.
const WITH_SECRETS: [&str; 3] = [
    ".machine.driver.v1.MachineRequest",
    ".machine.driver.v1.ListMachinesRequest",
    ".machine.driver.v1.ValidateRequest",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let protocol = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().skip_debug(WITH_SECRETS).compile_fds(protocol)?;
    Ok(())
}
