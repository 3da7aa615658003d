"""Reads and changes the state of the running services with openstacksdk, independently of the driver that is tested.

    ask.py FOLDER CLOUD inventory                          prints servers, ports and volumes of the cloud's project
    ask.py FOLDER CLOUD call METHOD SERVICE PATH [BODY]    prints status and body of one request; USER in PATH is replaced by the user's id

FOLDER is the folder of scripts/test-openstack, CLOUD a cloud in its clouds.yaml. The output is JSON.
"""

import json
import sys
import time

import openstack


def inventory(cloud):
    project = cloud.current_project_id
    return {
        "servers": servers(cloud),
        "ports": whole(lambda: [port.to_dict() for port in cloud.network.ports(project_id=project)]),
        "volumes": whole(lambda: [volume.to_dict() for volume in cloud.block_storage.volumes(details=True)]),
    }


def whole(read):
    """Reads a list with short pages. The first attempts may fail, because another client may delete the object after which a page begins."""
    for _ in range(240):
        try:
            return read()
        except (openstack.exceptions.NotFoundException, openstack.exceptions.BadRequestException):
            time.sleep(0.5)
    raise SystemExit("the list changes faster than it can be read")


def servers(cloud):
    """Reads the servers page by page, until a page has no new server.

    The SDK can't be used for this list. A page of Nova may have no link although more pages follow, if Nova began to build a server
    while it made the page. And a page that begins after a server that is being built may leave out servers.
    """

    def read():
        found, query = {}, ""
        while True:
            answer = cloud.compute.get("/servers/detail" + query)
            openstack.exceptions.raise_from_response(answer)
            page, is_linked = answer.json()["servers"], "servers_links" in answer.json()
            if all(server["id"] in found for server in page):
                # A server that was just deleted may still be in the list.
                return [server for server in found.values() if server["status"] not in ("DELETED", "SOFT_DELETED")]
            if is_linked and page[-1]["status"] == "BUILD":
                raise openstack.exceptions.BadRequestException("no page may begin there")
            found |= {server["id"]: server for server in page}
            query = f"?marker={page[-1]['id']}"

    return whole(read)


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
