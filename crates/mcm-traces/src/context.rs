//! The identifiers of traces and spans, and the header that carries them to other processes.
//!
//! Format: W3C Trace Context, header `traceparent`. Source: spec/packaging §7.2.

use std::fmt;

use jiff::Timestamp;

/// The identifier of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(u128);

/// The identifier of a span in its trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(u64);

/// Separates the parts of a hashed text. No UID, name or number contains it.
const SEPARATOR: u8 = 0;

/// FNV-1a with 128 bits. It is the same in every process and in every version of the program.
fn hash(parts: &[&[u8]]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter().chain(std::iter::once(&SEPARATOR)));
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

impl TraceId {
    /// The trace of a machine, or of another object with a trace of its own: its UID. A UID that is no UUID is hashed.
    pub fn of_object(uid: &str) -> Self {
        let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
        let is_uuid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if is_uuid { u128::from_str_radix(&digits, 16).ok() } else { None };
        Self::of_number(number.unwrap_or_else(|| hash(&[uid.as_bytes()])))
    }

    /// The trace of a rollout: the UID of the deployment and the revision that is rolled out.
    pub fn of_rollout(deployment: &str, revision: i64) -> Self {
        Self::of_number(hash(&[b"rollout", deployment.as_bytes(), &revision.to_be_bytes()]))
    }

    /// The trace with this number; 0 counts as 1.
    pub fn of_number(number: u128) -> Self {
        Self(number.max(1))
    }

    /// The 16 bytes of the identifier.
    pub const fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    /// The span with this name that begins at this time under this parent.
    pub fn derived(trace: TraceId, parent: Option<Self>, name: &str, start: Timestamp) -> Self {
        let parent = parent.map_or(0, |parent| parent.0).to_be_bytes();
        let number = hash(&[&trace.bytes(), &parent, name.as_bytes(), &start.as_nanosecond().to_be_bytes()]);
        Self::of_number(low(number ^ (number >> 64)))
    }

    /// The span of the whole life of the object with this trace.
    pub fn of_life(trace: TraceId) -> Self {
        let number = hash(&[&trace.bytes(), b"life"]);
        Self::of_number(low(number ^ (number >> 64)))
    }

    /// The span with this number; 0 counts as 1.
    pub fn of_number(number: u64) -> Self {
        Self(number.max(1))
    }

    /// The 8 bytes of the identifier.
    pub const fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// The lower 64 bits.
fn low(number: u128) -> u64 {
    u64::try_from(number & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span in another process, or a span of this process that another process continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the span is recorded.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Name of the header, and of the key in gRPC metadata.
    pub const HEADER: &'static str = "traceparent";

    /// Reads the header. `None` for a value that W3C Trace Context calls invalid, which is then ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // A later version may have more fields.
        if version == "ff" || (version == "00" && fields.next().is_some()) {
            return None;
        }
        lower_hex(version, 2)?;
        let (trace, span, flags) = (lower_hex(trace, 32)?, lower_hex(span, 16)?, lower_hex(flags, 2)?);
        let is_valid = trace != 0 && span != 0;
        is_valid.then(|| Self { trace: TraceId(trace), span: SpanId(low(span)), is_sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

/// The value of a text of exactly this many lower-case hexadecimal digits.
fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_uuid("0af76519-16cd-43dd-8448-eb211c80319c", "0af7651916cd43dd8448eb211c80319c")]
    #[case::in_capitals("0AF76519-16CD-43DD-8448-EB211C80319C", "0af7651916cd43dd8448eb211c80319c")]
    #[case::zeros("00000000-0000-0000-0000-000000000000", "00000000000000000000000000000001")]
    #[case::another_text("machine-1", "927e44e68423c3196dea495991ae2340")]
    fn pk_103_the_uid_of_a_machine_is_its_trace(#[case] uid: &str, #[case] expected: &str) {
        assert_eq!(TraceId::of_object(uid).to_string(), expected);
    }

    #[test]
    fn each_revision_of_a_deployment_has_a_trace() {
        let of = TraceId::of_rollout;
        assert_eq!(of("uid", 3), of("uid", 3));
        for other in [of("uid", 4), of("other", 3), TraceId::of_object("uid")] {
            assert_ne!(of("uid", 3), other);
        }
    }

    #[test]
    fn every_process_computes_the_same_spans() {
        let (trace, start) = (TraceId::of_object("uid"), Timestamp::UNIX_EPOCH);
        let span = SpanId::derived(trace, None, "drain", start);
        // A golden value: the next leader may run another version of the program.
        assert_eq!(SpanId::derived(TraceId::of_number(1), None, "drain", start).to_string(), "cbc4abebd530eee5");
        let later = Timestamp::from_second(1).unwrap();
        for other in [
            SpanId::derived(trace, None, "drain", later),
            SpanId::derived(trace, None, "join", start),
            SpanId::derived(trace, Some(span), "drain", start),
            SpanId::derived(TraceId::of_object("other"), None, "drain", start),
            SpanId::of_life(trace),
        ] {
            assert_ne!(span, other);
        }
    }

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[rstest]
    #[case::sampled(HEADER, Some(true))]
    #[case::not_sampled("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false))]
    #[case::other_flags("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", Some(false))]
    #[case::of_a_later_version("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future", Some(true))]
    #[case::too_much_for_this_version("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None)]
    #[case::an_invalid_version("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)]
    #[case::no_trace("00-00000000000000000000000000000000-b7ad6b7169203331-01", None)]
    #[case::no_span("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None)]
    #[case::capitals("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None)]
    #[case::too_short("00-0af7651916cd43dd-b7ad6b7169203331-01", None)]
    #[case::a_sign("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)]
    #[case::empty("", None)]
    fn a_header_is_read_or_ignored(#[case] text: &str, #[case] sampled: Option<bool>) {
        assert_eq!(TraceParent::parse(text).map(|parent| parent.is_sampled), sampled);
    }

    #[test]
    fn a_header_is_written_as_it_is_read() {
        assert_eq!(TraceParent::parse(HEADER).unwrap().to_string(), HEADER);
    }
}
