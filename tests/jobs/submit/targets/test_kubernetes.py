"""The kubectl commands for a RayJob, and the states that follow from their output.

No Kubernetes is needed: a script replaces kubectl.
"""

import http.server
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.runbook.runbook import attempts_of, write_outcome
from elmwright.jobs.runbook.submission import Job, RayJobHandle
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.doctor import examine
from elmwright.jobs.submit.send import state_of, submit
from elmwright.jobs.submit.targets import place
from elmwright.jobs.submit.targets.kubernetes import Kubernetes
from elmwright.jobs.submit.targets.kubernetes_objects import Objects, object_name, render
from elmwright.jobs.submit.targets.place import Unreachable
from elmwright.jobs.submit.targets.ray_jobs import pack
from elmwright.pipeline.errors import Failed, UserError
from tests.support.cluster.rayjobs import GPU, submission
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(6)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


FAKE_KUBECTL = """#!/bin/sh
cd {folder}
echo "$*" >>calls
if [ -e "fail-$3" ]; then cat "fail-$3" >&2; exit 1; fi
case "$*" in
*" auth can-i "*) cat answer; grep -q yes answer ;;
*" create "*) cat >>created; echo '{{"metadata": {{"uid": "u-1"}}}}' ;;
*" get nodes "*) cat nodes ;;
*" get "*) cat answer ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a script in place of kubectl, which prints `answer` and records its calls."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "kubectl").write_text(FAKE_KUBECTL.format(folder=tmp_path))
    (bin_ / "kubectl").chmod(0o755)
    (tmp_path / "answer").write_text('{"items": []}')
    nodes(tmp_path, 1, {"cpu": "64", "nvidia.com/gpu": "8"})
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    return tmp_path


def nodes(folder: Path, number: int, allocatable: dict[str, str]) -> None:
    items = [{"status": {"allocatable": allocatable}}] * number
    (folder / "nodes").write_text(json.dumps({"items": items}))


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_kubectl_creates_the_objects_and_sets_their_owner(kubectl: Path) -> None:
    """`kubectl apply` would copy each object into an annotation of at most 262,144 bytes."""
    job = submit(submission(kubectl, GPU))
    text = (kubectl / "created").read_text()
    config_map, end = json.JSONDecoder().raw_decode(text)
    assert end > 262_144
    assert Objects(config_map, json.loads(text[end:])) == render(job.submission)
    changes = [call for call in calls(kubectl) if " get " not in call]
    name = object_name(job.submission.id)
    assert changes[:2] == ["-n ml create -f -", "-n ml create -o json -f -"]
    (patch,) = changes[2:]
    assert patch.startswith(f"-n ml patch configmap {name} --type merge -p ")
    assert json.loads(patch.partition(" -p ")[2]) == {
        "metadata": {
            "ownerReferences": [
                {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": name, "uid": "u-1"}
            ]
        }
    }


def test_without_an_address_the_state_comes_from_kuberay(kubectl: Path) -> None:
    job = Job(submission(kubectl, GPU))
    status = {"jobStatus": "RUNNING", "rayClusterName": "tiny-x7"}
    (kubectl / "answer").write_text(json.dumps({"status": status}))
    assert state_of(job).word == "running"
    with mistake("cluster-unreachable", "-n ml service/tiny-x7-head-svc 8265"):
        Kubernetes(GPU).stop(job)
    (kubectl / "answer").write_text("")
    assert state_of(job).word == "interrupted"


def test_a_job_that_waits_for_its_cluster_is_cancelled_by_deleting_it(kubectl: Path) -> None:
    job = Job(submission(kubectl, GPU))
    (kubectl / "answer").write_text('{"status": {"jobDeploymentStatus": "Initializing"}}')
    Kubernetes(GPU).stop(job)
    assert (
        calls(kubectl)[-1] == f"-n ml delete rayjob {object_name(job.submission.id)} --wait=false"
    )


def test_a_rayjob_that_is_refused_leaves_no_config_map_behind(kubectl: Path) -> None:
    (kubectl / "answer").write_text("")
    place = Kubernetes(GPU)
    real_kubectl = place.kubectl

    def refuse(*arguments: str, text: str = "") -> str:
        if arguments[0] == "create" and '"RayJob"' in text:
            raise UserError("cluster-unreachable", "denied by a policy")
        return real_kubectl(*arguments, text=text)

    place.kubectl = refuse  # type: ignore[method-assign]
    sent = submission(kubectl, GPU)
    with mistake("cluster-unreachable", "denied by a policy"):
        place.submit(sent)
    name = object_name(sent.id)
    assert calls(kubectl)[-1] == f"-n ml delete configmap {name} --ignore-not-found"
    # The RayJob was created, and only the answer was lost.
    (kubectl / "answer").write_text('{"metadata": {"uid": "u-2"}}')
    assert place.submit(sent) == RayJobHandle(name)
    assert '"uid": "u-2"' in calls(kubectl)[-1]
    # Without permission to look for the RayJob, the refusal itself is reported.
    (kubectl / "fail-get").write_text("Forbidden: cannot get resource rayjobs")
    with mistake("cluster-unreachable", "denied by a policy"):
        place.submit(sent)


def waiting_rayjob(run: str) -> str:
    item = {
        "metadata": {"name": "tiny-1"},
        "spec": {"metadata": {"elmwright.run": run}},
        "status": {"jobDeploymentStatus": "Initializing"},
    }
    return json.dumps({"items": [item]})


def test_run_with_a_rayjob_is_refused(kubectl: Path) -> None:
    (kubectl / "answer").write_text(waiting_rayjob("tiny"))
    with mistake("busy", "'tiny'", "tiny-1"):
        submit(submission(kubectl, GPU))
    assert not (kubectl / "created").exists()


def test_rayjob_of_a_run_is_found_by_its_label(kubectl: Path) -> None:
    long = "x" * 62 + ".y"
    (kubectl / "answer").write_text(waiting_rayjob(long))
    assert Kubernetes(GPU).running(long) == "tiny-1"
    assert f"-l elmwright.run={'x' * 62} " in calls(kubectl)[-1]
    assert Kubernetes(GPU).running("x" * 62 + ".z") == "", "another run with the same label"


@pytest.mark.parametrize(
    ("target", "settings", "size"),
    [
        ({"nodes": 4}, {"device": "cuda", "processes": 4}, "4 worker pods with 4 CPUs and 0 GPUs"),
        ({"nodes": 1, "cpus": 3}, {"processes": 2, "threads": 2}, "1 worker pod with 3 CPUs"),
        ({"nodes": 4, "cpus": 1}, {"processes": 1, "threads": 4}, "4 worker pods with 4 CPUs"),
        ({"gpus": 4, "nodes": 1, "cpus": 1}, {"device": "cuda", "processes": 2}, "1 worker pod"),
    ],
)
def test_a_target_too_small_for_the_run_is_refused(
    target: dict[str, int], settings: dict[str, Any], size: str, kubectl: Path
) -> None:
    sent = submission(kubectl, Target("k8s", volume="runs", **target))  # type: ignore[arg-type]
    sent.config["train"].update(settings)
    with mistake("capacity", size):
        submit(sent)
    assert not (kubectl / "created").exists()


def test_missing_machines_are_noted_before_the_job_is_sent(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes(kubectl, 2, {"cpu": "3920m"})
    sent = submission(kubectl, Target("k8s", gpus=1, volume="runs"))
    Kubernetes(sent.target).check(sent)
    output = capsys.readouterr().err
    assert "needs 2 pods with 4 CPUs and 1 GPUs each" in output
    assert "3.92 CPUs and 0 GPUs" in output
    nodes(kubectl, 1, {"cpu": "7920m", "nvidia.com/gpu": "2"})
    Kubernetes(sent.target).check(sent)
    assert "2 pods with 4 CPUs" in capsys.readouterr().err
    nodes(kubectl, 1, {"cpu": "8", "nvidia.com/gpu": "2"})
    Kubernetes(sent.target).check(sent)
    (kubectl / "fail-get").write_text("Forbidden: cannot list resource nodes")
    Kubernetes(sent.target).check(sent)
    assert capsys.readouterr().err == ""


def test_missing_kubectl_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with mistake("cluster-unreachable", "kubectl", "PATH", "--dry-run"):
        submit(submission(tmp_path, GPU))


class Dashboard(http.server.BaseHTTPRequestHandler):
    """A Ray dashboard that answers every request with the same error: it does not know the job, or
    belongs to another cluster and refuses our token."""

    code = 404

    def do_GET(self) -> None:
        self.send_error(self.code)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", [404, 401, 403, 0])
def test_kubernetes_is_asked_if_ray_does_not_know_the_state(
    code: int, kubectl: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-another-cluster")
    monkeypatch.setattr(Dashboard, "code", code)
    target = Target("k8s", address=dashboard if code else "http://127.0.0.1:9")
    job = Job(submission(kubectl, target))
    (kubectl / "answer").write_text('{"status": {"jobDeploymentStatus": "Initializing"}}')
    assert (state_of(job).word, state_of(job).why) == ("pending", "Initializing")
    assert Kubernetes(target).log(job, 7) == ("", 7)
    (kubectl / "answer").write_text('{"status": {"jobStatus": "SUCCEEDED"}}')
    assert state_of(job).word == "finished"


def test_job_that_was_submitted_to_a_new_head_is_running(kubectl: Path, tmp_path: Path) -> None:
    """The driver on the lost head has written its exit code; KubeRay has resubmitted the job."""
    sent = submission(kubectl, Target("k8s"), run_dir=str(tmp_path / "run"))
    write_outcome(sent, 75)
    (kubectl / "answer").write_text('{"status": {"jobStatus": "RUNNING"}}')
    assert state_of(Job(sent)).word == "running"
    (kubectl / "answer").write_text("")
    assert state_of(Job(sent)).exit_code == 75
    (kubectl / "fail-get").write_text("Unable to connect to the server: dial tcp: i/o timeout")
    assert state_of(Job(sent)).exit_code == 75


def test_state_is_unreachable_if_neither_ray_nor_kubernetes_answers(kubectl: Path) -> None:
    (kubectl / "fail-get").write_text("Unable to connect to the server: dial tcp: i/o timeout")
    for target in (Target("k8s"), Target("k8s", address="http://127.0.0.1:9")):
        with pytest.raises(Unreachable, match="Unable to connect to the server"):
            state_of(Job(submission(kubectl, target)))


def test_rayjob_whose_answer_was_lost_can_be_found_again(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kubectl creates the ConfigMap, fails at the RayJob, and then stops answering."""
    sent = submission(kubectl, GPU)
    create = 'case "$(cat)" in *\'"RayJob"\'*) touch fail-get; echo timeout >&2; exit 1 ;; esac'
    script = kubectl / "bin" / "kubectl"
    script.write_text(script.read_text().replace("cat >>created", create))
    (kubectl / "answer").write_text('{"items": []}')
    with pytest.raises(
        Failed, match=r"stopped answering while the job was being sent .*'elmwright jobs'"
    ):
        submit(sent)
    (kubectl / "fail-get").unlink()
    (kubectl / "answer").write_text('{"status": {"jobStatus": "RUNNING"}}')
    assert main(["status", "tiny"]) == 0
    assert "running" in capsys.readouterr().out


def test_a_creation_that_times_out_stays_in_the_run_book(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object may still appear, so `jobs` and `cancel` must know of it."""
    monkeypatch.setattr(place, "PROGRAM_SECONDS", 0.5)
    sent = submission(kubectl, GPU)
    script = kubectl / "bin" / "kubectl"
    script.write_text(script.read_text().replace("cat >>created", "sleep 2"))
    (kubectl / "answer").write_text('{"items": []}')
    with pytest.raises(Failed, match="Kubernetes does not answer"):
        submit(sent)
    assert [job.submission.id for job in attempts_of("tiny")] == [sent.id]


def test_an_address_that_is_set_later_reaches_the_job(
    kubectl: Path, dashboard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port of the dashboard can only be forwarded once the job's cluster exists."""
    targets = kubectl / "config" / "elmwright" / "targets.toml"
    targets.parent.mkdir(parents=True)
    targets.write_text('[cloud]\nkind = "k8s"\nvolume = "runs"\n')
    submission(kubectl, GPU)  # writes the config
    send = ["submit", str(kubectl / "tiny.toml"), "--to", "cloud"]
    assert main([*send, "--follow"]) == 2
    assert "set the target's address" in capsys.readouterr().err
    assert not (kubectl / "created").exists()
    assert main(send) == 0
    (kubectl / "answer").write_text('{"status": {"jobStatus": "RUNNING"}}')
    assert main(["logs", "tiny"]) == 2
    assert "no Ray address" in capsys.readouterr().err
    targets.write_text(targets.read_text() + f'address = "{dashboard}"\n')
    assert main(["logs", "tiny"]) == 0
    assert "its log is still empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "changes", "names"),
    [
        (GPU, {"run_dir": "runs/tiny"}, ("'runs/tiny'", "below /runs")),
        (GPU, {"run_dir": "/home/me/tiny"}, ("/home/me/tiny", "below /runs", "claim claim")),
        (Target("k8s"), {}, ("run.dir /runs/tiny", "the target's volume")),
    ],
)
def test_a_folder_that_no_pod_has_is_refused(
    target: Target, changes: dict[str, str], names: tuple[str, ...], kubectl: Path
) -> None:
    with mistake("shared-path", *names):
        submit(submission(kubectl, target, **changes))
    assert not (kubectl / "created").exists()


def test_a_run_in_a_store_needs_no_volume(kubectl: Path) -> None:
    submit(submission(kubectl, Target("k8s"), run_dir="s3://bucket/tiny"))
    assert (kubectl / "created").exists()


def test_package_too_large_for_a_config_map_is_refused(
    kubectl: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = submission(kubectl, GPU)
    package = {"noise.bin": random.Random(1).randbytes(1_048_576)}  # incompressible
    monkeypatch.setattr("elmwright.jobs.submit.targets.ray_jobs.wheel_members", lambda: package)
    with mistake("target", "1,048,576"):
        submit(sent)
    with mistake("target", "1,048,576"):
        Kubernetes(GPU).describe(sent)
    assert not (kubectl / "created").exists()
    assert attempts_of(sent.run) == []
    package["noise.bin"] = package["noise.bin"][:1_040_000]
    submit(sent)
    assert "bytes of the 1,048,576 that a ConfigMap takes" in capsys.readouterr().err


def test_config_map_usage_is_noted_by_dry_run_and_doctor(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = submission(kubectl, GPU)
    usage = f"code and config are {len(pack(sent)[1]):,} bytes of the 1,048,576 that a ConfigMap"
    json.loads(Kubernetes(GPU).describe(sent))
    assert usage in capsys.readouterr().err
    (kubectl / "answer").write_text("yes\n")
    assert any("of the 1,048,576 that a ConfigMap takes" in text for _, text in examine(GPU))
    (kubectl / "answer").write_text('{"items": []}')
    submit(sent)
    assert "ConfigMap" not in capsys.readouterr().err


def test_doctor_checks_claims_and_secrets_of_the_target(kubectl: Path) -> None:
    (kubectl / "answer").write_text("yes\n")
    good = examine(GPU)
    assert all(found for found, _ in good), good
    (kubectl / "answer").write_text("")
    wrong = [text for found, text in examine(GPU) if not found]
    assert "persistentvolumeclaim claim does not exist; create it in namespace ml" in wrong
    assert "secret s3 does not exist; create it in namespace ml" in wrong
    assert any(text.startswith("may not create RayJobs in namespace ml") for text in wrong)
    # Submitting needs no permission to read secrets.
    script = kubectl / "bin" / "kubectl"
    forbid = '*" get secret "*) echo "Error: Forbidden" >&2; exit 1 ;;\n*" get "*)'
    script.write_text(script.read_text().replace('*" get "*)', forbid))
    (kubectl / "answer").write_text("yes")
    findings = examine(GPU)
    assert all(found for found, _ in findings), findings
    assert "no permission to look for secret s3" in [text for _, text in findings]
