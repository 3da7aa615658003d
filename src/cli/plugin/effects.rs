//! The next effects of the machine controller in words. The view `machineoutlooks` has their names.
//!
//! Pure. The names are those of `machine_controllers::machine::act::name_of`.

use super::views::Effect;

/// The beginning of the name of a later look. Its reason follows in parentheses.
const LOOK_AGAIN: &str = "LookAgain (";
/// The reason of a look at a time limit.
const DEADLINE: &str = "deadline";

/// The effect as a sentence. `None` for one that only writes down what is known.
pub fn sentence(next: &Effect) -> Option<String> {
    let name = next.target.as_ref().map(|target| format!("{} {}", target.kind, target.name));
    let object = name.as_deref();
    let text = match next.effect.as_str() {
        "PatchMachine" | "PatchMachineStatus" | "PatchNode" | "PatchNodeStatus" | "RecordEvent" => return None,
        "RemoveMachineFinalizer" => "the finalizer of the machine is removed".to_owned(),
        "DeleteMachine" => "the machine is deleted".to_owned(),
        "CordonNode" => format!("{} is cordoned", object.unwrap_or("the Node")),
        "DrainNode" => format!("{} is drained", object.unwrap_or("the Node")),
        "RemoveNodeFinalizer" => format!("the finalizer of {} is removed", object.unwrap_or("the Node")),
        "DeleteNode" => format!("{} is deleted", object.unwrap_or("the Node")),
        "DeleteVolumeAttachment" => format!("{} is deleted", object.unwrap_or("a VolumeAttachment")),
        "EnsureBootstrapToken" => "the bootstrap token of the VM is made".to_owned(),
        "DeleteBootstrapToken" => "the bootstrap token of the VM is deleted".to_owned(),
        "GetVmStatus" => "the provider is asked about the VM".to_owned(),
        "CreateVm" => "the VM is created".to_owned(),
        "InitializeVm" => "the VM is initialised".to_owned(),
        "DeleteVm" => "the VM is deleted".to_owned(),
        "DeleteStaleVm" => "a VM of an earlier attempt is deleted".to_owned(),
        other => match other.strip_prefix(LOOK_AGAIN).and_then(|rest| rest.strip_suffix(')')) {
            Some(DEADLINE) => "the manager checks the machine and its time limits".to_owned(),
            Some(why) => format!("the manager checks the machine ({why})"),
            // A later manager may have other effects.
            None => [Some(other), object].into_iter().flatten().collect::<Vec<_>>().join(" "),
        },
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use machine_controllers::machine::plan::waits::Wait;

    fn said(effect: &str, target: Option<&str>) -> Option<String> {
        let target = target.map(|name| json!({ "kind": "Node", "name": name }));
        sentence(&serde_json::from_value(json!({ "effect": effect, "target": target })).unwrap())
    }

    #[rstest]
    #[case::drain("DrainNode", Some("n"), Some("Node n is drained"))]
    #[case::without_an_object("DeleteNode", None, Some("the Node is deleted"))]
    #[case::a_time_limit("LookAgain (deadline)", None, Some("the manager checks the machine and its time limits"))]
    #[case::bookkeeping("PatchMachineStatus", None, None)]
    #[case::of_a_later_manager("PolishNode", Some("n"), Some("PolishNode Node n"))]
    fn an_effect_is_a_sentence(#[case] effect: &str, #[case] target: Option<&str>, #[case] expected: Option<&str>) {
        assert_eq!(said(effect, target).as_deref(), expected);
    }

    #[test]
    fn every_later_look_is_a_sentence() {
        for wait in Wait::ALL {
            let text = said(&format!("LookAgain ({wait})"), None).unwrap();
            assert!(text.starts_with("the manager checks the machine") && !text.contains("LookAgain"), "{text}");
        }
    }
}
