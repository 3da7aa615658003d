//! Finds fields that a CEL rule reads and its schema does not declare.
//!
//! A kube-apiserver checks the types of the whole rule. This server only checks chains of fields that begin with `self` or `oldSelf`, as far as the
//! schema declares all fields. So it finds the most frequent error of a definition: a misspelt field.
//! Source: spec/extension-apiserver §6.4.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};

use super::{Additional, Nature, Schema};

/// The type of `oldSelf` in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldSelf {
    Plain,
    /// An optional value. It has methods instead of the fields of the schema.
    Optional,
}

/// The first field that an expression reads and the node does not declare.
pub(super) fn field<'a>(expression: &'a IdedExpr, node: &Schema, old: OldSelf) -> Option<&'a str> {
    let mut found = None;
    walk(expression, node, old, &mut found);
    found
}

/// Checks an expression. Returns the schema of its value, if it is known.
fn walk<'a, 's>(
    expression: &'a IdedExpr,
    node: &'s Schema,
    old: OldSelf,
    found: &mut Option<&'a str>,
) -> Option<&'s Schema> {
    match &expression.expr {
        Expr::Ident(name) => match name.as_str() {
            "self" => Some(node),
            "oldSelf" if old == OldSelf::Plain => Some(node),
            _ => None,
        },
        Expr::Select(select) => {
            let operand = walk(&select.operand, node, old, found)?;
            let below = operand.field(&select.field);
            if below.is_none() && declares_all(operand) && !is_escaped(&select.field) {
                found.get_or_insert(&select.field);
            }
            below
        }
        other => {
            children(other, &mut |child| {
                walk(child, node, old, found);
            });
            None
        }
    }
}

/// Whether a node has only the fields that it declares. Embedded objects have more.
fn declares_all(node: &Schema) -> bool {
    !node.properties.is_empty()
        && !node.preserves_unknown
        && node.nature == Nature::Plain
        && matches!(node.additional, Additional::None)
}

/// Whether a name is escaped because it is no identifier of CEL (`__dash__`, `__namespace__`), or is a field that every object has.
fn is_escaped(name: &str) -> bool {
    name.contains("__") || matches!(name, "apiVersion" | "kind" | "metadata")
}

fn children<'a>(expression: &'a Expr, visit: &mut dyn FnMut(&'a IdedExpr)) {
    match expression {
        Expr::Call(call) => {
            call.target.iter().for_each(|target| visit(target));
            call.args.iter().for_each(visit);
        }
        Expr::Comprehension(parts) => {
            for part in [&parts.iter_range, &parts.accu_init, &parts.loop_cond, &parts.loop_step, &parts.result] {
                visit(part);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(visit),
        Expr::Map(map) => map.entries.iter().for_each(|entry| entry_children(&entry.expr, visit)),
        Expr::Struct(whole) => whole.entries.iter().for_each(|entry| entry_children(&entry.expr, visit)),
        Expr::Select(select) => visit(&select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn entry_children<'a>(entry: &'a EntryExpr, visit: &mut dyn FnMut(&'a IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => visit(&field.value),
        EntryExpr::MapEntry(entry) => {
            visit(&entry.key);
            visit(&entry.value);
        }
    }
}
