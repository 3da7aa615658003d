//! The scratch folder of this test binary, and the counts of tests.
//!
//! A small shell process reads a pipe from the test binary. When the test binary has ended, the shell waits for the processes of the
//! rig, prints a summary and removes the folder. `MCM_TEST_KEEP=1` keeps the folder.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

const CLEANUP: &str = r#"
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
    /// Its standard input is the pipe, which closes when this process ends.
    _cleanup: Child,
}

static SCRATCH: OnceLock<Scratch> = OnceLock::new();

/// The scratch folder of this test binary.
pub fn folder() -> &'static Path {
    &SCRATCH.get_or_init(start).folder
}

fn start() -> Scratch {
    let folder = tempfile::Builder::new().prefix("mcm-it-").tempdir().expect("a temporary folder").keep();
    let cleanup = Command::new("sh")
        .args(["-c", CLEANUP, "cleanup"])
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A signal to the process group of the tests, such as Ctrl-C, must not end the cleanup.
        .process_group(0)
        .spawn()
        .expect("sh runs");
    Scratch { folder, _cleanup: cleanup }
}

/// Counts a test that has an API server.
pub fn count_ran(test: &str) {
    append("ran", test);
}

/// Counts a skipped test, and prints the reason.
pub fn count_skipped(test: &str, why: &str) {
    append("skipped", test);
    // This is not eprintln!, whose output is captured in tests that pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

fn append(list: &str, test: &str) {
    let path = folder().join(list);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("the scratch folder is writable");
    // One write per line, so that lines of parallel tests do not mix.
    file.write_all(format!("{test}\n").as_bytes()).expect("the scratch folder is writable");
}

/// A new folder in the scratch folder.
pub fn subfolder(name: &str) -> PathBuf {
    let folder = folder();
    let made = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(folder).expect("a folder").keep();
    fs::canonicalize(made).expect("the folder is there")
}
