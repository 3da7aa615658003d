//! What a JSON text would take in memory, estimated before it is read.
//!
//! A few bytes of JSON can become a hundred times as many in memory: `{"":0},` is a map of its own. A text that would take
//! more than any object an API server stores is refused instead of read.

/// An object with its first entry takes about so much.
const OBJECT: usize = 640;
/// A further entry takes about so much, and so does an element of a list.
const ENTRY: usize = 64;
/// What one review may take. An API server takes requests of 3 MiB; what it stores weighs a tenth of this.
pub const MAX_WEIGHT: usize = 96 << 20;
/// Texts below this length are never too heavy.
const LIGHT: usize = MAX_WEIGHT / OBJECT;

/// Whether the values in a text would take too much. Brackets inside strings count as well: the estimate is never too low.
pub fn is_too_heavy(text: &[u8]) -> bool {
    text.len() > LIGHT && weight(text) > MAX_WEIGHT
}

fn weight(text: &[u8]) -> usize {
    let of = |byte: &u8| match byte {
        b'{' => OBJECT,
        b',' | b'[' => ENTRY,
        _ => 1,
    };
    text.iter().map(of).sum()
}

/// What is said of a text that is.
pub fn too_heavy(what: &str) -> String {
    format!("{what} is too complex: reading it would take more than {} MiB", MAX_WEIGHT >> 20)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_long_string("x", 8 << 20, false)]
    #[case::a_large_object_of_people("\"key\": \"some value of usual length\",", 3 << 20, false)]
    #[case::many_maps("{},", 1 << 20, true)]
    #[case::many_numbers("0,", 8 << 20, true)]
    #[case::few_maps("{},", 100_000, false)]
    fn what_would_fill_the_memory_is_refused(#[case] part: &str, #[case] length: usize, #[case] heavy: bool) {
        let text = part.repeat(length / part.len());
        assert_eq!(is_too_heavy(text.as_bytes()), heavy);
    }
}
