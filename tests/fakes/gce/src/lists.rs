//! Lists: filters, pages, and the choice of fields in answers. What Google does not document is refused, so that no client builds on it.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE};
use serde_json::{Map, Value};

use crate::{errors::Refusal, model};

/// The most resources on a page.
const LARGEST_PAGE: usize = 500;

/// One page of resources, each with its name. They are ordered by name.
pub struct Page {
    pub items: Vec<Value>,
    pub next: Option<String>,
}

/// The page that a query asks for.
pub fn page(all: Vec<(String, Value)>, query: &BTreeMap<String, String>) -> Result<Page, Refusal> {
    let size = match query.get("maxResults").map(|text| text.parse::<usize>()) {
        None | Some(Ok(0)) => LARGEST_PAGE,
        Some(Ok(size)) if size <= LARGEST_PAGE => size,
        Some(_) => {
            let detail = "Acceptable values are 0 to 500, inclusive.";
            return Err(Refusal::invalid("maxResults", &query["maxResults"], detail));
        }
    };
    if let Some(order) = query.get("orderBy") {
        return Err(Refusal::invalid("orderBy", order, "The fake orders by name only."));
    }
    let filter = Filter::parse(query.get("filter").map_or("", String::as_str))?;
    let after = match query.get("pageToken") {
        None => String::new(),
        Some(token) => token_name(token).ok_or_else(|| Refusal::invalid("pageToken", token, "Invalid page token."))?,
    };
    let rest = all.into_iter().filter(|(name, _)| *name > after);
    let (mut items, mut last, mut next) = (Vec::new(), after.clone(), None);
    for (name, item) in rest {
        if !filter.holds_for(&item)? {
            continue;
        }
        if items.len() == size {
            next = Some(BASE64_URL_SAFE.encode(&last));
            break;
        }
        items.push(item);
        last = name;
    }
    Ok(Page { items, next })
}

fn token_name(token: &str) -> Option<String> {
    String::from_utf8(BASE64_URL_SAFE.decode(token).ok()?).ok()
}

/// Comparisons that must all hold: `field = value`, `field != value`, and `field:*` for a field that exists.
struct Filter(Vec<Comparison>);

struct Comparison {
    field: String,
    operator: Operator,
    value: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Different,
    Present,
}

impl Filter {
    fn parse(text: &str) -> Result<Self, Refusal> {
        let mut words = words(text).ok_or_else(|| refused(text))?.into_iter();
        let mut comparisons = Vec::new();
        while let Some(field) = words.next() {
            if field == "AND" {
                continue;
            }
            let (Some(operator), Some(value)) = (words.next(), words.next()) else { return Err(refused(text)) };
            let operator = match (&*operator, &*value) {
                ("=", _) => Operator::Equal,
                ("!=", _) => Operator::Different,
                (":", "*") => Operator::Present,
                _ => return Err(refused(text)),
            };
            if field == "OR" || field == "NOT" || (operator != Operator::Present && value.contains('*')) {
                return Err(refused(text));
            }
            comparisons.push(Comparison { field, operator, value });
        }
        Ok(Self(comparisons))
    }

    fn holds_for(&self, item: &Value) -> Result<bool, Refusal> {
        for comparison in &self.0 {
            if !comparison.holds_for(item)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Comparison {
    fn holds_for(&self, item: &Value) -> Result<bool, Refusal> {
        let found = self.field.split('.').fold(item, |value, name| &value[name]);
        let text = match found {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            Value::Array(_) | Value::Object(_) => return Err(refused(&self.field)),
            other => Some(other.to_string()),
        };
        Ok(match self.operator {
            Operator::Present => text.is_some(),
            Operator::Equal => text.as_deref() == Some(&self.value),
            Operator::Different => text.as_deref() != Some(&self.value),
        })
    }
}

fn refused(text: &str) -> Refusal {
    Refusal::invalid("filter", text, "Invalid list filter expression.")
}

/// The words of a filter: names, operators and values. Parentheses say nothing, because all comparisons must hold.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(skipped);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"')? + 2,
            '!' if rest.starts_with("!=") => 2,
            '=' | ':' => 1,
            '!' | '<' | '>' => return None,
            _ => rest.find(|c| skipped(c) || "=!:<>\"".contains(c)).unwrap_or(rest.len()),
        };
        words.push(rest[..length].trim_matches('"').to_owned());
        rest = rest[length..].trim_start_matches(skipped);
    }
    Some(words)
}

fn skipped(c: char) -> bool {
    c.is_whitespace() || "()".contains(c)
}

/// The fields that an answer keeps: `items(name,tags/items),nextPageToken`.
#[derive(Default)]
pub struct Mask(BTreeMap<String, Mask>);

impl Mask {
    /// Reads a mask for answers with this schema.
    pub fn parse(text: &str, schema: &Value) -> Result<Self, String> {
        let mut mask = Self::default();
        let rest = mask.read(text, schema)?;
        if rest.is_empty() { Ok(mask) } else { Err(format!("Invalid field selection {rest}")) }
    }

    /// Reads fields up to a closing parenthesis or the end, and returns the rest.
    fn read<'a>(&mut self, text: &'a str, schema: &Value) -> Result<&'a str, String> {
        let mut rest = text;
        loop {
            let (mut mask, mut schema) = (&mut *self, schema);
            loop {
                let end = rest.find(['/', ',', '(', ')']).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                schema = model::field_schema(schema, name).ok_or_else(|| format!("Invalid field selection {name}"))?;
                mask = mask.0.entry(name.to_owned()).or_default();
                rest = after;
                match rest.strip_prefix('/') {
                    Some(deeper) => rest = deeper,
                    None => break,
                }
            }
            if let Some(inner) = rest.strip_prefix('(') {
                let after = mask.read(inner, schema)?;
                rest = after.strip_prefix(')').ok_or("Invalid field selection: a parenthesis is open")?;
            }
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => return Ok(rest),
            }
        }
    }

    /// The kept part of a value.
    pub fn of(&self, value: Value) -> Value {
        match value {
            _ if self.0.is_empty() => value,
            Value::Array(items) => items.into_iter().map(|item| self.of(item)).collect(),
            Value::Object(mut fields) => {
                let kept = self.0.iter().filter_map(|(name, mask)| Some((name.clone(), mask.of(fields.remove(name)?))));
                Value::Object(kept.collect::<Map<_, _>>())
            }
            other => other,
        }
    }
}
