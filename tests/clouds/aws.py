"""Uses an account of EC2 through AWS's own client, boto3, independently of the driver that is tested.

    aws.py ENDPOINT found POLICY PROFILE KEY     creates users, network, instance profile and key pair; prints them as JSON
    aws.py ENDPOINT inventory                    prints instances, network interfaces and volumes as JSON
    aws.py ENDPOINT tag INSTANCE KEY VALUE       and others below: changes in the account that the driver did not make

All commands except `found` read the credentials of the account's owner from the environment, as boto3 does.
"""

import base64
import json
import sys

import boto3
from botocore.config import Config

REGION = "eu-west-1"
ZONE = "eu-west-1c"


class Account:
    def __init__(self, endpoint, **credentials):
        self.endpoint, self.credentials = endpoint, credentials
        self.ec2 = self.client("ec2")

    def client(self, service):
        # boto3 must not repeat a launch after a timeout, because the second request would launch another instance.
        config = Config(retries={"total_max_attempts": 1}, read_timeout=600)
        return boto3.client(
            service, endpoint_url=self.endpoint, region_name=REGION, config=config, **self.credentials
        )

    def user(self, name, policy):
        """Creates a user with a policy; returns its access key."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return {"id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}

    def network(self):
        vpc = self.ec2.create_vpc(CidrBlock="10.250.0.0/16")["Vpc"]["VpcId"]
        subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.250.0.0/19", AvailabilityZone=ZONE)["Subnet"]
        group = self.ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)
        return {"subnet": subnet["SubnetId"], "group": group["GroupId"]}

    def profile(self, name):
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        iam = self.client("iam")
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def all(self, action, field, **arguments):
        pages = self.ec2.get_paginator(action).paginate(**arguments)
        return [item for page in pages for item in page[field]]

    def ever(self):
        """All instances, including terminated ones, which EC2 shows for a while."""
        reservations = self.all("describe_instances", "Reservations")
        return [instance for reservation in reservations for instance in reservation["Instances"]]

    def inventory(self):
        """The resources that cost money."""
        ended = ("shutting-down", "terminated")
        return {
            "instances": [instance for instance in self.ever() if instance["State"]["Name"] not in ended],
            "interfaces": self.all("describe_network_interfaces", "NetworkInterfaces"),
            "volumes": self.all("describe_volumes", "Volumes"),
        }

    def user_data(self, instance):
        answer = self.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
        return base64.b64decode(answer["UserData"]["Value"]).decode()


def found(endpoint, policy, profile, key):
    # In a fresh account any caller may make three requests, which is enough to create one user.
    anybody = Account(endpoint, aws_access_key_id="anybody", aws_secret_access_key="anybody")
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    owner = anybody.user("owner", json.dumps({"Version": "2012-10-17", "Statement": [everything]}))
    account = Account(endpoint, aws_access_key_id=owner["id"], aws_secret_access_key=owner["secret"])
    account.profile(profile)
    account.ec2.create_key_pair(KeyName=key)
    return {"owner": owner, "manager": account.user("manager", policy), **account.network()}


def copies(account, image, kind, subnet, requests, count, tags):
    """Launches `count` instances with each of several requests, independently of the driver; `tags` is JSON."""
    tags = [{"Key": key, "Value": value} for key, value in json.loads(tags).items()]
    made = []
    for _ in range(int(requests)):
        answer = account.ec2.run_instances(
            ImageId=image, InstanceType=kind, SubnetId=subnet, MinCount=int(count), MaxCount=int(count),
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        made += [instance["InstanceId"] for instance in answer["Instances"]]
    return made


def main(endpoint, command, *arguments):
    if command == "found":
        return found(endpoint, *arguments)
    account = Account(endpoint)
    commands = {
        "inventory": account.inventory,
        "ever": account.ever,
        "user-data": account.user_data,
        "copies": lambda *arguments: copies(account, *arguments),
        "stop": lambda instance: account.ec2.stop_instances(InstanceIds=[instance]) and None,
        "terminate": lambda instance: account.ec2.terminate_instances(InstanceIds=[instance]) and None,
        "tag": lambda instance, key, value: account.ec2.create_tags(
            Resources=[instance], Tags=[{"Key": key, "Value": value}]
        ) and None,
        "untag": lambda instance, key: account.ec2.delete_tags(Resources=[instance], Tags=[{"Key": key}]) and None,
        "user": account.user,
    }
    return commands[command](*arguments)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout, default=str)
