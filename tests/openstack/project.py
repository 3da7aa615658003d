"""Makes projects and regions for single tests, with openstacksdk.

    project.py FOLDER region NAME SERVICE=URL …          makes a region with these URLs, for example of proxies; other services keep their URLs
    project.py FOLDER project NAME INTO SERVICE=URL …    makes a region and a project of its own, so that objects of other tests are not visible
    project.py INTO ever                                 prints the ids of all servers in the project by name, also of deleted servers

FOLDER is the folder of scripts/test-openstack. The files clouds.yaml and made.json are written to INTO in the same form as in FOLDER. SERVICE is
compute, network or block-storage. The logins in clouds.yaml use the services without proxies. The output is JSON.
"""

import copy
import json
import sys
import time

import openstack

PROGRAMS = {"compute": "nova", "network": "neutron", "block-storage": "cinder", "image": "glance"}
PATHS = {"compute": "/v2.1", "network": "", "block-storage": "/v3/%(project_id)s", "image": ""}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def connection(folder, cloud):
    config = openstack.config.OpenStackConfig(config_files=[f"{folder}/clouds.yaml"], load_envvars=False)
    return openstack.connection.Connection(config=config.get_one(cloud=cloud))


def region(folder, name, *proxies):
    admin, made = connection(folder, "admin"), read(f"{folder}/made.json")
    urls = {kind: made["urls"][program] for kind, program in PROGRAMS.items()}
    urls |= dict(proxy.split("=", 1) for proxy in proxies)
    admin.identity.create_region(id=name)
    services = {service.type: service.id for service in admin.identity.services()}
    for kind, url in urls.items():
        endpoint = {"service_id": services[kind], "interface": "public", "region_id": name}
        admin.identity.create_endpoint(url=url + PATHS[kind], **endpoint)
    return name


def project(folder, name, into, *proxies):
    made, clouds = read(f"{folder}/made.json"), read(f"{folder}/clouds.yaml")["clouds"]
    admin = connection(folder, "admin")
    own = admin.identity.create_project(name=name, domain_id="default")
    user = admin.identity.find_user(clouds["machines"]["auth"]["username"], domain_id="default")
    member = admin.identity.find_role("member")
    admin.identity.assign_project_role_to_user(own, user, member)
    login = copy.deepcopy(clouds["machines"])
    login["auth"]["project_name"] = name
    # This is the first version of the API that shows the user data of a server to administrators.
    clouds["admin"]["compute_default_microversion"] = "2.3"
    write(f"{into}/clouds.yaml", {"clouds": {"machines": login, "admin": clouds["admin"]}})

    cloud = connection(into, "machines")
    network = cloud.network.create_network(name="machines").id
    subnet = {"name": "machines", "ip_version": 4, "cidr": "10.250.0.0/16"}
    machines = {
        "network": network,
        "subnet": cloud.network.create_subnet(network_id=network, **subnet).id,
        "security_group": cloud.network.create_security_group(name="machines").id,
    }
    credential = application_credential(cloud, user, name, lambda: admin.identity.assign_project_role_to_user(own, user, member))
    made |= {"machines": machines, "project": own.id, "application_credential": credential.id}
    made["application_credential_secret"] = credential.secret
    made["region"] = region(folder, name, *proxies)
    write(f"{into}/made.json", made)
    return made


def application_credential(cloud, user, name, assign):
    """Makes a credential. Keystone caches the roles of a user, and the cache may be older than the new role. An assignment clears the cache."""
    for _ in range(20):
        try:
            return cloud.identity.create_application_credential(user, name)
        except openstack.exceptions.BadRequestException:
            assign()
            time.sleep(1)
    return cloud.identity.create_application_credential(user, name)


def ever(into):
    admin, found = connection(into, "admin"), {}
    project = read(f"{into}/made.json")["project"]
    for filters in ({}, {"deleted": "true"}):
        for server in admin.compute.servers(all_projects=True, project_id=project, **filters):
            found.setdefault(server.name, set()).add(server.id)
    return {name: sorted(ids) for name, ids in found.items()}


def main(folder, command, *arguments):
    answer = {"region": region, "project": project, "ever": ever}[command](folder, *arguments)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
