//! A `.tar.gz` of plain files.
//!
//! The format is ustar (POSIX.1-1988), which every `tar` reads. A bundle has only plain files with short names that this program
//! chooses, so that the format is one header of fixed fields per file, and no further crate is needed.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;

/// Size of a header, and of the units in which contents are written.
const BLOCK: usize = 512;
/// The longest name of a file, and the longest path before it.
const LONGEST_NAME: usize = 99;
const LONGEST_PREFIX: usize = 154;
/// Place of the checksum in a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path, with slashes.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// Writes an archive of these files. Every file has the time `at`, so that equal contents give equal archives.
///
/// # Errors
/// When the stream can't be written, or a path is longer than the format allows.
pub fn write(files: &[File], at: Timestamp, out: impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    for file in files {
        gzip.write_all(&header(file, at)?)?;
        gzip.write_all(&file.content)?;
        let rest = file.content.len() % BLOCK;
        if rest > 0 {
            gzip.write_all(&vec![0; BLOCK - rest])?;
        }
    }
    gzip.write_all(&[0; 2 * BLOCK])?;
    gzip.finish()?.flush()
}

fn header(file: &File, at: Timestamp) -> io::Result<[u8; BLOCK]> {
    let Some((prefix, name)) = split(&file.path) else {
        return Err(io::Error::other(format!("the path {} is too long for an archive", file.path)));
    };
    let mut header = [0; BLOCK];
    let mut put = |place: usize, text: &str| header[place..place + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0"); // Mode: only its owner reads it.
    put(108, "0000000\0"); // User and group.
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", file.content.len()));
    put(136, &format!("{:011o}\0", at.as_second().max(0)));
    put(CHECKSUM.start, "        "); // Counts as blanks in the sum.
    put(156, "0"); // A plain file.
    put(257, "ustar\0");
    put(263, "00");
    put(345, prefix);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

/// A path as the format stores it: the path before a slash, and the name. `None` if it is too long.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= LONGEST_NAME {
        return Some(("", path));
    }
    let mut slashes = path.match_indices('/').map(|(at, _)| (&path[..at], &path[at + 1..]));
    slashes.find(|(prefix, name)| name.len() <= LONGEST_NAME && prefix.len() <= LONGEST_PREFIX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn file(path: &str, content: &[u8]) -> File {
        File { path: path.to_owned(), content: content.to_vec() }
    }

    #[test]
    fn every_tar_reads_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.tar.gz");
        let long = vec![7; 3 * BLOCK + 1];
        let deep = format!("b/{}/{}", "d".repeat(90), "n".repeat(LONGEST_NAME));
        let files = [
            file(&deep, b"deep"),
            file("b/index.json", b"{}"),
            file("b/empty", b""),
            file("b/block", &[1; BLOCK]),
            file("b/long", &long),
        ];
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        write(&files, at, std::fs::File::create(&archive).unwrap()).unwrap();
        let run =
            Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).output().expect("tar runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        for file in &files {
            assert_eq!(std::fs::read(folder.path().join(&file.path)).unwrap(), file.content, "{}", file.path);
        }
        let listed = Command::new("tar").arg("-tvzf").arg(&archive).env("TZ", "UTC").output().expect("tar runs");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains("-rw-------") && listed.contains("2026-01-01 00:00 b/index.json"), "{listed}");
    }

    #[test]
    fn equal_contents_give_equal_archives() {
        let made = || {
            let mut bytes = Vec::new();
            write(&[file("a", b"1")], Timestamp::UNIX_EPOCH, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(made(), made());
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        assert!(write(&[file(&"x".repeat(LONGEST_NAME + 1), b"")], Timestamp::UNIX_EPOCH, io::sink()).is_err());
    }
}
