//! The request id of a creation: a UUID of version 5 (RFC 9562) over the UID of the machine.
//!
//! GCE carries out two requests with one id only once, and answers the second one with the operation of the first. A failed operation is repeated
//! the same way, so that the attempt after a failure needs another id.

use machine_driver::Machine;
use ring::digest;

/// The namespace of the ids. It must never change: a creation may be repeated by a newer version.
const NAMESPACE: [u8; 16] =
    [0x0e, 0x6b, 0x58, 0x52, 0x9c, 0x1f, 0x4d, 0x44, 0x9a, 0x5d, 0x1f, 0x57, 0x63, 0x0d, 0x2b, 0x71];

/// The request id for an attempt to create the instance of a machine. Attempts are counted from 0.
pub fn of(machine: &Machine, attempt: u32) -> String {
    let metadata = &machine.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let uid = metadata.uid.clone().filter(|uid| !uid.is_empty());
    let mut name = uid.unwrap_or_else(|| {
        format!("{}/{}/{}", text(&metadata.namespace), text(&metadata.name), machine.spec.class.name)
    });
    if attempt > 0 {
        name = format!("{name}/{attempt}");
    }
    uuid_v5(NAMESPACE, &name)
}

fn uuid_v5(namespace: [u8; 16], name: &str) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(&namespace);
    hash.update(name.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finish().as_ref()[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x50;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 9562, appendix A.4: the name `www.example.com` in the namespace of DNS names.
    #[test]
    fn a_uuid_is_that_of_the_standard() {
        let dns = 0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8_u128.to_be_bytes();
        assert_eq!(uuid_v5(dns, "www.example.com"), "2ed6657d-e927-568b-95e1-2665a8aea6a2");
    }

    #[test]
    fn each_machine_and_each_attempt_has_its_id() {
        let mut machine = Machine::default();
        machine.metadata.uid = Some("u-1".to_owned());
        let first = of(&machine, 0);
        assert_eq!(first, of(&machine, 0));
        assert_ne!(first, of(&machine, 1));
        machine.metadata.uid = Some("u-2".to_owned());
        assert_ne!(first, of(&machine, 0));
        machine.metadata.uid = None;
        machine.metadata.name = Some("m".to_owned());
        let named = of(&machine, 0);
        machine.metadata.name = Some("n".to_owned());
        assert_ne!(named, of(&machine, 0));
    }
}
