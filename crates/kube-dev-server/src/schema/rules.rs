//! CEL rules (`x-kubernetes-validations`): compiled with the definition, evaluated at every write.
//!
//! Rules with `oldSelf` are evaluated only for updates, unless they have `optionalOldSelf`; then `oldSelf` is an optional value. The rules of an
//! unchanged node are not evaluated. Strings with a format are strings in CEL, so a rule that needs a time uses `timestamp(self)`. A definition is
//! refused if one of its rules can't be compiled or calls a function that this server does not have.
//! Source: spec/extension-apiserver §6.4.

use std::{collections::HashMap, sync::Arc};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context,
        objects::{Key, OptionalValue, ResolveResult, Value as Cel},
        parser::{Expression, Parser},
    },
};
use serde_json::{Value, json};

use super::{
    Schema, Type, join, optional,
    undefined::{self, OldSelf},
    validate::counterpart,
};
use kube_protocol::status::Cause;

/// The maximum number of rules of a node.
pub(super) const MAX_PER_NODE: usize = 100;
/// The maximum number of bytes of a rule.
const MAX_LENGTH: usize = 5 * 1024;
/// The maximum number of comprehensions of a rule. The costs of nested comprehensions multiply.
const MAX_COMPREHENSIONS: usize = 8;
const COMPREHENSIONS: [&str; 6] = [".all(", ".exists(", ".exists_one(", ".map(", ".filter(", ".transformList("];

/// The known functions. The names have no namespace such as `sets.`.
const FUNCTIONS: &[&str] = &[
    "abs",
    "add",
    "asApproximateFloat",
    "asInteger",
    "bitAnd",
    "bitNot",
    "bitOr",
    "bitShiftLeft",
    "bitShiftRight",
    "bitXor",
    "bytes",
    "ceil",
    "charAt",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "decode",
    "distinct",
    "double",
    "duration",
    "encode",
    "endsWith",
    "equivalent",
    "family",
    "find",
    "findAll",
    "first",
    "flatten",
    "floor",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "greatest",
    "has",
    "hasValue",
    "indexOf",
    "int",
    "intersects",
    "ip",
    "isCIDR",
    "isCanonical",
    "isFinite",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInf",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isNaN",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "last",
    "lastIndexOf",
    "least",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "max",
    "min",
    "minor",
    "none",
    "of",
    "ofNonZeroValue",
    "or",
    "orValue",
    "patch",
    "prefixLength",
    "quantity",
    "quote",
    "range",
    "replace",
    "reverse",
    "round",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "split",
    "sqrt",
    "startsWith",
    "string",
    "sub",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "trunc",
    "type",
    "uint",
    "upperAscii",
    "url",
    "value",
];

/// The use of `oldSelf` in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// The rule does not use `oldSelf`.
    Ignored,
    /// The rule needs `oldSelf` and is evaluated only for updates.
    Needed,
    /// The rule uses `oldSelf` as an optional value.
    Optional,
}

/// A compiled rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    program: Arc<Program>,
    text: String,
    message: Option<String>,
    message_program: Option<Arc<Program>>,
    reason: &'static str,
    field_path: Option<String>,
    old: Old,
}

impl Rule {
    /// Compiles a rule of a node.
    pub(super) fn compile(rule: &Value, node: &Schema) -> Result<Self, String> {
        let text = rule["rule"].as_str().ok_or("the rule is missing")?.to_owned();
        let program = program(&text)?;
        let old = if rule["optionalOldSelf"] == json!(true) { OldSelf::Optional } else { OldSelf::Plain };
        if let Some(field) = undefined::field(&program.0, node, old) {
            return Err(format!("undefined field '{field}'"));
        }
        let mentions_old = program.0.references().has_variable("oldSelf");
        let message_program = rule["messageExpression"].as_str().map(self::program).transpose()?;
        Ok(Self {
            old: match (mentions_old, rule["optionalOldSelf"] == json!(true)) {
                (false, _) => Old::Ignored,
                (true, false) => Old::Needed,
                (true, true) => Old::Optional,
            },
            program,
            message: rule["message"].as_str().map(str::to_owned),
            message_program,
            reason: match rule["reason"].as_str() {
                Some("FieldValueRequired") => "FieldValueRequired",
                Some("FieldValueForbidden") => "FieldValueForbidden",
                Some("FieldValueDuplicate") => "FieldValueDuplicate",
                Some("FieldValueInvalid") | None => "FieldValueInvalid",
                Some(other) => return Err(format!("unknown reason {other:?}")),
            },
            field_path: rule["fieldPath"].as_str().map(shown_path),
            text,
        })
    }
}

/// A field path in the format of errors: `.a['b']` becomes `.a[b]`.
fn shown_path(path: &str) -> String {
    path.replace("['", "[").replace("']", "]")
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Program(Expression);

impl Program {
    pub(crate) fn execute(&self, context: &Context<'_>) -> ResolveResult {
        Cel::resolve(&self.0, context)
    }
}

/// Compiles an expression and checks that all its functions are known. Optional fields (`a.?b`, `a[?b]`) are supported.
pub(crate) fn program(text: &str) -> Result<Arc<Program>, String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("it is longer than {MAX_LENGTH} bytes"));
    }
    if COMPREHENSIONS.iter().map(|call| text.matches(call).count()).sum::<usize>() > MAX_COMPREHENSIONS {
        return Err("it has too many comprehensions: its cost has no bound".to_owned());
    }
    let parsed = Parser::default().enable_optional_syntax(true).parse(text);
    let mut expression = parsed.map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
    for function in expression.references().functions() {
        let operator = !function.starts_with(|c: char| c.is_ascii_alphabetic());
        if !operator && !FUNCTIONS.contains(&function) {
            return Err(format!("undeclared reference to '{function}'"));
        }
    }
    optional::rewrite(&mut expression);
    Ok(Arc::new(Program(expression)))
}

/// The functions and variables of every expression.
pub(crate) fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("type", |value: Cel| type_name(&value));
    optional::add_to(&mut context);
    for name in ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type"] {
        context.add_variable_from_value(name, type_text(name));
    }
    context
}

/// The representation of a type in `type(…)` and in the type variables: a text that no value can be equal to.
fn type_text(name: &str) -> String {
    format!("\u{1}type:{name}")
}

fn type_name(value: &Cel) -> String {
    type_text(match value {
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::Bool(_) => "bool",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Null => "null_type",
        _ => "unknown",
    })
}

/// Evaluates the rules of a schema.
pub(crate) fn check(value: &Value, old: Option<&Value>, schema: &Schema) -> Vec<Cause> {
    let mut found = Vec::new();
    let mut shared = None;
    walk(value, old, schema, "", &mut shared, &mut found);
    found
}

fn walk(
    value: &Value,
    old: Option<&Value>,
    schema: &Schema,
    path: &str,
    shared: &mut Option<Context<'static>>,
    found: &mut Vec<Cause>,
) {
    if old == Some(value) || value.is_null() {
        return;
    }
    if !schema.rules.is_empty() {
        let parent = shared.get_or_insert_with(context);
        for rule in &schema.rules {
            evaluate(rule, value, old, schema, path, parent, found);
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    walk(value, old.and_then(|old| old.get(name)), schema, &join(path, name), shared, found);
                }
            }
        }
        Value::Array(items) => {
            if let Some(items_schema) = &schema.items {
                for (at, item) in items.iter().enumerate() {
                    let old = counterpart(old, item, at, &schema.list_type);
                    walk(item, old, items_schema, &format!("{path}[{at}]"), shared, found);
                }
            }
        }
        _ => {}
    }
}

fn evaluate(
    rule: &Rule,
    value: &Value,
    old: Option<&Value>,
    schema: &Schema,
    path: &str,
    parent: &Context<'static>,
    found: &mut Vec<Cause>,
) {
    let mut scope = parent.new_inner_scope();
    scope.add_variable_from_value("self", to_cel(value, schema));
    match (rule.old, old) {
        (Old::Ignored, _) => {}
        (Old::Needed, None) => return,
        (Old::Needed, Some(old)) => scope.add_variable_from_value("oldSelf", to_cel(old, schema)),
        (Old::Optional, old) => {
            let optional = old.map_or_else(OptionalValue::none, |old| OptionalValue::of(to_cel(old, schema)));
            scope.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
        }
    }
    let field = rule.field_path.as_ref().map_or_else(|| path.to_owned(), |below| format!("{path}{below}"));
    let field = field.trim_start_matches('.').to_owned();
    let shown = match value {
        Value::Object(_) => json!("object"),
        other => other.clone(),
    };
    match rule.program.execute(&scope) {
        Ok(Cel::Bool(true)) => {}
        Ok(Cel::Bool(false)) => {
            let computed = rule.message_program.as_ref().and_then(|program| match program.execute(&scope) {
                Ok(Cel::String(text)) if !text.trim().is_empty() => Some(text.to_string()),
                _ => None,
            });
            let message =
                computed.or_else(|| rule.message.clone()).unwrap_or_else(|| format!("failed rule: {}", rule.text));
            found.push(match rule.reason {
                "FieldValueRequired" => Cause::required(field, &message),
                "FieldValueForbidden" => Cause::forbidden(field, &message),
                "FieldValueDuplicate" => Cause::duplicate(field, &shown),
                _ => Cause::invalid(field, &shown, &message),
            });
        }
        Ok(other) => {
            let why = format!("rule evaluation error: {} answers {}, not a bool", rule.text, other.type_of());
            found.push(Cause::invalid(field, &shown, &why));
        }
        Err(error) => {
            found.push(Cause::invalid(field, &shown, &format!("rule evaluation error: {error}: {}", rule.text)));
        }
    }
}

/// Converts a JSON value to CEL by its schema, without nulls and with escaped field names.
pub(crate) fn to_cel(value: &Value, schema: &Schema) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => match (schema.value_type, number.as_i64()) {
            (Some(Type::Number), _) | (_, None) => Cel::Float(number.as_f64().unwrap_or_default()),
            (_, Some(number)) => Cel::Int(number),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => {
            let anything = Schema::default();
            let schema = schema.items.as_deref().unwrap_or(&anything);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item, schema)).collect()))
        }
        Value::Object(fields) => {
            let anything = Schema::default();
            let is_map = schema.properties.is_empty();
            let mut map = HashMap::<Key, Cel>::new();
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let schema = schema.field(name).unwrap_or(&anything);
                let name = if is_map { name.clone() } else { escaped(name) };
                map.insert(Key::from(name), to_cel(value, schema));
            }
            Cel::from(map)
        }
    }
}

/// The escaped name of a field in expressions.
fn escaped(name: &str) -> String {
    const RESERVED: [&str; 20] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
    ];
    if RESERVED.contains(&name) || name == "while" {
        return format!("__{name}__");
    }
    let name = name.replace("__", "__underscores__");
    name.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::schema::compile::structural;

    fn found(rule: &Value, value: &Value, old: Option<&Value>) -> Vec<Cause> {
        let mut schema = json!({"type": "object", "properties": {
            "n": {"x-kubernetes-int-or-string": true}, "a": {"type": "string"}, "default-x": {"type": "string"},
        }});
        schema["x-kubernetes-validations"] = json!([rule]);
        check(value, old, &structural(&schema, "").unwrap())
    }

    #[rstest]
    #[case::holds(json!({"rule": "self.a == 'x'"}), json!({"a": "x"}), None, 0)]
    #[case::fails(json!({"rule": "self.a == 'x'"}), json!({"a": "y"}), None, 1)]
    #[case::absent(json!({"rule": "!has(self.a)"}), json!({}), None, 0)]
    #[case::types(json!({"rule": "type(self.n) == int || self.n.matches('^[0-9]+%$')"}), json!({"n": "5%"}), None, 0)]
    #[case::wrong_type(json!({"rule": "type(self.n) == int"}), json!({"n": "5%"}), None, 1)]
    #[case::transition_on_create(json!({"rule": "self.a == oldSelf.a"}), json!({"a": "x"}), None, 0)]
    #[case::transition_on_update(json!({"rule": "self.a == oldSelf.a"}), json!({"a": "x"}), Some(json!({"a": "y"})), 1)]
    #[case::optional_on_create(json!({"rule": "oldSelf.hasValue() || has(self.a)", "optionalOldSelf": true}), json!({}), None, 1)]
    #[case::optional_on_update(json!({"rule": "has(self.a) || (oldSelf.hasValue() && !has(oldSelf.value().a))", "optionalOldSelf": true}), json!({"n": 1}), Some(json!({})), 0)]
    #[case::unchanged_values_are_not_checked(json!({"rule": "has(self.a)"}), json!({"n": 1}), Some(json!({"n": 1})), 0)]
    #[case::escaped_names(json!({"rule": "self.default__dash__x == 'y'"}), json!({"default-x": "y"}), None, 0)]
    #[case::an_evaluation_error_fails(json!({"rule": "self.a == 'x'"}), json!({}), None, 1)]
    fn rules(#[case] rule: Value, #[case] value: Value, #[case] old: Option<Value>, #[case] wrong: usize) {
        let found = found(&rule, &value, old.as_ref());
        assert_eq!(found.len(), wrong, "{found:?}");
    }

    #[rstest]
    #[case::no_expression("self.a ==")]
    #[case::unknown_function("self.a.frobnicate()")]
    #[case::th_39_cost(
        "self.l.all(a, self.l.all(b, self.l.all(c, self.l.all(d, self.l.all(e, self.l.all(f, self.l.all(g, self.l.all(h, self.l.all(i, true)))))))))"
    )]
    fn rules_that_can_not_be_compiled(#[case] rule: &str) {
        assert!(Rule::compile(&json!({"rule": rule}), &Schema::anything()).is_err());
    }

    #[test]
    fn the_field_path_shows_keys_of_maps_without_quotes() {
        let rule = json!({"rule": "false", "reason": "FieldValueRequired", "fieldPath": ".a['b']", "message": "no"});
        assert_eq!(found(&rule, &json!({"a": "x"}), None)[0].field, "a[b]");
    }

    #[test]
    fn the_cause_has_reason_and_field_path_of_the_rule() {
        let rule = json!({"rule": "false", "reason": "FieldValueForbidden", "fieldPath": ".a", "message": "no"});
        let found = found(&rule, &json!({"a": "x"}), None);
        assert_eq!((found[0].reason, found[0].field.as_str()), ("FieldValueForbidden", "a"));
    }
}
