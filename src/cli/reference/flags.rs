//! Commands and their flags, from the definition of the command line.

use clap::{Arg, Command};

use super::page::{Draft, Page, code, prose};

/// Arguments that clap adds to every command.
const OF_CLAP: [&str; 2] = ["help", "version"];

/// The page about all commands of `command`.
pub fn page(mut command: Command) -> Page {
    command.build();
    let mut draft = Draft::new("flags", "Commands and flags");
    draft.paragraph(
        "All commands of `mcm`, with their arguments and flags. A flag without default is unset. \
         `mcm serve` also accepts the spellings of the Go programs ([operations](../operations.md#flags)). \
         Exit codes: 0 for success, 1 for an invalid input or a failed run, 2 for wrong usage.",
    );
    for below in commands(&command) {
        write_command(&mut draft, below);
    }
    draft.finish()
}

/// The commands below a command that can be run, in the order of the help.
pub fn commands(command: &Command) -> Vec<&Command> {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    shown.flat_map(|below| if below.has_subcommands() { commands(below) } else { vec![below] }).collect()
}

fn write_command(draft: &mut Draft, command: &Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    draft.section(&code(&name));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let about = draft.described(&name, &about);
    draft.paragraph(&format!("{about}."));
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !OF_CLAP.contains(&argument.get_id().as_str()))
        .collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for argument in &shown {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    headings.sort_by_key(Option::is_some);
    for heading in headings {
        if let Some(heading) = heading {
            draft.subsection(heading);
        }
        let below = shown.iter().filter(|argument| argument.get_help_heading() == heading);
        let rows: Vec<_> = below.map(|argument| row(draft, &name, argument)).collect();
        draft.table(["Flag", "Value", "Default", "Meaning"], rows);
    }
}

fn row(draft: &mut Draft, command: &str, argument: &Arg) -> [String; 4] {
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let takes_value = argument.get_action().takes_values();
    let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
    let default = defaults.collect::<Vec<_>>().join(",");
    let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let spelling = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("{}, {}", code(&format!("--{long}")), code(&format!("-{short}"))),
        (Some(long), None) => code(&format!("--{long}")),
        (None, Some(short)) => code(&format!("-{short}")),
        (None, None) => code(&value),
    };
    let meaning = draft.described(&format!("{command} {spelling}"), &help);
    let meaning = if meaning.ends_with('.') { meaning } else { format!("{meaning}.") };
    let is_flag = argument.get_long().is_some() || argument.get_short().is_some();
    [
        spelling,
        if takes_value && is_flag { code(&value) } else { String::new() },
        if takes_value { code(&default) } else { String::new() },
        format!("{meaning}{}", choices(argument)),
    ]
}

/// The accepted words, each with its meaning if it has one.
fn choices(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let values = argument.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set()).map(|value| match value.get_help() {
        Some(help) => format!("{}: {}", code(value.get_name()), prose(&help.to_string())),
        None => code(value.get_name()),
    });
    let shown: Vec<_> = shown.collect();
    if shown.is_empty() { String::new() } else { format!(" Values: {}.", shown.join("; ")) }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    /// A program.
    #[derive(Parser)]
    #[command(name = "it")]
    struct It {
        #[command(subcommand)]
        _command: Below,
    }

    #[derive(clap::Subcommand)]
    #[allow(dead_code)] // only its declaration is read
    enum Below {
        /// Do it
        Do {
            /// How often
            #[arg(long, short, default_value = "1")]
            times: u8,
            #[arg(long)]
            silent: bool,
            /// The object
            object: String,
        },
    }

    #[test]
    fn a_flag_has_its_value_default_and_meaning() {
        let page = page(It::command());
        for line in [
            "## `it do`\n\nDo it.",
            "| `--times`, `-t` | `TIMES` | `1` | How often. |",
            "| `OBJECT` |  |  | The object. |",
        ] {
            assert!(page.text.contains(line), "{line} is not in {}", page.text);
        }
        assert_eq!(page.undescribed, ["it do `--silent`"]);
    }
}
