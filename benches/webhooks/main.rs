//! Figures of the webhooks. A scenario program, not a test: it prints, nothing passes or fails by time.
//!
//! Without arguments (`cargo bench --bench webhooks`): the pure rules and the conversion, in one thread, without a
//! network. With `limits`: the same of objects at the limits, each once. With `load …`: calls a running server as an API server does, over TLS and HTTP/1.1 with keep-alive;
//! `scripts/bench-webhook` gives it a server and a core of its own.

mod limits;
mod load;
mod pure;
#[path = "../../tests/support/trusting.rs"]
mod trusting;

/// As in the program itself.
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
