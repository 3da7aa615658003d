//! Asks ECS whether a class can be launched, with the launch request of the class as a rehearsal. Nothing is created.

use cloud_client::Failure;
use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::CLS_6;
use machine_driver::{Code, Status};

use crate::{
    actions::DRY_RUN,
    ecs::Session,
    launch::{Launch, run_instances},
    sign::Moment,
    spec::Spec,
};

/// The rule id of all findings: the provider refuses the class.
const RULE: RuleId = CLS_6.id;
/// The name of the machine in the launch request.
const NAME: &str = "mcm-validate";

/// The problems that ECS has with a class.
///
/// # Errors
/// When ECS can't be asked.
pub async fn about(ecs: &Session<'_>, spec: &Spec, user_data: &[u8]) -> Result<Findings, Status> {
    let mut query = run_instances(Launch { spec, name: NAME, user_data, token: NAME });
    query.set("DryRun", true);
    // ECS compares requests with one token.
    query.set("ClientToken", Moment::now()?.nonce);
    let mut found = Findings::new();
    match ecs.launch(&query).await {
        Err(failure) if failure.reason == DRY_RUN => {}
        Err(failure) => record(failure, spec, &mut found)?,
        Ok(id) => {
            let ended = match ecs.delete(&id).await {
                Ok(()) => "which is being deleted again".to_owned(),
                Err(failure) => format!("which could not be deleted; delete it yourself: {}", failure.status.message),
            };
            let message = format!("the service knows no rehearsal: it made instance {id}, {ended}");
            found.warn(RULE, FieldPath::new("providerSpec"), "", message);
        }
    }
    Ok(found)
}

/// The field of a class that an error code is about, with its value.
fn field<'s>(reason: &str, spec: &'s Spec) -> Option<(&'static str, &'s str)> {
    let fields = [
        ("InvalidImage", "imageID", &spec.image_id),
        ("InvalidInstanceType", "instanceType", &spec.instance_type),
        ("InvalidResourceType", "instanceType", &spec.instance_type),
        ("InvalidRegion", "region", &spec.region),
        ("InvalidZone", "zoneID", &spec.zone_id),
        ("Zone.", "zoneID", &spec.zone_id),
        ("InvalidSecurityGroup", "securityGroupID", &spec.security_group_id),
        ("InvalidVSwitch", "vSwitchID", &spec.v_switch_id),
        ("InvalidKeyPair", "keyPairName", &spec.key_pair_name),
        ("KeyPair", "keyPairName", &spec.key_pair_name),
        ("InvalidPrivateIpAddress", "privateIPAddress", &spec.private_ip_address),
        ("InvalidSpotStrategy", "spotStrategy", &spec.spot_strategy),
    ];
    fields
        .into_iter()
        .find(|(beginning, ..)| reason.starts_with(beginning))
        .map(|(_, field, value)| (field, value.as_str()))
}

/// A refusal of the class is a finding. ECS names only the first problem.
fn record(failure: Failure, spec: &Spec, found: &mut Findings) -> Result<(), Status> {
    let root = FieldPath::new("providerSpec");
    let Failure { status, reason, .. } = failure;
    let (path, value) = match field(&reason, spec) {
        Some((field, value)) => (root.child(field), value),
        None => (root, ""),
    };
    match status.code {
        // Capacity and quotas change.
        Code::ResourceExhausted => found.warn(RULE, path, value, status.message),
        Code::InvalidArgument => found.invalid(RULE, path, value, status.message),
        _ => return Err(status),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cloud_client::FailureKind;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::an_image(
        "InvalidImageId.NotFound",
        Code::InvalidArgument,
        "providerSpec.imageID: Invalid value: \"m-1\": no"
    )]
    #[case::a_switch(
        "InvalidVSwitchId.NotFound",
        Code::InvalidArgument,
        "providerSpec.vSwitchID: Invalid value: \"\": no"
    )]
    #[case::another_field("InvalidParameter", Code::InvalidArgument, "providerSpec: Invalid value: \"\": no")]
    fn a_refusal_names_its_field(#[case] reason: &str, #[case] code: Code, #[case] expected: &str) {
        let spec = Spec { image_id: "m-1".to_owned(), ..Spec::default() };
        let mut found = Findings::new();
        let failure = Failure { reason: reason.to_owned(), ..Failure::new(code, "no", FailureKind::Permanent) };
        record(failure, &spec, &mut found).unwrap();
        assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_lack_of_capacity_is_a_warning_and_another_failure_is_no_answer() {
        let mut found = Findings::new();
        let failure = |code| Failure::permanent(code, "no");
        record(failure(Code::ResourceExhausted), &Spec::default(), &mut found).unwrap();
        assert!(!found.denies());
        assert_eq!(found.warnings().count(), 1);
        let refused = record(failure(Code::Unauthenticated), &Spec::default(), &mut found).unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
    }
}
