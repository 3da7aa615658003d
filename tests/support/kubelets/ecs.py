"""The instances of Elastic Compute Service, read with Alibaba Cloud's own client."""

import os

from alibabacloud_ecs20140526 import models
from alibabacloud_ecs20140526.client import Client
from alibabacloud_tea_openapi.utils_models import Config

from vm import Vm


class Ecs:
    """The endpoint is URL,REGION. ACCESS_KEY_ID and ACCESS_KEY_SECRET are in the environment."""

    def __init__(self, endpoint):
        url, self.region = endpoint.split(",")
        keys = {"access_key_id": os.environ["ACCESS_KEY_ID"], "access_key_secret": os.environ["ACCESS_KEY_SECRET"]}
        self.client = Client(Config(endpoint=url.removeprefix("http://"), protocol="http", region_id=self.region, **keys))

    def running(self):
        token = None
        while token != "":
            request = models.DescribeInstancesRequest(region_id=self.region, status="Running", max_results=100, next_token=token)
            page = self.client.describe_instances(request).body
            yield from map(vm, page.instances.instance)
            token = page.next_token or ""


def vm(instance):
    return Vm(
        # The cloud controller manager of Alibaba Cloud writes region and instance.
        provider_id=f"{instance.region_id}.{instance.instance_id}",
        # The kubelet takes the host name, in lower case.
        node_name=instance.host_name.lower(),
        address=instance.vpc_attributes.private_ip_address.ip_address[0],
        labels={
            "node.kubernetes.io/instance-type": instance.instance_type,
            "topology.kubernetes.io/region": instance.region_id,
            "topology.kubernetes.io/zone": instance.zone_id,
        },
    )
