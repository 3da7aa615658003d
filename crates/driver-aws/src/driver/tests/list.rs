//! Lists.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_28_a_29_lists_are_whole_with_stopped_instances() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().page = 500;
    for number in 0..1200 {
        rig.vm(&format!("i-{number}"), |vm| vm.state = if number % 7 == 0 { "stopped" } else { "running" });
    }
    rig.vm("i-gone", |vm| vm.state = "terminated");
    let all = rig.list().await.unwrap();
    assert_eq!((all.len(), rig.ec2.asked("DescribeInstances").len()), (1200, 3));
    assert_eq!((all[7].provider_id.as_str(), all[7].machine_name.as_str()), ("aws:///eu-west-1/i-7", "m-1"));
    assert!(all[7].created.is_some());
}

#[tokio::test(start_paused = true)]
async fn c_10_a_list_without_its_second_page_is_an_error() {
    let rig = Rig::new(json!({}));
    rig.ec2.state().page = 1;
    rig.vm("i-1", |_| ());
    rig.vm("i-2", |_| ());
    let first = "<R><reservationSet><item><instancesSet/></item></reservationSet><nextToken>1</nextToken></R>";
    rig.ec2.fails("DescribeInstances", [Fault::Body(first), Fault::Error(400, "InvalidParameterValue")]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::InvalidArgument);
    // With the same token again, the driver would request the same page for ever.
    rig.ec2.fails("DescribeInstances", [Fault::Body(first), Fault::Body(first)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
    // The same holds for a repeated page with another token.
    let page = |next: usize| {
        let item = "<item><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></item>";
        Fault::Body(format!("<R><reservationSet>{item}</reservationSet><nextToken>{next}</nextToken></R>").leak())
    };
    rig.ec2.fails("DescribeInstances", [page(1), page(2), page(1)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
}

#[rstest]
#[case::no_xml("{}")]
#[case::cut_off("<R><reservationSet><item>")]
#[case::another_answer("<html></html>")]
#[case::a_page_with_a_list("<html><reservationSet/></html>")]
#[tokio::test(start_paused = true)]
async fn an_answer_that_can_not_be_read_is_no_empty_list(#[case] body: &'static str) {
    let rig = Rig::new(json!({}));
    rig.ec2.fails("DescribeInstances", [Fault::Body(body)]);
    assert_eq!(rig.list().await.unwrap_err().code, Code::Internal);
}
