"""The VMs of EC2, read with boto3."""

import boto3
from botocore.config import Config

from vm import Vm


class Aws:
    """The client takes credentials and region from the environment, in the variables of boto3."""

    def __init__(self, endpoint):
        self.ec2 = boto3.client("ec2", endpoint_url=endpoint, config=Config(retries={"max_attempts": 1}))

    def running(self):
        filters = [{"Name": "instance-state-name", "Values": ["running"]}]
        for page in self.ec2.get_paginator("describe_instances").paginate(Filters=filters):
            for reservation in page["Reservations"]:
                yield from map(vm, reservation["Instances"])


def vm(instance):
    zone = instance["Placement"]["AvailabilityZone"]
    return Vm(
        # The cloud controller manager of AWS writes the zone into the provider id. The provider id of a machine has the region there.
        provider_id=f"aws:///{zone}/{instance['InstanceId']}",
        node_name=instance["PrivateDnsName"],
        address=instance["PrivateIpAddress"],
        labels={
            "node.kubernetes.io/instance-type": instance["InstanceType"],
            "topology.kubernetes.io/region": zone[:-1],
            "topology.kubernetes.io/zone": zone,
        },
    )
