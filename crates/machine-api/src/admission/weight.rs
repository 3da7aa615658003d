//! Estimates the memory of a JSON text before it is parsed.
//!
//! A few bytes of JSON can take a hundred times as much memory: `{"":0},` is a map. A text that would take more memory than any object of an API
//! server is refused before parsing.

/// The approximate bytes of an object with its first entry.
const OBJECT: usize = 640;
/// The approximate bytes of a further entry, or of an element of a list.
const ENTRY: usize = 64;
/// The limit for one review. API servers accept requests of 3 MiB, and their largest stored objects take a tenth of this limit.
pub const MAX_WEIGHT: usize = 96 << 20;
/// Texts below this length never take too much memory.
const LIGHT: usize = MAX_WEIGHT / OBJECT;

/// Whether the values of a text would take too much memory. Brackets inside strings count too, so that the estimate is never too low.
pub fn is_too_heavy(text: &[u8]) -> bool {
    text.len() > LIGHT && weight(text) > MAX_WEIGHT
}

fn weight(text: &[u8]) -> usize {
    let objects = count(text, |byte| byte == b'{');
    let entries = count(text, |byte| matches!(byte, b',' | b'['));
    text.len() + objects * (OBJECT - 1) + entries * (ENTRY - 1)
}

/// Counts the bytes that match. Sums up small pieces in `u8`, so that the compiler uses vector instructions.
fn count(text: &[u8], is_meant: impl Fn(u8) -> bool) -> usize {
    const PIECE: usize = u8::MAX as usize;
    text.chunks(PIECE).map(|piece| usize::from(piece.iter().map(|byte| u8::from(is_meant(*byte))).sum::<u8>())).sum()
}

/// The reason for refusing a text that is too heavy.
pub fn too_heavy(what: &str) -> String {
    format!("{what} is too complex: reading it would take more than {} MiB", MAX_WEIGHT >> 20)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", 0)]
    #[case::one_of_each("{[,x", OBJECT + 2 * ENTRY + 1)]
    #[case::more_than_a_piece(&"{".repeat(1_000), 1_000 * OBJECT)]
    fn the_weight_of_a_text_depends_on_its_content(#[case] text: &str, #[case] weighs: usize) {
        assert_eq!(weight(text.as_bytes()), weighs);
    }

    #[rstest]
    #[case::a_long_string("x", 8 << 20, false)]
    #[case::a_large_object_of_people("\"key\": \"some value of usual length\",", 3 << 20, false)]
    #[case::many_maps("{},", 1 << 20, true)]
    #[case::many_numbers("0,", 8 << 20, true)]
    #[case::few_maps("{},", 100_000, false)]
    fn texts_that_would_fill_the_memory_are_refused(#[case] part: &str, #[case] length: usize, #[case] heavy: bool) {
        let text = part.repeat(length / part.len());
        assert_eq!(is_too_heavy(text.as_bytes()), heavy);
    }
}
