//! Names with their meanings, and with who writes and reads them: the content of `docs/reference/names.md`.
//!
//! The macros declare the constants of [`super`] together with the list of them, so that no list lacks a name. A doc comment is the meaning that
//! users read, so it has no links.

/// A program or a person that writes or reads a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// This program.
    Mcm,
    /// People, and programs that act for them, such as a `GitOps` tool.
    User,
    /// cluster-autoscaler, in Gardener's version.
    Autoscaler,
    /// Gardener.
    Gardener,
    /// The agent on a node that updates the node in place.
    NodeAgent,
    /// The kubelet of a node.
    Kubelet,
    /// The control plane of Kubernetes: API server, scheduler, garbage collector.
    Kubernetes,
    /// kubectl.
    Kubectl,
    /// Programs that write CA bundles, such as cert-manager.
    BundleWriter,
}

impl Party {
    /// The party as the reference names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mcm => "mcm",
            Self::User => "you",
            Self::Autoscaler => "cluster-autoscaler",
            Self::Gardener => "Gardener",
            Self::NodeAgent => "the agent on the node",
            Self::Kubelet => "kubelet",
            Self::Kubernetes => "Kubernetes",
            Self::Kubectl => "kubectl",
            Self::BundleWriter => "cert-manager and similar programs",
        }
    }
}

/// A name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name as it is stored.
    pub text: &'static str,
    /// The doc comment of its constant, with the blanks of the source.
    pub doc: &'static str,
    /// Who writes it.
    pub writers: &'static [Party],
    /// Who reads it.
    pub readers: &'static [Party],
}

impl Name {
    /// What it means, as one line.
    pub fn meaning(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Names of one sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The heading in the reference.
    pub title: &'static str,
    /// What the names are.
    pub sort: Sort,
    /// The names.
    pub names: &'static [Name],
}

/// What the names of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Keys or types, which several programs write or read.
    Keys,
    /// Reasons of events and conditions, which only this program writes, for people.
    Reasons,
}

/// Declares constants, and a list of them: `NAME = "text", [writers] => [readers];`.
macro_rules! names {
    ($list:ident: $($(#[doc = $doc:literal])+ $name:ident = $text:expr, [$($writer:ident),+] => [$($reader:ident),+];)+) => {
        $($(#[doc = $doc])+ pub const $name: &str = $text;)+

        /// The names above, for the reference.
        pub const $list: &[$crate::names::Name] = &[$($crate::names::Name {
            text: $name,
            doc: concat!($($doc),+),
            writers: &[$($crate::names::Party::$writer),+],
            readers: &[$($crate::names::Party::$reader),+],
        }),+];
    };
}

/// Declares reasons, and a list of them: `NAME = "text";`.
macro_rules! reasons {
    ($list:ident: $($(#[doc = $doc:literal])+ $name:ident = $text:expr;)+) => {
        names! { $list: $($(#[doc = $doc])+ $name = $text, [Mcm] => [User];)+ }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::names::{GROUPS, Party, Sort};

    const SOURCE: &str = include_str!("../names.rs");

    /// Modules whose texts are program state, and no names that people use.
    const NO_NAMES: [&str; 1] = ["stage_text"];

    #[test]
    fn pk_091_every_name_is_in_a_group() {
        let (mut module, mut declared, mut outside) = ("", 0, Vec::new());
        for line in SOURCE.lines() {
            if let Some(name) = line.strip_prefix("pub mod ") {
                module = name.trim_end_matches(" {");
            } else if line == "}" {
                module = "";
            }
            let constant = line.trim_start().split(' ').next().unwrap_or_default();
            let is_constant =
                constant.len() > 1 && constant.chars().all(|c| c.is_ascii_uppercase() || "_0123456789".contains(c));
            declared += usize::from(is_constant && line.contains(" = "));
            let plain = line.strip_prefix("    pub const ").filter(|plain| plain.contains(": &str"));
            if let Some(plain) = plain.filter(|plain| !plain.starts_with("MESSAGE_") && !NO_NAMES.contains(&module)) {
                outside.push(format!("{module}::{plain}"));
            }
        }
        assert!(outside.is_empty(), "declare these with names! or reasons!: {outside:#?}");
        let listed: usize = GROUPS.iter().map(|group| group.names.len()).sum();
        assert!(declared > 150, "only {declared} names are found in the source");
        assert_eq!(declared, listed, "a list of names.rs is in no group of GROUPS");
    }

    #[test]
    fn pk_091_every_name_has_a_meaning_for_users() {
        for name in GROUPS.iter().flat_map(|group| group.names) {
            let meaning = name.meaning();
            assert!(!name.text.is_empty() && meaning.ends_with('.'), "{}: {meaning:?}", name.text);
            assert!(
                !meaning.contains("[`") && !meaning.contains("spec/"),
                "{}: for developers only: {meaning:?}",
                name.text
            );
        }
        let titles: BTreeSet<_> = GROUPS.iter().map(|group| group.title).collect();
        assert_eq!(titles.len(), GROUPS.len());
    }

    #[test]
    fn only_this_program_writes_reasons() {
        for group in GROUPS.iter().filter(|group| group.sort == Sort::Reasons) {
            assert!(group.names.iter().all(|name| name.writers == [Party::Mcm]), "{}", group.title);
        }
    }
}
