//! Rewrites flags in the style of Go programs into the form that clap reads.
//!
//! Deployments for the Go binaries can start this one unchanged: underscores in flag names count as dashes, one dash before a long
//! name counts as two, and a boolean is `--flag`, `--flag=true` or `--flag=f`. The flags themselves are declared in
//! [`super::serve::args`].

use std::ffi::OsString;

/// Rewrites the arguments of a Go-style command line. `is_long` says whether a long flag has this name. Arguments after `--` stay
/// unchanged.
pub fn normalise(arguments: impl IntoIterator<Item = OsString>, is_long: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut flags_ended = false;
    arguments
        .into_iter()
        .map(|argument| {
            let Some(text) = argument.to_str().filter(|text| !flags_ended && text.starts_with('-')) else {
                return argument;
            };
            flags_ended = text == "--";
            normalised(text, &is_long).map_or(argument, OsString::from)
        })
        .collect()
}

/// The argument with the declared name of its flag. `None` when the argument needs no change.
fn normalised(text: &str, is_long: impl Fn(&str) -> bool) -> Option<String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let bare = name.trim_start_matches('-').replace('_', "-");
    let dashes = name.len() - name.trim_start_matches('-').len();
    // A single letter after a single dash is a short flag and stays one.
    if dashes > 2 || bare.len() < 2 || !is_long(&bare) {
        return None;
    }
    Some(value.map_or_else(|| format!("--{bare}"), |value| format!("--{bare}={value}")))
}

/// A boolean with the spellings of Go's `strconv.ParseBool`.
///
/// # Errors
/// When the text has another spelling.
pub fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn rewritten(argument: &str) -> String {
        let known = |name: &str| ["safety-up", "leader-elect", "port", "v"].contains(&name);
        normalise([OsString::from(argument)], known).remove(0).into_string().unwrap()
    }

    #[rstest]
    #[case::s_cli_07_underscores_are_dashes("--safety_up=3", "--safety-up=3")]
    #[case::a_value_keeps_its_underscores("--port=a_b", "--port=a_b")]
    #[case::one_dash_is_enough("-leader-elect=false", "--leader-elect=false")]
    #[case::one_dash_and_no_value("-leader_elect", "--leader-elect")]
    #[case::a_short_flag_stays("-v=4", "-v=4")]
    #[case::an_unknown_flag_is_left_to_the_parser("-Wall", "-Wall")]
    #[case::a_plain_word_stays("leader_elect", "leader_elect")]
    fn a_go_style_flag_is_rewritten(#[case] given: &str, #[case] wanted: &str) {
        assert_eq!(rewritten(given), wanted);
    }

    #[test]
    fn arguments_after_the_end_of_flags_stay() {
        let given = ["--", "--safety_up"].map(OsString::from);
        assert_eq!(normalise(given.clone(), |_| true), given);
    }

    #[rstest]
    #[case("T", Ok(true))]
    #[case("0", Ok(false))]
    #[case("yes", Err("must be true or false".to_owned()))]
    fn a_boolean_is_read_as_go_reads_it(#[case] text: &str, #[case] wanted: Result<bool, String>) {
        assert_eq!(go_bool(text), wanted);
    }
}
