//! The machine codes: the results of driver calls.

use machine_driver::Code;

use super::page::{Draft, Page, code};

/// The page about all codes.
pub fn page() -> Page {
    let mut draft = Draft::new("codes", "Machine codes");
    draft.paragraph(
        "A driver answers each call with a code. `status.lastOperation.errorCode` of a machine has its name, and the label \
         `error_code` of metrics its number. The code decides when `mcm` tries again: \
         [the effect of a code](../drivers.md#the-effect-of-a-code).",
    );
    let rows: Vec<_> = Code::ALL
        .iter()
        .map(|known| {
            let meaning = draft.described(known.as_str(), known.meaning());
            [known.number().to_string(), code(known.as_str()), meaning]
        })
        .collect();
    draft.table(["Number", "Code", "Meaning"], rows);
    draft.finish()
}
