//! Failure rules of calls and outcome rules of creations (spec/providers §7.2 `failures`, `outcomes`).

use std::{fmt, time::Duration};

use serde_json::Value;

use super::{draw::Fingerprint, reader::Section};
use machine_driver::{Code, Status};

/// A call to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `CreateMachine`.
    Create,
    /// `InitializeMachine`.
    Initialize,
    /// `DeleteMachine`.
    Delete,
    /// `GetMachineStatus`.
    Status,
    /// `ListMachines`.
    List,
    /// `GetVolumeIDs`.
    Volumes,
    /// Attaching a volume to a node.
    Attach,
    /// Detaching a volume from a node.
    Detach,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 8] = [
        Self::Create,
        Self::Initialize,
        Self::Delete,
        Self::Status,
        Self::List,
        Self::Volumes,
        Self::Attach,
        Self::Detach,
    ];

    const NAMES: [&str; Self::ALL.len()] =
        ["create", "initialize", "delete", "status", "list", "volumes", "attach", "detach"];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The keys of a pattern, in the order of [`Subject::values`].
const KEYS: [&str; 5] = ["class", "machine", "region", "zone", "machineType"];

/// The data of a call that rules read.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The name of the class.
    pub class: &'a str,
    /// The name of the machine. Empty for calls for many machines.
    pub machine: &'a str,
    /// The region of the VM.
    pub region: &'a str,
    /// The zone of the VM.
    pub zone: &'a str,
    /// The machine type of the VM.
    pub machine_type: &'a str,
}

impl<'a> Subject<'a> {
    const fn values(self) -> [&'a str; KEYS.len()] {
        [self.class, self.machine, self.region, self.zone, self.machine_type]
    }
}

/// A pattern for names. `*` matches any text, `?` one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Whether the pattern matches the whole text.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) = (self.0.chars().collect(), text.chars().collect());
        let (mut at, mut seen) = (0, 0);
        // The position to continue from if the last `*` must match one more character.
        let mut back: Option<(usize, usize)> = None;
        while seen < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    back = Some((at, seen));
                    at += 1;
                }
                Some(c) if *c == '?' || Some(c) == text.get(seen) => {
                    at += 1;
                    seen += 1;
                }
                _ => {
                    let Some((star, from)) = back else { return false };
                    back = Some((star, from + 1));
                    at = star + 1;
                    seen = from + 1;
                }
            }
        }
        pattern.iter().skip(at).all(|c| *c == '*')
    }
}

/// A pattern for VMs. An absent part matches all VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern([Option<Glob>; KEYS.len()]);

impl Pattern {
    /// Whether the subject matches.
    pub fn matches(&self, subject: Subject<'_>) -> bool {
        let mut parts = self.0.iter().zip(subject.values());
        parts.all(|(glob, text)| glob.as_ref().is_none_or(|glob| glob.matches(text)))
    }

    /// Reads the keys `class`, `machine`, `region`, `zone` and `machineType`.
    pub(super) fn read(section: &mut Section<'_, '_>) -> Self {
        Self(KEYS.map(|key| section.text(key).map(Glob)))
    }
}

/// The effect of a failure rule on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureEffect {
    /// The call fails without any change.
    Error,
    /// The VM is made or deleted, but the call fails after this time.
    DoneButError(Duration),
    /// The list is incomplete.
    ShortList(ShortList),
    /// The call takes this much longer and then continues.
    Hang(Duration),
    /// The call reaches the cloud twice, and the caller gets the second answer.
    Repeated,
}

/// The VMs in an incomplete list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortList {
    /// No VMs.
    Empty,
    /// Every second VM.
    Half,
}

/// One failure rule.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureRule {
    /// The id of the rule, for its counter.
    pub id: u64,
    /// The operation. `None` matches all.
    pub operation: Option<Operation>,
    /// The VMs.
    pub pattern: Pattern,
    /// The probability from 0 to 1.
    pub rate: f64,
    /// The maximum number of hits.
    pub count: Option<u64>,
    /// The start of the window, after the start of the simulation.
    pub from: Duration,
    /// The end of the window, excluded.
    pub to: Option<Duration>,
    /// The effect.
    pub effect: FailureEffect,
    /// The code of the failure.
    pub code: Code,
    message: Option<String>,
}

impl FailureRule {
    /// Whether the rule matches this call at this age of the simulation. The caller applies rate and count.
    pub fn applies(&self, operation: Operation, subject: Subject<'_>, age: Duration) -> bool {
        self.operation.is_none_or(|wanted| wanted == operation)
            && self.pattern.matches(subject)
            && age >= self.from
            && self.to.is_none_or(|to| age < to)
    }

    /// The failure, with the placeholders `{op}`, `{class}`, `{machine}`, `{region}`, `{zone}`, `{machineType}` replaced.
    pub fn status(&self, operation: Operation, subject: Subject<'_>) -> Status {
        let Some(message) = &self.message else {
            return Status::new(self.code, format!("simulated failure of {operation} of {:?}", subject.machine));
        };
        let fill = |text: String, (key, value): (&str, &str)| text.replace(&format!("{{{key}}}"), value);
        let filled = KEYS.into_iter().zip(subject.values()).fold(message.replace("{op}", operation.as_str()), fill);
        Status::new(self.code, filled)
    }

    /// Reads the element of the list `failures` with this index.
    pub(super) fn read(at: usize, section: &mut Section<'_, '_>) -> Option<Self> {
        let operations = Operation::ALL.map(|operation| (operation.as_str(), Some(operation)));
        let operation = section.word("op", &[&operations[..], &[("any", None)]].concat()).flatten();
        let pattern = Pattern::read(section);
        let rate = section.rate("rate").unwrap_or(1.0);
        let count = section.number("count");
        let from = section.duration("from").unwrap_or_default();
        let to = section.duration("to");
        let codes: Vec<(&str, Code)> = Code::ALL.iter().skip(1).map(|code| (code.as_str(), *code)).collect();
        let has_code = section.has("code");
        let code = section.word("code", &codes);
        let message = section.text("message");
        let length = section.duration("for");
        let effect = section.word("effect", &EFFECTS.map(|effect| (effect.word, effect))).unwrap_or(EFFECTS[0]);
        if effect.of.is_some() && effect.of != operation {
            let wanted = effect.of.map_or("any", Operation::as_str);
            section.invalid_key("op", Value::Null, &format!("effect {} needs op {wanted}", effect.word));
        }
        if effect.word == "hang" && length.is_none() {
            section.required("for", "effect hang needs how long");
        }
        let code = code.or(effect.code);
        if code.is_none() && !has_code {
            section.required("code", "name of a machine code such as ResourceExhausted");
        }
        let mut id = Fingerprint::new();
        id.add(&(at as u64).to_le_bytes());
        id.add(Value::Object(section.map().clone()).to_string().as_bytes());
        let effect = (effect.made)(length.unwrap_or_default());
        Some(Self { id: id.value(), operation, pattern, rate, count, from, to, effect, code: code?, message })
    }
}

/// The name of an effect in a rule.
#[derive(Clone, Copy)]
struct EffectWord {
    word: &'static str,
    /// The only operation with this effect. `None` means all operations.
    of: Option<Operation>,
    /// The default code of the failure, for a rule without a code.
    code: Option<Code>,
    /// Makes the effect with this duration.
    made: fn(Duration) -> FailureEffect,
}

const fn effect(
    word: &'static str,
    of: Option<Operation>,
    code: Option<Code>,
    made: fn(Duration) -> FailureEffect,
) -> EffectWord {
    EffectWord { word, of, code, made }
}

/// The first effect is the default.
const EFFECTS: [EffectWord; 8] = [
    effect("error", None, None, |_| FailureEffect::Error),
    effect("created-but-error", Some(Operation::Create), Some(Code::Unknown), FailureEffect::DoneButError),
    effect("deleted-but-error", Some(Operation::Delete), Some(Code::Unknown), FailureEffect::DoneButError),
    effect("empty-list", Some(Operation::List), Some(Code::Unknown), |_| FailureEffect::ShortList(ShortList::Empty)),
    effect("partial-list", Some(Operation::List), Some(Code::Unknown), |_| FailureEffect::ShortList(ShortList::Half)),
    effect("hang", None, Some(Code::DeadlineExceeded), FailureEffect::Hang),
    effect("repeated", None, Some(Code::Unknown), |_| FailureEffect::Repeated),
    effect("auth-failure", None, Some(Code::Unauthenticated), |_| FailureEffect::Error),
];

/// The life of a new VM that differs from the normal life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The VM runs, but its Node never registers.
    NeverJoins,
    /// The Node becomes not ready, this time after it was ready.
    JoinsThenNotReady(Duration),
    /// A second VM is made for the same machine.
    DuplicateVm,
    /// The VM disappears this time after its creation.
    Vanishes(Duration),
    /// The VM waits for `InitializeMachine`.
    Uninitialized,
}

impl Outcome {
    /// The name in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NeverJoins => "never-joins",
            Self::JoinsThenNotReady(_) => "joins-then-notready",
            Self::DuplicateVm => "duplicate-vm",
            Self::Vanishes(_) => "vanishes",
            Self::Uninitialized => "uninitialized",
        }
    }
}

/// A rule of `outcomes`. The first match decides.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeRule {
    /// The VMs.
    pub pattern: Pattern,
    /// The probability from 0 to 1.
    pub rate: f64,
    /// The outcome.
    pub outcome: Outcome,
}

impl OutcomeRule {
    /// Reads an element of the list `outcomes`.
    pub(super) fn read(section: &mut Section<'_, '_>) -> Option<Self> {
        let pattern = Pattern::read(section);
        let rate = section.rate("rate").unwrap_or(1.0);
        let after = section.duration("after").unwrap_or_default();
        if !section.has("effect") {
            section.required("effect", "what becomes of the VM");
        }
        let outcomes = [
            Outcome::NeverJoins,
            Outcome::JoinsThenNotReady(after),
            Outcome::DuplicateVm,
            Outcome::Vanishes(after),
            Outcome::Uninitialized,
        ];
        let outcome = section.word("effect", &outcomes.map(|outcome| (outcome.word(), outcome)))?;
        Some(Self { pattern, rate, outcome })
    }
}

#[cfg(test)]
mod tests {
    use kube_values::field::{FieldPath, Findings};
    use rstest::rstest;
    use serde_json::json;

    use super::{super::reader::objects, *};

    const SUBJECT: Subject<'_> =
        Subject { class: "pool", machine: "m-7", region: "sim-1", zone: "sim-1b", machine_type: "spot.large" };

    #[rstest]
    #[case::a_star_is_anything("*", "m-7", true)]
    #[case::a_prefix("spot*", "spot.large", true)]
    #[case::another_prefix("spot*", "on.spot", false)]
    #[case::in_the_middle("s*t.l?rge", "spot.large", true)]
    #[case::exact("m-7", "m-70", false)]
    #[case::two_stars("*a*b", "xaybzb", true)]
    fn a_pattern_fits_whole_names(#[case] pattern: &str, #[case] text: &str, #[case] fits: bool) {
        assert_eq!(Glob(pattern.to_owned()).matches(text), fits);
    }

    fn read(value: &Value, found: &mut Findings) -> Option<FailureRule> {
        let list = std::slice::from_ref(value);
        objects(list, &FieldPath::new("failures"), found, FailureRule::read).pop()
    }

    fn rule(value: &Value) -> FailureRule {
        let mut found = Findings::new();
        let rule = read(value, &mut found);
        assert_eq!(found.aggregate(), "[]");
        rule.unwrap()
    }

    #[rstest]
    #[case::the_start_is_included(600, true)]
    #[case::the_end_is_excluded(1500, false)]
    #[case::before(599, false)]
    fn a_zone_outage_has_a_window(#[case] age: u64, #[case] applies: bool) {
        let outage =
            rule(&json!({"op": "create", "zone": "sim-1b", "from": "10m", "to": "25m", "code": "ResourceExhausted"}));
        assert_eq!(outage.applies(Operation::Create, SUBJECT, Duration::from_secs(age)), applies);
        assert!(!outage.applies(Operation::Delete, SUBJECT, Duration::from_secs(600)));
    }

    #[test]
    fn the_message_names_the_subject_of_the_call() {
        let rule =
            rule(&json!({"op": "any", "code": "ResourceExhausted", "message": "out of {machineType} in {zone}"}));
        let status = rule.status(Operation::Create, SUBJECT);
        assert_eq!(status, Status::new(Code::ResourceExhausted, "out of spot.large in sim-1b"));
    }

    #[test]
    fn an_auth_failure_needs_no_code() {
        assert_eq!(rule(&json!({"op": "any", "effect": "auth-failure"})).code, Code::Unauthenticated);
    }

    #[rstest]
    #[case::no_code(json!({"op": "create"}), "failures[0].code: Required value")]
    #[case::an_unknown_code(json!({"op": "create", "code": "Full"}), "failures[0].code: Unsupported value")]
    #[case::an_unknown_operation(json!({"op": "make", "code": "Unknown"}), "failures[0].op: Unsupported value")]
    #[case::a_hang_without_end(json!({"op": "create", "effect": "hang"}), "failures[0].for: Required value")]
    #[case::a_rate_above_one(json!({"code": "Unknown", "rate": 2}), "failures[0].rate: Invalid value: 2")]
    #[case::a_misspelt_key(json!({"code": "Unknown", "zones": "a"}), "failures[0].zones: Forbidden")]
    #[case::a_short_list_of_a_create(json!({"op": "create", "effect": "empty-list"}), "needs op list")]
    #[case::a_lost_reply_of_a_delete(json!({"op": "delete", "effect": "created-but-error"}), "needs op create")]
    fn a_wrong_rule_is_refused_with_its_key(#[case] written: Value, #[case] words: &str) {
        let mut found = Findings::new();
        read(&written, &mut found);
        assert!(found.aggregate().contains(words), "{}", found.aggregate());
    }
}
