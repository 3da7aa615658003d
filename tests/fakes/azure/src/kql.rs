//! The part of Kusto's query language that drivers need for Resource Graph. What it does not understand is refused.
//!
//! `Resources | where … | extend … | project … | order by … | limit …`

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

/// A query that has been read.
pub struct Query(Vec<Step>);

enum Step {
    Where(Expression),
    Extend(Vec<(String, Expression)>),
    Project(Vec<(String, Expression)>),
    Order(Vec<(Expression, bool)>),
    Limit(usize),
}

enum Expression {
    Literal(Value),
    Column(String),
    Member(Box<Self>, String),
    Call(String, Vec<Self>),
    Compare(Box<Self>, Operator, Box<Self>),
    OneOf(Box<Self>, Operator, Vec<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Not(Box<Self>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    EqualAnyCase,
    Has,
    Contains,
    StartsWith,
    EndsWith,
}

/// The functions, with the number of their arguments.
const FUNCTIONS: [(&str, usize); 11] = [
    ("bag_keys", 1),
    ("tolower", 1),
    ("tostring", 1),
    ("isnull", 1),
    ("isnotnull", 1),
    ("isempty", 1),
    ("isnotempty", 1),
    ("not", 1),
    ("set_has_element", 2),
    ("bag_has_key", 2),
    ("array_index_of", 2),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
}

/// Signs, longer ones first.
const SIGNS: [&str; 12] = ["==", "=~", "!=", "!~", "=", "|", "(", ")", "[", "]", ",", "."];

impl Query {
    /// Reads a query.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { tokens: tokens(text)?, at: 0 };
        let table = reader.word()?;
        if !table.eq_ignore_ascii_case("resources") {
            return Err(format!("there is no table {table}"));
        }
        let mut steps = Vec::new();
        while reader.at < reader.tokens.len() {
            reader.sign("|")?;
            steps.push(reader.step()?);
        }
        Ok(Self(steps))
    }

    /// The rows that it finds.
    pub fn run(&self, rows: Vec<Value>) -> Vec<Value> {
        let mut rows = rows;
        for step in &self.0 {
            match step {
                Step::Where(condition) => rows.retain(|row| condition.of(row) == true),
                Step::Extend(columns) => {
                    for row in &mut rows {
                        for (name, expression) in columns {
                            row[name] = expression.of(row);
                        }
                    }
                }
                Step::Project(columns) => {
                    let kept = |row: &Value| {
                        columns.iter().map(|(name, one)| (name.clone(), one.of(row))).collect::<Map<_, _>>()
                    };
                    rows = rows.iter().map(|row| Value::Object(kept(row))).collect();
                }
                Step::Order(keys) => rows.sort_by(|one, other| {
                    let compared = keys.iter().map(|(key, ascends)| {
                        let order = plain(&key.of(one)).cmp(&plain(&key.of(other)));
                        if *ascends { order } else { order.reverse() }
                    });
                    compared.fold(Ordering::Equal, Ordering::then)
                }),
                Step::Limit(count) => rows.truncate(*count),
            }
        }
        rows
    }

    /// Whether its result can have pages: the column `id` is in it, and it has no limit of its own.
    pub fn has_pages(&self) -> bool {
        self.0.iter().all(|step| match step {
            Step::Project(columns) => columns.iter().any(|(name, _)| name == "id"),
            Step::Limit(_) => false,
            _ => true,
        })
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            found.push(Token::Sign(sign));
            sign.len()
        } else if first == '\'' || first == '"' {
            let (value, length) = quoted(rest, first)?;
            found.push(Token::Text(value));
            length
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            found.push(Token::Number(rest[..end].parse().map_err(|_| format!("{} is too large", &rest[..end]))?));
            end
        } else {
            // An exclamation mark begins an operator such as `!in`, a tilde ends one.
            let inner = |c: char| c.is_alphanumeric() || c == '_' || c == '~' || c == '-';
            let begin = usize::from(first == '!');
            let end = rest[begin..].find(|c| !inner(c)).map_or(rest.len(), |end| end + begin);
            if end == begin {
                return Err(format!("'{first}' is not understood"));
            }
            found.push(Token::Word(rest[..end].to_owned()));
            end
        };
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

/// A string with backslash escapes, and the number of its bytes with quotes.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some((_, escaped @ ('\\' | '\'' | '"'))) => value.push(escaped),
                Some((_, 'n')) => value.push('\n'),
                Some((_, 't')) => value.push('\t'),
                other => return Err(format!("the escape {other:?} is not understood")),
            },
            '\n' => break,
            _ if letter == quote => return Ok((value, at + 1)),
            _ => value.push(letter),
        }
    }
    Err("a string has no end".to_owned())
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: &str) -> Result<(), String> {
        if self.take_sign(sign) { Ok(()) } else { Err(format!("'{sign}' is missing before {:?}", self.peek())) }
    }

    fn word(&mut self) -> Result<String, String> {
        let Some(Token::Word(word)) = self.peek().cloned() else {
            return Err(format!("a name is missing before {:?}", self.peek()));
        };
        self.at += 1;
        Ok(word)
    }

    /// Takes this word, if it comes next.
    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.at += usize::from(found);
        found
    }

    fn number(&mut self) -> Result<i64, String> {
        let Some(Token::Number(number)) = self.peek().cloned() else {
            return Err(format!("a number is missing before {:?}", self.peek()));
        };
        self.at += 1;
        Ok(number)
    }

    fn step(&mut self) -> Result<Step, String> {
        let name = self.word()?;
        match name.as_str() {
            "where" => Ok(Step::Where(self.or()?)),
            "extend" => Ok(Step::Extend(self.columns()?)),
            "project" => Ok(Step::Project(self.columns()?)),
            "order" | "sort" => {
                if !self.take_word("by") {
                    return Err(format!("'by' is missing after {name}"));
                }
                let mut keys = Vec::new();
                loop {
                    let key = self.or()?;
                    // Kusto sorts in descending order unless it is told otherwise.
                    let ascends = self.take_word("asc");
                    let _descends = !ascends && self.take_word("desc");
                    keys.push((key, ascends));
                    if !self.take_sign(",") {
                        return Ok(Step::Order(keys));
                    }
                }
            }
            "limit" | "take" => Ok(Step::Limit(usize::try_from(self.number()?).map_err(|error| error.to_string())?)),
            _ => Err(format!("the operator {name} is not understood")),
        }
    }

    fn columns(&mut self) -> Result<Vec<(String, Expression)>, String> {
        let mut columns = Vec::new();
        loop {
            let name = self.word()?;
            let expression =
                if self.take_sign("=") { self.or()? } else { self.members(Expression::Column(name.clone()))? };
            columns.push((name, expression));
            if !self.take_sign(",") {
                return Ok(columns);
            }
        }
    }

    fn or(&mut self) -> Result<Expression, String> {
        let mut left = self.and()?;
        while self.take_word("or") {
            left = Expression::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression, String> {
        let mut left = self.comparison()?;
        while self.take_word("and") {
            left = Expression::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Expression, String> {
        let left = Box::new(self.primary()?);
        let Some(next) = self.peek().cloned() else { return Ok(*left) };
        let (name, negated) = match &next {
            Token::Sign(sign @ ("==" | "=~")) => (*sign, false),
            Token::Sign("!=") => ("==", true),
            Token::Sign("!~") => ("=~", true),
            Token::Word(word) if word != "and" && word != "or" && word != "asc" && word != "desc" => {
                word.strip_prefix('!').map_or((word.as_str(), false), |name| (name, true))
            }
            _ => return Ok(*left),
        };
        let (operator, several) = match name {
            "==" => (Operator::Equal, false),
            "=~" => (Operator::EqualAnyCase, false),
            "has" => (Operator::Has, false),
            "contains" => (Operator::Contains, false),
            "startswith" => (Operator::StartsWith, false),
            "endswith" => (Operator::EndsWith, false),
            "in" => (Operator::Equal, true),
            "in~" => (Operator::EqualAnyCase, true),
            "has_any" => (Operator::Has, true),
            _ => return Err(format!("the operator {name} is not understood")),
        };
        self.at += 1;
        let found = if several {
            self.sign("(")?;
            Expression::OneOf(left, operator, self.list(")")?)
        } else {
            Expression::Compare(left, operator, Box::new(self.primary()?))
        };
        Ok(if negated { Expression::Not(Box::new(found)) } else { found })
    }

    /// Expressions up to a sign, separated by commas.
    fn list(&mut self, end: &str) -> Result<Vec<Expression>, String> {
        let mut found = Vec::new();
        while !self.take_sign(end) {
            found.push(self.or()?);
            if !self.take_sign(",") && !self.is_sign(end) {
                return Err(format!("'{end}' is missing before {:?}", self.peek()));
            }
        }
        Ok(found)
    }

    fn primary(&mut self) -> Result<Expression, String> {
        let next = self.peek().cloned().ok_or("the query ends too early")?;
        self.at += 1;
        match next {
            Token::Text(text) => Ok(Expression::Literal(json!(text))),
            Token::Number(number) => Ok(Expression::Literal(json!(number))),
            Token::Sign("(") => {
                let inner = self.or()?;
                self.sign(")")?;
                Ok(inner)
            }
            Token::Sign(sign) => Err(format!("'{sign}' is not understood here")),
            Token::Word(word) if self.take_sign("(") => {
                let arguments = self.list(")")?;
                if FUNCTIONS.contains(&(word.as_str(), arguments.len())) {
                    self.members(Expression::Call(word, arguments))
                } else {
                    Err(format!("the function {word} with {} arguments is not understood", arguments.len()))
                }
            }
            Token::Word(word) => match word.as_str() {
                "true" | "false" => Ok(Expression::Literal(json!(word == "true"))),
                _ => self.members(Expression::Column(word)),
            },
        }
    }

    fn members(&mut self, of: Expression) -> Result<Expression, String> {
        let mut found = of;
        loop {
            if self.take_sign(".") {
                found = Expression::Member(Box::new(found), self.word()?);
            } else if self.take_sign("[") {
                let Some(Token::Text(name)) = self.peek().cloned() else {
                    return Err("the name of a member is a string".to_owned());
                };
                self.at += 1;
                self.sign("]")?;
                found = Expression::Member(Box::new(found), name);
            } else {
                return Ok(found);
            }
        }
    }
}

impl Expression {
    fn of(&self, row: &Value) -> Value {
        match self {
            Self::Literal(value) => value.clone(),
            Self::Column(name) => row[name].clone(),
            Self::Member(of, name) => of.of(row)[name].clone(),
            Self::Call(name, arguments) => {
                let values: Vec<_> = arguments.iter().map(|argument| argument.of(row)).collect();
                call(name, &values)
            }
            Self::Compare(left, operator, right) => json!(operator.holds(&left.of(row), &right.of(row))),
            Self::OneOf(left, operator, values) => {
                let left = left.of(row);
                json!(values.iter().any(|value| operator.holds(&left, &value.of(row))))
            }
            Self::And(left, right) => json!(left.of(row) == true && right.of(row) == true),
            Self::Or(left, right) => json!(left.of(row) == true || right.of(row) == true),
            Self::Not(inner) => json!(inner.of(row) != true),
        }
    }
}

fn call(name: &str, values: &[Value]) -> Value {
    let first = &values[0];
    match name {
        "bag_keys" => first.as_object().map_or(Value::Null, |bag| bag.keys().cloned().collect::<Vec<_>>().into()),
        "tolower" => json!(plain(first).to_lowercase()),
        "tostring" => json!(plain(first)),
        "isnull" => json!(first.is_null()),
        "isnotnull" => json!(!first.is_null()),
        "isempty" => json!(plain(first).is_empty()),
        "isnotempty" => json!(!plain(first).is_empty()),
        "not" => json!(*first != true),
        "set_has_element" => json!(first.as_array().is_some_and(|set| set.contains(&values[1]))),
        "bag_has_key" => json!(first.get(plain(&values[1])).is_some()),
        _ => json!(
            first
                .as_array()
                .and_then(|set| set.iter().position(|one| *one == values[1]))
                .map_or(-1, |at| at.try_into().unwrap_or(-1_i64))
        ),
    }
}

/// A value as text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let (one, other) = (plain(left), plain(right));
        let (low, wanted) = (one.to_lowercase(), other.to_lowercase());
        match self {
            Self::Equal => !left.is_null() && one == other,
            Self::EqualAnyCase => !left.is_null() && low == wanted,
            Self::Contains => low.contains(&wanted),
            Self::StartsWith => low.starts_with(&wanted),
            Self::EndsWith => low.ends_with(&wanted),
            // A term ends where a letter or digit is followed by something else.
            Self::Has => low.match_indices(&wanted).any(|(at, found)| {
                let joined = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
                !joined(low[..at].chars().next_back()) && !joined(low[at + found.len()..].chars().next())
            }),
        }
    }
}
