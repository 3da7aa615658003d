//! Queries of Azure Resource Graph: the resources of a class, and the VMs with a name. Resource Graph lags behind reality by up to some minutes.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{Failure, http::Method};
use machine_driver::{Code, ListedVm, OwnerTags, Timestamp};
use serde_json::{Value, json};

use crate::{
    api,
    arm::{Sent, Session},
    names::{id_segments, is_vm_name},
    plan::{DATA_DISK_SUFFIX, NIC_SUFFIX, OS_DISK_SUFFIX, data_disk_end, without_lun},
    resources::{has_tag, text},
    spec::DiskKey,
    subject::{Home, provider_id},
};

/// The most pages of a list. With more pages, the service probably repeats itself.
const MOST_PAGES: usize = 1000;
/// The number of rows on a page. Resource Graph allows no more.
const PAGE: usize = 1000;
/// What the request is, for messages.
const WHAT: &str = "resourceGraph.resources";
/// The types of resources that a machine has, in lower case.
const VM: &str = "microsoft.compute/virtualmachines";
const NIC: &str = "microsoft.network/networkinterfaces";
const DISK: &str = "microsoft.compute/disks";
/// The columns that the driver reads. Pages need `id`.
const COLUMNS: &str = "id, name, type, tags, managedBy, created = properties.timeCreated";

/// The query for the resources of an owner in a resource group. All resources whose tags contain the texts are returned; the driver compares the
/// keys exactly.
pub fn of_owner(group: &str, owner: &OwnerTags) -> String {
    let mut keys: Vec<&str> = owner.keys().collect();
    keys.sort_unstable();
    let conditions: Vec<String> = keys.iter().map(|key| format!("tagKeys has {}", quoted(key))).collect();
    format!(
        "Resources | where type in~ ('{VM}', '{NIC}', '{DISK}') | where resourceGroup =~ {} | extend tagKeys = bag_keys(tags) | where {} | project \
         {COLUMNS} | order by id asc",
        quoted(group),
        conditions.join(" and ")
    )
}

/// The query for the VMs with a name, in all resource groups.
pub fn named(name: &str) -> String {
    format!("Resources | where type =~ '{VM}' | where name =~ {} | project {COLUMNS} | order by id asc", quoted(name))
}

/// A text as a literal of the query language.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

impl Session<'_> {
    /// All rows of a query. If a page is missing, the whole list is a failure.
    pub async fn query(&self, subscription: &str, query: &str) -> Result<Vec<Value>, Failure> {
        let mut rows = Vec::new();
        let mut tokens = HashSet::new();
        let mut next: Option<String> = None;
        let broken = |why: &str| Err(Failure::permanent(Code::Internal, format!("{WHAT}: {why}")));
        for _ in 0..MOST_PAGES {
            let mut options = json!({"resultFormat": "objectArray", "$top": PAGE});
            if let Some(token) = &next {
                options["$skipToken"] = json!(token);
            }
            let body = json!({"subscriptions": [subscription], "query": query, "options": options});
            let sent =
                Sent { method: &Method::POST, ..Sent::put("resource_graph_query", WHAT, api::RESOURCE_GRAPH, &body) };
            let mut page = self.send(sent).await.map_err(of_list)?.body;
            let Some(Value::Array(data)) = page.get_mut("data").map(Value::take) else {
                return broken("the answer has no list of rows");
            };
            rows.extend(data);
            match text(&page["$skipToken"]) {
                "" if text(&page["resultTruncated"]).eq_ignore_ascii_case("true") => {
                    return broken("the list is cut off and has no next page");
                }
                "" => return Ok(rows),
                token if !tokens.insert(token.to_owned()) => break,
                token => next = Some(token.to_owned()),
            }
        }
        broken("the pages of the list do not end")
    }
}

/// The failure of a list. A missing list proves nothing about VMs, and callers take `NotFound` for the end of a machine's VM.
fn of_list(mut failure: Failure) -> Failure {
    if failure.status.code == Code::NotFound {
        failure.status.code = Code::FailedPrecondition;
    }
    failure
}

/// The machines that rows belong to: each once, with the VM's time of creation if there is a VM. `disks` are the data disks of the class.
///
/// A network interface or a disk without a VM counts too, so that what is left of a half-deleted machine is found and deleted.
pub fn machines(rows: &[Value], owner: &OwnerTags, disks: &[DiskKey], location: &str) -> Vec<ListedVm> {
    let mut machines: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    let mut data_disks: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| owner.own(|key| has_tag(&row["tags"], key))) {
        let name = text(&row["name"]).to_ascii_lowercase();
        let machine = match text(&row["type"]).to_ascii_lowercase().as_str() {
            VM => Some(name.as_str()),
            NIC => name.strip_suffix(NIC_SUFFIX),
            DISK if name.ends_with(DATA_DISK_SUFFIX) => {
                // The VM of an attached disk is a row of its own.
                if text(&row["managedBy"]).is_empty() {
                    data_disks.push(name.clone());
                }
                None
            }
            DISK => name.strip_suffix(OS_DISK_SUFFIX),
            _ => None,
        };
        let Some(machine) = machine.filter(|machine| is_vm_name(machine)) else { continue };
        let created = text(&row["created"]).parse().ok().filter(|_| text(&row["type"]).eq_ignore_ascii_case(VM));
        let known = machines.entry(machine.to_owned()).or_default();
        *known = known.take().or(created);
    }
    for disk in data_disks {
        if let Some(machine) = machine_of_disk(&disk, &machines, disks) {
            machines.entry(machine).or_default();
        }
    }
    let listed = |(name, created): (String, _)| ListedVm {
        provider_id: provider_id(location, &name),
        machine_name: name,
        created,
    };
    machines.into_iter().map(listed).collect()
}

/// The machine of a data disk, from its name in lower case: the end of the name is one of the class's, or the begin is the name of a known machine,
/// or else it is the part before the number. The name of the disk can't be distinguished from the end of a machine's name.
fn machine_of_disk(disk: &str, known: &BTreeMap<String, Option<Timestamp>>, keys: &[DiskKey]) -> Option<String> {
    let before = without_lun(disk)?;
    let mut ends: Vec<String> = keys.iter().map(|key| data_disk_end(key).to_ascii_lowercase()).collect();
    ends.sort_by_key(|end| std::cmp::Reverse(end.len()));
    let is_of =
        |machine: &str| before.strip_prefix(machine).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let by_end = ends.iter().find_map(|end| disk.strip_suffix(end.as_str()));
    let by_machine = known.keys().map(String::as_str).filter(|machine| is_of(machine)).max_by_key(|name| name.len());
    by_end.or(by_machine).or(Some(before)).filter(|machine| is_vm_name(machine)).map(str::to_owned)
}

/// The places of the VMs in rows, from their ids.
pub fn homes(rows: &[Value], like: &Home) -> Vec<Home> {
    let home = |row: &Value| {
        let segments = id_segments(text(&row["id"]))?;
        let [_, subscription, _, group, ..] = segments.as_slice() else { return None };
        let group = api::Group { subscription: (*subscription).to_owned(), name: (*group).to_owned() };
        Some(Home { group, ..like.clone() })
    };
    rows.iter().filter_map(home).collect()
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
