//! Optional fields of CEL: `a.?b` and `a[?b]`.
//!
//! The interpreter parses them, but fails on a field that is missing and can't compare what it finds. So they become calls
//! of functions of our own, whose answer is a list of at most one: such lists compare as optional values do. What else CEL
//! offers on optional values (`orValue`, `hasValue`) is told as an error when it is used on one of these.

use std::sync::Arc;

use kube_cel::cel::{
    Context,
    common::ast::{EntryExpr, Expr, IdedExpr, operators},
    objects::{Key, ResolveResult, Value as Cel},
};

/// No name that an expression could use.
const FIELD: &str = "@optional";

/// Turns optional fields into calls, in place.
pub(super) fn rewrite(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => {
            if matches!(call.func_name.as_str(), operators::OPT_SELECT | operators::OPT_INDEX) {
                FIELD.clone_into(&mut call.func_name);
            }
            call.target.iter_mut().for_each(|target| rewrite(target));
            call.args.iter_mut().for_each(rewrite);
        }
        Expr::Comprehension(parts) => {
            let parts = &mut **parts;
            for part in [
                &mut parts.iter_range,
                &mut parts.accu_init,
                &mut parts.loop_cond,
                &mut parts.loop_step,
                &mut parts.result,
            ] {
                rewrite(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(rewrite),
        Expr::Select(select) => rewrite(&mut select.operand),
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| rewrite_entry(&mut entry.expr)),
        Expr::Struct(whole) => whole.entries.iter_mut().for_each(|entry| rewrite_entry(&mut entry.expr)),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn rewrite_entry(entry: &mut EntryExpr) {
    match entry {
        EntryExpr::StructField(field) => rewrite(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            rewrite(&mut entry.key);
            rewrite(&mut entry.value);
        }
    }
}

/// Makes the calls known.
pub(super) fn add_to(context: &mut Context<'_>) {
    context.add_function(FIELD, |operand: Cel, field: Cel| -> ResolveResult {
        Ok(Cel::List(Arc::new(field_of(&operand, &field))))
    });
}

/// The value of a field, in a list; of a field of an optional value too.
fn field_of(operand: &Cel, field: &Cel) -> Vec<Cel> {
    match (operand, field) {
        (Cel::Map(map), Cel::String(name)) => {
            map.map.get(&Key::String(Arc::clone(name))).cloned().into_iter().collect()
        }
        (Cel::List(found), _) => found.iter().flat_map(|below| field_of(below, field)).collect(),
        _ => Vec::new(),
    }
}
