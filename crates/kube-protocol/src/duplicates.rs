//! Finds the fields that occur twice in an object of a JSON text.

use std::{cell::RefCell, collections::BTreeSet, fmt, rc::Rc};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::unknown_fields::join;

/// Paths of the duplicate fields. A text that is not JSON has none.
pub fn find(text: &[u8]) -> Vec<String> {
    let found = Rc::default();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let walk = Walk { path: String::new(), found: Rc::clone(&found) };
    let read = walk.deserialize(&mut reader);
    match read {
        Ok(()) => found.take(),
        Err(_) => Vec::new(),
    }
}

struct Walk {
    path: String,
    found: Rc<RefCell<Vec<String>>>,
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = join(&self.path, &name);
            if !names.insert(name) {
                self.found.borrow_mut().push(path.clone());
            }
            map.next_value_seed(Walk { path, found: Rc::clone(&self.found) })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut at = 0;
        while items
            .next_element_seed(Walk { path: format!("{}[{at}]", self.path), found: Rc::clone(&self.found) })?
            .is_some()
        {
            at += 1;
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_named_with_their_path() {
        assert_eq!(
            find(br#"{"spec": {"color": "red", "l": [{"a": 1, "a": 2}], "color": "red"}}"#),
            ["spec.l[0].a", "spec.color"]
        );
        assert!(find(b"a: 1").is_empty());
    }
}
