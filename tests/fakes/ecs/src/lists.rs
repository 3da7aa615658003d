//! Lists: filters, and pages.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::{errors::Refusal, model::Action, signature::Parameters};

/// The size of a page if the request has none, and the smallest one with `MaxResults`.
const SIZE: usize = 10;
/// The most ids in a filter.
const MOST_IDS: usize = 100;
/// The most tags in a filter.
const MOST_TAGS: usize = 20;
/// The parameters of pages.
const PAGES: [&str; 4] = ["MaxResults", "NextToken", "PageNumber", "PageSize"];
/// Filters of instances that compare one field.
const INSTANCE_FIELDS: [(&str, &str); 4] =
    [("ImageId", "/ImageId"), ("InstanceType", "/InstanceType"), ("Status", "/Status"), ("ZoneId", "/ZoneId")];
/// Filters of disks that compare one field.
const DISK_FIELDS: [(&str, &str); 4] =
    [("Category", "/Category"), ("DiskType", "/Type"), ("InstanceId", "/InstanceId"), ("Status", "/Status")];

/// The filters of a list that the fake does not have.
pub fn unknown_filters(action: Action, parameters: &Parameters) -> Vec<String> {
    let (fields, others): (&[(&str, &str)], &[&str]) = match action {
        Action::DescribeInstances => (&INSTANCE_FIELDS, &["DryRun", "InstanceIds", "InstanceName", "RegionId"]),
        Action::DescribeDisks => (&DISK_FIELDS, &["DiskIds", "RegionId"]),
        _ => return Vec::new(),
    };
    let known = |name: &str| {
        let field = fields.iter().any(|(field, _)| *field == name);
        field || others.contains(&name) || PAGES.contains(&name) || name.starts_with("Tag.")
    };
    let unknown = parameters.keys().filter(|name| !known(name));
    unknown.map(|name| format!("the fake has no filter {name}")).collect()
}

/// Whether an instance is selected by the filters of a request.
pub fn selects_instance(parameters: &Parameters, instance: &Value) -> Result<bool, Refusal> {
    let name = instance["InstanceName"].as_str().unwrap_or_default();
    let named = parameters.get("InstanceName").is_none_or(|pattern| matches(pattern, name));
    Ok(named && selects(parameters, &INSTANCE_FIELDS, instance, ("InstanceIds", "InstanceId"))?)
}

/// Whether a disk is selected by the filters of a request.
pub fn selects_disk(parameters: &Parameters, disk: &Value) -> Result<bool, Refusal> {
    selects(parameters, &DISK_FIELDS, disk, ("DiskIds", "DiskId"))
}

fn selects(
    parameters: &Parameters,
    fields: &[(&str, &str)],
    one: &Value,
    (filter, id): (&str, &str),
) -> Result<bool, Refusal> {
    let field = |(name, pointer): &(&str, &str)| {
        let wanted = parameters.get(*name);
        wanted.is_none_or(|wanted| one.pointer(pointer).and_then(Value::as_str) == Some(wanted))
    };
    let ids = ids(parameters, filter)?;
    let listed = ids.is_none_or(|ids| ids.iter().any(|wanted| one[id] == *wanted));
    let in_region = parameters.get("RegionId").is_none_or(|region| one["RegionId"] == *region);
    let own = one["Tags"]["Tag"].as_array().into_iter().flatten();
    let own: Vec<_> = own.map(|tag| (tag["TagKey"].as_str(), tag["TagValue"].as_str())).collect();
    let tags = tags(parameters);
    if tags.len() > MOST_TAGS {
        return Err(Refusal::invalid("InvalidParameter.TagNum", "The number of specified tags exceeds the limit."));
    }
    let tagged = tags.iter().all(|(key, value)| {
        own.iter().any(|(own, of_own)| *own == Some(key) && (value.is_none() || *of_own == value.as_deref()))
    });
    Ok(listed && in_region && tagged && fields.iter().all(field))
}

/// The ids in a filter, a JSON array.
fn ids(parameters: &Parameters, filter: &str) -> Result<Option<Vec<String>>, Refusal> {
    let Some(text) = parameters.get(filter) else { return Ok(None) };
    let ids = serde_json::from_str::<Vec<String>>(text).ok().filter(|ids| ids.len() <= MOST_IDS);
    let wrong = || {
        let message = format!("The specified {filter} is not a JSON array of at most {MOST_IDS} ids.");
        Refusal::invalid(&format!("Invalid{filter}.Malformed"), &message)
    };
    ids.ok_or_else(wrong).map(Some)
}

/// The tags of a request: `Tag.N.Key` and `Tag.N.Value`.
pub fn tags(parameters: &Parameters) -> Vec<(String, Option<String>)> {
    let mut found = BTreeMap::<u32, (String, Option<String>)>::new();
    for (name, value) in parameters {
        let parts: Vec<_> = name.split('.').collect();
        let ["Tag", number, part] = *parts else { continue };
        let tag = found.entry(number.parse().unwrap_or_default()).or_default();
        if part == "Key" {
            tag.0.clone_from(value);
        } else {
            tag.1 = Some(value.clone());
        }
    }
    found.into_values().collect()
}

/// Whether a name fits a pattern with asterisks.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    rest.char_indices().map(|(index, _)| &rest[index..]).chain([""]).any(|rest| matches(after, rest))
}

/// A page of a list.
pub struct Page {
    pub items: Vec<Value>,
    /// The token of the next page. Empty on the last one.
    pub next: String,
    pub number: usize,
    pub size: usize,
    pub total: usize,
}

/// The page that a request asks for. The ids of `all` ascend.
pub fn page(all: Vec<Value>, id: &str, limit: usize, parameters: &Parameters) -> Result<Page, Refusal> {
    let total = all.len();
    let number = |name: &str| parameters.get(name).and_then(|text| text.parse::<usize>().ok());
    if !parameters.contains_key("MaxResults") && !parameters.contains_key("NextToken") {
        let (page, size) = (number("PageNumber").unwrap_or(1), number("PageSize").unwrap_or(SIZE));
        if page == 0 || size == 0 || size > limit {
            return Err(Refusal::invalid("InvalidParameter", "The specified PageNumber or PageSize is not valid."));
        }
        let items = all.into_iter().skip((page - 1) * size).take(size).collect();
        return Ok(Page { items, next: String::new(), number: page, size, total });
    }
    let size = number("MaxResults").unwrap_or(SIZE).clamp(SIZE.min(limit), limit);
    let after = match parameters.get("NextToken").filter(|token| !token.is_empty()) {
        None => String::new(),
        Some(token) => {
            let last = BASE64_STANDARD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            last.ok_or_else(|| Refusal::invalid("InvalidNextToken", "The specified NextToken is not valid."))?
        }
    };
    let text = |one: &Value| one[id].as_str().unwrap_or_default().to_owned();
    let mut rest: Vec<_> = all.into_iter().filter(|one| text(one) > after).collect();
    let more = rest.len() > size;
    rest.truncate(size);
    let next = rest.last().filter(|_| more).map(|last| BASE64_STANDARD.encode(text(last))).unwrap_or_default();
    Ok(Page { items: rest, next, number: 0, size, total })
}
