//! Measures the webhooks. This is a program, not a test: it prints figures, and no figure is a failure.
//!
//! Without arguments (`cargo bench --bench webhooks`) it measures the rules and the conversion in one thread, without network. With
//! `limits` it measures objects at the limits. With `load …` it calls a running server like an API server, over TLS and HTTP/1.1 with
//! keep-alive; `scripts/bench-webhook` starts the server and gives each of them a core.

mod limits;
mod load;
mod pure;
#[path = "../../tests/support/trusting.rs"]
mod trusting;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("load") => match load::Options::parse(arguments) {
            Ok(options) => load::run(&options),
            Err(why) => {
                eprintln!("webhooks load: {why}");
                std::process::exit(2);
            }
        },
        Some("limits") => limits::run(),
        // cargo passes --bench.
        _ => pure::run(),
    }
}
