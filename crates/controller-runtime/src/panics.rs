//! The text of a panic, as logs and errors show it.

use std::any::Any;

/// Stands for a text that is made of values. It could contain anything, also a secret (spec/packaging PK-102).
pub const LEFT_OUT: &str = "its text contains values and is left out";

/// The text of a panic if it is a constant of the program.
pub fn text_of(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or(LEFT_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pk_102_a_panic_shows_no_values() {
        let canary = String::from("canary-panic");
        let caught = std::panic::catch_unwind(|| panic!("can't read {canary}")).unwrap_err();
        assert_eq!(text_of(&*caught), LEFT_OUT);
        let caught = std::panic::catch_unwind(|| panic!("no slot is left")).unwrap_err();
        assert_eq!(text_of(&*caught), "no slot is left");
        assert_eq!(text_of(&7), LEFT_OUT);
    }
}
