"""Uses Elastic Compute Service through Alibaba Cloud's own client, independently of the driver that is tested and of the fake that it calls.

    ecs.py ENDPOINT REGION oracle PARAMETERS     ACCESS_KEY_ID, ACCESS_KEY_SECRET and OTHER_SECRET in the environment; prints what happened as JSON

The client signs in two ways, and reads the answers into its own classes.
"""

import json
import os
import sys

from alibabacloud_ecs20140526 import models
from alibabacloud_ecs20140526.client import Client
from alibabacloud_sts20150401.client import Client as Sts
from alibabacloud_tea_openapi.exceptions import AlibabaCloudException
from alibabacloud_tea_openapi.utils_models import Config

# What the client's option for the way of signing means: signature 1.0, and ACS3-HMAC-SHA256.
ALGORITHMS = {"rpc": "v2", "acs3": None}


def config(endpoint, region, algorithm="acs3", secret=None):
    return Config(
        access_key_id=os.environ["ACCESS_KEY_ID"],
        access_key_secret=secret or os.environ["ACCESS_KEY_SECRET"],
        endpoint=endpoint.removeprefix("http://"),
        protocol="http",
        region_id=region,
        signature_algorithm=ALGORITHMS[algorithm],
    )


class Region:
    def __init__(self, client, region):
        self.client, self.region = client, region

    def run(self, parameters):
        request = models.RunInstancesRequest().from_map({**parameters, "RegionId": self.region})
        return self.client.run_instances(request).body.instance_id_sets.instance_id_set

    def pages(self, **filters):
        """All pages, each with the next token of the former one."""
        token = None
        while token != "":
            request = models.DescribeInstancesRequest(region_id=self.region, next_token=token, **filters)
            page = self.client.describe_instances(request).body
            yield page.instances.instance
            token = page.next_token or ""

    def instances(self, **filters):
        return [instance for page in self.pages(**filters) for instance in page]

    def disks(self):
        return self.client.describe_disks(models.DescribeDisksRequest(region_id=self.region)).body.disks.disk

    def delete(self, instance, force=True):
        self.client.delete_instance(models.DeleteInstanceRequest(instance_id=instance, force=force))


def oracle(endpoint, region, parameters):
    """Creates instances with each way of signing, lists them in pages, and deletes them."""
    regions = {name: Region(Client(config(endpoint, region, name)), region) for name in ALGORITHMS}
    one, outcome = regions["acs3"], {}
    tags = [models.DescribeInstancesRequestTag(**{key.lower(): value for key, value in tag.items()}) for tag in parameters["Tag"]]
    created = {name: of.run({**parameters, "InstanceName": f"m-{name}", "ClientToken": name}) for name, of in regions.items()}
    outcome["created"] = {name: len(ids) for name, ids in created.items()}
    outcome["again"] = regions["rpc"].run({**parameters, "InstanceName": "m-acs3", "ClientToken": "acs3"}) == created["acs3"]
    outcome["mismatch"] = refused(lambda: one.run({**parameters, "InstanceName": "m-other", "ClientToken": "acs3"}))
    more = one.run({**parameters, "InstanceName": "m-more", "Amount": 10})
    outcome["pages"] = [len(page) for page in one.pages(max_results=10, tag=tags)]
    ids = json.dumps(created["rpc"] + created["acs3"])
    found = regions["rpc"].instances(instance_ids=ids)
    outcome["found"] = sorted([instance.instance_name, instance.status, instance.zone_id] for instance in found)
    outcome["address"] = found[0].vpc_attributes.private_ip_address.ip_address[0]
    outcome["disks"] = [[disk.type, disk.size, disk.delete_with_instance] for disk in one.disks()][:2]
    outcome["account"] = Sts(config(endpoint, region)).get_caller_identity().body.account_id
    outcome["running"] = refused(lambda: one.delete(more[0], force=False))
    for instance in created["rpc"] + created["acs3"] + more:
        one.delete(instance)
    outcome["left"] = len(one.instances()) + len(one.disks())
    outcome["absent"] = refused(lambda: regions["rpc"].delete(more[0]))
    for name in ALGORITHMS:
        stranger = Region(Client(config(endpoint, region, name, os.environ["OTHER_SECRET"])), region)
        outcome[f"stranger_{name}"] = refused(stranger.instances)
    return outcome


def refused(call):
    """Status and code of a refusal, as the client reads them."""
    try:
        call()
    except AlibabaCloudException as error:
        return [error.status_code, error.code]
    raise AssertionError("the call succeeded")


def main(endpoint, region, command, *arguments):
    commands = {"oracle": lambda parameters: oracle(endpoint, region, json.loads(parameters))}
    return commands[command](*arguments)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
