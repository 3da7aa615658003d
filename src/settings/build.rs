//! Which program this is.

/// What the build of this program knew about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Version of the program.
    pub version: &'static str,
    /// The commit of the sources. `None` if the build did not know it.
    pub commit: Option<&'static str>,
    /// The Cargo profile, such as `release` or `dist`.
    pub profile: &'static str,
    /// Version, commit and date of the compiler. `None` if the build did not know them.
    pub rustc: Option<&'static str>,
}

impl Build {
    /// This program.
    pub const THIS: Self = Self {
        version: env!("CARGO_PKG_VERSION"),
        // The variable is empty in an image that is built without the argument.
        commit: known(option_env!("MCM_GIT_COMMIT")),
        profile: env!("MCM_BUILD_PROFILE"),
        rustc: known(option_env!("MCM_BUILD_RUSTC")),
    };
}

/// A text that the build knows: neither absent nor empty.
const fn known(text: Option<&'static str>) -> Option<&'static str> {
    match text {
        Some(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_script_finds_the_profile() {
        let profile = Build::THIS.profile;
        assert!(!profile.is_empty() && !profile.contains('/') && profile != "build", "{profile}");
    }
}
