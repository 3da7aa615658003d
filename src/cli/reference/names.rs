//! Names on objects: finalizers, labels, annotations, taints, conditions, reasons.

use machine_api::{
    names::{self, Group, Name, Party, Sort},
    v1alpha1::{MachineDeploymentConditionType, MachinePhase, MachineSetConditionType},
};

use super::page::{Draft, Page, code};

/// The page about all names.
pub fn page() -> Page {
    let mut draft = Draft::new("names", "Names on objects");
    draft.paragraph(
        "The names by which objects, other programs and people know this system. They don't change. \
         [Troubleshooting](../troubleshooting.md) says what to do when you see a reason.",
    );
    for group in names::GROUPS {
        write_group(&mut draft, group);
    }
    for (title, words) in [
        ("Phases of machines", MachinePhase::MEANINGS),
        ("Conditions of sets", MachineSetConditionType::MEANINGS),
        ("Conditions of deployments", MachineDeploymentConditionType::MEANINGS),
    ] {
        draft.section(title);
        let rows: Vec<_> = words
            .iter()
            .map(|(word, doc)| {
                let name = if word.is_empty() { "empty".to_owned() } else { code(word) };
                [name, draft.described(word, &in_one_line(doc))]
            })
            .collect();
        draft.table(["Name", "Meaning"], rows);
    }
    draft.section("Annotations of other programs that write CA bundles");
    draft.paragraph("`mcm` leaves an object with one of these annotations to the other program.");
    draft.table(["Annotation"], names::annotation::FOREIGN_CA_INJECTORS.map(|name| [code(name)]));
    draft.finish()
}

fn write_group(draft: &mut Draft, group: &Group) {
    draft.section(group.title);
    let meaning = |draft: &mut Draft, name: &Name| draft.described(name.text, &name.meaning());
    match group.sort {
        Sort::Keys => {
            let rows: Vec<_> = group
                .names
                .iter()
                .map(|name| [code(name.text), parties(name.writers), parties(name.readers), meaning(draft, name)])
                .collect();
            draft.table(["Name", "Written by", "Read by", "Meaning"], rows);
        }
        Sort::Reasons => {
            let rows: Vec<_> = group.names.iter().map(|name| [code(name.text), meaning(draft, name)]).collect();
            draft.table(["Reason", "Meaning"], rows);
        }
    }
}

fn parties(parties: &[Party]) -> String {
    parties.iter().map(|party| party.as_str()).collect::<Vec<_>>().join(", ")
}

/// A doc comment without the references for developers.
fn in_one_line(doc: &str) -> String {
    let text = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace("[`", "`").replace("`]", "`")
}
