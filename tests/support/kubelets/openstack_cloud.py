"""The servers of OpenStack, asked for with openstacksdk."""

import openstack

from vm import Vm


class OpenStack:
    """The endpoint is FOLDER:CLOUD, a folder of scripts/test-openstack and a login of its clouds.yaml."""

    def __init__(self, endpoint):
        folder, cloud = endpoint.rsplit(":", 1)
        config = openstack.config.OpenStackConfig(config_files=[f"{folder}/clouds.yaml"], load_envvars=False)
        self.cloud = openstack.connection.Connection(config=config.get_one(cloud=cloud))

    def running(self):
        for server in self.cloud.compute.servers(details=True, status="ACTIVE"):
            if server.task_state != "deleting":
                yield vm(server, self.cloud.config.region_name)


def vm(server, region):
    addresses = [address["addr"] for network in server.addresses.values() for address in network]
    return Vm(
        # As the cloud controller manager of OpenStack writes it: without the region, which a machine has.
        provider_id=f"openstack:///{server.id}",
        node_name=server.name,
        address=addresses[0],
        labels={
            "topology.kubernetes.io/region": region,
            "topology.kubernetes.io/zone": server.availability_zone,
        },
    )
