//! The live view: it follows the cluster, reads keys, and draws. What is drawn is decided in [`super::screen`] and [`super::frame`].

use std::{pin::pin, time::Duration};

use kube::{Api, Client, Resource};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    select,
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    TopArgs,
    frame::{HELP, Shown, draw},
    overview::{Overview, Within},
    screen::{Asked, Object, ObjectKind, Page, Screen},
    terminal::{Input, View},
};
use crate::cli::{
    Failure,
    documents::to_yaml,
    plugin::{
        events::{ObjectWarning, recent},
        fleet::Fleet,
        follow::{Following, Selection},
        notices::Notices,
        output::{Answer, Paint, Source, Style},
        session::{Session, now},
        subject::{Named, Subject},
        views::Outlook,
        why,
    },
};
use controller_runtime::snapshot::Snapshot;
use machine_api::v1alpha1::{Machine, MachineDeployment};

/// The least time between two looks at the cluster.
const PAUSE: Duration = Duration::from_secs(1);
/// The least time between two reads of what can't be followed: outlooks and events.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The time between two frames, because durations grow.
const TICK: Duration = Duration::from_secs(1);
/// Outlooks of so many machines are read; the others have the words of their stored conditions.
const OUTLOOKS: usize = 20;

/// What is shown before the cluster has answered.
const READING: &str = "reading the cluster";

/// What the view knows about the cluster.
#[derive(Debug)]
struct News {
    overview: Overview,
    source: Source,
    /// The page, and its text.
    page: Option<Page>,
    text: String,
}

/// Shows the view until the user quits.
///
/// # Errors
/// When the cluster can't be read, or the terminal can't be used.
pub async fn show(args: &TopArgs) -> Result<(), Failure> {
    let session = Session::saying(&args.session, Notices::kept()).await?;
    let within = args.within(&session);
    let overview = Overview { within: within.clone(), ..Overview::default() };
    let (tell, mut told) = watch::channel(News { overview, source: Source::Stored, page: None, text: String::new() });
    let (ask, asked) = watch::channel(None);
    let mut view = View::take()?;
    let mut input = view.input();
    let mut cluster = pin!(observe(&session, &within, asked, tell));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut screen, mut notice, mut has_news) = (Screen::default(), None::<String>, false);
    loop {
        {
            let news = told.borrow_and_update();
            screen.settle(&screen.items(&news.overview));
            let text = match &screen.page {
                Some(Page::Help) => HELP,
                page if *page == news.page => news.text.as_str(),
                _ => READING,
            };
            let notice = notice.as_deref().or((!has_news).then_some(READING));
            let style = Style::of_stdout(&args.output, now());
            let (overview, source) = (&news.overview, news.source);
            let shown = Shown { overview, source, notice, text, style: &style };
            view.draw(|frame| draw(frame, &mut screen, &shown))?;
        }
        select! {
            ended = &mut cluster => return ended,
            Ok(()) = told.changed() => has_news = true,
            input = input.recv() => match input {
                Some(Input::Key(key)) => {
                    notice = None;
                    match screen.press(key, &told.borrow().overview) {
                        Asked::Quit => return Ok(()),
                        Asked::Page => _ = ask.send_replace(screen.page.clone()),
                        Asked::Nothing => {}
                    }
                }
                Some(Input::Resized) => {}
                // The terminal is gone.
                None => return Ok(()),
            },
            _ = ticks.tick() => {}
        }
        notice = session.notices.take().pop().or(notice);
    }
}

/// Follows the cluster, and tells what has changed.
///
/// # Errors
/// When the objects can't be read and a later try would not help.
async fn observe(
    session: &Session,
    within: &Within,
    mut asked: watch::Receiver<Option<Page>>,
    tell: watch::Sender<News>,
) -> Result<(), Failure> {
    let namespace = within.namespace().unwrap_or_default();
    let mut follow = Following::begin(&session.client, namespace, Selection::WHOLE, &session.notices);
    let mut read: Option<(Instant, Option<Vec<Outlook>>, Vec<ObjectWarning>)> = None;
    loop {
        let page = asked.borrow_and_update().clone();
        if let Some(fleet) = follow.look().await? {
            if read.as_ref().is_none_or(|(at, ..)| at.elapsed() >= READ_AGAIN) {
                let outlooks = outlooks(session, &fleet, within).await;
                let warnings = recent(&session.client, within.namespace(), &session.notices).await;
                read = Some((Instant::now(), outlooks, warnings));
            }
            let (outlooks, warnings) =
                read.clone().map(|(_, outlooks, warnings)| (outlooks, warnings)).unwrap_or_default();
            let fleet = fleet.with_outlooks(outlooks);
            let text = match &page {
                Some(Page::Why(object)) => why_text(session, object, &fleet).await,
                Some(Page::Stored(object)) => stored_text(&session.client, object).await,
                Some(Page::Help) | None => String::new(),
            };
            let overview = Overview::of(&fleet, warnings, within.clone());
            tell.send_replace(News { overview, source: session.views.source(), page, text });
        }
        select! {
            () = follow.changed(PAUSE, Duration::MAX) => {}
            changed = asked.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}

/// The outlooks of the first machines that are not well. `None`: the views can't be used.
async fn outlooks(session: &Session, fleet: &Fleet, within: &Within) -> Option<Vec<Outlook>> {
    let overview = Overview::of(fleet, Vec::new(), within.clone());
    let mut wanted: Vec<(&str, &str)> =
        overview.not_well().take(OUTLOOKS).map(|state| (state.namespace.as_str(), state.name.as_str())).collect();
    wanted.sort_unstable();
    if wanted.is_empty() {
        return session.views.outlooks_of(&session.namespace, &[]).await;
    }
    let mut all = Vec::new();
    for of_namespace in wanted.chunk_by(|one, other| one.0 == other.0) {
        let names: Vec<&str> = of_namespace.iter().map(|(_, name)| *name).collect();
        all.extend(session.views.outlooks_of(of_namespace[0].0, &names).await?);
    }
    Some(all)
}

async fn why_text(session: &Session, object: &Object, fleet: &Fleet) -> String {
    let Object { kind, namespace, name } = object;
    let subject = match kind {
        ObjectKind::Machine => {
            let found = fleet.machines.iter().find(|known| known.name() == name && known.namespace() == namespace);
            found.map(|machine| Subject::Machine { machine: machine.clone(), by: Named::Machine })
        }
        ObjectKind::Deployment => fleet.deployment(namespace, name).cloned().map(Subject::Deployment),
    };
    let Some(subject) = subject else { return format!("{name} is gone") };
    let mut fleet = fleet.clone();
    if let Some(own) =
        session.views.outlooks_of(namespace, &[name.as_str()]).await.filter(|_| *kind == ObjectKind::Machine)
    {
        let others = fleet.outlooks.take().unwrap_or_default().into_values();
        fleet = fleet.with_outlooks(Some(others.chain(own).collect()));
    }
    let answer = why::answer(session, &subject, &fleet).await;
    // The page has no colours, as the terminal would show their sequences.
    let style = Style { paint: Paint::Plain, ..Style::of_stdout(&super::OutputArgs::default(), now()) };
    answer.text(session.views.source(), &style)
}

async fn stored_text(client: &Client, object: &Object) -> String {
    match object.kind {
        ObjectKind::Machine => stored::<Machine>(client, object).await,
        ObjectKind::Deployment => stored::<MachineDeployment>(client, object).await,
    }
}

/// The stored object as YAML, or why it can't be read.
async fn stored<K>(client: &Client, object: &Object) -> String
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace);
    let mut found = match api.get_opt(&object.name).await {
        Ok(Some(found)) => found,
        Ok(None) => return format!("{} is gone", object.name),
        Err(error) => return format!("{} can't be read: {error}", object.name),
    };
    found.meta_mut().managed_fields = None;
    let whole = serde_json::to_value(&found).map_err(|error| error.to_string()).and_then(|mut value| {
        value["apiVersion"] = K::api_version(&()).into();
        value["kind"] = K::kind(&()).into();
        to_yaml([&value]).map_err(|error| error.to_string())
    });
    whole.unwrap_or_else(|error| error)
}
