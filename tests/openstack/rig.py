"""Starts the services of OpenStack: databases, configuration, processes, first resources.

    rig.py CACHE BASE_PORT

Called by scripts/test-openstack with the Python that has the services. The services run their own code. Three parts are simulated:
Nova's fake hypervisor "runs" the servers, a driver of Neutron binds every port, and volumes contain no data. The databases are SQLite,
and no message broker is needed.
"""

import fcntl
import grp
import json
import os
import pathlib
import pwd
import shutil
import socket
import sqlite3
import subprocess
import sys
import time

import requests

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(sys.argv[1])
BASE = int(sys.argv[2])
STATE = CACHE / f"run-{BASE}"
CONFIG = STATE / "config"
TEMPLATES = CACHE / "templates"
BIN = pathlib.Path(sys.prefix) / "bin"

SERVICES = ["keystone", "placement", "glance", "nova", "neutron", "cinder"]
PORT = {name: BASE + i for i, name in enumerate(SERVICES)}
URL = {name: f"http://127.0.0.1:{port}" for name, port in PORT.items()}
AUTH = URL["keystone"] + "/v3"
REGION = "RegionOne"
# The same services with TLS, each set in a separate region.
TLS_REGIONS = {"RegionTLS": 10, "RegionMutualTLS": 20}
PASSWORD = "secret"  # of every user; the services are reachable on the loopback interface only
TOKEN_SECONDS = int(os.environ.get("TOKEN_SECONDS", "3600"))
QUOTA = int(os.environ.get("QUOTA", "500"))  # servers, volumes
PAGE = int(os.environ.get("PAGE", "1000"))  # longest list in one answer

# The databases, and the commands that create their tables.
DATABASES = ["keystone", "placement", "glance", "nova_api", "nova_cell0",
             "nova", "neutron", "cinder"]


def tls(name, offset):
    return f"https://127.0.0.1:{PORT[name] + offset}"


def database(folder, name):
    return f"sqlite:///{folder}/{name}.db"


# --- configuration -------------------------------------------------------

def configuration(folder):
    """Configuration of all services, with databases in FOLDER."""
    logs = STATE / "logs"

    def default(name, **more):
        return {"log_file": logs / f"{name}.log", "debug": False,
                "state_path": STATE / "state", "host": "rig",
                "transport_url": "fake:/", **more}

    def login(**more):
        # The credentials that a service uses to call another service.
        return {"auth_type": "password", "auth_url": AUTH,
                "username": "service", "password": PASSWORD,
                "project_name": "service", "user_domain_id": "default",
                "project_domain_id": "default", "region_name": REGION, **more}

    def check_tokens(kind):
        # The services cache checked tokens for this time, so a revoked token works that long. Access rules of application credentials use the service
        # type.
        return login(www_authenticate_uri=AUTH, interface="public",
                     token_cache_time=10, service_token_roles="service",
                     service_token_roles_required=True, service_type=kind)

    def db(name):
        return {"connection": database(folder, name)}

    locks = {"lock_path": STATE / "locks"}
    no_events = {"driver": "noop"}
    return {
        "keystone.conf": {
            "DEFAULT": default("keystone"),
            "database": db("keystone"),
            "token": {"provider": "fernet", "expiration": TOKEN_SECONDS},
            "fernet_tokens": {"key_repository": TEMPLATES / "fernet"},
            "fernet_receipts": {"key_repository": TEMPLATES / "fernet"},
            "credential": {"key_repository": TEMPLATES / "credential"},
            "identity": {"password_hash_rounds": 4},
            "cache": {"enabled": True, "backend": "dogpile.cache.memory"},
            "oslo_messaging_notifications": no_events,
        },
        "placement.conf": {
            "DEFAULT": default("placement"),
            "placement_database": db("placement"),
            "keystone_authtoken": check_tokens("placement"),
        },
        "glance-api.conf": {
            "DEFAULT": default("glance", enabled_backends="files:file",
                               enabled_import_methods="[]",
                               api_limit_max=PAGE,
                               limit_param_default=min(25, PAGE),
                               worker_self_reference_url=URL["glance"]),
            "database": db("glance"),
            "paste_deploy": {
                "flavor": "keystone",
                "config_file": CONFIG / "glance-api-paste.ini"},
            "glance_store": {"default_backend": "files"},
            "files": {"filesystem_store_datadir": STATE / "images"},
            "os_glance_staging_store": {
                "filesystem_store_datadir": STATE / "staging"},
            "os_glance_tasks_store": {
                "filesystem_store_datadir": STATE / "tasks"},
            "keystone_authtoken": check_tokens("image"),
            "oslo_concurrency": locks,
            "oslo_messaging_notifications": no_events,
        },
        "nova.conf": {
            "DEFAULT": default(
                "nova", compute_driver="rig_compute.Driver",
                my_ip="127.0.0.1", cpu_allocation_ratio=1.0,
                ram_allocation_ratio=1.0, disk_allocation_ratio=1.0,
                # SQLite is slow with bursts of writes, and frequent heartbeats are not needed.
                report_interval=10, service_down_time=120),
            "api_database": db("nova_api"),
            "database": db("nova"),
            "api": {"auth_strategy": "keystone", "max_limit": PAGE},
            "keystone_authtoken": check_tokens("compute"),
            "service_user": login(send_service_user_token=True),
            "placement": login(),
            "neutron": login(),
            "glance": {**login(), "api_servers": URL["glance"]},
            "cinder": {**login(), "os_region_name": REGION},
            "quota": {"instances": QUOTA, "cores": -1, "ram": -1},
            "vnc": {"enabled": False},
            "oslo_concurrency": locks,
            "oslo_messaging_notifications": no_events,
        },
        "neutron.conf": {
            "DEFAULT": default(
                "neutron", core_plugin="ml2", service_plugins="",
                auth_strategy="keystone", dhcp_agent_notification=False,
                pagination_max_limit=PAGE,
                notify_nova_on_port_status_changes=True,
                notify_nova_on_port_data_changes=True,
                api_paste_config=CONFIG / "neutron-api-paste.ini"),
            "database": db("neutron"),
            "keystone_authtoken": check_tokens("network"),
            "nova": login(),
            "placement": login(),
            # With a quota of ports, Nova counts the ports of the project before it builds a server. When a port is deleted between two pages of that
            # list, the server fails with a 500 (PortNotFoundClient).
            "quotas": {"quota_port": -1, "quota_network": QUOTA,
                       "quota_subnet": QUOTA, "quota_security_group": QUOTA},
            "oslo_concurrency": locks,
            "oslo_messaging_notifications": no_events,
        },
        "plugins/ml2/ml2_conf.ini": {
            "ml2": {"type_drivers": "local", "tenant_network_types": "local",
                    "mechanism_drivers": "rig", "overlay_ip_version": 4,
                    "extension_drivers": "port_security"},
            "securitygroup": {"enable_security_group": True},
        },
        "cinder.conf": {
            "DEFAULT": default(
                "cinder", auth_strategy="keystone", enabled_backends="nodata",
                api_paste_config=CONFIG / "cinder-api-paste.ini",
                glance_api_servers=URL["glance"], my_ip="127.0.0.1",
                resource_query_filters_file=CONFIG / "resource_filters.json",
                osapi_max_limit=PAGE,
                quota_volumes=QUOTA, quota_gigabytes=100 * QUOTA,
                default_volume_type="standard"),
            "nodata": {"volume_driver": "rig_volume.NoDataVolumes",
                       "volume_backend_name": "nodata"},
            "database": db("cinder"),
            "keystone_authtoken": check_tokens("block-storage"),
            "service_user": login(send_service_user_token=True),
            "nova": login(),
            "coordination": {"backend_url": f"file://{STATE}/locks"},
            "oslo_concurrency": locks,
            "oslo_messaging_notifications": no_events,
        },
    }


def write_configuration(folder):
    for name, sections in configuration(folder).items():
        path = CONFIG / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as out:
            for section, options in sections.items():
                out.write(f"[{section}]\n")
                for key, value in options.items():
                    out.write(f"{key} = {value}\n")
    shipped = pathlib.Path(sys.prefix) / "etc"
    for source, target in (("nova/api-paste.ini", "api-paste.ini"),
                           ("glance/glance-api-paste.ini",
                            "glance-api-paste.ini"),
                           ("neutron/api-paste.ini", "neutron-api-paste.ini"),
                           ("cinder/api-paste.ini", "cinder-api-paste.ini"),
                           ("cinder/resource_filters.json",
                            "resource_filters.json")):
        shutil.copy(shipped / source, CONFIG / target)
    for name in ("logs", "state", "locks", "images", "staging", "tasks",
                 "pids"):
        (STATE / name).mkdir(exist_ok=True)


def make_certificates():
    """Make an authority, a certificate for 127.0.0.1, and a client certificate."""
    def openssl(name, subject, *more):
        subprocess.run(
            ["openssl", "req", "-x509", "-days", "30", "-nodes", "-newkey",
             "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-keyout", CONFIG / f"{name}.key", "-out", CONFIG / f"{name}.crt",
             "-subj", f"/CN={subject}", *more],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    openssl("ca", "rig authority")
    signed = ["-CA", CONFIG / "ca.crt", "-CAkey", CONFIG / "ca.key",
              "-addext", "basicConstraints=critical,CA:false"]
    openssl("server", "rig", *signed, "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost")
    openssl("client", "rig client", *signed, "-addext",
            "extendedKeyUsage=clientAuth")


def environment():
    # Neutron finds its mechanism drivers through the entry points of installed packages. Therefore a folder with the form of an installed package is
    # on the path.
    plug = STATE / "plugins" / "rig-1.dist-info"
    plug.mkdir(parents=True, exist_ok=True)
    (plug / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rig\nVersion: 1\n")
    (plug / "entry_points.txt").write_text(
        "[neutron.ml2.mechanism_drivers]\nrig = rig_network:AlwaysBind\n")
    env = dict(os.environ, RIG_CONFIG=str(CONFIG), TZ="UTC",
               PYTHONPATH=f"{HERE}:{plug.parent}",
               PYTHONDONTWRITEBYTECODE="1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        env.pop(name, None)
    return env


# --- databases -----------------------------------------------------------

NEUTRON_SCHEMA = """
import sqlalchemy, sys
from neutron.db.migration.models import head
head.get_metadata().create_all(sqlalchemy.create_engine(sys.argv[1]))
"""


def make_templates():
    """Create empty databases once; later starts only copy them."""
    if (TEMPLATES / "done").exists():
        return
    print("laying out databases (once)", flush=True)
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    for name in ("fernet", "credential"):
        (TEMPLATES / name).mkdir(parents=True)
    write_configuration(TEMPLATES)

    def manage(command, *args, config=None):
        argv = [str(BIN / command)]
        if config:
            argv += ["--config-file", str(CONFIG / config)]
        with open(STATE / "logs" / "schema.log", "a") as log:
            subprocess.run(argv + list(args), check=True, env=environment(),
                           stdout=log, stderr=log)

    manage("keystone-manage", "db_sync", config="keystone.conf")
    for keys in ("fernet_setup", "credential_setup"):
        manage("keystone-manage", keys,
               "--keystone-user", pwd.getpwuid(os.getuid()).pw_name,
               "--keystone-group", grp.getgrgid(os.getgid()).gr_name,
               config="keystone.conf")
    # Creates the administrator and the roles. The catalogue contains ports, so it is created later.
    manage("keystone-manage", "bootstrap", "--bootstrap-password", PASSWORD,
           "--bootstrap-region-id", REGION, config="keystone.conf")
    manage("placement-manage", "db", "sync", config="placement.conf")
    manage("glance-manage", "db_sync", config="glance-api.conf")
    manage("nova-manage", "api_db", "sync", config="nova.conf")
    manage("nova-manage", "cell_v2", "map_cell0", "--database_connection",
           database(TEMPLATES, "nova_cell0"), config="nova.conf")
    manage("nova-manage", "cell_v2", "create_cell", "--name", "cell1",
           config="nova.conf")
    manage("nova-manage", "db", "sync", config="nova.conf")
    manage("cinder-manage", "db", "sync", config="cinder.conf")
    # Neutron's migrations alter constraints, which SQLite does not support. Its models describe the same tables.
    manage("python", "-c", NEUTRON_SCHEMA, database(TEMPLATES, "neutron"))
    for name in DATABASES:
        # Write-ahead logging allows readers beside a writer. The file stores the mode.
        with sqlite3.connect(TEMPLATES / f"{name}.db") as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    (TEMPLATES / "done").touch()


def copy_databases():
    folder = STATE / "db"
    folder.mkdir()
    for name in DATABASES:
        shutil.copy(TEMPLATES / f"{name}.db", folder)
    # Nova stores the addresses of its cells' databases in a table.
    with sqlite3.connect(folder / "nova_api.db") as connection:
        connection.execute(
            "UPDATE cell_mappings SET database_connection ="
            " replace(database_connection, ?, ?)",
            (str(TEMPLATES), str(folder)))
    connection.close()
    return folder


# --- processes -----------------------------------------------------------

def check_ports(seconds=10):
    """Refuse to start when another program uses one of the ports.

    Threads of a cloud that has just been stopped may need a moment to end.
    """
    end = time.monotonic() + seconds
    for port in PORT.values():
        for offset in (0, *TLS_REGIONS.values()):
            while True:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET,
                                     socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind(("127.0.0.1", port + offset))
                        break
                    except OSError as error:
                        if time.monotonic() > end:
                            raise SystemExit(f"port {port + offset}: {error};"
                                             " give another base port")
                time.sleep(0.2)


def start(name):
    out = open(STATE / "logs" / f"{name}.out", "w")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serve.py"), name, str(PORT[name])],
        env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        cwd=STATE, start_new_session=True)
    (STATE / "pids" / name).write_text(f"{process.pid}\n")
    return process


def wait_for(running, seconds=180):
    """Wait until each service answers; fail as soon as a service has ended."""
    end = time.monotonic() + seconds
    for name, process in running.items():
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{name} ended; see {STATE}/logs/{name}.*")
            try:
                requests.get(URL[name], timeout=10)
                break
            except requests.ConnectionError:
                if time.monotonic() > end:
                    raise SystemExit(f"{name} does not answer")
                time.sleep(0.2)


# --- first resources -----------------------------------------------------

class Api:
    """A logged-in session: api(METHOD, SERVICE, PATH, body) -> JSON."""

    def __init__(self, user="admin", project="admin"):
        self.http = requests.Session()
        answer = self.http.post(AUTH + "/auth/tokens", json={"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": user, "password": PASSWORD,
                "domain": {"id": "default"}}}},
            "scope": {"project": {"name": project,
                                  "domain": {"id": "default"}}}}})
        answer.raise_for_status()
        self.token = answer.json()["token"]
        self.http.headers["X-Auth-Token"] = answer.headers["X-Subject-Token"]

    def __call__(self, method, service, path, body=None, **options):
        answer = self.http.request(method, URL[service] + path, json=body,
                                   **options)
        if answer.status_code >= 400:
            raise SystemExit(f"{method} {path}: {answer.status_code} "
                             f"{answer.text}")
        return answer.json() if answer.content else None


def seed_identity():
    """Projects, users, roles and the catalogue."""
    api = Api()
    roles = {r["name"]: r["id"]
             for r in api("GET", "keystone", "/v3/roles")["roles"]}

    def project(name):
        return api("POST", "keystone", "/v3/projects", {
            "project": {"name": name, "domain_id": "default"}}
        )["project"]["id"]

    def user(name, grants):
        made = api("POST", "keystone", "/v3/users", {
            "user": {"name": name, "password": PASSWORD,
                     "domain_id": "default"}})["user"]["id"]
        for where, names in grants:
            for role in names:
                api("PUT", "keystone", f"/v3/projects/{where}/users/{made}"
                    f"/roles/{roles[role]}")
        return made

    def endpoint(service, region, interface, url):
        api("POST", "keystone", "/v3/endpoints", {"endpoint": {
            "service_id": service, "interface": interface, "url": url,
            "region": region, "region_id": region}})

    for region in TLS_REGIONS:
        api("POST", "keystone", "/v3/regions", {"region": {"id": region}})
    service, machines, tiny = map(project, ("service", "machines", "tiny"))
    user("service", [(service, ("admin", "service"))])
    user("mcm", [(machines, ("member",)), (tiny, ("member",))])

    for name, kind, path in (
            ("keystone", "identity", "/v3"),
            ("placement", "placement", ""), ("glance", "image", ""),
            ("nova", "compute", "/v2.1"), ("neutron", "network", ""),
            ("cinder", "block-storage", "/v3/%(project_id)s")):
        made = api("POST", "keystone", "/v3/services", {
            "service": {"name": name, "type": kind}})["service"]["id"]
        for interface in ("public", "internal"):
            endpoint(made, REGION, interface, URL[name] + path)
        for region, offset in TLS_REGIONS.items():
            endpoint(made, region, "public", tls(name, offset) + path)
    return {"machines": machines, "tiny": tiny}


def seed_resources(projects):
    """The resources that a machine class names: flavor, image, network, key and so on."""
    admin = Api()
    for name, cpus, ram, disk in (("small", 1, 1024, 10),
                                  ("large", 4, 8192, 40),
                                  # Larger than any host: No valid host.
                                  ("too-large", 4000, 1024, 10)):
        admin("POST", "nova", "/v2.1/flavors", {"flavor": {
            "name": name, "vcpus": cpus, "ram": ram, "disk": disk}})
    image = admin("POST", "glance", "/v2/images", {
        "name": "linux", "disk_format": "raw", "container_format": "bare",
        "visibility": "public", "min_disk": 1})["id"]
    admin("PUT", "glance", f"/v2/images/{image}/file", data=b"\0" * 65536,
          headers={"Content-Type": "application/octet-stream"})
    admin("POST", "cinder", "/v3/types", {
        "volume_type": {"name": "standard"}})

    # A project for one server, two ports and one volume.
    tiny = projects["tiny"]
    admin("PUT", "nova", f"/v2.1/os-quota-sets/{tiny}",
          {"quota_set": {"instances": 1}})
    admin("PUT", "neutron", f"/v2.0/quotas/{tiny}", {"quota": {"port": 2}})
    admin("PUT", "cinder", f"/v3/os-quota-sets/{tiny}",
          {"quota_set": {"volumes": 1, "gigabytes": 10}})

    made = {"image": image, "projects": projects}
    for name in projects:
        api = Api("mcm", name)
        network = api("POST", "neutron", "/v2.0/networks", {
            "network": {"name": "machines"}})["network"]["id"]
        subnet = api("POST", "neutron", "/v2.0/subnets", {"subnet": {
            "name": "machines", "network_id": network, "ip_version": 4,
            "cidr": "10.250.0.0/16", "enable_dhcp": True}})["subnet"]["id"]
        group = api("POST", "neutron", "/v2.0/security-groups", {
            "security_group": {"name": "machines"}})["security_group"]["id"]
        made[name] = {"network": network, "subnet": subnet,
                      "security_group": group}

    # A key pair belongs to the user. An application credential belongs to the user's role in one project.
    api = Api("mcm", "machines")
    api("POST", "nova", "/v2.1/os-keypairs", {"keypair": {
        "name": "machines", "public_key": PUBLIC_KEY}})
    user = api.token["user"]["id"]
    made["application_credential"] = api(
        "POST", "keystone", f"/v3/users/{user}/application_credentials",
        {"application_credential": {"name": "mcm", "secret": PASSWORD}}
    )["application_credential"]["id"]
    return made


PUBLIC_KEY = ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkK"
              "CwwNDg8QERITFBUWFxgZGhscHR4f machines")


def write_clouds(made):
    def cloud(user, project):
        return {"region_name": REGION, "identity_api_version": 3,
                "auth": {"auth_url": AUTH, "username": user,
                         "password": PASSWORD, "project_name": project,
                         "user_domain_id": "default",
                         "project_domain_id": "default"}}

    clouds = {"machines": cloud("mcm", "machines"),
              "tiny": cloud("mcm", "tiny"),
              "admin": cloud("admin", "admin"),
              "appcred": {
                  "region_name": REGION, "auth_type":
                  "v3applicationcredential", "auth": {
                      "auth_url": AUTH, "application_credential_id":
                      made["application_credential"],
                      "application_credential_secret": PASSWORD}}}
    for name, region in (("tls", "RegionTLS"), ("mutual", "RegionMutualTLS")):
        one = clouds[name] = cloud("mcm", "machines")
        one["region_name"] = region
        one["auth"]["auth_url"] = tls("keystone", TLS_REGIONS[region]) + "/v3"
        one["cacert"] = str(CONFIG / "ca.crt")
    clouds["mutual"].update(cert=str(CONFIG / "client.crt"),
                            key=str(CONFIG / "client.key"))
    # JSON is valid YAML.
    (STATE / "clouds.yaml").write_text(
        json.dumps({"clouds": clouds}, indent=2) + "\n")
    (STATE / "made.json").write_text(
        json.dumps({"urls": URL, "region": REGION, **made}, indent=2) + "\n")


def main():
    began = time.monotonic()
    check_ports()
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(parents=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_templates()
    write_configuration(copy_databases())
    make_certificates()

    def step(text):
        print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)

    wait_for({name: start(name) for name in ("keystone", "placement")})
    step("keystone, placement")
    projects = seed_identity()
    step("users and catalogue")
    wait_for({name: start(name) for name in ("glance", "neutron", "nova", "cinder")})
    step("glance, neutron, nova, cinder")
    write_clouds(seed_resources(projects))
    step("ready")


if __name__ == "__main__":
    main()
