//! Tells the program under which Cargo profile it is built: Cargo names the folder of the profile in the path of the build's output,
//! and says so nowhere else.

use std::{env, ffi::OsStr, path::Path};

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
}
