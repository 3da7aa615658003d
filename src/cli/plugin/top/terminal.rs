//! The terminal of the live view: how it is taken, given back, and read.
//!
//! However the view ends, by a key, an error, a signal or a panic, the terminal is as before: [`View`] gives it back when it is dropped, and
//! a panic gives it back before its message is printed.

use std::{
    io::{self, IsTerminal, Stdout, stdout},
    panic,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ratatui::{
    Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::screen::Key;

/// How long the thread with the keys waits before it looks whether the view has ended.
const LOOK: Duration = Duration::from_millis(250);

/// Whether a view has the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// The hook of panics is set once.
static HOOK: Once = Once::new();

/// Whether there is a terminal to show something, with keys.
pub fn is_there() -> bool {
    let is_simple = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
    stdout().is_terminal() && io::stdin().is_terminal() && !is_simple
}

/// What comes from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A key.
    Key(Key),
    /// The terminal has another size.
    Resized,
}

/// A terminal that a view has taken.
pub struct View {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Whether the thread with the keys goes on.
    is_read: Arc<AtomicBool>,
}

impl View {
    /// Takes the terminal: another screen, no cursor, no echo.
    ///
    /// # Errors
    /// When the terminal can't be used so.
    pub fn take() -> io::Result<Self> {
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                usual(panic);
            }));
        });
        IS_TAKEN.store(true, Ordering::SeqCst);
        let made = enable_raw_mode()
            .and_then(|()| execute!(stdout(), EnterAlternateScreen, Hide))
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match made {
            Ok(terminal) => Ok(Self { terminal, is_read: Arc::new(AtomicBool::new(true)) }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// The keys, from now on.
    pub fn input(&self) -> UnboundedReceiver<Input> {
        let (send, inputs) = mpsc::unbounded_channel();
        let is_read = Arc::clone(&self.is_read);
        // A read of the terminal blocks. The thread ends with the view, or when the terminal is gone.
        thread::spawn(move || {
            while is_read.load(Ordering::Relaxed) {
                let read = match event::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let Ok(read) = read else { return };
                if input_of(&read).is_some_and(|input| send.send(input).is_err()) {
                    return;
                }
            }
        });
        inputs
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// When the terminal is gone, or was given back by a panic of another task.
    pub fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !IS_TAKEN.load(Ordering::SeqCst) {
            return Err(io::Error::other("a part of the program has panicked"));
        }
        self.terminal.draw(frame).map(|_| ())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.is_read.store(false, Ordering::Relaxed);
        give_back();
    }
}

/// Gives the terminal back, once.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // No receiver is left.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

fn input_of(event: &Event) -> Option<Input> {
    match event {
        Event::Resize(..) => Some(Input::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key).map(Input::Key),
        _ => None,
    }
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(letter) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            Key::Letter(letter)
        }
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for the process of the test that takes a terminal and panics.
    const PANICS: &str = "MCM_TEST_PANICS_IN_THE_VIEW";

    #[test]
    fn pk_078_a_panic_leaves_the_terminal_usable() {
        if std::env::var_os(PANICS).is_some() {
            let mut view = View::take().expect("a terminal");
            view.draw(|_| {}).expect("a frame");
            panic!("in the middle of a frame");
        }
        let test = "cli::plugin::top::terminal::tests::pk_078_a_panic_leaves_the_terminal_usable";
        let program = std::env::current_exe().expect("this test");
        let line = format!(
            "stty rows 24 cols 80; stty -a; {PANICS}=1 '{}' --exact {test} --nocapture; echo; stty -a",
            program.display()
        );
        // util-linux' `script` gives the process a terminal of its own.
        let run = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        let said = run.expect("script runs").stdout;
        let said = String::from_utf8_lossy(&said).replace('\r', "");
        let modes: Vec<&str> = said.split("speed ").skip(1).filter_map(|part| part.split("\n\n").next()).collect();
        let [before, after] = modes[..] else { panic!("two descriptions in {said:?}") };
        let modes = |text: &str| {
            let lines = text.lines().take_while(|line| !line.contains('\x1b'));
            lines
                .map(str::to_owned)
                .filter(|line| line.contains("icanon") || line.contains("icrnl"))
                .collect::<Vec<_>>()
        };
        assert_eq!(modes(before), modes(after), "{said:?}");
        assert_eq!(modes(before).len(), 2, "{said:?}");
        let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("{text:?} in {said:?}"));
        let order = ["\x1b[?1049h", "\x1b[?1049l", "in the middle of a frame"].map(place);
        assert!(order.is_sorted() && place("\x1b[?25l") < place("\x1b[?25h"), "{said:?}");
    }

    #[test]
    fn keys_of_the_terminal_are_those_of_the_view() {
        let key = |code, modifiers| input_of(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Input::Key(Key::Interrupt)));
        assert_eq!(key(KeyCode::Char('c'), plain), Some(Input::Key(Key::Letter('c'))));
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Input::Key(Key::Letter('G'))));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::ALT), None);
        assert_eq!(key(KeyCode::Esc, plain), Some(Input::Key(Key::Escape)));
        assert_eq!(key(KeyCode::F(1), plain), None);
        assert_eq!(input_of(&Event::Resize(80, 24)), Some(Input::Resized));
    }
}
