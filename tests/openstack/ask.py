"""Asks the running services, and changes them behind the driver's back, with openstacksdk: what is tested has no part in it.

    ask.py FOLDER CLOUD inventory                          servers, ports and volumes of the cloud's project
    ask.py FOLDER CLOUD call METHOD SERVICE PATH [BODY]    status and body of one request; USER stands for the user's id

FOLDER is that of scripts/test-openstack, CLOUD one of its clouds.yaml. Prints JSON.
"""

import json
import sys

import openstack


def inventory(cloud):
    project = cloud.current_project_id
    return {
        "servers": [server.to_dict() for server in cloud.compute.servers(details=True)],
        "ports": [port.to_dict() for port in cloud.network.ports(project_id=project)],
        "volumes": [volume.to_dict() for volume in cloud.block_storage.volumes(details=True)],
    }


def call(cloud, method, service, path, body=None):
    proxy, path = getattr(cloud, service), path.replace("USER", cloud.current_user_id)
    answer = proxy.request(path, method, json=json.loads(body) if body else None, raise_exc=False)
    return {"status": answer.status_code, "body": answer.json() if answer.content else None}


def main(folder, cloud, command, *arguments):
    config = openstack.config.OpenStackConfig(config_files=[f"{folder}/clouds.yaml"], load_envvars=False)
    cloud = openstack.connection.Connection(config=config.get_one(cloud=cloud))
    answer = {"inventory": inventory, "call": call}[command](cloud, *arguments)
    print(json.dumps(answer, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
