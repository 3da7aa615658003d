"""The VMs of Azure, read with Microsoft's own clients."""

import os
import urllib.parse

from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientSecretCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient

from vm import Vm


class Behind(RequestsTransport):
    """Sends requests for any host to one endpoint, and keeps the name of the host. The clients insist on https."""

    def __init__(self, endpoint):
        super().__init__()
        self.endpoint = endpoint

    def send(self, request, **options):
        url, parts = request.url, urllib.parse.urlsplit(request.url)
        request.headers["Host"] = parts.netloc
        request.url = self.endpoint + urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        try:
            return super().send(request, **options)
        finally:
            # The clients read it again when an operation has ended.
            request.url = url


class Azure:
    """The endpoint is URL,SUBSCRIPTION,TENANT,CLIENT,GROUP. CLIENT_SECRET is in the environment."""

    def __init__(self, endpoint):
        url, subscription, tenant, client, self.group = endpoint.split(",")
        credential = ClientSecretCredential(
            tenant, client, os.environ["CLIENT_SECRET"], transport=Behind(url), disable_instance_discovery=True
        )
        self.compute = ComputeManagementClient(credential, subscription, transport=Behind(url))
        self.network = NetworkManagementClient(credential, subscription, transport=Behind(url))

    def running(self):
        addresses = {}
        for nic in self.network.network_interfaces.list(self.group):
            addresses[nic.id.lower()] = nic.ip_configurations[0].private_ip_address
        for found in self.compute.virtual_machines.list(self.group):
            nic = found.network_profile.network_interfaces[0].id.lower()
            if found.provisioning_state == "Succeeded" and nic in addresses:
                yield vm(found, addresses[nic])


def vm(found, address):
    zone = f"{found.location}-{found.zones[0]}" if found.zones else "0"
    return Vm(
        # The cloud controller manager of Azure writes the id of the VM. The provider id of a machine has region and name.
        provider_id=f"azure://{found.id}",
        node_name=found.name,
        address=address,
        labels={
            "node.kubernetes.io/instance-type": found.hardware_profile.vm_size,
            "topology.kubernetes.io/region": found.location,
            "topology.kubernetes.io/zone": zone,
        },
    )
