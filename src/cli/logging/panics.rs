//! Panics as log lines. Without this, a panic would write its text as it is, in no format, and the text could contain a secret
//! (spec/packaging PK-102).

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::PanicHookInfo,
};

use controller_runtime::panics::text_of;

/// Logs panics from now on. What follows from a panic is the matter of whoever catches it.
pub(super) fn log_panics() {
    std::panic::set_hook(Box::new(log));
}

fn log(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    let mut error = text_of(panic.payload()).to_owned();
    // `RUST_BACKTRACE=1` asks for it. It has names of functions, and no values.
    if backtrace.status() == BacktraceStatus::Captured {
        error = format!("{error}\n{backtrace}");
    }
    tracing::error!(path = place, error, "a part of the program panicked; this is a defect, please report it");
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pk_102_a_panic_is_a_line_without_values() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let usual = std::panic::take_hook();
        let seen = lines.clone();
        // Other tests may panic meanwhile, on other threads.
        let here = std::thread::current().id();
        std::panic::set_hook(Box::new(
            move |panic| {
                if std::thread::current().id() == here { log(panic) } else { usual(panic) }
            },
        ));
        let canary = String::from("canary-panic");
        let caught = tracing::subscriber::with_default(subscriber, || {
            std::panic::catch_unwind(|| panic!("can't read {canary}"))
        });
        let _ = std::panic::take_hook();
        assert!(caught.is_err());
        let text = String::from_utf8(seen.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("panics.rs:") && text.contains("left out") && !text.contains("canary"), "{text}");
    }
}
