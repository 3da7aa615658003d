//! `mcm completion SHELL`: completion scripts for shells, and the executable that kubectl asks for completions of its plugin.
//!
//! The scripts of shells are made by `clap_complete` and know commands and flags. kubectl has its own scripts for shells, which ask the
//! executable `kubectl_complete-mcm`: names of objects are completed too ([`super::plugin::complete`]). Source: spec/packaging §5.1, PK-079.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::{Cli, Failure, called_as::PLUGIN, plugin::complete::COMMAND};

/// The name of the executable that kubectl asks for completions of the plugin.
const EXECUTABLE: &str = "kubectl_complete-mcm";

/// The program that a script is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum For {
    /// Bash
    Bash,
    /// Elvish
    Elvish,
    /// Fish
    Fish,
    /// `PowerShell`
    #[value(name = "powershell")]
    PowerShell,
    /// Zsh
    Zsh,
    /// kubectl, for `kubectl mcm`; commands, flags and names of objects
    Kubectl,
}

impl For {
    /// The shell, unless it is kubectl.
    const fn shell(self) -> Option<Shell> {
        match self {
            Self::Bash => Some(Shell::Bash),
            Self::Elvish => Some(Shell::Elvish),
            Self::Fish => Some(Shell::Fish),
            Self::PowerShell => Some(Shell::PowerShell),
            Self::Zsh => Some(Shell::Zsh),
            Self::Kubectl => None,
        }
    }
}

/// Flags of `mcm completion`.
#[derive(Clone, Debug, Args)]
pub struct CompletionArgs {
    /// The shell that the script is for, or kubectl
    #[arg(value_name = "SHELL")]
    pub shell: For,
    /// With kubectl: write the script into this folder, which must be in the PATH, as the executable that kubectl looks for
    #[arg(long, value_name = "DIR")]
    pub install: Option<PathBuf>,
}

/// Prints or installs a script.
///
/// # Errors
/// [`Failure::Usage`] for the installation of a script of a shell; [`Failure::Input`] if the folder can't be written.
pub fn run(args: &CompletionArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match (args.shell.shell(), &args.install) {
        (Some(shell), None) => {
            // The script goes into memory first, because the generator panics when its stream is closed.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mcm", &mut script);
            Ok(out.write_all(&script)?)
        }
        (Some(_), Some(_)) => Err(Failure::Usage(
            "--install is for kubectl only; the documentation of the shell says where its scripts belong".to_owned(),
        )),
        (None, None) => Ok(write!(out, "{}", script())?),
        (None, Some(folder)) => {
            let path = install(folder).map_err(|error| {
                Failure::Input(format!("cannot write {EXECUTABLE} into {}: {error}", folder.display()))
            })?;
            Ok(writeln!(out, "{} written; kubectl finds it if {} is in the PATH", path.display(), folder.display())?)
        }
    }
}

fn script() -> String {
    format!(
        "#!/bin/sh\n# Completion of kubectl mcm. kubectl runs this with the words of the command line.\nexec {PLUGIN} {COMMAND} -- \"$@\"\n"
    )
}

/// Writes the executable. A file of that name is replaced as a whole, so that nothing is written through a link.
fn install(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(EXECUTABLE);
    let draft = folder.join(format!(".{EXECUTABLE}.{}", std::process::id()));
    let written = fs::write(&draft, script())
        .and_then(|()| fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&draft, &path));
    if written.is_err() {
        // The draft may not exist.
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(shell: For, install: Option<&Path>) -> Result<String, String> {
        let mut out = Vec::new();
        let args = CompletionArgs { shell, install: install.map(Path::to_owned) };
        run(&args, &mut out).map_err(|error| error.to_string())?;
        String::from_utf8(out).map_err(|error| error.to_string())
    }

    #[test]
    fn pk_079_the_executable_of_kubectl_is_installed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(EXECUTABLE);
        let victim = folder.path().join("victim");
        fs::write(&victim, "kept").expect("the folder is writable");
        std::os::unix::fs::symlink(&victim, &path).expect("a link");
        let text = said(For::Kubectl, Some(folder.path())).expect("it is installed");
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert_eq!(fs::read_to_string(&path).expect("a script"), script());
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "kept");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "no draft is left");
        assert_eq!(said(For::Kubectl, None).expect("it is printed"), script());
    }

    #[test]
    fn pk_079_only_the_script_of_kubectl_is_installed() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(said(For::Bash, Some(folder.path())).unwrap_err().contains("for kubectl only"));
        let missing = folder.path().join("missing");
        assert!(said(For::Kubectl, Some(&missing)).unwrap_err().starts_with("cannot write kubectl_complete-mcm into"));
        assert!(said(For::Zsh, None).expect("a script").contains("#compdef mcm"));
    }
}
