"""A client for the Nodes of an API server, with modules of Python and yaml only."""

import base64
import http.client
import json
import ssl
import tempfile
import urllib.parse
from datetime import datetime, timezone

import yaml

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The duration of a Lease of a kubelet.
LEASE_SECONDS = 40
# A kubelet registers with this taint, and the cloud controller manager removes it when it has identified the VM.
UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}


class Cluster:
    def __init__(self, kubeconfig):
        with open(kubeconfig, encoding="utf-8") as file:
            config = yaml.safe_load(file)
        self.server = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"])
        authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self.trust = ssl.create_default_context(cadata=authority)
        user = config["users"][0]["user"]
        self.headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as file:
                file.write(b"\n".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
                file.flush()
                self.trust.load_cert_chain(file.name)
        self.connection = None

    def call(self, method, path, body=None, kind="application/json"):
        """Returns status and body. All calls use one connection, which is replaced after a failure."""
        headers = {**self.headers, "Content-Type": kind}
        try:
            if self.connection is None:
                self.connection = http.client.HTTPSConnection(self.server.netloc, context=self.trust, timeout=30)
            self.connection.request(method, path, body and json.dumps(body), headers)
            answer = self.connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError):
            self.connection = None
            raise

    def require(self, accepted, method, path, *body):
        status, answer = self.call(method, path, *body)
        if status not in accepted:
            raise OSError(f"{method} {path}: {status} {answer.get('message')}")
        return answer

    def nodes(self):
        return self.require((200,), "GET", NODES)["items"]

    def register(self, vm):
        """Registers a Node like a kubelet, and then identifies it like the cloud controller manager."""
        labels = {"kubernetes.io/hostname": vm.node_name, "kubernetes.io/os": "linux"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": vm.node_name, "labels": labels},
            "spec": {"taints": [UNINITIALIZED]},
            "status": {"conditions": conditions("True"), "addresses": [{"type": "InternalIP", "address": vm.address}]},
        }
        # 409: the Node is registered already.
        self.require((201, 409), "POST", NODES, node)
        identified = {"metadata": {"labels": vm.labels}, "spec": {"providerID": vm.provider_id, "taints": None}}
        self.require((200, 404), "PATCH", f"{NODES}/{vm.node_name}", identified, "application/merge-patch+json")

    def heartbeat(self, name):
        """Updates status and Lease of a Node. A missing Node is not made again, because a kubelet registers only once."""
        status = {"status": {"conditions": conditions("True")}}
        path = f"{NODES}/{name}/status"
        self.require((200, 404), "PATCH", path, status, "application/strategic-merge-patch+json")
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        patch = ("PATCH", f"{LEASES}/{name}", {"spec": spec}, "application/merge-patch+json")
        if self.call(*patch)[0] == 404:
            # 404: the namespace of the Leases does not exist yet.
            self.require((201, 404, 409), "POST", LEASES, lease)

    def remove(self, name):
        self.require((200, 404), "DELETE", f"{NODES}/{name}")
        self.require((200, 404), "DELETE", f"{LEASES}/{name}")


def conditions(ready):
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    beat = {"lastHeartbeatTime": now, "reason": "Kubelet", "message": "posted by tests/support/kubelets"}
    fine = {kind: "False" for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")}
    return [{"type": kind, "status": status, **beat} for kind, status in {**fine, "Ready": ready}.items()]
