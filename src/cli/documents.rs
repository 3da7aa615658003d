//! Reads and writes the documents of commands: YAML or JSON text, several documents per text.
//!
//! Reading is strict, so that it hides no mistake: duplicate keys are refused, and every error names the source and the document.
//! The meaning of a document does not matter here, except for kind `List`, in which kubectl wraps several objects.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// One document of an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The source: a file name, or `stdin`.
    pub source: String,
    /// Index in the source, counted from 0. Empty documents count.
    pub index: usize,
    /// The content, usually an object.
    pub value: Value,
}

/// Why an input could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}: document {index}: {reason}")]
pub struct DocumentError {
    /// The source: a file name, or `stdin`.
    pub source_name: String,
    /// Index of the document in the source, counted from 0.
    pub index: usize,
    /// The fault, with line and column.
    pub reason: String,
}

/// An object inside a document: the document itself, or an item of a `List`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObjectRef<'a> {
    /// Index in the list, if the document is a list.
    pub item: Option<usize>,
    /// The object.
    pub value: &'a Value,
}

impl Document {
    /// The objects of the document: the items of a `List` (or of `MachineList` and the like), else the document itself.
    pub fn objects(&self) -> Vec<ObjectRef<'_>> {
        match list_items(&self.value) {
            Some(items) => {
                items.iter().enumerate().map(|(item, value)| ObjectRef { item: Some(item), value }).collect()
            }
            None => vec![ObjectRef { item: None, value: &self.value }],
        }
    }

    /// The name of an object of this document in messages: `file.yaml: document 0, item 2: Machine "shoot/m1"`.
    pub fn describe(&self, object: ObjectRef<'_>) -> String {
        let item = object.item.map(|item| format!(", item {item}")).unwrap_or_default();
        let place = format!("{}: document {}{item}", self.source, self.index);
        let at = |pointer: &str| object.value.pointer(pointer).and_then(Value::as_str);
        let Some(kind) = at("/kind") else { return place };
        let name = at("/metadata/name").or_else(|| at("/metadata/generateName")).unwrap_or_default();
        let namespace = at("/metadata/namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{place}: {kind} \"{namespace}{name}\"")
    }
}

/// The items of a `List` or typed list; `None` for everything else.
pub fn list_items(value: &Value) -> Option<&Vec<Value>> {
    let kind = value.get("kind")?.as_str()?;
    if kind.ends_with("List") { value.get("items")?.as_array() } else { None }
}

/// Reads every document of a YAML or JSON text. Documents without content (empty, or only comments) are skipped, but counted.
/// Concatenated JSON objects, as `jq -c` writes them, are documents too.
pub fn parse_documents(source_name: &str, text: &str) -> Result<Vec<Document>, DocumentError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        // A YAML flow mapping starts like JSON. The text is read with the parser that accepts it. If neither does, the error is the syntax of JSON.
        return parse_json(source_name, text).or_else(|error| parse_yaml(source_name, text).map_err(|_| error));
    }
    parse_yaml(source_name, text)
}

fn parse_json(source_name: &str, text: &str) -> Result<Vec<Document>, DocumentError> {
    let mut documents = Vec::new();
    for (index, value) in serde_json::Deserializer::from_str(text).into_iter::<UniqueKeys>().enumerate() {
        let value = value.map_err(|error| DocumentError {
            source_name: source_name.to_owned(),
            index,
            reason: format!("is no JSON: {error}"),
        })?;
        let mut value = value.0;
        write_whole_numbers_as_integers(&mut value);
        documents.push(Document { source: source_name.to_owned(), index, value });
    }
    Ok(documents)
}

fn parse_yaml(source_name: &str, text: &str) -> Result<Vec<Document>, DocumentError> {
    let mut documents = Vec::new();
    for (index, (first_line, piece)) in pieces(text).into_iter().enumerate() {
        let read = read_piece(piece).map_err(|error| DocumentError {
            source_name: source_name.to_owned(),
            index,
            reason: format!("is no YAML: {}", explain(piece, first_line, &error)),
        })?;
        // `...` ends a document without starting one. A piece may therefore have several documents; they share its index.
        documents.extend(read.into_iter().filter(|value| !value.is_null()).map(|value| Document {
            source: source_name.to_owned(),
            index,
            value,
        }));
    }
    Ok(documents)
}

/// Splits the text at document markers. YAML allows them only at the start of a line, even in block scalars. Returns each piece with
/// the number of lines before it.
fn pieces(text: &str) -> Vec<(usize, &str)> {
    let mut pieces = Vec::new();
    let (mut start, mut first_line, mut offset) = (0, 0, 0);
    let mut directives_only = true;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker {
            // Comments and directives before the first marker are no document.
            if !(pieces.is_empty() && directives_only) {
                pieces.push((first_line, &text[start..offset]));
                (start, first_line) = (offset, number);
            }
            directives_only = false;
        }
        let content = line.trim();
        directives_only &= content.is_empty() || content.starts_with('#') || content.starts_with('%');
        offset += line.len();
    }
    pieces.push((first_line, &text[start..]));
    pieces
}

/// The parser's message with the line numbers of the whole text, without the snippet of the text.
fn explain(piece: &str, first_line: usize, error: &serde_saphyr::Error) -> String {
    let padded = "\n".repeat(first_line) + piece;
    match read_piece(&padded) {
        Err(error) => error.without_snippet().to_string(),
        Ok(_) => error.without_snippet().to_string(),
    }
}

/// Reads scalars like kubectl, which uses Go's `sigs.k8s.io/yaml`: `yes` is a boolean, and `0644` is octal.
fn read_piece(piece: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let mut values: Vec<Value> =
        serde_saphyr::from_multiple_with_options(piece, serde_saphyr::options! { legacy_octal_numbers: true })?;
    values.iter_mut().for_each(write_whole_numbers_as_integers);
    Ok(values)
}

/// Go writes the number `3.0` as `3` into JSON, and an API server reads it as an integer.
fn write_whole_numbers_as_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            // Beyond 2^53 a float does not have the last digits.
            const EXACT: f64 = 9_007_199_254_740_992.0;
            let whole = number.as_f64().filter(|_| number.is_f64()).filter(|it| it.fract() == 0.0 && it.abs() <= EXACT);
            #[allow(clippy::cast_possible_truncation)]
            if let Some(whole) = whole {
                *number = (whole as i64).into();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(write_whole_numbers_as_integers),
        Value::Object(map) => map.values_mut().for_each(write_whole_numbers_as_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The format of written documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// YAML, `---` between documents.
    #[default]
    Yaml,
    /// Indented JSON; several documents become one `List`, as kubectl prints them.
    Json,
}

/// Why values could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The value has no YAML form.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
    /// The value has no JSON form.
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The documents as text with a line end at the end.
pub fn write_documents(values: &[Value], format: Format) -> Result<String, WriteError> {
    let text = match (format, values) {
        (Format::Yaml, values) => return Ok(to_yaml(values)?),
        (Format::Json, [only]) => serde_json::to_string_pretty(only)?,
        (Format::Json, values) => {
            serde_json::to_string_pretty(&serde_json::json!({"apiVersion": "v1", "kind": "List", "items": values}))?
        }
    };
    Ok(text + "\n")
}

/// The documents as YAML, `---` between them.
pub fn to_yaml<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! {
        empty_as_braces: true,
        compact_list_indent: true,
        prefer_block_scalars: true,
        min_fold_chars: usize::MAX,
    };
    let mut text = String::new();
    for (number, value) in values.into_iter().enumerate() {
        if number > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(value, options.clone())?);
    }
    Ok(text)
}

/// JSON without duplicate keys. `Value` would silently keep the last one of them.
struct UniqueKeys(Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor).map(Self)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeys(value)) = access.next_element()? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, UniqueKeys(value))) = access.next_entry::<String, _>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate key \"{key}\"")));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Vec<(usize, Value)> {
        parse_documents("input", text).unwrap().into_iter().map(|document| (document.index, document.value)).collect()
    }

    #[rstest]
    #[case::one_yaml_document("a: 1\n", vec![(0, json!({"a": 1}))])]
    #[case::several("a: 1\n---\nb: 2\n", vec![(0, json!({"a": 1})), (1, json!({"b": 2}))])]
    #[case::a_leading_marker_starts_the_first("---\na: 1\n---\nb: 2\n", vec![(0, json!({"a": 1})), (1, json!({"b": 2}))])]
    #[case::a_leading_comment_too("# generated\n---\na: 1\n", vec![(0, json!({"a": 1}))])]
    #[case::a_directive_belongs_to_its_document("%YAML 1.2\n---\na: 1\n", vec![(0, json!({"a": 1}))])]
    #[case::empty_documents_count("a: 1\n---\n# nothing\n---\nb: 2\n", vec![(0, json!({"a": 1})), (2, json!({"b": 2}))])]
    #[case::nothing("", vec![])]
    #[case::a_marker_inside_a_block_needs_indentation("a: |\n  ---\n  x\n", vec![(0, json!({"a": "---\nx\n"}))])]
    #[case::json("{\"a\": [1, null, true, 1.5, \"x\"]}", vec![(0, json!({"a": [1, null, true, 1.5, "x"]}))])]
    #[case::json_lines("{\"a\": 1}\n{\"b\": 2}\n", vec![(0, json!({"a": 1})), (1, json!({"b": 2}))])]
    #[case::a_flow_mapping_is_yaml("{a: 1}\n", vec![(0, json!({"a": 1}))])]
    #[case::windows_line_ends("a: 1\r\n---\r\nb: 2\r\n", vec![(0, json!({"a": 1})), (1, json!({"b": 2}))])]
    #[case::a_byte_order_mark("\u{feff}a: 1\n", vec![(0, json!({"a": 1}))])]
    fn documents_are_read(#[case] text: &str, #[case] expected: Vec<(usize, Value)>) {
        assert_eq!(read(text), expected);
    }

    #[rstest]
    #[case::a_word_for_true("yes", json!(true))]
    #[case::a_letter_for_false("n", json!(false))]
    #[case::octal("0644", json!(420))]
    #[case::hexadecimal("0x1F", json!(31))]
    #[case::a_whole_float("3.0", json!(3))]
    #[case::an_exponent("1e3", json!(1000))]
    #[case::a_fraction(".5", json!(0.5))]
    #[case::more_than_a_float_holds("12345678901234567890", json!(12_345_678_901_234_567_890_u64))]
    #[case::a_time_is_text("12:30", json!("12:30"))]
    #[case::a_date_is_text("2026-01-01", json!("2026-01-01"))]
    #[case::a_duration_is_text("5m", json!("5m"))]
    #[case::quoted("\"5\"", json!("5"))]
    #[case::nothing("", json!(null))]
    fn scalars_are_read_like_kubectl_reads_them(#[case] text: &str, #[case] value: Value) {
        assert_eq!(read(&format!("a: {text}\n")), [(0, json!({ "a": value }))]);
    }

    #[test]
    fn whole_floats_in_json_are_integers_too() {
        assert_eq!(read("{\"a\": [3.0, 0.5, -0.0]}"), [(0, json!({"a": [3, 0.5, 0]}))]);
    }

    #[rstest]
    #[case::the_document_and_the_line_are_named("a: 1\n---\nb: 2\n---\nc: [1\nd: 2\n", 2, "line")]
    #[case::duplicate_keys_in_yaml("a: 1\na: 2\n", 0, "duplicate")]
    #[case::duplicate_keys_in_json("{\"a\": 1, \"a\": 2}", 0, "duplicate")]
    #[case::truncated_json("{\"a\": {\"b\": 1}", 0, "is no JSON")]
    fn errors_name_the_document_and_the_reason(#[case] text: &str, #[case] index: usize, #[case] words: &str) {
        let error = parse_documents("pool.yaml", text).unwrap_err();
        assert_eq!(error.index, index, "{error}");
        assert!(error.to_string().starts_with("pool.yaml: document "), "{error}");
        assert!(error.reason.contains(words), "{error}");
    }

    #[test]
    fn lines_are_counted_from_the_start_of_the_text() {
        let error = parse_documents("f", "a: 1\n---\nb: 1\nb: 2\n").unwrap_err();
        assert!(error.reason.contains("line 4"), "{error}");
    }

    #[test]
    fn a_list_consists_of_its_items() {
        let text = "kind: List\nitems:\n- kind: Machine\n  metadata: {name: m, namespace: shoot}\n- 5\n";
        let document = parse_documents("f", text).unwrap().remove(0);
        let names: Vec<_> = document.objects().into_iter().map(|object| document.describe(object)).collect();
        assert_eq!(names, ["f: document 0, item 0: Machine \"shoot/m\"", "f: document 0, item 1"]);
    }

    #[test]
    fn written_documents_are_read_back() {
        let value = json!({
            "words": ["yes", "on", "y", "null", "~", "1", "1.5", "0x1f", "0644", "1_000", "0o17", "+1", "0b11", ".5", "1e3", "", " padded ", "a: b", "#c", "- d", "---", "é\tü"],
            "text": "line one\nline two\n", "no final line end": "a\nb", "empty": {}, "none": [], "null": null,
            "nested": [[1, 2], [{"a": [1]}]], "number": -5, "float": 0.5, "big": 18_446_744_073_709_551_615_u64,
        });
        let text = to_yaml([&value, &json!({"b": 1})]).unwrap();
        let values: Vec<_> = read(&text).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [value, json!({"b": 1})]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_as_it_was_written(
            words in proptest::collection::vec("[-+0-9a-fonysexbE_.:#,~!&*%@`'\"|>?\\[\\]{} \t\n]{0,8}|\\PC{0,8}", 0..4),
            key in "[-0-9a-zYN.:#/ ]{1,6}",
        ) {
            let value = json!({ "list": words, "map": { (key.as_str()): words } });
            prop_assert_eq!(read(&to_yaml([&value]).unwrap()), [(0, value)]);
        }
    }
}
