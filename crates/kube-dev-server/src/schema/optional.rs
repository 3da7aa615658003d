//! Optional fields of CEL: `a.?b` and `a[?b]`.
//!
//! The CEL interpreter parses optional fields, but it fails on a missing field and can't compare optional values. So this file replaces them with
//! calls of a function that returns a list with at most one element. Such lists compare like optional values. Other functions of optional values
//! (`orValue`, `hasValue`) result in an error for these fields.

use std::sync::Arc;

use kube_cel::cel::{
    Context,
    common::ast::{EntryExpr, Expr, IdedExpr, operators},
    objects::{Key, ResolveResult, Value as Cel},
};

/// The name of the function. An expression can't use this name itself.
const FIELD: &str = "@optional";

/// Replaces optional fields with calls.
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

/// Adds the function to a context.
pub(super) fn add_to(context: &mut Context<'_>) {
    context.add_function(FIELD, |operand: Cel, field: Cel| -> ResolveResult {
        Ok(Cel::List(Arc::new(field_of(&operand, &field))))
    });
}

/// The value of a field as a list. The operand may be an optional value, too.
fn field_of(operand: &Cel, field: &Cel) -> Vec<Cel> {
    match (operand, field) {
        (Cel::Map(map), Cel::String(name)) => {
            map.map.get(&Key::String(Arc::clone(name))).cloned().into_iter().collect()
        }
        (Cel::List(found), _) => found.iter().flat_map(|below| field_of(below, field)).collect(),
        _ => Vec::new(),
    }
}
