"""Checks the launcher's file for AWS and the policies beside it with Ray's own code.

Ray's real launcher and autoscaler run here, with the settings of `infra/ray/aws.yaml`. Only the
requests to AWS are answered by `Account`, which records them.
"""

import json
import re
from pathlib import Path
from typing import Any

import botocore.client
import pytest

from elmwright.jobs.runbook import deployment
from tests.support.infra.texts import TEXT, source
from tests.support.infra.validators import documents
from tests.support.places import INFRA


class Account:
    """A fake AWS account, empty but for security groups, with the parts of EC2 that Ray uses."""

    def __init__(self, groups: tuple[str, ...] = ()) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        """Service and operation → the last request."""
        self.nodes: list[dict[str, Any]] = []
        self.groups = [self._group(name) for name in groups]

    def answer(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        self.calls[f"{service}:{operation}"] = request
        match operation:
            case "CreateKeyPair":
                return {"KeyName": request["KeyName"], "KeyMaterial": "key"}
            case "DescribeSubnets":
                return {
                    "Subnets": [
                        {
                            "SubnetId": "subnet-1",
                            "VpcId": "vpc-1",
                            "State": "available",
                            "MapPublicIpOnLaunch": True,
                            "AvailabilityZone": "us-east-1a",
                        }
                    ]
                }
            case "CreateSecurityGroup":
                self.groups.append(self._group(request["GroupName"]))
            case "DescribeSecurityGroups":
                return {"SecurityGroups": self.groups}
            case "DescribeInstanceTypes":
                sizes = {"VCpuInfo": {"DefaultVCpus": 4}, "MemoryInfo": {"SizeInMiB": 16384}}
                kinds = re.findall(r"InstanceType: (\S+)", TEXT["ray/aws.yaml"])
                return {"InstanceTypes": [{"InstanceType": kind, **sizes} for kind in kinds]}
            case "RunInstances":
                (tags,) = request["TagSpecifications"]
                state = {"Name": "running"}
                self.nodes = [{"InstanceId": "i-1", "State": state, "Tags": tags["Tags"]}]
                return {"Instances": self.nodes}
            case "DescribeInstances":
                return {"Reservations": [{"Instances": self.nodes}]}
        return {}

    @staticmethod
    def _group(name: str) -> dict[str, Any]:
        return {"GroupId": f"sg-{name}", "GroupName": name, "VpcId": "vpc-1", "IpPermissions": []}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for the key that Ray creates."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return tmp_path


def redirect_to(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all requests to AWS to this account."""

    def answer(client: Any, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        return account.answer(client.meta.service_model.service_name, operation, request)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", answer)


def prepare(account: Account, monkeypatch: pytest.MonkeyPatch, **node: Any) -> dict[str, Any]:
    """The config that `ray up` prepares before it starts a node; `node` adds to every node's
    settings."""
    from ray.autoscaler._private.aws import config as launcher
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    launcher._get_subnets_or_die.cache_clear()
    redirect_to(account, monkeypatch)
    (settings,) = documents(INFRA / "ray" / "aws.yaml")
    for kind in settings["available_node_types"].values():
        kind["node_config"] |= node
    filled = AWSNodeProvider.fillout_available_node_types_resources(settings)
    result: dict[str, Any] = launcher.bootstrap_aws(filled)
    return result


def start_and_end(config: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start, tag and end a node, as the launcher does with the head, and the head with workers."""
    from ray.autoscaler._private.aws import node_provider

    monkeypatch.setattr(node_provider, "TAG_BATCH_DELAY", 0)
    provider = node_provider.AWSNodeProvider(config["provider"], config["cluster_name"])
    provider.create_node(config["available_node_types"][kind]["node_config"], {}, 1)
    (node,) = provider.non_terminated_nodes({})
    provider.set_node_tags(node, {"ray-node-status": "up-to-date"})
    provider.terminate_node(node)
    provider.terminate_nodes([node])


def allowed(file: str) -> set[str]:
    """The EC2 and IAM actions that a policy allows."""
    return set(re.findall(r'"((?:ec2|iam):\w+)"', TEXT[file]))


def passed_role(file: str) -> str:
    """The role that a policy allows to be passed to a node."""
    (statement,) = [
        one for one in json.loads(TEXT[file])["Statement"] if one["Action"] == "iam:PassRole"
    ]
    return str(statement["Resource"])


@pytest.mark.usefixtures("home")
def test_the_launcher_policy_allows_exactly_what_ray_up_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = Account()
    start_and_end(prepare(account, monkeypatch), "head", monkeypatch)
    profile = account.calls["ec2:RunInstances"]["IamInstanceProfile"]
    assert profile == {"Name": "HEAD_INSTANCE_PROFILE"}, "a role is passed"
    assert allowed("ray/launcher-policy.json") == account.calls.keys() | {"iam:PassRole"}
    assert passed_role("ray/launcher-policy.json").endswith("/HEAD_ROLE")
    assert "(ray/launcher-policy.json)" in TEXT["README.md"]


@pytest.mark.usefixtures("home")
def test_the_head_on_aws_may_start_workers_and_end_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = prepare(Account(), monkeypatch)
    account = Account()
    redirect_to(account, monkeypatch)
    start_and_end(config, "worker", monkeypatch)
    assert account.calls["ec2:RunInstances"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert account.calls.keys() <= allowed("ray/head-policy.json")


@pytest.mark.usefixtures("home")
def test_the_security_group_that_ray_creates_is_open_only_for_ssh_and_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So storage must admit the nodes itself. A group named in the settings is used instead."""
    account = Account()
    prepare(account, monkeypatch)
    within, ssh = account.calls["ec2:AuthorizeSecurityGroupIngress"]["IpPermissions"]
    (created,) = account.groups
    assert within["UserIdGroupPairs"] == [{"GroupId": created["GroupId"]}]
    assert (ssh["FromPort"], ssh["IpRanges"]) == (22, [{"CidrIp": "0.0.0.0/0"}])
    assert created["GroupName"] in TEXT["README.md"]

    own = Account(groups=("own",))
    config = prepare(own, monkeypatch, SecurityGroupIds=["sg-own"])
    assert config["available_node_types"]["worker"]["node_config"]["SecurityGroupIds"] == ["sg-own"]
    assert not own.calls.keys() & {"ec2:CreateSecurityGroup", "ec2:AuthorizeSecurityGroupIngress"}


def test_the_head_on_aws_has_its_own_profile_and_only_the_rights_it_needs() -> None:
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    kinds = aws["available_node_types"]
    head, worker = (kinds[kind]["node_config"] for kind in ("head", "worker"))
    assert head["IamInstanceProfile"] != worker["IamInstanceProfile"]
    provider = source("ray", "autoscaler/_private/aws/node_provider.py")
    calls = {
        "RunInstances": "create_instances",
        "TerminateInstances": "terminate_instances",
        "CreateTags": "create_tags",
        "DescribeInstances": "instances.filter",
        "DescribeImages": "describe_images",
        "DescribeInstanceTypes": "describe_instance_types",
    }
    assert all(call in provider for call in calls.values())
    listed = allowed("ray/head-policy.json")
    assert listed == {f"ec2:{action}" for action in calls} | {"iam:PassRole"}
    assert passed_role("ray/head-policy.json").endswith("/WORKER_ROLE")


def test_storage_on_aws_is_mounted_once() -> None:
    """Ray runs these commands at every `ray up`, even on a head that is already running."""
    (aws,) = documents(INFRA / "ray" / "aws.yaml")
    commands = aws["initialization_commands"]
    (mount,) = [command for command in commands if "mount -t" in command]
    assert mount.startswith(f"mountpoint -q {deployment.RUNS_PATH} || sudo mount -t nfs4 ")
    install = next(command for command in commands if "nfs-common" in command)
    assert commands.index(install) < commands.index(mount)
