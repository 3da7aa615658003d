//! Draws the live view. Pure: the same state gives the same frame, in a terminal of any size. Only lines that fit are made.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style as Look},
};

use super::{
    super::{
        events::ObjectWarning,
        output::{Characters, Health, Paint, Source, Style, columns, length, one_line},
        state::MachineState,
        tree::shown_phase,
    },
    overview::{DeploymentRow, Overview, Within, awaited, duration},
    screen::{Item, Page, Screen},
};
use crate::cli::output::printable;

/// The keys of the lists, in the last line.
const KEYS: &str = "/ filter   Enter why   y stored   a all   Tab next list   ? help   q quit";
/// The keys of a page.
const PAGE_KEYS: &str = "Up, Down scroll   Esc back";
/// The text of the help.
pub const HELP: &str = "\
/          filter: the lists keep the lines with this text; Esc ends it
Up, Down   select a line; also k and j, PageUp, PageDown, g and G
Tab        go to the other list
Enter, d   show why the selected object is in its state
y          show the selected object as it is stored
a          list all machines, or only those that are not well
?          this help
q, Ctrl-C  quit

Nothing in this view writes to the cluster.
";
/// The columns of a bar.
const BAR: usize = 10;
/// Below this height warnings are left out.
const ROOM_FOR_WARNINGS: u16 = 16;
/// The space between two columns.
const GAP: usize = 2;

/// What a frame shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The rows.
    pub overview: &'a Overview,
    /// What they were made from.
    pub source: Source,
    /// The last notice.
    pub notice: Option<&'a str>,
    /// The text of the page.
    pub text: &'a str,
    /// Characters, colours and time.
    pub style: &'a Style,
}

/// Draws a frame.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen, shown: &Shown<'_>) {
    let area = frame.area();
    let mut lines = Lines { buffer: frame.buffer_mut(), area, next: area.top() };
    lines.put(&title(shown), bold());
    let (last, notice) = (area.bottom().saturating_sub(1), shown.notice);
    let bottom = last.saturating_sub(u16::from(notice.is_some()));
    match &screen.page {
        Some(page) => {
            let heading = match page {
                Page::Help => "keys".to_owned(),
                Page::Why(object) => format!("why {}", object.name),
                Page::Stored(object) => format!("{} as it is stored", object.name),
            };
            lines.put(&heading, bold());
            let text = wrapped(shown.text, usize::from(area.width));
            let room = usize::from(bottom.saturating_sub(lines.next));
            screen.scrolled = screen.scrolled.min(text.len().saturating_sub(room));
            for line in text.iter().skip(screen.scrolled).take(room) {
                lines.put(line, Look::default());
            }
        }
        None => lists(&mut lines, bottom, screen, shown),
    }
    if let Some(notice) = notice {
        lines.put_at(last.saturating_sub(1), &one_line(notice), colored(shown.style, Health::Busy));
    }
    let footer = match (&screen.page, screen.is_typing, screen.filter.as_str()) {
        (Some(_), _, _) => PAGE_KEYS.to_owned(),
        (None, true, filter) => format!("/{filter}_   Enter keeps the filter, Esc ends it"),
        (None, false, "") => KEYS.to_owned(),
        (None, false, filter) => format!("filter {filter:?}, Esc ends it   {KEYS}"),
    };
    lines.put_at(last, &footer, Look::default().add_modifier(Modifier::DIM));
}

fn title(shown: &Shown<'_>) -> String {
    let within = match &shown.overview.within {
        Within::One(namespace) => format!("namespace {namespace}"),
        Within::All => "all namespaces".to_owned(),
    };
    format!("{within}   {}   {}", shown.overview.summary(), shown.source.words())
}

fn lists(lines: &mut Lines<'_>, bottom: u16, screen: &Screen, shown: &Shown<'_>) {
    let warnings = if lines.area.height < ROOM_FOR_WARNINGS { &[] } else { shown.overview.warnings.as_slice() };
    let below = u16::try_from(warnings.len()).unwrap_or(u16::MAX);
    let bottom = bottom.saturating_sub(if below > 0 { below + 1 } else { 0 });
    let items = screen.items(shown.overview);
    let first = items.iter().position(|item| matches!(item, Item::Machine(_))).unwrap_or(items.len());
    let (deployments, machines) = items.split_at(first);
    // Each list has a heading, and an empty line is between both.
    let room = usize::from(bottom.saturating_sub(lines.next)).saturating_sub(3);
    let for_deployments = deployments.len().min((room / 3).max(room.saturating_sub(machines.len())));
    let listed = if screen.shows_all || !screen.filter.is_empty() { "machines" } else { "machines that are not well" };
    list(lines, "deployments", for_deployments, deployments, Some(screen.cursor), shown);
    lines.next += 1;
    list(lines, listed, room - for_deployments, machines, screen.cursor.checked_sub(first), shown);
    lines.next = bottom + 1;
    for warning in warnings {
        lines.put(&warning_line(warning, shown.style), Look::default());
    }
}

/// A list with its heading. Of many lines those around the cursor are shown.
fn list(lines: &mut Lines<'_>, what: &str, room: usize, items: &[Item<'_>], cursor: Option<usize>, shown: &Shown<'_>) {
    let cursor = cursor.filter(|cursor| *cursor < items.len());
    let begin = cursor.unwrap_or(0).saturating_sub(room / 2).min(items.len().saturating_sub(room));
    let visible = &items[begin..(begin + room).min(items.len())];
    let part = if !visible.is_empty() && visible.len() < items.len() {
        format!(", {} to {} of {}", begin + 1, begin + visible.len(), items.len())
    } else {
        format!(": {}", items.len())
    };
    lines.put(&format!("{what}{part}"), bold());
    let rows: Vec<Vec<String>> = visible.iter().map(|item| cells(item, shown)).collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns(cell));
        }
    }
    for (place, (row, item)) in rows.iter().zip(visible).enumerate() {
        let health = match item {
            Item::Deployment(row) => row.health,
            Item::Machine(state) => state.health,
        };
        lines.put_row(row, &widths, health, cursor == Some(begin + place), shown.style);
    }
}

/// The columns of a line; the first is its mark.
fn cells(item: &Item<'_>, shown: &Shown<'_>) -> Vec<String> {
    let marks = Style { paint: Paint::Plain, ..*shown.style };
    let (health, namespace, name, further) = match item {
        Item::Deployment(row) => (row.health, &row.namespace, &row.name, deployment_cells(row, shown.style)),
        Item::Machine(state) => (state.health, &state.namespace, &state.name, machine_cells(state, shown.style)),
    };
    let mut cells = vec![marks.mark(health)];
    if shown.overview.within == Within::All {
        cells.push(namespace.clone());
    }
    cells.push(name.clone());
    cells.extend(further);
    cells.iter().map(|cell| printable(&one_line(cell))).collect()
}

fn deployment_cells(row: &DeploymentRow, style: &Style) -> Vec<String> {
    vec![
        format!("{} {} of {} updated", bar(row.updated, row.wanted, style.characters), row.updated, row.wanted),
        format!("{} available", row.available),
        format!("{} in all", row.total),
        format!("revision {}", row.revision),
        row.verdict.words().to_owned(),
    ]
}

fn machine_cells(state: &MachineState, style: &Style) -> Vec<String> {
    vec![shown_phase(state), state.node.clone().unwrap_or_default(), duration(state, style), awaited(state)]
}

/// A bar for a part of a whole. Nothing of nothing is full.
fn bar(part: i32, whole: i32, characters: Characters) -> String {
    let (full, empty) = match characters {
        Characters::Unicode => ("█", "░"),
        Characters::Ascii => ("#", "-"),
    };
    let (part, whole) = (usize::try_from(part).unwrap_or(0), usize::try_from(whole).unwrap_or(0));
    let filled = (part * BAR).checked_div(whole).map_or(BAR, |filled| filled.min(BAR));
    format!("{}{}", full.repeat(filled), empty.repeat(BAR - filled))
}

fn warning_line(about: &ObjectWarning, style: &Style) -> String {
    let ObjectWarning { kind, name, warning, .. } = about;
    let ago = warning.last.map(|last| format!("{} ago   ", length(style.now, last))).unwrap_or_default();
    printable(&one_line(&format!("{ago}{kind}/{name}   {}: {}", warning.reason, warning.message)))
}

/// The lines of a text, none wider than this.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut all = Vec::new();
    for line in printable(text).lines() {
        let mut part = String::new();
        let mut taken = 0;
        for letter in line.replace('\t', "    ").chars() {
            let wide = columns(letter.encode_utf8(&mut [0; 4]));
            if taken + wide > width && !part.is_empty() {
                all.push(std::mem::take(&mut part));
                taken = 0;
            }
            part.push(letter);
            taken += wide;
        }
        all.push(part);
    }
    all
}

fn bold() -> Look {
    Look::default().add_modifier(Modifier::BOLD)
}

fn colored(style: &Style, health: Health) -> Look {
    let color = match health {
        Health::Well => Color::Green,
        Health::Busy => Color::Yellow,
        Health::Bad => Color::Red,
    };
    match style.paint {
        Paint::Colored => Look::default().fg(color),
        Paint::Plain => Look::default(),
    }
}

/// The lines of a frame, from the top.
struct Lines<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    /// The next line.
    next: u16,
}

impl Lines<'_> {
    fn put(&mut self, text: &str, look: Look) {
        self.put_at(self.next, text, look);
        self.next = self.next.saturating_add(1);
    }

    fn put_at(&mut self, line: u16, text: &str, look: Look) {
        if line < self.area.bottom() {
            self.buffer.set_stringn(self.area.left(), line, text, usize::from(self.area.width), look);
        }
    }

    fn put_row(&mut self, cells: &[String], widths: &[usize], health: Health, is_selected: bool, style: &Style) {
        let line = self.next;
        self.next = self.next.saturating_add(1);
        if line >= self.area.bottom() {
            return;
        }
        let whole = usize::from(self.area.width);
        let mut column = GAP;
        for (place, (cell, width)) in cells.iter().zip(widths).enumerate() {
            if column >= whole {
                break;
            }
            let look = if place == 0 { colored(style, health) } else { Look::default() };
            let x = self.area.left().saturating_add(u16::try_from(column).unwrap_or(u16::MAX));
            self.buffer.set_stringn(x, line, cell, whole - column, look);
            column += width + if *width > 0 { GAP } else { 0 };
        }
        if is_selected {
            self.buffer.set_stringn(self.area.left(), line, ">", whole, Look::default());
            let row = Rect { y: line, height: 1, ..self.area };
            self.buffer.set_style(row, Look::default().add_modifier(Modifier::REVERSED));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};
    use serde_json::json;

    use super::super::{overview::testing::overview, screen::Key};
    use super::*;
    use crate::cli::plugin::{
        fleet::Fleet,
        output::testing::plain,
        testing::{blocked, deployment, fleet, machine, now, owned, set},
    };

    fn shown<'a>(overview: &'a Overview, text: &'a str, style: &'a Style) -> Shown<'a> {
        Shown { overview, source: Source::Views, notice: None, text, style }
    }

    /// The lines of a frame, without spaces at their ends.
    fn drawn(width: u16, height: u16, screen: &mut Screen, shown: &Shown<'_>) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen, shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn pk_078_the_frame_has_counts_bars_machines_and_warnings() {
        let (overview, style) = (overview(), plain(now()));
        let mut screen = Screen::default();
        screen.settle(&screen.items(&overview));
        let lines = drawn(130, 16, &mut screen, &shown(&overview, "", &style));
        assert_eq!(
            lines,
            [
                "namespace ns   3 machines: 2 well, 0 busy, 1 bad; 1 deployment   computed now (views)",
                "deployments: 1",
                "> !  web  ██████░░░░ 2 of 3 updated  2 available  3 in all  revision 2  is being rolled out",
                "",
                "machines that are not well: 1",
                "  ✗  web-1-a  Terminating, Drain  node-a  38m0s  Pod shop/db-0: PodDisruptionBudget shop/db allows 0 disruptions",
                "",
                "",
                "",
                "",
                "",
                "",
                "",
                "",
                "0s ago   machine/web-1-a   DrainBlocked: no eviction",
                "/ filter   Enter why   y stored   a all   Tab next list   ? help   q quit",
            ]
        );
    }

    #[test]
    fn pk_078_a_frame_fits_a_terminal_of_any_size() {
        let overview = overview();
        let style = Style { characters: Characters::Ascii, paint: Paint::Colored, ..plain(now()) };
        for page in [None, Some(Page::Help)] {
            for (width, height) in [(1, 1), (5, 2), (20, 5), (40, 10), (80, 24), (200, 60)] {
                let mut screen = Screen { page: page.clone(), ..Screen::default() };
                let notice = Some("the views can't be used");
                let shown = Shown { notice, ..shown(&overview, HELP, &style) };
                let lines = drawn(width, height, &mut screen, &shown);
                assert!(!lines[0].is_empty() && lines.len() == usize::from(height), "{width} x {height}: {lines:?}");
            }
        }
        let lines = drawn(40, 10, &mut Screen::default(), &shown(&overview, "", &style));
        assert_eq!(lines[2], "> !  web  ######---- 2 of 3 updated  2 a", "{lines:?}");
    }

    #[test]
    fn pk_078_a_page_wraps_and_scrolls_to_its_end() {
        let (overview, style) = (overview(), plain(now()));
        let text = format!("{}\nlast \u{1b}[2J line\n", "機".repeat(12));
        let mut screen = Screen { page: Some(Page::Help), ..Screen::default() };
        screen.press(Key::End, &overview);
        let lines = drawn(20, 5, &mut screen, &shown(&overview, &text, &style));
        assert_eq!(screen.scrolled, 1);
        assert_eq!(lines[2..4], ["機 機", "last \\u{1b}[2J line"].map(str::to_owned), "{lines:?}");
        screen.press(Key::Home, &overview);
        let lines = drawn(20, 5, &mut screen, &shown(&overview, &text, &style));
        assert!(lines[2].starts_with("機 機 機 機 機 機 機 機 機 機"), "{lines:?}");
    }

    #[test]
    fn pk_078_a_filter_is_in_the_last_line() {
        let (overview, style) = (overview(), plain(now()));
        let mut screen = Screen::default();
        for letter in "/web-2".chars() {
            screen.press(Key::Letter(letter), &overview);
        }
        let lines = drawn(80, 10, &mut screen, &shown(&overview, "", &style));
        assert_eq!(lines[9], "/web-2_   Enter keeps the filter, Esc ends it");
        assert!(lines.iter().any(|line| line == "machines: 2"), "{lines:?}");
        screen.press(Key::Enter, &overview);
        let lines = drawn(80, 10, &mut screen, &shown(&overview, "", &style));
        assert!(lines[9].starts_with("filter \"web-2\", Esc ends it"), "{lines:?}");
    }

    /// The time that this thread has had a processor: other work on the computer is no property of the view.
    fn processor_time() -> Duration {
        let read = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(read.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn pk_078_ten_thousand_machines_take_less_than_100_ms_a_frame() {
        let mut fleet = Fleet { deployments: vec![deployment("web", 2, &json!({}))], ..fleet() };
        fleet.sets = vec![set("web-2", "web", 2, 10_000)];
        let (one, other) = (owned("m", "web-2", "b", &blocked()), machine("well", &json!({})));
        fleet.machines = (0..10_000).map(|number| if number % 10 == 0 { one.clone() } else { other.clone() }).collect();
        let style = plain(now());
        let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
        let mut screen = Screen { shows_all: true, ..Screen::default() };
        let mut frame = || {
            let began = processor_time();
            let overview = Overview::of(&fleet, Vec::new(), Within::All);
            screen.settle(&screen.items(&overview));
            terminal.draw(|frame| draw(frame, &mut screen, &shown(&overview, "", &style))).unwrap();
            processor_time().saturating_sub(began)
        };
        let best = (0..5).map(|_| frame()).min().unwrap();
        assert!(best <= Duration::from_millis(100), "{best:?}");
    }
}
