"""Prints what the running services answer: smoke.py FOLDER [MACHINES_AT_ONCE]

Makes the requests of a driver for machines (port, server, list, delete, volumes), provokes the errors that a driver must handle, and
prints the answers. Plain Python, no packages. Ends with "N passed, M failed".
"""

import base64
import concurrent.futures
import json
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.request

STATE = pathlib.Path(sys.argv[1])
MADE = json.loads((STATE / "made.json").read_text())
CLOUDS = json.loads((STATE / "clouds.yaml").read_text())["clouds"]
URL = MADE["urls"]
TAGS = {"kubernetes.io-cluster-smoke": "1", "kubernetes.io-role-worker": "1"}

passed = failed = 0


class Answer:
    def __init__(self, code, headers, text):
        self.code, self.headers, self.text = code, headers, text

    @property
    def json(self):
        return json.loads(self.text)


def http(method, url, body=None, headers=None, trust=None):
    request = urllib.request.Request(
        url, method=method, headers=headers or {},
        data=None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=120,
                                    context=trust) as answer:
            return Answer(answer.status, answer.headers,
                          answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read().decode())


def login(cloud, **change):
    auth = {**CLOUDS[cloud]["auth"], **change}
    if "application_credential_id" in auth:
        body = {"identity": {
            "methods": ["application_credential"],
            "application_credential": {
                "id": auth["application_credential_id"],
                "secret": auth["application_credential_secret"]}}}
    else:
        body = {"identity": {"methods": ["password"], "password": {"user": {
                    "name": auth["username"], "password": auth["password"],
                    "domain": {"id": auth["user_domain_id"]}}}},
                "scope": {"project": {
                    "name": auth["project_name"],
                    "domain": {"id": auth["project_domain_id"]}}}}
    return http("POST", auth["auth_url"] + "/auth/tokens", {"auth": body})


class Cloud:
    def __init__(self, name):
        answer = login(name)
        self.token = answer.headers["X-Subject-Token"]
        self.catalog = {e["type"]: [p["url"] for p in e["endpoints"]
                                    if p["interface"] == "public"][0]
                        for e in answer.json["token"]["catalog"]}

    def __call__(self, method, kind, path, body=None, **headers):
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        prefix = "/v2.0" if kind == "network" else \
            "/v2" if kind == "image" else ""
        return http(method, self.catalog[kind] + prefix + path, body,
                    {"X-Auth-Token": self.token, **headers})


def show(what, ok, actual):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"{'ok  ' if ok else 'FAIL'} {what}: {actual}", flush=True)


def expect(what, answer, code, *words):
    text = " ".join(answer.text.split())
    show(what, answer.code == code and all(w in text for w in words),
         f"{answer.code} {text[:230]}")
    return answer


def find(cloud, kind, path, key, name):
    return [x["id"] for x in cloud("GET", kind, path).json[key]
            if x["name"] == name][0]


def server(cloud, name, networks, **more):
    return cloud("POST", "compute", "/servers", {"server": {
        "name": name, "flavorRef": FLAVOR, "imageRef": MADE["image"],
        "networks": networks, "metadata": TAGS, **more}})


def settle(cloud, made):
    """Wait until a server leaves BUILD; return it."""
    ident = made.json["server"]["id"]
    for _ in range(600):
        actual = cloud("GET", "compute", "/servers/" + ident).json["server"]
        if actual["status"] != "BUILD":
            return actual
        time.sleep(0.2)
    return actual


def gone(cloud, kind, path):
    for _ in range(600):
        if cloud("GET", kind, path).code == 404:
            return True
        time.sleep(0.2)
    return False


def settle_volume(cloud, ident, state="available"):
    for _ in range(300):
        actual = cloud("GET", "block-storage", "/volumes/" + ident)
        if actual.code == 404 or actual.json["volume"]["status"] in (
                state, "error"):
            break
        time.sleep(0.2)
    return actual


def new_port(cloud, name, where, **more):
    return cloud("POST", "network", "/ports", {"port": {
        "name": name, "network_id": where["network"],
        "fixed_ips": [{"subnet_id": where["subnet"]}],
        "security_groups": [where["security_group"]], **more}})


def identity():
    expect("wrong password", login("machines", password="no"), 401)
    expect("unknown project", login("machines", project_name="no"), 401)
    answer = login("appcred")
    show("application credential", answer.code == 201, answer.code)
    auth = CLOUDS["machines"]["auth"]
    body = {"identity": {
        "methods": ["application_credential"], "application_credential": {
            "name": "mcm", "secret": auth["password"], "user": {
                "name": "mcm", "domain": {"id": "default"}}}}}
    tokens = auth["auth_url"] + "/auth/tokens"
    answer = http("POST", tokens, {"auth": body})
    show("application credential by name", answer.code == 201, answer.code)
    body["scope"] = {"project": {"name": "machines",
                                 "domain": {"id": "default"}}}
    expect("application credential and a scope",
           http("POST", tokens, {"auth": body}), 401, "cannot request a scope")
    expect("wrong secret",
           login("appcred", application_credential_secret="no"), 401)
    expect("bad token", http("GET", URL["nova"] + "/v2.1/servers", None,
                             {"X-Auth-Token": "bad"}), 401)
    answer = expect("bad token, Glance", http(
        "GET", URL["glance"] + "/v2/images", None, {"X-Auth-Token": "bad"}),
        401)
    show("which is not JSON", answer.text[:1] != "{",
         answer.headers["Content-Type"])
    # A revoked token is refused only after a while, because the services
    # cache a valid token for ten seconds.
    short = Cloud("machines")
    short("GET", "compute", "/servers")
    http("DELETE", tokens, None, {"X-Auth-Token": short.token,
                                    "X-Subject-Token": short.token})
    began = time.time()
    while short("GET", "compute", "/servers").code == 200 \
            and time.time() - began < 30:
        time.sleep(0.5)
    expect(f"revoked token, {time.time() - began:.0f} s later",
           short("GET", "compute", "/servers"), 401)


def transport():
    """The same services with TLS, in their own regions."""
    def attempt(cloud, trust):
        url = CLOUDS[cloud]["auth"]["auth_url"]
        try:
            return http("GET", url, trust=trust).code
        except OSError as error:  # an unfinished handshake, or an alert
            return str(error)

    one, both = CLOUDS["tls"], CLOUDS["mutual"]
    trust = ssl.create_default_context(cafile=one["cacert"])
    actual = attempt("tls", trust)
    show("TLS", actual == 200, actual)
    actual = attempt("tls", ssl.create_default_context())
    show("TLS, unknown authority", "CERTIFICATE_VERIFY" in str(actual), actual)
    actual = attempt("mutual", trust)
    show("TLS, client certificate missing", actual != 200, actual)
    trust.load_cert_chain(both["cert"], both["key"])
    actual = attempt("mutual", trust)
    show("TLS, client certificate", actual == 200, actual)


def life(cloud, where):
    """The life of a machine, from its port to its deletion."""
    port = expect("port", new_port(cloud, "m1", where), 201, "m1")
    port = port.json["port"]["id"]
    for tag in TAGS:
        expect("tag on port",
               cloud("PUT", "network", f"/ports/{port}/tags/{tag}"), 201)
    made = expect("server", server(
        cloud, "m1", [{"port": port}], key_name="machines",
        availability_zone="nova", config_drive=True,
        user_data=base64.b64encode(b"#!/bin/sh\n").decode()), 202)
    actual = settle(cloud, made)
    ident = actual["id"]
    show("becomes ACTIVE", actual["status"] == "ACTIVE", {
        k: actual[k] for k in ("status", "addresses", "metadata",
                             "config_drive", "key_name")})
    one = cloud("GET", "network", f"/ports/{port}").json["port"]
    show("port is ACTIVE", one["status"] == "ACTIVE"
         and one["device_id"] == ident, (one["status"], one["tags"]))

    expect("port in use", server(cloud, "m1b", [{"port": port}]), 409,
           "still in use")
    pairs = {"port": {"allowed_address_pairs": [
        {"ip_address": "100.64.0.0/24"}, {"ip_address": "100.65.0.0/24"}]}}
    old = f"revision_number={one['revision_number'] - 1}"
    expect("address pairs, old revision", cloud(
        "PUT", "network", f"/ports/{port}", pairs, If_Match=old), 412)
    new = f"revision_number={one['revision_number']}"
    answer = cloud("PUT", "network", f"/ports/{port}", pairs, If_Match=new)
    show("address pairs", answer.code == 200, [
        p["ip_address"] for p in
        answer.json["port"]["allowed_address_pairs"]])

    names = [s["name"] for s in cloud(
        "GET", "compute", "/servers/detail").json["servers"]
        if TAGS.items() <= s["metadata"].items()]
    show("list, filtered here by metadata", "m1" in names, names)
    other = urllib.request.quote(json.dumps({"no-such-key": "1"}))
    names = [s["name"] for s in cloud(
        "GET", "compute", f"/servers?metadata={other}").json["servers"]]
    show("a member's metadata filter is ignored", "m1" in names, names)
    names = [s["name"] for s in cloud(
        "GET", "compute", "/servers?name=%5Em1%24").json["servers"]]
    show("list by name (a pattern)", names == ["m1"], names)

    expect("delete", cloud("DELETE", "compute", "/servers/" + ident), 204)
    show("is gone", gone(cloud, "compute", "/servers/" + ident), "404")
    expect("delete again", cloud("DELETE", "compute", "/servers/" + ident),
           404, "could not be found")
    one = cloud("GET", "network", f"/ports/{port}").json["port"]
    show("its port stays, unbound", one["device_id"] == "", one["status"])
    expect("delete port", cloud("DELETE", "network", f"/ports/{port}"), 204)
    expect("delete port again",
           cloud("DELETE", "network", f"/ports/{port}"), 404, "PortNotFound")


def paging(cloud, where):
    made = [settle(cloud, server(cloud, "twin", [{"uuid": where["network"]}]))
            for _ in range(2)]
    show("two servers of one name", {s["status"] for s in made} == {"ACTIVE"},
         [s["name"] for s in made])
    page = cloud("GET", "compute", "/servers?limit=1").json
    show("pages", len(page["servers"]) == 1 and "servers_links" in page,
         page.get("servers_links"))
    for one in made:
        cloud("DELETE", "compute", "/servers/" + one["id"])
    show("both gone", all(gone(cloud, "compute", "/servers/" + s["id"])
                          for s in made), "404")
    ports = [p["id"] for p in cloud("GET", "network", "/ports").json["ports"]]
    show("ports that Nova made are gone too", ports == [], ports)


def refusals(cloud, where):
    net = [{"uuid": where["network"]}]
    no = "11111111-2222-3333-4444-555555555555"
    expect("no such image", server(cloud, "x", net, imageRef=no), 400,
           "Can not find requested image")
    expect("no such flavor", server(cloud, "x", net, flavorRef="no"), 400,
           "could not be found")
    expect("no such key", server(cloud, "x", net, key_name="no"), 400,
           "Invalid key_name")
    expect("no such network", server(cloud, "x", [{"uuid": no}]), 400,
           "could not be found")
    expect("no such port", server(cloud, "x", [{"port": no}]), 400,
           "could not be found")
    expect("no such zone", server(cloud, "x", net, availability_zone="no"),
           400, "availability zone")
    expect("no such security group", server(
        cloud, "x", net, security_groups=[{"name": "no"}]), 400)
    expect("no such server group", cloud("POST", "compute", "/servers", {
        "server": {"name": "x", "flavorRef": FLAVOR, "networks": net,
                   "imageRef": MADE["image"]},
        "os:scheduler_hints": {"group": no}}), 400)
    expect("user data is not base64", server(cloud, "x", net,
                                             user_data="a"), 400)
    expect("user data too long", server(
        cloud, "x", net, user_data="QUJD" * 20000), 400, "too long")
    expect("no such server", cloud("GET", "compute", "/servers/" + no), 404)
    expect("forbidden to a member", cloud("POST", "compute", "/flavors", {
        "flavor": {"name": "x", "vcpus": 1, "ram": 1, "disk": 1}}), 403)

    actual = settle(cloud, server(
        cloud, "big", net, flavorRef=find(cloud, "compute", "/flavors",
                                          "flavors", "too-large")))
    show("no valid host", actual["status"] == "ERROR" and
         "No valid host" in actual["fault"]["message"], actual.get("fault"))
    cloud("DELETE", "compute", "/servers/" + actual["id"])
    actual = settle(cloud, server(
        cloud, "broken", net,
        metadata={**TAGS, "rig-build-fault": "disk on fire"}))
    show("failure on the host", actual["status"] == "ERROR", actual.get("fault"))
    cloud("DELETE", "compute", "/servers/" + actual["id"])
    show("failed server can be deleted",
         gone(cloud, "compute", "/servers/" + actual["id"]), "404")

    # One host can't run two members of this group.
    group = cloud("POST", "compute", "/os-server-groups", {"server_group": {
        "name": "apart", "policies": ["anti-affinity"]}}
    ).json["server_group"]["id"]
    pair = []
    for name in ("apart1", "apart2"):
        pair.append(settle(cloud, cloud("POST", "compute", "/servers", {
            "server": {"name": name, "flavorRef": FLAVOR, "networks": net,
                       "imageRef": MADE["image"]},
            "os:scheduler_hints": {"group": group}})))
    show("server group, first", pair[0]["status"] == "ACTIVE",
         pair[0]["status"])
    show("server group, second", pair[1]["status"] == "ERROR",
         pair[1].get("fault"))
    for one in pair:
        cloud("DELETE", "compute", "/servers/" + one["id"])
        gone(cloud, "compute", "/servers/" + one["id"])
    cloud("DELETE", "compute", "/os-server-groups/" + group)

    small = cloud("POST", "network", "/networks", {
        "network": {"name": "small"}}).json["network"]["id"]
    subnet = cloud("POST", "network", "/subnets", {"subnet": {
        "network_id": small, "ip_version": 4, "cidr": "10.9.9.0/30",
    }}).json["subnet"]["id"]
    there = {**where, "network": small, "subnet": subnet}
    new_port(cloud, "p", there)
    expect("addresses used up", new_port(cloud, "p", there), 409,
           "IpAddressGenerationFailure")
    for one in cloud("GET", "network",
                     f"/ports?network_id={small}").json["ports"]:
        cloud("DELETE", "network", "/ports/" + one["id"])
    cloud("DELETE", "network", "/networks/" + small)


def quotas(tiny, where):
    net = [{"uuid": where["network"]}]
    port, spare = [new_port(tiny, name, where).json["port"]["id"]
                   for name in ("p1", "p2")]
    expect("port over quota", new_port(tiny, "p3", where), 409, "OverQuota")
    first = settle(tiny, server(tiny, "s1", [{"port": port}]))
    show("server within quota", first["status"] == "ACTIVE", first["status"])
    expect("server over quota", server(tiny, "s2", [{"port": spare}]), 403,
           "Quota exceeded for instances")
    volume = {"volume": {"name": "v", "size": 1}}
    one = tiny("POST", "block-storage", "/volumes", volume).json["volume"]
    expect("volume over quota", tiny("POST", "block-storage", "/volumes",
                                     volume), 413, "VolumeLimitExceeded")
    settle_volume(tiny, one["id"])
    tiny("DELETE", "block-storage", "/volumes/" + one["id"])
    gone(tiny, "block-storage", "/volumes/" + one["id"])
    expect("gigabytes over quota", tiny(
        "POST", "block-storage", "/volumes",
        {"volume": {"name": "v", "size": 11}}), 413,
        "VolumeSizeExceedsAvailableQuota")
    tiny("DELETE", "compute", "/servers/" + first["id"])
    gone(tiny, "compute", "/servers/" + first["id"])
    # Quotas that Nova exceeds when it creates the port or the volume itself.
    expect("no port left for Nova", server(tiny, "s3", net), 403,
           "Maximum number of ports exceeded")
    actual = settle(tiny, server(tiny, "s4", [{"port": port}],
                               block_device_mapping_v2=[{
        "boot_index": 0, "uuid": MADE["image"], "source_type": "image",
        "destination_type": "volume", "volume_size": 11}]))
    show("no volume left for Nova", actual["status"] == "ERROR",
         actual.get("fault"))
    tiny("DELETE", "compute", "/servers/" + actual["id"])
    gone(tiny, "compute", "/servers/" + actual["id"])
    for one in (port, spare):
        tiny("DELETE", "network", "/ports/" + one)


def volumes(cloud, where):
    port = new_port(cloud, "v1", where).json["port"]["id"]
    made = cloud("POST", "block-storage", "/volumes", {"volume": {
        "name": "v1", "size": 12, "imageRef": MADE["image"],
        "volume_type": "standard", "availability_zone": "nova",
        "metadata": TAGS}})
    expect("volume from image", made, 202)
    disk = made.json["volume"]["id"]
    actual = settle_volume(cloud, disk).json["volume"]
    show("volume is available", actual["status"] == "available",
         (actual["status"], actual["bootable"], actual["metadata"]))
    actual = settle(cloud, server(
        cloud, "v1", [{"port": port}], imageRef="",
        block_device_mapping_v2=[{
            "boot_index": 0, "uuid": disk, "source_type": "volume",
            "destination_type": "volume", "delete_on_termination": False}]))
    show("server on that volume", actual["status"] == "ACTIVE",
         (actual["status"], actual["image"],
          actual["os-extended-volumes:volumes_attached"]))
    state = settle_volume(cloud, disk, "in-use").json["volume"]
    show("volume is in use", state["status"] == "in-use", state["status"])
    expect("volume cannot be deleted", cloud(
        "DELETE", "block-storage", "/volumes/" + disk), 400)
    cloud("DELETE", "compute", "/servers/" + actual["id"])
    gone(cloud, "compute", "/servers/" + actual["id"])
    state = settle_volume(cloud, disk).json["volume"]
    show("volume is free again", state["status"] == "available",
         state["status"])
    expect("delete volume", cloud(
        "DELETE", "block-storage", "/volumes/" + disk), 202)
    show("volume is gone", gone(cloud, "block-storage", "/volumes/" + disk),
         "404")

    actual = settle(cloud, server(
        cloud, "v2", [{"port": port}], block_device_mapping_v2=[{
            "boot_index": 0, "uuid": MADE["image"], "source_type": "image",
            "destination_type": "volume", "volume_size": 12,
            "delete_on_termination": True}]))
    show("server on a volume that Nova makes", actual["status"] == "ACTIVE",
         (actual["status"], actual["os-extended-volumes:volumes_attached"]))
    cloud("DELETE", "compute", "/servers/" + actual["id"])
    gone(cloud, "compute", "/servers/" + actual["id"])
    for _ in range(100):
        left = cloud("GET", "block-storage", "/volumes").json["volumes"]
        if not left:
            break
        time.sleep(0.2)
    show("that volume went with it", left == [], left)
    expect("no such volume type", cloud("POST", "block-storage", "/volumes", {
        "volume": {"name": "x", "size": 1, "volume_type": "no"}}), 404)
    cloud("DELETE", "network", "/ports/" + port)


def slowness(cloud, where):
    net = [{"uuid": where["network"]}]
    began = time.time()
    made = server(cloud, "slow", net, metadata={
        **TAGS, "rig-build-seconds": "3", "rig-delete-seconds": "3"})
    actual = settle(cloud, made)
    built = time.time() - began
    show("slow build", actual["status"] == "ACTIVE" and built > 3,
         f"{built:.1f} s")
    began = time.time()
    cloud("DELETE", "compute", "/servers/" + actual["id"])
    actual = cloud("GET", "compute", "/servers/" + actual["id"]).json["server"]
    state = (actual["status"], actual["OS-EXT-STS:task_state"])
    gone(cloud, "compute", "/servers/" + actual["id"])
    show("slow delete", time.time() - began > 3,
         f"{time.time() - began:.1f} s, meanwhile {state}")


def crowd(cloud, where, count):
    """Makes many machines at once, like a driver with many workers."""
    def one(i):
        port = new_port(cloud, f"c{i}", where)
        if port.code != 201:
            return port.text
        port = port.json["port"]["id"]
        made = server(cloud, f"c{i}", [{"port": port}])
        if made.code != 202:
            return made.text
        actual = settle(cloud, made)
        cloud("DELETE", "compute", "/servers/" + actual["id"])
        ok = gone(cloud, "compute", "/servers/" + actual["id"])
        left = cloud("DELETE", "network", "/ports/" + port)
        if actual["status"] != "ACTIVE" or not ok or left.code != 204:
            return f"{actual['status']} {actual.get('fault')} {left.text}"
        return None

    began = time.time()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        bad = [b for b in pool.map(one, range(count)) if b]
    show(f"{count} machines at once", not bad,
         f"{time.time() - began:.1f} s {bad[:3]}")


identity()
transport()
machines, tiny = Cloud("machines"), Cloud("tiny")
FLAVOR = find(machines, "compute", "/flavors", "flavors", "small")
life(machines, MADE["machines"])
paging(machines, MADE["machines"])
refusals(machines, MADE["machines"])
quotas(tiny, MADE["tiny"])
volumes(machines, MADE["machines"])
slowness(machines, MADE["machines"])
crowd(machines, MADE["machines"],
      int(sys.argv[2]) if len(sys.argv) > 2 else 10)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
