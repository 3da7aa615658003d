//! A JSON value that borrows from the text it was parsed from.
//!
//! [`Json`] borrows texts without escapes, so that parsing needs few allocations: one for each object and list. Clones share objects and lists, and a
//! change copies only the object or list that is changed. Admission has the view that rules use (`Node`). Values that must live longer than the text
//! are values of `serde_json`.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::{Number, Value};

/// Counts how much of the values is read: members, elements and bytes of texts. It counts only in debug builds with the feature `steps`, for tests of
/// costs.
pub mod steps {
    #[cfg(all(feature = "steps", debug_assertions))]
    thread_local! {
        static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// Counts steps of this thread.
    #[cfg(all(feature = "steps", debug_assertions))]
    pub fn taken(number: usize) {
        TAKEN.set(TAKEN.get() + number);
    }

    /// Counts nothing.
    #[cfg(not(all(feature = "steps", debug_assertions)))]
    pub const fn taken(_number: usize) {}

    /// The number of steps of some work.
    #[cfg(all(feature = "steps", debug_assertions))]
    pub fn of(work: impl FnOnce()) -> usize {
        let before = TAKEN.get();
        work();
        TAKEN.get() - before
    }
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(Cow<'a, str>),
    /// A list.
    List(Arc<Vec<Json<'a>>>),
    /// An object.
    Object(Members<'a>),
}

/// The members of an object, each key once, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Members<'a>(Arc<Vec<(Cow<'a, str>, Json<'a>)>>);

impl<'a> Json<'a> {
    /// Whether it is `null`.
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether it is a boolean.
    pub const fn is_boolean(&self) -> bool {
        matches!(self, Self::Bool(_))
    }

    /// Whether it is a text.
    pub const fn is_string(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Whether it is a list.
    pub const fn is_array(&self) -> bool {
        matches!(self, Self::List(_))
    }

    /// Whether it is an object.
    pub const fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// The text, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        let Self::Text(text) = self else { return None };
        steps::taken(1 + text.len());
        Some(text)
    }

    /// The elements, if the value is a list.
    pub fn as_array(&self) -> Option<&[Json<'a>]> {
        let Self::List(elements) = self else { return None };
        steps::taken(1 + elements.len());
        Some(elements)
    }

    /// The members, if the value is an object.
    pub fn as_object(&self) -> Option<&Members<'a>> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    /// The mutable elements, if the value is a list.
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Json<'a>>> {
        if let Self::List(elements) = self { Some(Arc::make_mut(elements)) } else { None }
    }

    /// The mutable members, if the value is an object.
    pub fn as_object_mut(&mut self) -> Option<&mut Members<'a>> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    /// The boolean, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// The integer, if the value is one.
    pub fn as_i64(&self) -> Option<i64> {
        if let Self::Number(number) = self { number.as_i64() } else { None }
    }

    /// The same value with owned texts.
    pub fn into_owned(self) -> Json<'static> {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(value),
            Self::Number(number) => Json::Number(number),
            Self::Text(text) => Json::Text(Cow::Owned(text.into_owned())),
            Self::List(elements) => elements.iter().cloned().map(Self::into_owned).collect(),
            Self::Object(members) => {
                let owned =
                    members.0.iter().map(|(key, value)| (Cow::Owned(key.to_string()), value.clone().into_owned()));
                Json::Object(Members(Arc::new(owned.collect())))
            }
        }
    }

    /// The member with this name, if the value is an object and has it.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.as_object()?.get(key)
    }

    /// The length of the value as a JSON text, in bytes. For a text longer than `max`, any number above `max`.
    pub fn text_length_up_to(&self, max: usize) -> usize {
        struct Counted {
            bytes: usize,
            max: usize,
        }
        impl std::io::Write for Counted {
            fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
                self.bytes += text.len();
                if self.bytes > self.max { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(text.len()) }
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut counted = Counted { bytes: 0, max };
        // A text that is too long ends the writing. Its exact length is not needed.
        let _ = serde_json::to_writer(&mut counted, self);
        counted.bytes
    }

    /// The same value as a `serde_json` value.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(elements) => Value::Array(elements.iter().map(Self::to_value).collect()),
            Self::Object(members) => {
                Value::Object(members.iter().map(|(key, value)| (key.to_owned(), value.to_value())).collect())
            }
        }
    }
}

impl<'a> Members<'a> {
    /// The members, sorted by key. If a key occurs several times, the last one counts, as everywhere in Kubernetes.
    fn of(mut members: Vec<(Cow<'a, str>, Json<'a>)>) -> Self {
        // Objects written by Go are already sorted.
        if !members.is_sorted_by(|one, next| one.0 < next.0) {
            members.sort_by(|one, other| one.0.cmp(&other.0));
            members.dedup_by(|later, kept| {
                let same = later.0 == kept.0;
                if same {
                    std::mem::swap(later, kept);
                }
                same
            });
        }
        Self(Arc::new(members))
    }

    /// The index of a key, or the index where it would be inserted.
    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| own.as_ref().cmp(key))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        steps::taken(1);
        let place = self.place(key).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// The mutable value of a key.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json<'a>> {
        let place = self.place(key).ok()?;
        Arc::make_mut(&mut self.0).get_mut(place).map(|(_, value)| value)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: impl Into<Cow<'a, str>>, value: impl Into<Json<'a>>) {
        let (key, value) = (key.into(), value.into());
        let place = self.place(&key);
        let members = Arc::make_mut(&mut self.0);
        match place {
            Ok(place) => members[place].1 = value,
            Err(place) => members.insert(place, (key, value)),
        }
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Json<'a>> {
        let place = self.place(key).ok()?;
        Some(Arc::make_mut(&mut self.0).remove(place).1)
    }

    /// The value of a key. Inserts an empty object if the key is absent.
    pub fn get_or_insert_object(&mut self, key: &'static str) -> &mut Json<'a> {
        let place = self.place(key);
        let members = Arc::make_mut(&mut self.0);
        let place = place.unwrap_or_else(|place| {
            members.insert(place, (Cow::Borrowed(key), Json::Object(Members::default())));
            place
        });
        &mut members[place].1
    }

    /// Sets or removes keys in one pass. If a key occurs several times, the last one counts.
    pub fn edit(&mut self, edits: impl IntoIterator<Item = (Cow<'a, str>, Option<Json<'a>>)>) {
        let edits: BTreeMap<_, _> = edits.into_iter().collect();
        let mut edited = Vec::with_capacity(self.0.len() + edits.len());
        let mut edits = edits.into_iter().peekable();
        for (key, value) in self.0.iter() {
            while let Some((new, put)) = edits.next_if(|(new, _)| new < key) {
                edited.extend(put.map(|put| (new, put)));
            }
            match edits.next_if(|(new, _)| new == key) {
                Some((_, put)) => edited.extend(put.map(|put| (key.clone(), put))),
                None => edited.push((key.clone(), value.clone())),
            }
        }
        edited.extend(edits.filter_map(|(new, put)| Some((new, put?))));
        self.0 = Arc::new(edited);
    }

    /// Replaces each value for which `change` returns another value.
    pub fn change(&mut self, mut change: impl FnMut(&Json<'a>) -> Option<Json<'a>>) {
        for place in 0..self.0.len() {
            if let Some(changed) = change(&self.0[place].1) {
                Arc::make_mut(&mut self.0)[place].1 = changed;
            }
        }
    }

    /// Keeps the members for which the function returns true.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&str, &Json<'a>) -> bool) {
        if self.iter().any(|(key, value)| !is_kept(key, value)) {
            Arc::make_mut(&mut self.0).retain(|(key, value)| is_kept(key, value));
        }
    }

    /// Whether both share the same memory. If not, they may still be equal.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the key exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        steps::taken(1 + self.0.len());
        self.0.iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// Keys and values, sorted by key, each with the value of the same key in another object. One pass over both objects.
    pub fn beside<'m>(
        &'m self,
        other: &'m Members<'a>,
    ) -> impl Iterator<Item = (&'m str, &'m Json<'a>, Option<&'m Json<'a>>)> {
        steps::taken(1 + other.0.len());
        let mut others = other.0.iter().peekable();
        self.iter().map(move |(key, value)| {
            while others.next_if(|(theirs, _)| theirs.as_ref() < key).is_some() {}
            let same = others.next_if(|(theirs, _)| theirs.as_ref() == key);
            (key, value, same.map(|(_, value)| value))
        })
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }
}

impl<'a> FromIterator<Json<'a>> for Json<'a> {
    fn from_iter<T: IntoIterator<Item = Json<'a>>>(elements: T) -> Self {
        Self::List(Arc::new(elements.into_iter().collect()))
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Json<'a>)> for Members<'a> {
    fn from_iter<T: IntoIterator<Item = (Cow<'a, str>, Json<'a>)>>(members: T) -> Self {
        Self::of(members.into_iter().collect())
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl<'a> From<Cow<'a, str>> for Json<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Json<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<bool> for Json<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Json<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number.into())
    }
}

impl<'a> From<Members<'a>> for Json<'a> {
    fn from(members: Members<'a>) -> Self {
        Self::Object(members)
    }
}

impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            Value::Array(elements) => elements.iter().map(Self::from).collect(),
            Value::Object(members) => {
                let members = members.iter().map(|(key, value)| (Cow::Borrowed(key.as_str()), Self::from(value)));
                Self::Object(members.collect())
            }
        }
    }
}

impl From<&Json<'_>> for Value {
    fn from(value: &Json<'_>) -> Self {
        value.to_value()
    }
}

impl PartialEq<str> for Json<'_> {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<&str> for Json<'_> {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(elements) => elements.as_slice().serialize(serializer),
            Self::Object(members) => members.serialize(serializer),
        }
    }
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Reading(|_| Member::Read).deserialize(deserializer)
    }
}

/// The treatment of a member during parsing.
#[derive(Clone, Copy)]
pub enum Member {
    /// The member is read completely.
    Read,
    /// The member is skipped.
    Skip,
    /// The member is read, and this function decides for each of its own members.
    ReadBy(fn(&str) -> Member),
}

/// Parses a value. For each member, the function decides by the key. Objects in lists are always read completely.
#[derive(Clone, Copy)]
pub struct Reading(pub fn(&str) -> Member);

impl<'de> DeserializeSeed<'de> for Reading {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Json<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Json::List(Arc::new(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(Key(key)) = entries.next_key()? {
            let value = match (self.0)(&key) {
                Member::Read => entries.next_value()?,
                Member::ReadBy(rule) => entries.next_value_seed(Reading(rule))?,
                Member::Skip => {
                    entries.next_value::<serde::de::IgnoredAny>()?;
                    continue;
                }
            };
            members.push((key, value));
        }
        Ok(Json::Object(Members::of(members)))
    }
}

/// A key, borrowed if it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(value)))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(value.to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::all_types(r#"{"z": null, "a": [true, 1, -2, 2.5, "x", {"k": {}}], "m": "t"}"#)]
    #[case::escapes(r#"{"a\n": "b\"c", "\u00e4": "\ud83d\ude00"}"#)]
    #[case::of_two_equal_keys_the_last_counts(r#"{"b": 1, "a": 1, "b": 2, "a": {"c": 3}, "b": 3}"#)]
    #[case::large_numbers(r"[18446744073709551615, -9223372036854775808, 1e300, 123456789012345678901234567890]")]
    #[case::no_object(r#""text""#)]
    fn values_are_equal_to_those_of_serde_json(#[case] text: &str) {
        let (ours, theirs): (Json<'_>, Value) =
            (serde_json::from_str(text).unwrap(), serde_json::from_str(text).unwrap());
        assert_eq!(ours.to_value(), theirs);
        assert_eq!(ours, Json::from(&theirs));
        assert_eq!(serde_json::to_string(&ours).unwrap(), serde_json::to_string(&theirs).unwrap());
    }

    fn read(text: &str) -> Json<'_> {
        serde_json::from_str(text).unwrap()
    }

    #[rstest]
    #[case::a_new_key("b", Some("2"), r#"{"a":1,"b":"2","c":[{"d":null}]}"#)]
    #[case::another_value("a", Some("2"), r#"{"a":"2","c":[{"d":null}]}"#)]
    #[case::no_value("c", None, r#"{"a":1}"#)]
    #[case::nothing_to_take("x", None, r#"{"a":1,"c":[{"d":null}]}"#)]
    fn a_change_does_not_change_the_clone(
        #[case] key: &'static str,
        #[case] put: Option<&'static str>,
        #[case] text: &str,
    ) {
        let original = read(r#"{"c": [{"d": null}], "a": 1}"#);
        let before = original.to_value();
        for at_once in [true, false] {
            let mut changed = original.clone();
            let members = changed.as_object_mut().unwrap();
            match put {
                _ if at_once => members.edit([(key.into(), put.map(Json::from))]),
                Some(put) => members.insert(key, put),
                None => drop(members.remove(key)),
            }
            assert_eq!(serde_json::to_string(&changed).unwrap(), text);
            assert_eq!(original.to_value(), before);
        }
    }

    #[test]
    fn unchanged_parts_stay_shared() {
        fn labels<'a>(object: &Json<'a>) -> Members<'a> {
            object.get("labels").and_then(Json::as_object).unwrap().clone()
        }
        let original = read(r#"{"labels": {"a": "b"}, "spec": {"x": 1}}"#);
        let mut changed = original.clone();
        let members = changed.as_object_mut().unwrap();
        members.get_mut("spec").and_then(Json::as_object_mut).unwrap().insert("y", true);
        members.retain(|_, value| !value.is_null());
        assert!(labels(&original).is_shared_with(&labels(&changed)));
        assert_eq!(original.get("spec").unwrap().to_value(), json!({"x": 1}));
    }

    #[test]
    fn members_are_found_by_their_keys() {
        let text = r#"{"d": 4, "b": 2, "a": 1, "c": null}"#;
        let object: Json<'_> = serde_json::from_str(text).unwrap();
        let members = object.as_object().unwrap();
        assert_eq!(members.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(members.get("b").map(Json::to_value), Some(json!(2)));
        assert_eq!((members.contains_key("c"), members.get("e")), (true, None));
    }

    #[test]
    fn members_are_paired_with_those_of_another_object() {
        let (one, other) = (read(r#"{"b": 1, "c": 2, "e": 3}"#), read(r#"{"a": 4, "b": 5, "d": 6, "e": 7, "f": 8}"#));
        let pairs: Vec<_> = one.as_object().unwrap().beside(other.as_object().unwrap()).collect();
        let number = |value: &Json<'_>| value.as_i64().unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(key, own, other)| (*key, number(own), other.map(number))).collect();
        assert_eq!(pairs, [("b", 1, Some(5)), ("c", 2, None), ("e", 3, Some(7))]);
    }

    #[test]
    fn texts_without_escapes_are_borrowed() {
        let list: Json<'_> = serde_json::from_str(r#"["plain", "with \"escapes\""]"#).unwrap();
        let borrowed = |element: &Json<'_>| matches!(element, Json::Text(Cow::Borrowed(_)));
        assert_eq!(list.as_array().unwrap().iter().map(borrowed).collect::<Vec<_>>(), [true, false]);
    }

    #[rstest]
    #[case::a_list_that_never_closes("[1, 2")]
    #[case::nothing("")]
    #[case::a_key_that_is_no_text("{1: 2}")]
    fn a_text_that_is_no_json_is_refused(#[case] text: &str) {
        assert!(serde_json::from_str::<Json<'_>>(text).is_err());
    }

    #[test]
    fn the_length_of_a_text_is_counted_up_to_a_limit() {
        let text = r#"{"a":[1,"b\n",null]}"#;
        assert_eq!(read(text).text_length_up_to(usize::MAX), text.len());
        assert_eq!(read(text).text_length_up_to(text.len()), text.len());
        assert!(read(text).text_length_up_to(5) > 5);
    }

    #[test]
    fn deep_nesting_is_refused() {
        assert!(serde_json::from_str::<Json<'_>>(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn members_can_be_left_out_while_reading() {
        fn inner(key: &str) -> Member {
            if key == "b" { Member::Skip } else { Member::Read }
        }
        fn outer(key: &str) -> Member {
            if key == "m" { Member::ReadBy(inner) } else { Member::Read }
        }
        let text = r#"{"b": 1, "m": {"a": 1, "b": 2, "n": {"b": 3}}}"#;
        let read = Reading(outer).deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap();
        assert_eq!(read.to_value(), json!({"b": 1, "m": {"a": 1, "n": {"b": 3}}}));
    }
}
