//! Handles the names that the program is called by: the name of kubectl's plugin, and the names of the Go programs. When the program is
//! called by the name of a Go program, it needs no subcommand and serves as that half.
//!
//! A pod for the Go binaries, such as Gardener's, has a container for each half, with that half's flags and the command
//! `./machine-controller-manager`. Both containers share an address, so that each half listens only on its own port. Neither opens a
//! TLS port unless its flags say so, because the Go programs have none.

use std::{ffi::OsString, path::Path};

use crate::settings::Half;

/// Subcommand that a half runs.
const SERVE: &str = "serve";
/// Flags that switch off what a half does not have: a second health port, webhooks, views, and the delay at shutdown for their
/// callers.
const WITHOUT: [&str; 4] =
    ["--compat-port=0", "--secure-port=0", "--extension-apiserver=false", "--shutdown-delay-duration=0s"];

/// The name by which kubectl calls its plugin `kubectl mcm`.
pub const PLUGIN: &str = "kubectl-mcm";

/// Whether the program was called as a plugin of kubectl.
pub fn is_plugin(arguments: &[OsString]) -> bool {
    arguments.first().and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == PLUGIN)
}

/// The half with this program name.
fn half_of(program: &OsString) -> Option<Half> {
    let name = Path::new(program).file_name()?.to_str()?;
    Half::ALL.into_iter().find(|half| half.program() == name)
}

/// The command line, completed with the subcommand and the defaults of the half whose name the program was called by. Any other
/// command line stays unchanged, and so does one with a subcommand. The caller's flags come last, so that they override the defaults.
pub fn completed(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(half) = arguments.first().and_then(half_of) else { return arguments };
    let mut arguments = arguments.into_iter();
    let program = arguments.next();
    let given: Vec<OsString> = arguments.collect();
    let is_flag = |argument: &OsString| argument.to_str().is_none_or(|text| text.starts_with('-'));
    let asks_for_version = given.first().is_some_and(|first| first == "--version" || first == "-V");
    let own = if asks_for_version || given.first().is_some_and(|first| !is_flag(first)) {
        Vec::new()
    } else {
        let defaults = [format!("--half={}", half.program()), format!("--port={}", half.port())];
        let words = [SERVE].into_iter().chain(WITHOUT).map(OsString::from);
        words.chain(defaults.map(OsString::from)).collect()
    };
    program.into_iter().chain(own).chain(given).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn line(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[rstest]
    #[case::from_the_working_directory("./machine-controller-manager", "--port=10258")]
    #[case::by_its_path("/bin/machine-controller", "--port=10259")]
    fn the_name_of_the_program_selects_a_half(#[case] program: &str, #[case] port: &str) {
        let completed = completed(line(&[program, "--safety-up=2"]));
        assert_eq!(completed[..2], line(&[program, "serve"]));
        for flag in [port, "--secure-port=0", "--shutdown-delay-duration=0s"] {
            assert!(
                completed.contains(&OsString::from(flag)),
                "{flag} in {completed:?}: pods of the original have five seconds to end"
            );
        }
        assert_eq!(completed.last(), Some(&OsString::from("--safety-up=2")), "what was given comes last");
    }

    #[rstest]
    #[case::in_a_folder("/usr/local/bin/kubectl-mcm", true)]
    #[case::by_its_name("kubectl-mcm", true)]
    #[case::our_own_name("mcm", false)]
    #[case::a_folder_of_that_name("/kubectl-mcm/mcm", false)]
    fn the_name_of_the_plugin_is_known(#[case] program: &str, #[case] expected: bool) {
        assert_eq!(is_plugin(&line(&[program, "why", "x"])), expected);
    }

    #[rstest]
    #[case::our_own_name(&["mcm", "--port=1"])]
    #[case::with_a_subcommand(&["machine-controller-manager", "serve", "--port=1"])]
    #[case::another_program_in_such_a_folder(&["/machine-controller/mcm", "doctor"])]
    #[case::its_version(&["machine-controller", "--version"])]
    #[case::nothing(&[])]
    fn any_other_line_stays(#[case] words: &[&str]) {
        assert_eq!(completed(line(words)), line(words));
    }
}
