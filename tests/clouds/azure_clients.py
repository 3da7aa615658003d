"""Uses Azure through Microsoft's own clients, independently of the driver that is tested and of the fake that it calls.

    azure_clients.py ENDPOINT SUBSCRIPTION TENANT CLIENT GROUP oracle BODIES     CLIENT_SECRET and AZURE_FEDERATED_TOKEN_FILE in the environment;
                                                                                 prints what happened as JSON

BODIES are the bodies of a network interface, a disk and a VM, and the terms' plan. The clients poll long-running operations themselves, and read
all answers with their models.
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support/kubelets"))

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.identity import ClientSecretCredential, WorkloadIdentityCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.marketplaceordering import MarketplaceOrderingAgreements
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient
from azure.mgmt.resourcegraph import ResourceGraphClient

from azure_vms import Behind


class Subscription:
    def __init__(self, endpoint, subscription, credential, group):
        self.subscription, self.group, self.made = subscription, group, {}
        options = {"transport": Behind(endpoint), "polling_interval": 0.05}
        self.compute = ComputeManagementClient(credential, subscription, **options)
        self.network = NetworkManagementClient(credential, subscription, **options)
        self.resources = ResourceManagementClient(credential, subscription, **options)
        self.orders = MarketplaceOrderingAgreements(credential, subscription, **options)
        self.graph = ResourceGraphClient(credential, **options)

    def create(self, name, bodies):
        """A VM with its network interface and a disk from an image."""
        nic = self.network.network_interfaces.begin_create_or_update(self.group, f"{name}-nic", bodies["nic"]).result()
        disk = self.compute.disks.begin_create_or_update(self.group, f"{name}-9-data-disk", bodies["disk"]).result()
        body = json.loads(json.dumps(bodies["vm"]).replace("NAME", name))
        body["properties"]["networkProfile"] = {"networkInterfaces": [{"id": nic.id, "properties": {"deleteOption": "Delete"}}]}
        attached = {"lun": 9, "createOption": "Attach", "deleteOption": "Detach", "managedDisk": {"id": disk.id}}
        body["properties"]["storageProfile"]["dataDisks"].append(attached)
        self.made[name] = body
        made = self.compute.virtual_machines.begin_create_or_update(self.group, name, body).result()
        return [nic.provisioning_state, disk.provisioning_state, made.provisioning_state]

    def names(self, query, top):
        """All pages of a query of Resource Graph."""
        found, options = [], {"$top": top}
        while True:
            page = self.graph.resources({"subscriptions": [self.subscription], "query": query, "options": options})
            found += [row["name"] for row in page.data]
            if not page.skip_token:
                return found
            options["$skipToken"] = page.skip_token


def oracle(endpoint, subscription, tenant, client, group, bodies):
    """Creates a VM per kind of credentials, reads, changes and lists them, and deletes them."""
    options = {"transport": Behind(endpoint), "disable_instance_discovery": True}
    kinds = {
        "federated": WorkloadIdentityCredential(tenant_id=tenant, client_id=client, **options),
        "secret": ClientSecretCredential(tenant, client, os.environ["CLIENT_SECRET"], **options),
    }
    all_kinds = {name: Subscription(endpoint, subscription, credential, group) for name, credential in kinds.items()}
    one, outcome = all_kinds["secret"], {}
    vms, nics, disks = one.compute.virtual_machines, one.network.network_interfaces, one.compute.disks
    outcome["groups"] = [one.resources.resource_groups.check_existence(name) for name in (group, "absent")]
    outcome["created"] = {name: of.create(f"m-{name}", bodies) for name, of in all_kinds.items()}
    outcome["listed"] = [[found.name for found in of.list(group)] for of in (vms, nics)]
    outcome["disks"] = len(list(disks.list_by_resource_group(group)))
    found = vms.get(group, "m-secret", expand="instanceView")
    outcome["power"] = found.instance_view.statuses[-1].code
    outcome["address"] = nics.get(group, "m-secret-nic").ip_configurations[0].private_ip_address
    query = "Resources | where type =~ 'Microsoft.Network/networkInterfaces' | project id, name | order by name asc"
    outcome["graph"] = one.names(query, 1)
    keep = {"properties": {"storageProfile": {"osDisk": {"createOption": "FromImage", "deleteOption": "Detach"}}}}
    outcome["changed"] = vms.begin_update(group, "m-secret", keep).result().storage_profile.os_disk.delete_option
    outcome["refused"] = [
        refused(lambda: vms.begin_create_or_update(group, "m-secret", {**one.made["m-secret"], "zones": ["3"]}).result()),
        refused(lambda: nics.begin_delete(group, "m-secret-nic").result()),
        refused(lambda: disks.begin_delete(group, "m-secret-os-disk").result()),
        refused(lambda: vms.get(group, "absent")),
        refused(lambda: one.graph.resources({"query": "Things"})),
    ]
    # The test lets this operation fail after it was accepted.
    nics.begin_create_or_update(group, "m-failed-nic", bodies["nic"]).result()
    body = json.loads(json.dumps(bodies["vm"]).replace("NAME", "m-failed"))
    nic = nics.get(group, "m-failed-nic")
    body["properties"]["networkProfile"] = {"networkInterfaces": [{"id": nic.id, "properties": {"deleteOption": "Delete"}}]}
    outcome["failed"] = refused(lambda: vms.begin_create_or_update(group, "m-failed", body).result())
    terms = one.orders.marketplace_agreements.get("virtualmachine", *bodies["plan"])
    terms.accepted = True
    outcome["accepted"] = one.orders.marketplace_agreements.create("virtualmachine", *bodies["plan"], terms).accepted
    for name in ("m-secret", "m-federated", "m-failed", "absent"):
        vms.begin_delete(group, name).result()
    outcome["kept"] = sorted(disk.name for disk in disks.list_by_resource_group(group))
    for disk in outcome["kept"] + ["absent"]:
        disks.begin_delete(group, disk).result()
    nics.begin_delete(group, "absent").result()
    outcome["left"] = one.names("Resources | project id, name", 100) + [found.name for found in nics.list(group)]
    wrong = ClientSecretCredential(tenant, client, "wrong", **options)
    outcome["anonymous"] = refused(lambda: list(Subscription(endpoint, subscription, wrong, group).compute.virtual_machines.list(group)))
    return outcome


def refused(call):
    """Status and code of a refusal, as the client reads them."""
    try:
        call()
    except ClientAuthenticationError as error:
        return [0, error.message.split(":")[1].strip() if "AADSTS" in error.message else error.message]
    except HttpResponseError as error:
        return [error.status_code, error.error.code]
    raise AssertionError("the call succeeded")


def main(endpoint, subscription, tenant, client, group, command, *arguments):
    commands = {"oracle": lambda bodies: oracle(endpoint, subscription, tenant, client, group, json.loads(bodies))}
    return commands[command](*arguments)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
