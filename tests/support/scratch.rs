//! The scratch folder of this test binary, and the count of the tests that ran.
//!
//! A small shell process, the janitor, holds the other end of a pipe of ours. When the test binary has ended it waits for
//! the processes of the rig, prints the closing summary and removes the folder. `MCM_TEST_KEEP=1` keeps the folder.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

const JANITOR: &str = r#"
while read -r _; do :; done
for file in "$1"/*/*.pid "$1"/*.pid; do
  [ -f "$file" ] || continue
  pid=$(cat "$file")
  tries=0
  while kill -0 "$pid" 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
done
count() { if [ -f "$1" ]; then wc -l < "$1" | tr -d ' '; else echo 0; fi; }
echo "real API server suite: $(count "$1/ran") ran, $(count "$1/skipped") skipped" >&2
if [ -n "${MCM_TEST_SUMMARY:-}" ]; then
  echo "$(count "$1/ran") ran, $(count "$1/skipped") skipped" > "$MCM_TEST_SUMMARY"
fi
if [ -n "${MCM_TEST_KEEP:-}" ]; then echo "kept: $1" >&2; else rm -rf "$1"; fi
"#;

struct Scratch {
    folder: PathBuf,
    /// Its stdin is the rope, closed by the end of this process.
    _janitor: Child,
}

static SCRATCH: OnceLock<Scratch> = OnceLock::new();

/// The scratch folder of this test binary.
pub fn folder() -> &'static Path {
    &SCRATCH.get_or_init(start).folder
}

fn start() -> Scratch {
    let folder = tempfile::Builder::new().prefix("mcm-it-").tempdir().expect("a temporary folder").keep();
    let janitor = Command::new("sh")
        .args(["-c", JANITOR, "janitor"])
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A signal to the group of the tests, such as Ctrl-C, must not reach those who clean up.
        .process_group(0)
        .spawn()
        .expect("sh runs");
    Scratch { folder, _janitor: janitor }
}

/// A test that found its API server.
pub fn count_ran(test: &str) {
    append("ran", test);
}

/// A test that had to be skipped; says why where nobody can miss it.
pub fn count_skipped(test: &str, why: &str) {
    append("skipped", test);
    // Not eprintln!: its output is captured for tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

fn append(list: &str, test: &str) {
    let path = folder().join(list);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("the scratch folder is writable");
    // One write per line, so that parallel tests do not mix theirs.
    file.write_all(format!("{test}\n").as_bytes()).expect("the scratch folder is writable");
}

/// A new folder in the scratch folder.
pub fn subfolder(name: &str) -> PathBuf {
    let folder = folder();
    let made = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(folder).expect("a folder").keep();
    fs::canonicalize(made).expect("the folder is there")
}
