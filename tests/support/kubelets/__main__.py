"""Kubelets and the cloud controller manager of a cluster: every VM that runs in a cloud has its Node.

    python tests/support/kubelets CLOUD ENDPOINT KUBECONFIG

Asks the cloud by a client that is not ours which VMs run. A VM that is new registers its Node once and keeps it Ready; the Node of
a VM that does not run any more is removed. CLOUD is `aws`, whose credentials come from the environment, or `openstack`, whose endpoint names them. The process runs until it is ended.
"""

import importlib
import sys
import time

from cluster import Cluster

PAUSE = 0.5
HEARTBEAT = 10
CLOUDS = {"aws": ("aws", "Aws"), "openstack": ("openstack_cloud", "OpenStack")}


class Kubelets:
    def __init__(self, cloud, cluster):
        self.cloud, self.cluster = cloud, cluster
        # Nodes of VMs that have run, by provider id, and when each has last said that it is well.
        self.registered, self.beaten = {}, {}

    def look(self):
        running = {vm.provider_id: vm for vm in self.cloud.running()}
        for gone in self.registered.keys() - running.keys():
            name = self.registered.pop(gone)
            self.beaten.pop(name, None)
            self.cluster.remove(name)
        for provider_id, vm in running.items():
            if provider_id not in self.registered:
                self.cluster.register(vm)
                self.registered[provider_id] = vm.node_name
        for name in self.registered.values():
            if time.monotonic() - self.beaten.get(name, float("-inf")) > HEARTBEAT:
                self.cluster.beat(name)
                self.beaten[name] = time.monotonic()

    def adopt(self):
        """Nodes of VMs that have gone while nobody looked are removed like others."""
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
            kubelets.look()
        except Exception as error:  # Cloud and cluster may be away for a while.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
