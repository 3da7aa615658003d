//! The state of the live view, and what keys do to it. Pure: the terminal, the cluster and the drawing are elsewhere.

use super::{
    super::{output::Health, state::MachineState},
    overview::{DeploymentRow, Overview, awaited},
};

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Ctrl-C.
    Interrupt,
    /// The line above.
    Up,
    /// The line below.
    Down,
    /// Some lines above.
    PageUp,
    /// Some lines below.
    PageDown,
    /// The first line.
    Home,
    /// The last line.
    End,
    /// The next list.
    Tab,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// The key that deletes the last letter.
    Backspace,
    /// A letter.
    Letter(char),
}

/// An object that a line is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A deployment.
    Deployment,
    /// A machine.
    Machine,
}

/// What a page over the lists shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// The keys.
    Help,
    /// Why an object is in its state.
    Why(Object),
    /// An object as it is stored.
    Stored(Object),
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing but another frame.
    Nothing,
    /// The end.
    Quit,
    /// Another page, or none.
    Page,
}

/// A line of the lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// A deployment.
    Deployment(&'a DeploymentRow),
    /// A machine.
    Machine(&'a MachineState),
}

impl Item<'_> {
    /// The object of the line.
    pub fn object(&self) -> Object {
        let (kind, namespace, name) = match self {
            Self::Deployment(row) => (ObjectKind::Deployment, &row.namespace, &row.name),
            Self::Machine(state) => (ObjectKind::Machine, &state.namespace, &state.name),
        };
        Object { kind, namespace: namespace.clone(), name: name.clone() }
    }

    fn is(&self, object: &Object) -> bool {
        match self {
            Self::Deployment(row) => {
                object.kind == ObjectKind::Deployment && row.name == object.name && row.namespace == object.namespace
            }
            Self::Machine(state) => {
                object.kind == ObjectKind::Machine && state.name == object.name && state.namespace == object.namespace
            }
        }
    }

    /// Whether the line has this text, which is in lower case.
    fn has(&self, text: &str) -> bool {
        match self {
            Self::Deployment(row) => contains(&row.name, text) || contains(&row.namespace, text),
            Self::Machine(state) => {
                let node = state.node.as_deref().unwrap_or_default();
                [state.name.as_str(), &state.namespace, &state.phase, state.stage, node]
                    .iter()
                    .any(|part| contains(part, text))
                    || state.health != Health::Well && contains(&awaited(state), text)
            }
        }
    }
}

/// Whether a text has another, which is in lower case.
fn contains(text: &str, part: &str) -> bool {
    text.contains(part) || text.to_ascii_lowercase().contains(part)
}

/// The lines between which a page of keys moves.
const STEP: usize = 10;

/// The state of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// The text that lines must have.
    pub filter: String,
    /// Whether letters go to the filter.
    pub is_typing: bool,
    /// Whether machines that are well are listed too.
    pub shows_all: bool,
    /// The page over the lists.
    pub page: Option<Page>,
    /// The first line of the page that is shown.
    pub scrolled: usize,
    /// The selected line.
    pub cursor: usize,
    /// The object of the selected line, which the cursor follows when lines move.
    pub(super) selected: Option<Object>,
}

impl Screen {
    /// The lines: deployments, then machines.
    pub fn items<'a>(&self, overview: &'a Overview) -> Vec<Item<'a>> {
        let filter = self.filter.to_ascii_lowercase();
        // A filter looks for a machine, so that it finds those that are well too.
        let has_all = self.shows_all || !filter.is_empty();
        let machines = overview.machines.iter().filter(|state| has_all || state.health != Health::Well);
        let all = overview.deployments.iter().map(Item::Deployment).chain(machines.map(Item::Machine));
        all.filter(|item| filter.is_empty() || item.has(&filter)).collect()
    }

    /// Moves the cursor to the line of the selected object, after lines have changed.
    pub fn settle(&mut self, items: &[Item<'_>]) {
        if let Some(place) = self.selected.as_ref().and_then(|object| items.iter().position(|item| item.is(object))) {
            self.cursor = place;
            return;
        }
        self.cursor = self.cursor.min(items.len().saturating_sub(1));
        self.selected = items.get(self.cursor).map(Item::object);
    }

    /// What a key does.
    pub fn press(&mut self, key: Key, overview: &Overview) -> Asked {
        match key {
            Key::Interrupt => Asked::Quit,
            _ if self.is_typing => self.type_filter(key, overview),
            _ if self.page.is_some() => self.read(key),
            _ => self.choose(key, overview),
        }
    }

    fn type_filter(&mut self, key: Key, overview: &Overview) -> Asked {
        match key {
            Key::Enter | Key::Tab | Key::Up | Key::Down => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Letter(letter) => self.filter.push(letter),
            _ => {}
        }
        self.settle(&self.items(overview));
        Asked::Nothing
    }

    /// A key while a page is read. Its end is known when it is drawn.
    fn read(&mut self, key: Key) -> Asked {
        match key {
            Key::Escape | Key::Enter | Key::Letter('q' | '?') => {
                self.page = None;
                self.scrolled = 0;
                return Asked::Page;
            }
            Key::Up | Key::Letter('k') => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down | Key::Letter('j') => self.scrolled = self.scrolled.saturating_add(1),
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(STEP),
            Key::PageDown | Key::Letter(' ') => self.scrolled = self.scrolled.saturating_add(STEP),
            Key::Home | Key::Letter('g') => self.scrolled = 0,
            Key::End | Key::Letter('G') => self.scrolled = usize::MAX,
            _ => {}
        }
        Asked::Nothing
    }

    fn choose(&mut self, key: Key, overview: &Overview) -> Asked {
        let items = self.items(overview);
        let last = items.len().saturating_sub(1);
        let machines = items.iter().position(|item| matches!(item, Item::Machine(_)));
        match key {
            Key::Letter('q') => return Asked::Quit,
            Key::Letter('?') => return self.open(Some(Page::Help)),
            Key::Enter | Key::Letter('d') => {
                return self.open(items.get(self.cursor).map(|item| Page::Why(item.object())));
            }
            Key::Letter('y') => return self.open(items.get(self.cursor).map(|item| Page::Stored(item.object()))),
            Key::Letter('/') => self.is_typing = true,
            Key::Escape => self.filter.clear(),
            Key::Letter('a') => self.shows_all = !self.shows_all,
            Key::Up | Key::Letter('k') => self.go(self.cursor.saturating_sub(1), &items),
            Key::Down | Key::Letter('j') => self.go((self.cursor + 1).min(last), &items),
            Key::PageUp => self.go(self.cursor.saturating_sub(STEP), &items),
            Key::PageDown | Key::Letter(' ') => self.go((self.cursor + STEP).min(last), &items),
            Key::Home | Key::Letter('g') => self.go(0, &items),
            Key::End | Key::Letter('G') => self.go(last, &items),
            Key::Tab => {
                let first = machines.filter(|first| self.cursor < *first);
                self.go(first.unwrap_or(0), &items);
            }
            Key::Interrupt | Key::Backspace | Key::Letter(_) => {}
        }
        self.settle(&self.items(overview));
        Asked::Nothing
    }

    fn go(&mut self, line: usize, items: &[Item<'_>]) {
        self.cursor = line;
        self.selected = items.get(line).map(Item::object);
    }

    fn open(&mut self, page: Option<Page>) -> Asked {
        self.scrolled = 0;
        self.page = page;
        Asked::Page
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::overview::{Within, testing::overview};
    use super::*;
    use crate::cli::plugin::testing::fleet;

    fn names(screen: &Screen, overview: &Overview) -> Vec<String> {
        screen.items(overview).iter().map(|item| item.object().name).collect()
    }

    fn pressed(keys: &[Key]) -> (Screen, Asked) {
        let (mut screen, overview) = (Screen::default(), overview());
        screen.settle(&screen.items(&overview));
        let mut asked = Asked::Nothing;
        for key in keys {
            asked = screen.press(*key, &overview);
        }
        (screen, asked)
    }

    fn object(kind: ObjectKind, name: &str) -> Object {
        Object { kind, namespace: "ns".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn pk_078_a_filter_narrows_the_lists_and_finds_machines_that_are_well() {
        let overview = overview();
        let (screen, _) = pressed(&[]);
        assert_eq!(names(&screen, &overview), ["web", "web-1-a"]);
        let typed = |text: &str| {
            let keys: Vec<Key> = std::iter::once('/').chain(text.chars()).map(Key::Letter).collect();
            pressed(&keys).0
        };
        for (text, expected) in [
            ("web-2", &["web-2-b", "web-2-c"][..]),
            ("node-b", &["web-2-b"]),
            ("TERMINATING", &["web-1-a"]),
            ("shop/db-0", &["web-1-a"]),
            ("nothing", &[]),
        ] {
            assert_eq!(names(&typed(text), &overview), expected, "{text}");
        }
        let mut screen = typed("web-2-bx");
        screen.press(Key::Backspace, &overview);
        assert_eq!(names(&screen, &overview), ["web-2-b"]);
        screen.press(Key::Enter, &overview);
        assert!(!screen.is_typing && screen.filter == "web-2-b", "Enter keeps the filter");
        screen.press(Key::Escape, &overview);
        assert_eq!(names(&screen, &overview), ["web", "web-1-a"], "Escape ends it");
    }

    #[rstest]
    #[case::enter(&[Key::Down, Key::Enter], Page::Why(object(ObjectKind::Machine, "web-1-a")))]
    #[case::d(&[Key::Letter('d')], Page::Why(object(ObjectKind::Deployment, "web")))]
    #[case::the_next_list(&[Key::Tab, Key::Letter('y')], Page::Stored(object(ObjectKind::Machine, "web-1-a")))]
    #[case::back_again(&[Key::Tab, Key::Tab, Key::Letter('y')], Page::Stored(object(ObjectKind::Deployment, "web")))]
    #[case::the_end(&[Key::Letter('a'), Key::End, Key::Enter], Page::Why(object(ObjectKind::Machine, "web-2-c")))]
    #[case::help(&[Key::Letter('?')], Page::Help)]
    fn pk_078_keys_open_pages(#[case] keys: &[Key], #[case] expected: Page) {
        let (mut screen, asked) = pressed(keys);
        assert_eq!((screen.page.as_ref(), asked), (Some(&expected), Asked::Page));
        let overview = overview();
        screen.press(Key::Down, &overview);
        assert_eq!(screen.scrolled, 1);
        assert_eq!(screen.press(Key::Escape, &overview), Asked::Page);
        assert_eq!((screen.page, screen.scrolled), (None, 0));
    }

    #[rstest]
    #[case::q(&[Key::Letter('q')], Asked::Quit)]
    #[case::interrupted_while_typing(&[Key::Letter('/'), Key::Interrupt], Asked::Quit)]
    #[case::interrupted_on_a_page(&[Key::Letter('?'), Key::Interrupt], Asked::Quit)]
    #[case::q_of_a_filter(&[Key::Letter('/'), Key::Letter('q')], Asked::Nothing)]
    #[case::q_closes_a_page(&[Key::Letter('?'), Key::Letter('q')], Asked::Page)]
    fn pk_078_quit(#[case] keys: &[Key], #[case] expected: Asked) {
        assert_eq!(pressed(keys).1, expected);
    }

    #[test]
    fn the_cursor_follows_its_object() {
        let (mut screen, _) = pressed(&[Key::Letter('a'), Key::End]);
        assert_eq!(screen.cursor, 3);
        let mut fleet = fleet();
        fleet.machines.remove(0);
        let later = Overview::of(&fleet, Vec::new(), Within::One("ns".to_owned()));
        screen.settle(&screen.items(&later));
        assert_eq!(screen.cursor, 2, "a line above is gone");
        fleet.machines.clear();
        let empty = Overview::of(&fleet, Vec::new(), Within::One("ns".to_owned()));
        screen.settle(&screen.items(&empty));
        assert_eq!(screen.cursor, 0);
        let none = Overview::default();
        screen.settle(&screen.items(&none));
        assert_eq!(screen.press(Key::Enter, &none), Asked::Page);
        assert_eq!(screen.page, None, "there is nothing to open");
    }
}
