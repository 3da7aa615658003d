//! Files with the token of a workload identity (decisions.md 60).
//!
//! Users write the paths of such files into Secrets. They must not be able to read other files of the process, so that only files below certain
//! directories are read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use machine_driver::{Code, Status};

use crate::secret::Secret;

/// Where the path of a token file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileTrust {
    /// The configuration of the process.
    Process,
    /// A Secret. Only files in the directories for tokens are read then.
    Secret,
}

/// A Secret must not name a file below this directory. It holds the token of the process's own service account for the API server.
const API_SERVER_TOKENS: &str = "/var/run/secrets/kubernetes.io/";
/// The largest size of a token file, in bytes.
const LONGEST_TOKEN: u64 = 64 * 1024;

/// Reads the token in a file, without the white space around it. `key` names the field with the path in messages.
///
/// # Errors
/// `InvalidArgument` for a file that a Secret must not name, `FailedPrecondition` for an unreadable file.
pub fn read(file: &Path, trust: FileTrust, directories: &[PathBuf], key: &str) -> Result<Secret, Status> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::new(Code::FailedPrecondition, format!("token file {}: {error}", file.display()))
    };
    // Symbolic links are resolved for the file and for the directories, because /var/run is usually a link itself.
    let real = if trust == FileTrust::Process { Ok(file.to_owned()) } else { permitted(file, directories, key) }?;
    let length = fs::metadata(&real).map_err(|error| unreadable(&error))?;
    if !length.is_file() || length.len() > LONGEST_TOKEN {
        return Err(unreadable(&"it holds no token"));
    }
    let token = fs::read_to_string(&real).map_err(|error| unreadable(&error))?;
    if token.trim().is_empty() { Err(unreadable(&"it is empty")) } else { Ok(Secret::new(token.trim())) }
}

/// The path of a file that a Secret names, with links resolved.
///
/// # Errors
/// `InvalidArgument` for a file outside the directories for tokens. The message does not reveal whether that file exists.
fn permitted(file: &Path, directories: &[PathBuf], key: &str) -> Result<PathBuf, Status> {
    let real = fs::canonicalize(file).ok().filter(|real| {
        let is_below =
            |directory: &Path| fs::canonicalize(directory).is_ok_and(|directory| real.starts_with(directory));
        directories.iter().any(|directory| is_below(directory)) && !is_below(Path::new(API_SERVER_TOKENS))
    });
    real.ok_or_else(|| {
        let message = format!("{key}: {} is no file in a directory for tokens", file.display());
        Status::new(Code::InvalidArgument, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_names_token_files_in_their_directories_only() {
        let (tokens, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let allowed = [tokens.path().to_owned()];
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, text).unwrap();
            path
        };
        let inside = write(tokens.path().join("token"), " t-1\n");
        let outside = write(elsewhere.path().join("token"), "t-2");
        let link = tokens.path().join("link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let read =
            |file: &Path, trust| super::read(file, trust, &allowed, "key").map(|token| token.reveal().to_owned());
        assert_eq!(read(&inside, FileTrust::Secret), Ok("t-1".to_owned()));
        for file in [&outside, &link, &tokens.path().join("../x"), &tokens.path().join("nothing")] {
            let refused = read(file, FileTrust::Secret).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.message);
            assert!(refused.message.ends_with("is no file in a directory for tokens"), "{}", refused.message);
            assert!(refused.message.starts_with("key: "), "{}", refused.message);
        }
        assert_eq!(read(&outside, FileTrust::Process), Ok("t-2".to_owned()));
    }
}
