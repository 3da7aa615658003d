//! The creation of an instance: whether the account can fulfil the request, and the instance and disks that it makes.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    catalogue::{self, IMAGE, IMAGE_GB, KEY_PAIR, RAM_ROLE, REGION, SECURITY_GROUP, VPC},
    errors::Refusal,
    lists,
    signature::Parameters,
};

/// The most tags of an instance.
const MOST_TAGS: usize = 20;
/// The most data disks of a new instance.
const MOST_DISKS: usize = 16;
/// The largest user data, in bytes.
const MOST_USER_DATA: usize = 32 * 1024;
/// The most instances of a request.
const MOST_INSTANCES: usize = 100;
/// The largest size of a disk, in GiB.
const MOST_GB: i64 = 32_768;
/// The size of a system disk if the request has none, in GiB.
const SYSTEM_GB: i64 = 40;
/// The size of a data disk if the request has none, in GiB.
const DATA_GB: i64 = 20;

/// An instance and its disks.
pub struct Made {
    pub instance: Value,
    pub disks: Vec<Value>,
}

/// The text of a parameter. Empty if it is absent.
fn text<'a>(parameters: &'a Parameters, name: &str) -> &'a str {
    parameters.get(name).map(String::as_str).unwrap_or_default()
}

fn is_true(parameters: &Parameters, name: &str) -> bool {
    text(parameters, name).eq_ignore_ascii_case("true")
}

/// Whether the request asks only whether it would succeed.
pub fn is_dry_run(parameters: &Parameters) -> bool {
    is_true(parameters, "DryRun")
}

/// The number of instances that a request asks for.
pub fn amount(parameters: &Parameters) -> Result<usize, Refusal> {
    let amount = text(parameters, "Amount").parse().unwrap_or(1);
    let fine = (1..=MOST_INSTANCES).contains(&amount);
    fine.then_some(amount)
        .ok_or_else(|| Refusal::invalid("InvalidAmount.ValueNotSupported", "The specified Amount is not valid."))
}

/// Whether the account can fulfil a request.
pub fn check(parameters: &Parameters) -> Result<(), Refusal> {
    let region = text(parameters, "RegionId");
    if !catalogue::has_region(region) {
        return Err(Refusal::not_found("RegionId"));
    }
    for name in ["ImageId", "InstanceType", "SecurityGroupId", "VSwitchId"] {
        if text(parameters, name).is_empty() {
            let message = format!(
                "The input parameter \"{name}\" that is mandatory for processing this request is not supplied."
            );
            return Err(Refusal::invalid("MissingParameter", &message));
        }
    }
    if text(parameters, "ImageId") != IMAGE || region != REGION {
        return Err(Refusal::not_found("ImageId"));
    }
    if !catalogue::has_type(text(parameters, "InstanceType")) {
        let message = "The specified InstanceType does not exist or beyond the permitted range.";
        return Err(Refusal::new(403, "InvalidInstanceType.ValueNotSupported", message));
    }
    let zone = catalogue::zone_of(text(parameters, "VSwitchId")).ok_or_else(|| Refusal::not_found("VSwitchId"))?;
    if parameters.get("ZoneId").is_some_and(|given| given != zone) {
        let message = "The specified virtual switch is not in the specified zone.";
        return Err(Refusal::invalid("InvalidParameter.Mismatch", message));
    }
    if !catalogue::offers(zone, text(parameters, "InstanceType")) {
        return Err(Refusal::not_supported());
    }
    for (name, known) in [("SecurityGroupId", SECURITY_GROUP), ("KeyPairName", KEY_PAIR), ("RamRoleName", RAM_ROLE)] {
        if parameters.get(name).is_some_and(|given| given != known) {
            return Err(Refusal::not_found(name));
        }
    }
    check_texts(parameters)?;
    check_price(parameters)?;
    check_disk(parameters, "SystemDisk", IMAGE_GB)?;
    let disks = data_disks(parameters);
    if disks.len() > MOST_DISKS {
        return Err(Refusal::invalid("InvalidDataDisk.NumberExceeded", "There are too many data disks."));
    }
    disks.iter().try_for_each(|disk| check_disk(parameters, disk, 1))
}

fn check_texts(parameters: &Parameters) -> Result<(), Refusal> {
    let name = text(parameters, "InstanceName");
    let fine = name.chars().next().is_none_or(char::is_alphabetic) && name.len() != 1 && name.len() <= 128;
    if !fine || name.starts_with("http://") || name.starts_with("https://") {
        return Err(Refusal::invalid(
            "InvalidInstanceName.Malformed",
            "The specified parameter InstanceName is not valid.",
        ));
    }
    let data = BASE64_STANDARD.decode(text(parameters, "UserData"));
    let data = data.map_err(|_| {
        Refusal::invalid("InvalidUserData.Base64FormatInvalid", "The specified UserData is not Base64.")
    })?;
    if data.len() > MOST_USER_DATA {
        return Err(Refusal::invalid("InvalidUserData.SizeExceeded", "The specified UserData is too large."));
    }
    let token = text(parameters, "ClientToken");
    if token.len() > 64 || !token.is_ascii() {
        return Err(Refusal::invalid("InvalidClientToken", "The specified ClientToken is not valid."));
    }
    let tags = lists::tags(parameters);
    if tags.len() > MOST_TAGS {
        return Err(Refusal::invalid("InvalidParameter.TagNum", "The number of specified tags exceeds the limit."));
    }
    for (key, value) in tags {
        let reserved = ["aliyun", "acs:"].iter().any(|start| key.starts_with(start));
        if key.is_empty() || key.len() > 128 || reserved || key.contains("://") {
            return Err(Refusal::invalid("InvalidTagKey.Malformed", "The specified Tag.n.Key is not valid."));
        }
        if value.is_some_and(|value| value.len() > 128 || value.contains("://")) {
            return Err(Refusal::invalid("InvalidTagValue.Malformed", "The specified Tag.n.Value is not valid."));
        }
    }
    Ok(())
}

/// How the instance is paid for.
fn check_price(parameters: &Parameters) -> Result<(), Refusal> {
    let charge = text(parameters, "InstanceChargeType");
    let strategy = text(parameters, "SpotStrategy");
    let limited = parameters.contains_key("SpotPriceLimit");
    let fine = ["", "PostPaid", "PrePaid"].contains(&charge)
        && ["", "NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"].contains(&strategy)
        && ["", "PayByBandwidth", "PayByTraffic"].contains(&text(parameters, "InternetChargeType"))
        && ["", "optimized", "none"].contains(&text(parameters, "IoOptimized"));
    if !fine {
        let message = "A charge type, a strategy of spot instances or IoOptimized has no such value.";
        return Err(Refusal::invalid("InvalidParameter", message));
    }
    let is_spot = strategy.starts_with("Spot");
    if is_spot && charge == "PrePaid" || limited && strategy != "SpotWithPriceLimit" {
        let message = "The specified SpotStrategy does not fit to the charge type or to SpotPriceLimit.";
        return Err(Refusal::invalid("InvalidSpotStrategy", message));
    }
    Ok(())
}

fn check_disk(parameters: &Parameters, prefix: &str, least: i64) -> Result<(), Refusal> {
    let category = parameters.get(&format!("{prefix}.Category"));
    let kind = if prefix == "SystemDisk" { prefix } else { "DataDisk" };
    if category.is_some_and(|category| !catalogue::has_category(category)) {
        let message = format!("The specified {kind}.Category is not supported.");
        return Err(Refusal::invalid(&format!("Invalid{kind}Category.ValueNotSupported"), &message));
    }
    let size = parameters.get(&format!("{prefix}.Size")).map(|size| size.parse::<i64>().unwrap_or_default());
    if size.is_some_and(|size| !(least..=MOST_GB).contains(&size)) {
        let message = format!("The specified {kind}.Size is not valid.");
        return Err(Refusal::invalid(&format!("Invalid{kind}Size.ValueNotSupported"), &message));
    }
    Ok(())
}

/// The prefixes of the parameters of data disks, such as `DataDisk.1`, in their order.
fn data_disks(parameters: &Parameters) -> Vec<String> {
    let numbers = parameters.keys().filter_map(|name| {
        let (number, _) = name.strip_prefix("DataDisk.")?.split_once('.')?;
        number.parse::<u32>().ok()
    });
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| format!("DataDisk.{number}")).collect()
}

/// The instance that a request asks for, and its disks. `number` is in ids and addresses. `check` has found nothing.
pub fn make(parameters: &Parameters, number: u64, created: Timestamp) -> Made {
    let get = |name: &str| text(parameters, name);
    let or = |name: &str, default: &str| parameters.get(name).map_or(default, String::as_str).to_owned();
    let id = instance_id(number);
    let zone = catalogue::zone_of(get("VSwitchId")).unwrap_or_default();
    // The service leaves out the seconds.
    let created = created.strftime("%Y-%m-%dT%H:%MZ").to_string();
    let address = or("PrivateIpAddress", &format!("10.250.{}.{}", number / 250 % 250, number % 250 + 2));
    let bandwidth =
        |name: &str, default: i64| parameters.get(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let outward = bandwidth("InternetMaxBandwidthOut", 0);
    let public: Vec<_> = (outward > 0).then(|| format!("203.0.113.{}", number % 250 + 1)).into_iter().collect();
    let price = get("SpotPriceLimit").parse::<f64>().unwrap_or_default();
    let tags: Vec<_> = lists::tags(parameters)
        .into_iter()
        .map(|(key, value)| json!({"TagKey": key, "TagValue": value.unwrap_or_default()}))
        .collect();
    let mut instance = json!({
        "InstanceId": id, "InstanceName": or("InstanceName", &id), "HostName": or("HostName", &host_name(&id)), "Description": get("Description"),
        "RegionId": get("RegionId"), "ZoneId": zone, "Status": "Pending", "InstanceType": get("InstanceType"), "ImageId": get("ImageId"),
        "CreationTime": created, "KeyPairName": get("KeyPairName"), "IoOptimized": get("IoOptimized") != "none", "Tags": {"Tag": tags},
        "DeletionProtection": is_true(parameters, "DeletionProtection"), "OperationLocks": {"LockReason": []},
    });
    let parts = [
        json!({
            "Cpu": 2, "Memory": 8192, "OSType": "linux", "OSName": "Garden Linux", "InstanceNetworkType": "vpc", "SerialNumber": format!("{number:036}"),
            "StartTime": "", "ExpiredTime": "2099-12-31T15:59Z", "AutoReleaseTime": "", "DeviceAvailable": true, "Recyclable": false,
        }),
        json!({
            "InstanceChargeType": or("InstanceChargeType", "PostPaid"), "InternetChargeType": or("InternetChargeType", "PayByTraffic"),
            "InternetMaxBandwidthIn": bandwidth("InternetMaxBandwidthIn", 200), "InternetMaxBandwidthOut": outward,
            "SpotStrategy": or("SpotStrategy", "NoSpot"), "SpotPriceLimit": price,
        }),
        json!({
            "SecurityGroupIds": {"SecurityGroupId": [get("SecurityGroupId")]},
            "VpcAttributes": {"VpcId": VPC, "VSwitchId": get("VSwitchId"), "NatIpAddress": "", "PrivateIpAddress": {"IpAddress": [address]}},
            "PublicIpAddress": {"IpAddress": public}, "InnerIpAddress": {"IpAddress": []},
            "EipAddress": {"AllocationId": "", "IpAddress": "", "InternetChargeType": "", "IsSupportUnassociate": true},
            "NetworkInterfaces": {"NetworkInterface": [{
                "NetworkInterfaceId": format!("eni-gw8{number:015}"), "Type": "Primary", "MacAddress": "00:16:3e:00:00:01", "PrimaryIpAddress": address,
            }]},
        }),
    ];
    for (field, value) in parts.iter().filter_map(Value::as_object).flatten() {
        instance[field] = value.clone();
    }
    let mut disks = vec![disk(parameters, "SystemDisk", number, 0, &instance)];
    for (index, prefix) in (1..).zip(data_disks(parameters)) {
        disks.push(disk(parameters, &prefix, number, index, &instance));
    }
    Made { instance, disks }
}

fn disk(parameters: &Parameters, prefix: &str, number: u64, index: u8, instance: &Value) -> Value {
    let get = |name: &str| text(parameters, &format!("{prefix}.{name}"));
    let is_system = prefix == "SystemDisk";
    let category = Some(get("Category")).filter(|category| !category.is_empty()).unwrap_or("cloud_efficiency");
    let size = get("Size").parse::<i64>().unwrap_or(if is_system { SYSTEM_GB } else { DATA_GB });
    let mut made = json!({
        "DiskId": format!("d-gw8{number:012}{index:03}"), "DiskName": get("DiskName"), "Description": get("Description"), "Status": "In_use",
        "Type": if is_system { "system" } else { "data" }, "Category": category, "Size": size, "Encrypted": get("Encrypted").eq_ignore_ascii_case("true"),
        "DeleteWithInstance": is_system || !get("DeleteWithInstance").eq_ignore_ascii_case("false"), "Portable": !is_system,
        "Device": format!("/dev/xvd{}", char::from(b'a' + index)), "DiskChargeType": "PostPaid", "AttachedTime": instance["CreationTime"],
        "ImageId": if is_system { instance["ImageId"].clone() } else { json!("") },
    });
    for field in ["InstanceId", "RegionId", "ZoneId", "CreationTime", "Tags"] {
        made[field] = instance[field].clone();
    }
    made
}

/// The id of an instance.
pub fn instance_id(number: u64) -> String {
    format!("i-gw8{number:015}")
}

/// The host name of an instance whose request has none.
fn host_name(id: &str) -> String {
    format!("iZ{}Z", id.trim_start_matches("i-"))
}
