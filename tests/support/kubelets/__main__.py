"""Plays the kubelets and the cloud controller manager of a cluster, so that every running VM of a cloud has its Node.

    python tests/support/kubelets CLOUD ENDPOINT KUBECONFIG

Lists the running VMs with an independent client of the cloud. The Node of a new VM is registered once and kept Ready. The Node of a VM that no
longer runs is removed. CLOUD is `aws`, `azure`, `ecs` or `gce`, with credentials in the environment, or `openstack`, with a login in the endpoint.
The process runs until it is ended.
"""

import importlib
import sys
import time

from cluster import Cluster

PAUSE = 0.5
HEARTBEAT = 10
CLOUDS = {
    "aws": ("aws", "Aws"),
    "azure": ("azure_vms", "Azure"),
    "ecs": ("ecs", "Ecs"),
    "gce": ("gce", "Gce"),
    "openstack": ("openstack_cloud", "OpenStack"),
}


class Kubelets:
    def __init__(self, cloud, cluster):
        self.cloud, self.cluster = cloud, cluster
        # The names of the registered Nodes by provider id, and the time of the last heartbeat of each Node.
        self.registered, self.heartbeats = {}, {}

    def update(self):
        running = {vm.provider_id: vm for vm in self.cloud.running()}
        for gone in self.registered.keys() - running.keys():
            name = self.registered.pop(gone)
            self.heartbeats.pop(name, None)
            self.cluster.remove(name)
        for provider_id, vm in running.items():
            if provider_id not in self.registered:
                self.cluster.register(vm)
                self.registered[provider_id] = vm.node_name
        for name in self.registered.values():
            if time.monotonic() - self.heartbeats.get(name, float("-inf")) > HEARTBEAT:
                self.cluster.heartbeat(name)
                self.heartbeats[name] = time.monotonic()

    def adopt(self):
        """Takes over the Nodes of an earlier process, so that Nodes of VMs that have ended meanwhile are removed."""
        for node in self.cluster.nodes():
            provider_id = node["spec"].get("providerID", "")
            if provider_id:
                self.registered.setdefault(provider_id, node["metadata"]["name"])


def main(cloud, endpoint, kubeconfig):
    module, name = CLOUDS[cloud]
    cloud = getattr(importlib.import_module(module), name)(endpoint)
    kubelets, adopted = Kubelets(cloud, Cluster(kubeconfig)), False
    while True:
        try:
            if not adopted:
                kubelets.adopt()
                adopted = True
            kubelets.update()
        except Exception as error:  # Cloud and cluster may be unreachable for a while.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
