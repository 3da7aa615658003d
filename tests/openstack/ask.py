"""Asks the running services, and changes them behind the driver's back, with openstacksdk: what is tested has no part in it.

    ask.py FOLDER CLOUD inventory                          servers, ports and volumes of the cloud's project
    ask.py FOLDER CLOUD call METHOD SERVICE PATH [BODY]    status and body of one request; USER stands for the user's id

FOLDER is that of scripts/test-openstack, CLOUD one of its clouds.yaml. Prints JSON.
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
    """A list whose pages are short: others may delete what a page begins behind."""
    for _ in range(240):
        try:
            return read()
        except (openstack.exceptions.NotFoundException, openstack.exceptions.BadRequestException):
            time.sleep(0.5)
    raise SystemExit("the list changes faster than it can be read")


def servers(cloud):
    """As Nova answers them, page by page until one shows nothing new.

    A page lacks its link, with others to follow, where a server began to be built while the page was made. A page behind a server
    that is being built leaves out others. The SDK knows neither.
    """

    def read():
        found, query = {}, ""
        while True:
            answer = cloud.compute.get("/servers/detail" + query)
            openstack.exceptions.raise_from_response(answer)
            page, is_linked = answer.json()["servers"], "servers_links" in answer.json()
            if all(server["id"] in found for server in page):
                # One that has just ended stands on the list for a moment.
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
