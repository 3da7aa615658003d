"""The servers of OpenStack, read with openstacksdk."""

import openstack
from openstack.exceptions import BadRequestException, NotFoundException

from vm import Vm


class OpenStack:
    """The endpoint is FOLDER:CLOUD, the folder of scripts/test-openstack and a cloud in its clouds.yaml."""

    def __init__(self, endpoint):
        folder, cloud = endpoint.rsplit(":", 1)
        config = openstack.config.OpenStackConfig(config_files=[f"{folder}/clouds.yaml"], load_envvars=False)
        self.cloud = openstack.connection.Connection(config=config.get_one(cloud=cloud))
        self.known = set()

    def running(self):
        found = {server.id: server for server in self.listed()}
        # A list with short pages may leave out servers while servers are made and deleted. A known server that is missing is read by its id.
        missed = (self.server(known) for known in self.known - found.keys())
        found |= {server.id: server for server in missed if server}
        running = [server for server in found.values() if server.status == "ACTIVE" and server.task_state != "deleting"]
        self.known = {server.id for server in running}
        return [vm(server, self.cloud.config.region_name) for server in running]

    def listed(self):
        try:
            yield from self.cloud.compute.servers(details=True, status="ACTIVE")
        except (BadRequestException, NotFoundException):
            pass  # The server after which the next page begins was deleted. The rest of the list is read the next time.

    def server(self, server):
        try:
            return self.cloud.compute.get_server(server)
        except NotFoundException:
            return None


def vm(server, region):
    addresses = [address["addr"] for network in server.addresses.values() for address in network]
    return Vm(
        # The cloud controller manager of OpenStack writes no region into the provider id. The provider id of a machine has it.
        provider_id=f"openstack:///{server.id}",
        node_name=server.name,
        address=addresses[0],
        labels={
            "topology.kubernetes.io/region": region,
            "topology.kubernetes.io/zone": server.availability_zone,
        },
    )
