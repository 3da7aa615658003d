#!/usr/bin/env python3
"""A driver in Python, as a starting point. Its cloud is a folder, and a VM is a file in it.

If the manager runs the driver (`--driver-exec=files=/path/to/driver.py`), MCM_DRIVER_SOCKET has the path of the socket. To run it by hand:

    pip install grpcio grpcio-tools
    ./driver.py --socket /run/mcm/files.sock --cloud /var/lib/vms

docs/drivers.md says what each call must do. The program reads the protocol from proto/ when it starts, so no code is generated.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import threading
from concurrent import futures

import grpc

PROTO = pathlib.Path(os.environ.get("MCM_DRIVER_PROTO") or pathlib.Path(__file__).resolve().parents[2] / "crates/driver-external/proto")
sys.path.insert(0, str(PROTO))
pb, services = grpc.protos_and_services("machine/driver/v1/driver.proto")

# The `provider` string of the classes that this driver serves, and the beginning of its provider ids.
PROVIDER = "files"
SCHEME = "files:///"

# The number of calls that can run at once.
THREADS = 16

SCHEMA = {
    "type": "object",
    "properties": {"cluster": {"type": "string"}, "size": {"type": "string"}},
    "required": ["cluster", "size"],
}


def is_name(name):
    """Whether this text can be the name of a file or a folder."""
    return bool(name) and not name.startswith(".") and "/" not in name


class Driver(services.DriverServicer):
    def __init__(self, cloud):
        self.cloud = pathlib.Path(cloud)

    def GetInfo(self, request, context):
        return pb.GetInfoResponse(
            name="files",
            version="1",
            protocol="1.0",
            providers=[PROVIDER],
            capabilities=[pb.CREATE, pb.DELETE, pb.STATUS, pb.LIST, pb.VOLUMES, pb.VALIDATE],
            provider_spec_json_schema=json.dumps(SCHEMA).encode(),
            # Two threads remain for GetInfo and for watching the health.
            max_concurrency=THREADS - 2,
            node_id_compare=pb.NODE_ID_COMPARE_LAST_SEGMENT,
            create_is_idempotent=True,
            # The class names the owner of the VMs, so managers need no --cluster-name.
            owner_in_class=True,
        )

    def Validate(self, request, context):
        spec = self.spec(request.machine_class, context)
        errors = []
        if not is_name(spec["cluster"]):
            errors.append(pb.FieldError(path="providerSpec.cluster", kind=pb.INVALID, value=spec["cluster"], detail="must be the name of a folder"))
        return pb.ValidateResponse(errors=errors)

    def CreateMachine(self, request, context):
        cluster, machine = self.vm(request, context)
        folder = self.cloud / cluster
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # There is one VM per machine. A VM does not change when its class is edited.
            with open(folder / machine, "x", encoding="utf-8") as file:
                file.write(self.spec(request.machine_class, context)["size"])
        except FileExistsError:
            pass
        return self.identity(cluster, machine)

    def DeleteMachine(self, request, context):
        cluster, machine = self.vm(request, context)
        try:
            (self.cloud / cluster / machine).unlink()
        except FileNotFoundError:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no VM {cluster}/{machine}")
        return pb.DeleteMachineResponse()

    def GetMachineStatus(self, request, context):
        cluster, machine = self.vm(request, context)
        if not (self.cloud / cluster / machine).exists():
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no VM {cluster}/{machine}")
        return self.identity(cluster, machine)

    def ListMachines(self, request, context):
        cluster = self.spec(request.machine_class, context)["cluster"]
        if not is_name(cluster):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no folder can be called {cluster!r}")
        folder = self.cloud / cluster
        names = [file.name for file in folder.iterdir()] if folder.exists() else []
        # A list is complete only if its last chunk is marked.
        yield pb.ListMachinesChunk(machines={f"{SCHEME}{cluster}/{name}": name for name in names}, last=True)

    def GetVolumeIDs(self, request, context):
        return pb.GetVolumeIDsResponse()

    def spec(self, machine_class, context):
        """The providerSpec of a class that this driver serves."""
        read = json.loads(machine_class.json)
        if read.get("provider") != PROVIDER:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"requested for Provider '{read.get('provider')}', we only support '{PROVIDER}'",
            )
        spec = read.get("providerSpec") or {}
        for field in SCHEMA["required"]:
            if not isinstance(spec.get(field), str):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"providerSpec.{field}: must be a string")
        return spec

    def vm(self, request, context):
        """Cluster and machine of a request: by the provider id, or by the name of a machine without one. A VM of another cluster is not found."""
        spec = self.spec(request.machine_class, context)
        machine = json.loads(request.machine.json)
        provider_id = machine.get("spec", {}).get("providerID", "")
        if provider_id.startswith(SCHEME) and "/" in provider_id[len(SCHEME):]:
            cluster, name = provider_id[len(SCHEME):].split("/", 1)
        else:
            cluster, name = spec["cluster"], machine["metadata"].get("name", "")
        if not is_name(cluster) or not is_name(name):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no VM can be called {cluster}/{name}")
        if cluster != spec["cluster"]:
            context.abort(grpc.StatusCode.NOT_FOUND, f"VM {cluster}/{name} is not of cluster {spec['cluster']}")
        return cluster, name

    def identity(self, cluster, machine):
        return pb.MachineResponse(provider_id=f"{SCHEME}{cluster}/{machine}", node_name=machine)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", default=os.environ.get("MCM_DRIVER_SOCKET"), help="where to listen, in a folder of mode 0700")
    parser.add_argument("--cloud", default=os.environ.get("FILES_CLOUD", "/var/lib/vms"), help="the folder with the VMs")
    args = parser.parse_args()
    if not args.socket:
        parser.error("--socket or MCM_DRIVER_SOCKET must say where to listen")
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=THREADS))
    services.add_DriverServicer_to_server(Driver(args.cloud), server)
    server.add_insecure_port(f"unix://{os.path.abspath(args.socket)}")
    server.start()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    server.stop(grace=2).wait()


if __name__ == "__main__":
    main()
