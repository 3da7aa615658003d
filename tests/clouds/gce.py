"""Uses Compute Engine through Google's own client, independently of the driver that is tested and of the fake that it calls.

    gce.py ENDPOINT PROJECT ZONE oracle BODY     KEY_FILE and EXTERNAL in the environment; prints what happened as JSON

The client checks names of methods and parameters against its discovery documents. google-auth signs for the service account in three ways.
"""

import json
import os
import sys
import urllib.parse

import google.auth.identity_pool
import google.oauth2.service_account
import httplib2
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def compute(endpoint, **caller):
    """The client of Compute Engine, with the discovery document in its package."""
    options = {"api_endpoint": f"{endpoint}/compute/v1/"}
    return build("compute", "v1", client_options=options, static_discovery=True, cache_discovery=False, **caller)


def behind(endpoint, url):
    """A URL of Google at the endpoint."""
    return endpoint + urllib.parse.urlsplit(url).path


def signed(endpoint, key_file):
    """A service account that signs its requests itself."""
    credentials = google.oauth2.service_account.Credentials.from_service_account_info(key_file)
    credentials = credentials.with_always_use_jwt_access(True)
    credentials._create_self_signed_jwt("https://compute.googleapis.com/")
    return credentials


def exchanged(endpoint, key_file):
    """A service account that asks for an access token."""
    key_file = {**key_file, "token_uri": behind(endpoint, key_file["token_uri"])}
    return google.oauth2.service_account.Credentials.from_service_account_info(key_file, scopes=[SCOPE])


def external(endpoint, config):
    """An external account that acts as a service account."""
    config = {**config}
    for url in ("token_url", "service_account_impersonation_url"):
        config[url] = behind(endpoint, config[url])
    return google.auth.identity_pool.Credentials.from_info(config, scopes=[SCOPE])


class Project:
    def __init__(self, client, project, zone):
        self.client, self.where = client, {"project": project, "zone": zone}

    def all(self, collection, **arguments):
        """All pages of a list."""
        resource, found = getattr(self.client, collection)(), []
        request = resource.list(**self.where, **arguments)
        while request is not None:
            page = request.execute()
            found += page.get("items", [])
            request = resource.list_next(request, page)
        return found

    def done(self, operation):
        while operation["status"] != "DONE":
            operation = self.client.zoneOperations().wait(**self.where, operation=operation["name"]).execute()
        return operation

    def insert(self, body):
        return self.done(self.client.instances().insert(**self.where, body=body).execute())

    def delete(self, name):
        return self.done(self.client.instances().delete(**self.where, instance=name).execute())


def oracle(endpoint, project, zone, body):
    """Creates an instance per kind of credentials, lists them in pages, and deletes them."""
    key_file, config = json.loads(os.environ["KEY_FILE"]), json.loads(os.environ["EXTERNAL"])
    kinds = {"signed": signed(endpoint, key_file), "exchanged": exchanged(endpoint, key_file), "external": external(endpoint, config)}
    projects = {name: Project(compute(endpoint, credentials=credentials), project, zone) for name, credentials in kinds.items()}
    one, outcome = projects["signed"], {}
    outcome["created"] = {name: of.insert({**body, "name": f"m-{name}"})["status"] for name, of in projects.items()}
    outcome["listed"] = [instance["name"] for instance in one.all("instances", maxResults=2, fields="items/name,nextPageToken")]
    outcome["disks"] = [disk["name"] for disk in one.all("disks")]
    found = one.client.instances().get(**one.where, instance="m-signed").execute()
    outcome["status"], outcome["address"] = found["status"], found["networkInterfaces"][0]["networkIP"]
    outcome["again"] = refused(lambda: one.insert({**body, "name": "m-signed"}))
    outcome["deleted"] = [one.delete(f"m-{name}")["status"] for name in projects]
    outcome["left"] = one.all("instances") + one.all("disks")
    outcome["absent"] = refused(lambda: one.delete("m-signed"))
    anonymous = Project(compute(endpoint, http=httplib2.Http()), project, zone)
    outcome["anonymous"] = refused(lambda: anonymous.all("instances"))
    return outcome


def refused(call):
    """Status and reason of a refusal, as the client reads them."""
    try:
        call()
    except HttpError as error:
        return [error.status_code, error.error_details[0]["reason"]]
    raise AssertionError("the call succeeded")


def main(endpoint, project, zone, command, *arguments):
    commands = {"oracle": lambda body: oracle(endpoint, project, zone, json.loads(body))}
    return commands[command](*arguments)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
