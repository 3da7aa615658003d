//! The part of `JSONPath` that printer columns use: `.a.b`, `['a.b']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    All,
    /// The elements whose field has this value.
    Where(String, String),
}

/// A path into an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Parses a path. Braces around the path are allowed.
    ///
    /// # Errors
    /// The part of the text that can't be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let unreadable = |rest: &str| format!("cannot read {rest:?} in JSONPath {text:?}");
        let mut rest = text.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('[') {
                let end = closing(inner).ok_or_else(|| unreadable(rest))?;
                steps.push(bracket(&inner[..end]).ok_or_else(|| unreadable(rest))?);
                rest = &inner[end + 1..];
            } else {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                let (field, after) = field_name(name);
                if field.is_empty() && !after.starts_with('[') {
                    return Err(unreadable(rest));
                }
                if !field.is_empty() {
                    steps.push(if field == "*" { Step::All } else { Step::Field(field) });
                }
                rest = after;
            }
        }
        Ok(Self(steps))
    }

    /// The values at the path.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.of(value)).collect();
        }
        found
    }

    /// The field names of the path. `None` if the path has other steps than fields.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.0.iter().map(|step| if let Step::Field(name) = step { Some(name.as_str()) } else { None }).collect()
    }
}

/// The field name at the start of a text, and the rest of the text. In a name, `\.` stands for a dot.
fn field_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, next)| next)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// The index of the closing bracket. Brackets in quotes do not count.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (None, ']') => return Some(at),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), found) if open == found => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    let inner = inner.trim();
    let unquoted = |text: &str| {
        let text = text.trim();
        let quoted = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        quoted('\'').or_else(|| quoted('"')).map(str::to_owned)
    };
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquoted(inner) {
        return Some(Step::Field(name.replace("\\.", ".")));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|filter| filter.strip_suffix(')')) {
        let (field, value) = filter.split_once("==")?;
        let field = field.trim().strip_prefix("@.")?;
        return Some(Step::Where(field.to_owned(), unquoted(value).unwrap_or_else(|| value.trim().to_owned())));
    }
    inner.parse().ok().map(Step::Index)
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
            (Self::Index(at), Value::Array(items)) => items.get(*at).into_iter().collect(),
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(fields)) => fields.values().collect(),
            (Self::Where(field, wanted), Value::Array(items)) => {
                let text = |item: &Value| match item.get(field) {
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(other) => Some(other.to_string()),
                    None => None,
                };
                items.iter().filter(|item| text(item).as_ref() == Some(wanted)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::field(".a.b", json!([1]))]
    #[case::braces("{.a.b}", json!([1]))]
    #[case::quoted(".m['x/y.z']", json!(["q"]))]
    #[case::escaped(r".m.x/y\.z", json!(["q"]))]
    #[case::all(".l[*].k", json!(["p", "r"]))]
    #[case::filter(".l[?(@.k==\"r\")].v", json!([2]))]
    #[case::index(".l[0].k", json!(["p"]))]
    #[case::absent(".nope.b", json!([]))]
    fn paths(#[case] text: &str, #[case] expected: Value) {
        let object = json!({"a": {"b": 1}, "m": {"x/y.z": "q"}, "l": [{"k": "p"}, {"k": "r", "v": 2}]});
        let path = JsonPath::parse(text).unwrap();
        assert_eq!(json!(path.find(&object)), expected);
    }

    #[test]
    fn an_invalid_path_is_refused() {
        assert!(JsonPath::parse(".a[").is_err());
        assert!(JsonPath::parse(".a[?(x)]").is_err());
    }
}
