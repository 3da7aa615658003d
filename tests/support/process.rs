//! A process that is killed when the test drops it, and when the test binary ends.
//!
//! Its parent is a shell that reads a pipe from the test binary. The pipe closes when the test drops the process and when the test binary
//! ends. Then the shell kills its child. When the child ends first, the shell ends too, with the child's exit code.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const SHELL: &str = r#"
exec 3<&0
pid_file=$1; shift
"$@" </dev/null 3<&- & child=$!
echo "$child" > "$pid_file.new" && mv "$pid_file.new" "$pid_file"
( while read -r _ <&3; do :; done; kill -KILL "$child" 2>/dev/null ) & rope=$!
wait "$child"; code=$?
kill -KILL "$rope" 2>/dev/null
exit "$code"
"#;

/// A running program whose output goes to a log file.
pub struct Process {
    shell: Child,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts a program. Its log and pid are written to `folder` under `name`. The log is appended to the log of an earlier start.
    pub fn start(folder: &Path, name: &str, program: &Path, arguments: &[String]) -> Self {
        let log = folder.join(format!("{name}.log"));
        let pid_file = folder.join(format!("{name}.pid"));
        let _ = fs::remove_file(&pid_file);
        let output = File::options().create(true).append(true).open(&log).expect("the log file opens");
        let shell = Command::new("sh")
            .args(["-c", SHELL, "rope"])
            .arg(&pid_file)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("the log file is shared"))
            .stderr(output)
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let pid = pid_in(&pid_file);
        Self { shell, pid, log }
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of the log, for messages.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// The exit code, if the program has ended; 128 + n after signal n.
    pub fn ended(&mut self) -> Option<i32> {
        self.shell.try_wait().expect("the shell can be waited for").map(code)
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", r#"kill -"$1" "$2""#, "kill", name, &self.pid.to_string()]).status();
        assert!(sent.expect("sh runs").success(), "signal {name} could not be sent to {}", self.pid);
    }

    /// Waits for the end of the program and returns its exit code.
    pub fn wait(&mut self, timeout: Duration) -> i32 {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(code) = self.ended() {
                return code;
            }
            assert!(
                Instant::now() < deadline,
                "process {} is still running after {timeout:?}:\n{}",
                self.pid,
                self.log_tail()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal("KILL");
        }
        self.wait(Duration::from_secs(10));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing the pipe kills the process. Waiting makes sure that its ports are free when the test goes on.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

fn pid_in(file: &Path) -> u32 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(pid) = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
            return pid;
        }
        assert!(Instant::now() < deadline, "no pid in {} after 10 s", file.display());
        thread::sleep(Duration::from_millis(5));
    }
}
