//! A driver that is a program of its own: started, restarted when it ends, and ended with the leadership.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// The environment variable that tells a driver where to listen.
pub const SOCKET_VARIABLE: &str = "MCM_DRIVER_SOCKET";
/// A program that has run for so long was well; what ends it then begins a new count.
const WELL_AFTER: Duration = Duration::from_secs(60);
/// The pause before the first restart; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A program whose driver has been ill or silent for so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(3 * 60);
/// Time between two looks at the driver of a program.
const LOOKS_EVERY: Duration = Duration::from_secs(5);
/// So long a program may take to end; a driver has 3 s for that.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// A folder of our own with the place for a socket in it; it goes with this value.
pub struct SocketPlace {
    folder: PathBuf,
    socket: PathBuf,
}

impl SocketPlace {
    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.socket
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A place for the socket of the driver of this provider, closed to other users.
///
/// # Errors
/// Those of the file system.
pub fn new_socket(provider: &str) -> io::Result<SocketPlace> {
    let name: String = provider.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(20).collect();
    let unique = rand::random::<u64>();
    let folder = std::env::temp_dir().join(format!("mcm-driver-{name}-{unique:016x}"));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let socket = folder.join("driver.sock");
    Ok(SocketPlace { folder, socket })
}

/// How many short lives in a row a program has had, after one more life of this length.
pub fn short_lives(before: u32, lived: Duration) -> u32 {
    if lived >= WELL_AFTER { 1 } else { before.saturating_add(1) }
}

/// The pause after so many short lives in a row.
pub fn restart_pause(short_lives: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(short_lives.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// Runs the program until `stop`, again and again; `ill_for` says how long its driver has been ill or silent.
pub async fn run(
    program: PathBuf,
    driver: &'static str,
    socket: SocketPlace,
    ill_for: impl Fn() -> Option<Duration>,
    stop: CancellationToken,
) {
    let mut lives = 0;
    while !stop.is_cancelled() {
        let began = Instant::now();
        // What an earlier life left would answer nobody.
        let _ = fs::remove_file(socket.path());
        let why = match start(&program, socket.path()) {
            Err(error) => format!("it can't be started: {error}"),
            Ok(mut child) => tokio::select! {
                ended = child.wait() => words(ended),
                () = hangs(began, &ill_for) => {
                    end(child, driver).await;
                    format!("its driver has been ill or silent for {} s", HANGS_AFTER.as_secs())
                }
                () = stop.cancelled() => return end(child, driver).await,
            },
        };
        lives = short_lives(lives, began.elapsed());
        let pause = restart_pause(lives);
        tracing::warn!(driver, program = %program.display(), why, ?pause, "the driver's program has ended; it is started again");
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Waits until a program that began at this time hangs.
async fn hangs(began: Instant, ill_for: impl Fn() -> Option<Duration>) {
    // The illness may be that of an earlier life.
    while began.elapsed() < HANGS_AFTER || ill_for().is_none_or(|ill| ill < HANGS_AFTER) {
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

fn start(program: &Path, socket: &Path) -> io::Result<Child> {
    // Its output is ours: a log beside this process's own.
    Command::new(program).env(SOCKET_VARIABLE, socket).stdin(Stdio::null()).kill_on_drop(true).spawn()
}

/// Asks a program to end, and ends it when it does not.
async fn end(mut child: Child, driver: &str) {
    let process = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(process) = process
        && let Err(error) = kill_process(process, Signal::TERM)
    {
        tracing::debug!(driver, %error, "the driver's program can't be asked to end");
    }
    if tokio::time::timeout(ENDS_WITHIN, child.wait()).await.is_err() {
        tracing::warn!(driver, "the driver's program does not end; it is killed");
        if let Err(error) = child.kill().await {
            tracing::warn!(driver, %error, "the driver's program can't be killed");
        }
    }
}

fn words(ended: io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::at_once(1, 500)]
    #[case::then(2, 1000)]
    #[case::later(5, 8000)]
    #[case::at_most(7, 30_000)]
    #[case::however_often(u32::MAX, 30_000)]
    fn a_restart_waits(#[case] lives: u32, #[case] millis: u128) {
        assert_eq!(restart_pause(lives).as_millis(), millis);
    }

    #[rstest]
    #[case::a_short_one(3, 59, 4)]
    #[case::a_long_one(3, 60, 1)]
    fn a_life(#[case] before: u32, #[case] seconds: u64, #[case] expected: u32) {
        assert_eq!(short_lives(before, Duration::from_secs(seconds)), expected);
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
    async fn a_program_is_told_its_socket_is_restarted_and_ends_with_the_leadership() {
        let (folder, program) = script(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho \"$MCM_DRIVER_SOCKET\" >> lives\n\
             [ $(wc -l < lives) -lt 2 ] && exit 3\ntrap 'echo asked > ended; exit 0' TERM\nwhile :; do sleep 0.05; done\n",
        );
        let socket = new_socket("a/b").unwrap();
        let (path, place) = (socket.path().to_owned(), socket.folder.clone());
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(program, "test", socket, || None, stop.clone()));
        let lives = || fs::read_to_string(folder.path().join("lives")).unwrap_or_default();
        until(|| lives().lines().count() == 2).await;
        assert!(lives().lines().all(|line| Path::new(line) == path));
        // The shell has set its trap once it loops.
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
        running.await.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("ended")).unwrap(), "asked\n");
        assert!(!place.exists(), "the socket's folder goes, too");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_hangs_once_its_driver_has_been_ill_for_minutes_of_its_own_life() {
        let began = Instant::now();
        let ill_before = Duration::from_secs(3600);
        hangs(began, || Some(ill_before + began.elapsed())).await;
        assert_eq!(began.elapsed(), HANGS_AFTER);
        let began = Instant::now();
        hangs(began, || began.elapsed().checked_sub(Duration::from_secs(600))).await;
        assert_eq!(began.elapsed(), Duration::from_secs(600) + HANGS_AFTER);
        let well = hangs(Instant::now(), || None);
        tokio::time::timeout(Duration::from_secs(86_400), well).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_keeps_nobody_from_stopping() {
        let stop = CancellationToken::new();
        let running =
            tokio::spawn(run("/no/such/driver".into(), "test", new_socket("x").unwrap(), || None, stop.clone()));
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap();
    }
}
