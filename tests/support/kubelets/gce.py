"""The instances of Compute Engine, read with Google's own client."""

import json
import os

from google.oauth2.service_account import Credentials
from googleapiclient.discovery import build

from vm import Vm

SCOPE = "https://www.googleapis.com/auth/compute.readonly"


class Gce:
    """The endpoint is URL,PROJECT,ZONE. KEY_FILE in the environment is the key file of a service account."""

    def __init__(self, endpoint):
        url, self.project, self.zone = endpoint.split(",")
        credentials = Credentials.from_service_account_info(json.loads(os.environ["KEY_FILE"]), scopes=[SCOPE])
        credentials = credentials.with_always_use_jwt_access(True)
        options = {"api_endpoint": f"{url}/compute/v1/"}
        client = build("compute", "v1", credentials=credentials, client_options=options, static_discovery=True, cache_discovery=False)
        self.instances = client.instances()

    def running(self):
        request = self.instances.list(project=self.project, zone=self.zone, filter="status=RUNNING")
        while request is not None:
            page = request.execute()
            yield from (vm(instance, self.project, self.zone) for instance in page.get("items", []))
            request = self.instances.list_next(request, page)


def vm(instance, project, zone):
    return Vm(
        # The cloud controller manager of Google writes two slashes. The provider id of a machine has three.
        provider_id=f"gce://{project}/{zone}/{instance['name']}",
        node_name=instance["name"],
        address=instance["networkInterfaces"][0]["networkIP"],
        labels={
            "node.kubernetes.io/instance-type": instance["machineType"].rsplit("/", 1)[1],
            "topology.kubernetes.io/region": zone.rsplit("-", 1)[0],
            "topology.kubernetes.io/zone": zone,
        },
    )
