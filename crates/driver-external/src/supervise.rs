//! Runs the program of a driver while this process leads. A program that ends is started again.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid},
};
use tokio::{
    process::{Child, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// The environment variable with the path of the socket on which a driver must listen.
pub const SOCKET_VARIABLE: &str = "MCM_DRIVER_SOCKET";
/// A program that has run for this time was stable. The count of short runs begins again after it.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// The pause before the first restart. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A program hangs if its driver has been unhealthy or disconnected for this time.
const HANG_TIMEOUT: Duration = Duration::from_secs(3 * 60);
/// The time between two checks whether the program hangs.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a program may take to end after SIGTERM. It is below the 3 s that this process gives a driver to end.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long processes may take to end after SIGKILL. Together with the time after SIGTERM it is below the 3 s, too.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval of the checks whether processes that the program has started still run.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A temporary folder for the socket of a driver. It is removed when this value is dropped.
pub struct SocketFolder {
    folder: PathBuf,
    socket: PathBuf,
}

impl SocketFolder {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.socket
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes a folder, closed to other users, for the socket of this provider's driver.
///
/// # Errors
/// The errors of the file system.
pub fn new_socket(provider: &str) -> io::Result<SocketFolder> {
    let name: String = provider.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(20).collect();
    let unique = rand::random::<u64>();
    let folder = std::env::temp_dir().join(format!("mcm-driver-{name}-{unique:016x}"));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let socket = folder.join("driver.sock");
    Ok(SocketFolder { folder, socket })
}

/// The number of short runs in a row after one more run of this length. The run that has just ended always counts.
pub fn short_runs(before: u32, ran_for: Duration) -> u32 {
    if ran_for >= STABLE_AFTER { 1 } else { before.saturating_add(1) }
}

/// The pause after this number of short runs in a row.
pub fn restart_pause(short_runs: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(short_runs.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// Runs the program until `stop` and restarts it when it ends or hangs. `unhealthy_for` returns how long its driver has been unhealthy or
/// disconnected. `ended` is called when the program has ended and will be started again.
pub async fn run(
    program: PathBuf,
    driver: &'static str,
    socket: SocketFolder,
    unhealthy_for: impl Fn() -> Option<Duration>,
    ended: impl Fn(),
    stop: CancellationToken,
) {
    let mut runs = 0;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let why = match start(&program, socket.path()) {
            Err(error) => format!("it can't be started: {error}"),
            Ok(mut child) => {
                let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
                let why = tokio::select! {
                    exit = child.wait() => describe_exit(exit),
                    () = until_hung(began, &unhealthy_for) => {
                        format!("its driver has been unhealthy or disconnected for {} s", HANG_TIMEOUT.as_secs())
                    }
                    () = stop.cancelled() => return terminate(child, group, driver).await,
                };
                // Also after a program that has ended by itself: a process that it has started may still hold the socket, or act for the driver.
                terminate(child, group, driver).await;
                why
            }
        };
        // The socket would keep the next run from listening. And a process that has left the group may still listen on it.
        let _ = fs::remove_file(socket.path());
        ended();
        runs = short_runs(runs, began.elapsed());
        let pause = restart_pause(runs);
        tracing::warn!(
            provider = driver, path = %program.display(), error = why, retry_in_ms = pause.as_millis(),
            "the driver's program has ended; it is started again"
        );
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Waits until a program that was started at `began` hangs.
async fn until_hung(began: Instant, unhealthy_for: impl Fn() -> Option<Duration>) {
    // The driver may have been unhealthy since before this run, so the run must be old enough, too.
    while began.elapsed() < HANG_TIMEOUT || unhealthy_for().is_none_or(|time| time < HANG_TIMEOUT) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

fn start(program: &Path, socket: &Path) -> io::Result<Child> {
    // The program inherits standard output and standard error, so its log appears beside the log of this process.
    // A group of its own: a shell script may have started the driver, and ends without it.
    Command::new(program).env(SOCKET_VARIABLE, socket).stdin(Stdio::null()).kill_on_drop(true).process_group(0).spawn()
}

/// Sends SIGTERM to a program and to its group, which is the processes that it has started, and SIGKILL to processes that do not end in time.
/// The program may have ended already.
async fn terminate(mut child: Child, group: Option<Pid>, driver: &str) {
    if let Some(group) = group
        && let Err(error) = kill_process_group(group, Signal::TERM)
        && error != Errno::SRCH
    {
        tracing::debug!(provider = driver, %error, "the driver's program can't be asked to end");
    }
    let deadline = Instant::now() + TERMINATION_TIMEOUT;
    if tokio::time::timeout_at(deadline, child.wait()).await.is_err() {
        tracing::warn!(provider = driver, "the driver's program does not end; it is killed");
        if let Err(error) = child.kill().await {
            tracing::warn!(provider = driver, %error, "the driver's program can't be killed");
        }
    }
    let Some(group) = group else { return };
    if has_ended_by(deadline, group).await {
        return;
    }
    // The number of a group is not given to another process while a member of the group runs.
    let _ = kill_process_group(group, Signal::KILL);
    if !has_ended_by(Instant::now() + KILL_TIMEOUT, group).await {
        tracing::warn!(provider = driver, "processes that the driver's program has started do not end");
    }
}

/// Whether all processes of the group have ended by this time.
async fn has_ended_by(deadline: Instant, group: Pid) -> bool {
    loop {
        // The first process of a container becomes the parent of what the program leaves behind. An ended process stays in its group until its
        // parent has waited for it. The program itself has been waited for by now.
        while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
        if test_kill_process_group(group).is_err() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(GROUP_CHECK_INTERVAL).await;
    }
}

fn describe_exit(ended: io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::after_one_run(1, 500)]
    #[case::after_two_runs(2, 1000)]
    #[case::after_five_runs(5, 8000)]
    #[case::the_longest_pause(7, 30_000)]
    #[case::any_number_of_runs(u32::MAX, 30_000)]
    fn a_restart_waits(#[case] runs: u32, #[case] millis: u128) {
        assert_eq!(restart_pause(runs).as_millis(), millis);
    }

    #[rstest]
    #[case::a_short_run_is_counted(3, 59, 4)]
    #[case::a_long_run_resets_the_count(3, 60, 1)]
    fn runs_are_counted(#[case] before: u32, #[case] seconds: u64, #[case] expected: u32) {
        assert_eq!(short_runs(before, Duration::from_secs(seconds)), expected);
    }

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("driver");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (folder, path)
    }

    async fn until(mut holds: impl FnMut() -> bool) {
        for _ in 0..400 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("it does not happen within 10 s");
    }

    #[tokio::test]
    async fn a_program_gets_its_socket_is_restarted_and_ends_with_the_leadership() {
        let (folder, program) = script(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho \"$MCM_DRIVER_SOCKET\" >> lives\n\
             [ $(wc -l < lives) -lt 2 ] && exit 3\ntrap 'echo asked > ended; exit 0' TERM\nwhile :; do sleep 0.05; done\n",
        );
        let socket = new_socket("a/b").unwrap();
        let (path, socket_folder) = (socket.path().to_owned(), socket.folder.clone());
        assert_eq!(fs::metadata(&socket_folder).unwrap().permissions().mode() & 0o777, 0o700);
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(program, "test", socket, || None, || (), stop.clone()));
        let lives = || fs::read_to_string(folder.path().join("lives")).unwrap_or_default();
        until(|| lives().lines().count() == 2).await;
        assert!(lives().lines().all(|line| Path::new(line) == path));
        // The shell needs a moment until it has set its trap.
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
        running.await.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("ended")).unwrap(), "asked\n");
        assert!(!socket_folder.exists(), "the folder of the socket is removed");
    }

    fn is_running(pid: u32) -> bool {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    #[tokio::test]
    async fn processes_of_a_program_end_before_the_program_is_started_again() {
        let (folder, program) = script(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\nrm -f up\n\
             sh -c 'trap \"\" TERM; echo $$ >> pids; : > up; while [ -e pids ]; do sleep 0.05; done' &\n\
             until [ -e up ]; do sleep 0.05; done\nexit 3\n",
        );
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(program, "test", new_socket("a/d").unwrap(), || None, || (), stop.clone()));
        let pids = || {
            let text = fs::read_to_string(folder.path().join("pids")).unwrap_or_default();
            text.lines().filter_map(|line| line.parse::<u32>().ok()).collect::<Vec<_>>()
        };
        until(|| pids().len() == 2).await;
        assert!(!is_running(pids()[0]), "the script has ended, and the process that it started has not");
        stop.cancel();
        running.await.unwrap();
        until(|| pids().iter().all(|pid| !is_running(*pid))).await;
    }

    /// This process becomes the parent of what a program leaves behind, as the first process of a container is.
    #[rstest]
    #[case::one_that_ends_when_asked("trap 'exit 0' TERM", false)]
    #[case::one_that_is_killed("trap '' TERM", true)]
    #[tokio::test]
    async fn no_process_that_a_program_leaves_behind_remains_as_a_zombie(#[case] trap: &str, #[case] is_killed: bool) {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (folder, program) = script(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\n\
             sh -c \"$(cat trap); echo \\$\\$ > new; mv new pid; while :; do sleep 0.05; done\" &\n\
             until [ -e pid ]; do sleep 0.05; done\nexit 3\n",
        );
        fs::write(folder.path().join("trap"), trap).unwrap();
        let mut child = start(&program, Path::new("/nowhere")).unwrap();
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).unwrap()));
        child.wait().await.unwrap();
        let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
        let process = Path::new("/proc").join(pid.trim());
        assert!(process.exists());
        let began = Instant::now();
        terminate(child, group, "test").await;
        assert!(!process.exists(), "it remains as a zombie");
        assert_eq!(began.elapsed() >= TERMINATION_TIMEOUT, is_killed, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_driver_that_a_script_has_started_ends_with_the_script() {
        let (folder, program) = script(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\nsh -c 'trap \"\" TERM; echo $$ > driver.pid; while :; do sleep 0.05; done' &\nwait\n",
        );
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(program, "test", new_socket("a/c").unwrap(), || None, || (), stop.clone()));
        let pid = || fs::read_to_string(folder.path().join("driver.pid")).ok()?.trim().parse::<u32>().ok();
        until(|| pid().is_some()).await;
        assert!(is_running(pid().unwrap()));
        stop.cancel();
        running.await.unwrap();
        until(|| !is_running(pid().unwrap())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_hangs_when_its_driver_has_been_unhealthy_for_minutes_of_the_present_run() {
        let began = Instant::now();
        let unhealthy_before = Duration::from_secs(3600);
        until_hung(began, || Some(unhealthy_before + began.elapsed())).await;
        assert_eq!(began.elapsed(), HANG_TIMEOUT);
        let began = Instant::now();
        until_hung(began, || began.elapsed().checked_sub(Duration::from_secs(600))).await;
        assert_eq!(began.elapsed(), Duration::from_secs(600) + HANG_TIMEOUT);
        let healthy = until_hung(Instant::now(), || None);
        tokio::time::timeout(Duration::from_secs(86_400), healthy).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_missing_program_does_not_delay_the_stop() {
        let stop = CancellationToken::new();
        let running =
            tokio::spawn(run("/no/such/driver".into(), "test", new_socket("x").unwrap(), || None, || (), stop.clone()));
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap();
    }
}
