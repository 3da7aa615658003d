//! Resource Graph: queries over the resources, with pages. It lags behind reality, as far as a test says.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::{errors::Refusal, kql::Query};

/// The rows of a page, unless a query asks for fewer.
const PAGE: usize = 100;
/// The most rows of a page.
const LARGEST_PAGE: usize = 1000;

#[derive(Default)]
pub struct Graph {
    /// How many queries ago the shown state was real.
    pub lag: usize,
    /// The resources at the earlier queries, the latest one at the end.
    earlier: VecDeque<Vec<Value>>,
    /// The rest of results whose first pages have been shown, by their tokens.
    rest: BTreeMap<String, Rest>,
    tokens: usize,
}

struct Rest {
    query: String,
    rows: Vec<Value>,
    total: usize,
}

impl Graph {
    /// Answers a request. `reality` is what is there now.
    pub fn answer(&mut self, body: &Value, reality: Vec<Value>) -> Result<Value, Refusal> {
        let text = body["query"].as_str().unwrap_or_default();
        let options = &body["options"];
        let top = options["$top"].as_u64().map_or(PAGE, |top| usize::try_from(top).unwrap_or(usize::MAX));
        if !(1..=LARGEST_PAGE).contains(&top) {
            return Err(Refusal::invalid_query("$top is from 1 to 1000"));
        }
        if options["resultFormat"].as_str().is_some_and(|format| format != "objectArray") {
            return Err(Refusal::invalid_query("the fake answers objectArray only"));
        }
        let query = Query::parse(text).map_err(|words| Refusal::invalid_query(&words))?;
        let (mut rows, total) = if let Some(token) = options["$skipToken"].as_str() {
            let known = self.rest.get(token).filter(|rest| rest.query == text);
            let rest = known.ok_or_else(|| Refusal::invalid_query("the skip token is not a token of this query"))?;
            (rest.rows.clone(), rest.total)
        } else {
            let subscribed = body["subscriptions"].as_array();
            let seen = self.seen(reality);
            let own = subscribed.is_none_or(|all| all.iter().any(|one| one == crate::SUBSCRIPTION));
            let rows = if own { query.run(seen) } else { Vec::new() };
            let total = rows.len();
            (rows, total)
        };
        let later = if rows.len() > top { rows.split_off(top) } else { Vec::new() };
        let mut answer = json!({
            "totalRecords": total, "count": rows.len(), "resultTruncated": if later.is_empty() { "false" } else { "true" }, "data": rows, "facets": [],
        });
        // Microsoft: "the query must project the id field in order for pagination to work".
        if !later.is_empty() && query.has_pages() {
            self.tokens += 1;
            let token = format!("ew0KICAi{:04}", self.tokens);
            answer["$skipToken"] = json!(token);
            self.rest.insert(token, Rest { query: text.to_owned(), rows: later, total });
        }
        Ok(answer)
    }

    /// The resources as they were a number of queries ago. Before the first query there was nothing.
    fn seen(&mut self, reality: Vec<Value>) -> Vec<Value> {
        self.earlier.push_back(reality);
        while self.earlier.len() > self.lag + 1 {
            self.earlier.pop_front();
        }
        if self.earlier.len() <= self.lag { Vec::new() } else { self.earlier.front().cloned().unwrap_or_default() }
    }
}
