//! Tells the program under which Cargo profile and with which compiler it is built. Cargo names the folder of the profile in the path of
//! the build's output, and says so nowhere else. A new compiler makes Cargo run this script again.

use std::{env, ffi::OsStr, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    // TARGET/PROFILE/build/mcm-HASH/out
    let folder = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).and_then(OsStr::to_str);
    // The folder of the profiles `dev` and `test` has a name of its own.
    let profile = match folder.unwrap_or_default() {
        "debug" => "dev",
        other => other,
    };
    println!("cargo::rustc-env=MCM_BUILD_PROFILE={profile}");
    println!("cargo::rustc-env=MCM_BUILD_RUSTC={}", compiler().unwrap_or_default());
}

/// Version, commit and date of the compiler, such as `1.95.0 (59807616e 2026-04-14)`. `None` if it does not say them.
fn compiler() -> Option<String> {
    let said = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let line = String::from_utf8(said.stdout).ok()?;
    Some(line.trim().strip_prefix("rustc ")?.to_owned())
}
