//! The fields of the old kinds of classes, and where `mcm migrate-classes` puts them.

use super::page::{Draft, Page, code, prose};
use crate::cli::migrate_classes::table::{Field, OldKind, SECRET_FIELDS, Table};
use machine_api::names::{MACHINE_CLASS_KIND, annotation, finalizer};

/// The page about all old kinds.
pub fn page() -> Page {
    let mut draft = Draft::new("old-classes", "Old kinds of classes");
    draft.paragraph(
        "Early releases of the Go original had a kind of class for each provider. [`mcm migrate-classes`](../migrate-classes.md) makes a `MachineClass` \
         of each. A field that the old class lacks is left out of the new class. A field that this page lacks is carried to the same place \
         as its neighbours, and reported. In a path, `[]` is each element of a list, and `*` each key of a map.",
    );
    draft.paragraph(&format!(
        "All kinds: `metadata.name`, `generateName`, `namespace`, `labels`, `annotations` and `ownerReferences` stay as they are. The \
         `{MACHINE_CLASS_KIND}` does not get the annotations {} and {}. Of the finalizers it gets {} only. {} go to the fields of these names in \
         the class itself.",
        code(annotation::KUBECTL_LAST_APPLIED),
        code(annotation::MIGRATED),
        code(finalizer::MACHINE),
        SECRET_FIELDS.map(|field| code(&format!("spec.{field}"))).join(" and "),
    ));
    for kind in OldKind::ALL {
        section(&mut draft, kind);
    }
    draft.finish()
}

fn section(draft: &mut Draft, kind: OldKind) {
    let Table { kind, provider, constants, place, fields, .. } = kind.table();
    draft.section(kind);
    draft.paragraph(&format!("`provider: {provider}`"));
    let place = place.join(".");
    let constant = |(name, value): &(&str, &str)| {
        let value = prose(&format!("always `{value}`"));
        [String::new(), code(&format!("providerSpec.{name}")), String::new(), value]
    };
    let mapped = |Field { path, default, note }: &Field| {
        [code(&format!("spec.{path}")), code(&format!("{place}.{path}")), prose(default), prose(note)]
    };
    let rows = constants.iter().map(constant).chain(fields.iter().map(mapped));
    draft.table(["Old field", "New field", "Without it", "Note"], rows);
}
