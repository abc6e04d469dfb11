"""The launcher's file for AWS and the policies beside it, held against Ray's own code."""

import json
import re

from elmwright.jobs import ports
from tests.infra.texts import TEXT, source
from tests.infra.validators import INFRA, documents


def test_the_head_on_aws_may_start_workers_which_may_not_start_anything() -> None:
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    kinds = aws["available_node_types"]
    head, worker = (kinds[kind]["node_config"] for kind in ("head", "worker"))
    assert head["IamInstanceProfile"] != worker["IamInstanceProfile"]
    statements = json.loads(TEXT["ray/head-policy.json"])["Statement"]
    allowed = set(re.findall(r'"((?:ec2|iam):\w+)"', TEXT["ray/head-policy.json"]))
    provider = source("ray", "autoscaler/_private/aws/node_provider.py")
    calls = {"RunInstances": "create_instances", "TerminateInstances": "terminate_instances",
             "CreateTags": "create_tags", "DescribeInstances": "instances.filter",
             "DescribeImages": "describe_images",
             "DescribeInstanceTypes": "describe_instance_types"}  # fmt: skip
    assert all(call in provider for call in calls.values())
    assert allowed == {f"ec2:{action}" for action in calls} | {"iam:PassRole"}
    (pass_role,) = [one for one in statements if one["Action"] == "iam:PassRole"]
    assert pass_role["Resource"] != "*"


def test_storage_on_aws_is_mounted_once() -> None:
    """Ray runs these commands at every `ray up`, also on a head that is there already."""
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    commands = aws["initialization_commands"]
    (mount,) = [command for command in commands if "mount -t" in command]
    assert mount.startswith(f"mountpoint -q {ports.RUNS_PATH} || sudo mount -t nfs4 ")
    install = next(command for command in commands if "nfs-common" in command)
    assert commands.index(install) < commands.index(mount)
