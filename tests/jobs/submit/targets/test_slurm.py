"""The batch script and the output of Slurm's commands; test_slurm_cluster.py uses a real Slurm."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.runbook import attempts_of, remember
from elmwright.jobs.runbook.submission import Job, SlurmHandle, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.send import cancel, prepare, state_of, submit
from elmwright.jobs.submit.targets.network_address import address_of
from elmwright.jobs.submit.targets.place import Unreachable
from elmwright.jobs.submit.targets.slurm import Slurm, gpus_in, render, state_of_slurm
from elmwright.pipeline.errors import Failed
from tests.support.mistakes import mistake
from tests.support.tiny import write_config, write_text

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
SINFO = """\
n1|2|(null)|main*
n2|8|(null)|main*
n2|8|(null)|all
n3|64|gpu:a100:4(S:0-1),shard:8|all
n4|64|gpu:2,gpu:t4:1|all
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def submission(folder: Path, target: Target, **changes: Any) -> Submission:
    file = write_config(folder, folder / "text.txt", tracking_uri="http://mlflow:5000", **changes)
    return prepare(load_config(str(file), ["cluster.address=auto"]), target, "publish")


def test_the_script_requests_what_the_run_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000/$(touch x)")
    target = Target(
        "slurm",
        nodes=2,
        gpus=1,
        partition="gpu",
        time="02:00:00",
        warning=300,
        python="~/my env/bin/python",
        lines=("module load cuda", "#SBATCH --mem=8G"),
        env_file="/etc/secrets.env",
    )
    script = render(submission(tmp_path, target, train_processes=4, train_threads=3))
    lines = script.splitlines()
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=02:00:00",
        "#SBATCH --signal=B:USR1@300",
        "module load cuda",
        "python=~/'my env/bin/python'",
        ". /etc/secrets.env",
        "export AWS_ENDPOINT_URL='http://store:9000/$(touch x)'",
    ):
        assert line in lines
    # sbatch ignores options below the first command. A job step has one CPU by default.
    assert lines.index("#SBATCH --mem=8G") < lines.index('asked=""')
    (start,) = re.findall(
        r"srun [^\n]*--cpus-per-task=(\d+)[^\n]*ray.scripts.scripts start", script
    )
    assert start == re.findall(r"--num-cpus=(\d+)", script)[0] == "8"
    assert "symmetric-run" not in "".join(line for line in lines if not line.startswith("#"))


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "target", [Target("slurm"), Target("slurm", gpus=4, env_file="~/s.env", account="lab")]
)
def test_shellcheck_finds_no_problem(tmp_path: Path, target: Target) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(render(submission(tmp_path, target)))
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    script.write_text(script.read_text() + "\nrm -rf $scratch\n")
    assert subprocess.run([SHELLCHECK, script], capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("fields", "word", "code"),
    [
        ({"JobState": "PENDING", "Reason": "BeginTime"}, "pending", None),
        ({"JobState": "RUNNING"}, "running", None),
        # It has begun: cancelled like a pending job, it would not write a checkpoint.
        ({"JobState": "SUSPENDED"}, "running", None),
        ({"JobState": "COMPLETED"}, "finished", 0),
        ({"JobState": "FAILED", "ExitCode": "75:0"}, "interrupted", 75),
        ({"JobState": "FAILED", "ExitCode": "2:0"}, "failed", 2),
        ({"JobState": "FAILED", "ExitCode": "0:9"}, "interrupted", -9),
        ({"JobState": "TIMEOUT", "ExitCode": "0:0"}, "interrupted", 75),
        ({"JobState": "NODE_FAIL"}, "interrupted", 75),
    ],
)
def test_the_state_of_a_job_follows_from_slurms_answer(
    fields: dict[str, str], word: str, code: int | None
) -> None:
    state = state_of_slurm(fields)
    assert (state.word, state.exit_code) == (word, code)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts scripts in place of Slurm's commands, which log their arguments to the file `calls`."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (tmp_path / "sinfo").write_text(SINFO)
    for name, answer in (
        ("sbatch", "echo 17"),
        ("squeue", "true"),
        ("scancel", "true"),
        ("scontrol", f'cat "{tmp_path}/shown"'),
        ("sinfo", f'cat "{tmp_path}/sinfo"'),
    ):
        (bin_ / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\nenv >>"{tmp_path}/environment"\n'
            f"{answer}\n"
        )
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    return tmp_path


def test_a_job_is_sent_without_the_submitters_environment_and_stopped_gently(fake: Path) -> None:
    write_text(fake / "text.txt", 3)
    job = submit(submission(fake, Target("slurm")))
    assert job.handle == SlurmHandle("17")
    script = fake / "run" / "submissions" / job.submission.id / "job.sbatch"
    assert f"sbatch --parsable --export=NONE {script}" in (fake / "calls").read_text()
    assert (script.parent / "code" / "elmwright" / "jobs" / "submit" / "job.py").is_file()
    (fake / "shown").write_text("JobId=17 JobName=x JobState=RUNNING NodeList=n1 StartTime=now")
    assert state_of(job).word == "running"
    cancel(job, wait=False)
    assert "scancel --batch --signal=TERM 17" in (fake / "calls").read_text()
    (fake / "shown").write_text("JobId=17 JobState=PENDING Reason=Priority")
    cancel(job, wait=False)
    assert (fake / "calls").read_text().splitlines()[-1] == "scancel 17"


def test_too_few_machines_for_the_run_are_refused(fake: Path) -> None:
    target = Target("slurm", nodes=2, cpus=1)
    with mistake("capacity", "4 CPUs", "2 machines with 2 CPUs"):
        Slurm(target).check(submission(fake, target, train_processes=4))


def test_machines_that_slurm_does_not_have_are_refused(fake: Path) -> None:
    target = Target("slurm", nodes=2)
    Slurm(target).check(submission(fake, target, train_processes=4))
    with mistake("capacity", "2 machines with 4 CPUs each", "1 with 2, 1 with 8"):
        Slurm(target).check(submission(fake, target, train_processes=4, train_threads=2))


def test_missing_slurm_commands_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sent = submission(tmp_path, Target("slurm"))
    with mistake("cluster-unreachable", "squeue", "PATH"):
        submit(sent)
    remember(Job(sent, SlurmHandle("1")))
    with mistake("cluster-unreachable", "scontrol", "PATH"):
        state_of(Job(sent, SlurmHandle("1")))


def replace_command(fake: Path, name: str, lines: str) -> None:
    """Replace the script of one of Slurm's commands."""
    (fake / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{fake}/calls"\n{lines}\n')


def test_gpus_that_slurm_does_not_have_are_refused(fake: Path) -> None:
    target = Target("slurm", nodes=2, gpus=64)
    with mistake("capacity", "2 machines with 4 CPUs and 64 GPUs each", "1 with 2 and 0 GPUs"):
        Slurm(target).check(submission(fake, target))
    found = [gpus_in(row.split("|")[2]) for row in SINFO.splitlines()]
    assert found == [0, 0, 0, 4, 3]
    target = Target("slurm", nodes=2, gpus=3, partition="all")
    Slurm(target).check(submission(fake, target))


def test_without_a_partition_only_the_default_one_counts(fake: Path) -> None:
    target = Target("slurm", nodes=1, cpus=64)
    with mistake("capacity", "1 with 2, 1 with 8", "default partition"):
        Slurm(target).check(submission(fake, target))
    named = Target("slurm", nodes=1, cpus=64, partition="all")
    Slurm(named).check(submission(fake, named))


def test_a_process_must_fit_on_one_of_slurms_machines(fake: Path) -> None:
    target = Target("slurm", nodes=3, cpus=3)
    with mistake("capacity", "4 processes with 2 CPUs each", "room for 3"):
        Slurm(target).check(submission(fake, target, train_processes=4, train_threads=2))


def test_a_jobs_state_is_unknown_while_slurm_does_not_answer(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit(submission(fake, Target("slurm")))
    message = "Unable to contact slurm controller (connect failure)"
    replace_command(fake, "scontrol", f"echo 'slurm_load_jobs error: {message}' >&2; exit 1")
    with pytest.raises(Unreachable, match=r"Slurm does not answer .*Unable to contact"):
        state_of(job)
    assert main(["cancel", "tiny"]) == 2
    assert "does not answer" in capsys.readouterr().err
    assert main(["status", "tiny"]) == 0
    output = capsys.readouterr().out
    assert "unknown: Slurm does not answer" in output
    assert "resume" not in output
    replace_command(
        fake, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    )
    assert state_of(job).word == "interrupted"
    message = "squeue: fatal: Could not establish a configuration source"
    replace_command(fake, "squeue", f"echo '{message}' >&2; exit 1")
    with pytest.raises(Unreachable, match="configuration source"):
        submit(submission(fake, Target("slurm"), run_name="another"))


def test_a_job_can_be_stopped_if_sbatch_timed_out_after_submitting_it(fake: Path) -> None:
    replace_command(
        fake, "sbatch", "echo 'sbatch: error: Socket timed out on send/recv' >&2; exit 1"
    )
    with pytest.raises(Failed, match=r"'elmwright jobs' shows whether it arrived"):
        submit(submission(fake, Target("slurm")))
    replace_command(fake, "squeue", "echo 23")
    (fake / "shown").write_text("JobId=23 JobState=RUNNING NodeList=n1 StartTime=now")
    job = attempts_of("tiny")[-1]
    assert state_of(job).word == "running"
    cancel(job, wait=False)
    assert "scancel --batch --signal=TERM 23" in (fake / "calls").read_text()


def test_a_job_that_sbatch_refused_is_not_in_the_run_book(fake: Path) -> None:
    replace_command(
        fake, "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1"
    )
    with mistake("capacity", "invalid partition specified: x"):
        submit(submission(fake, Target("slurm")))
    assert attempts_of("tiny") == []


def test_ray_gloo_and_nccl_use_the_targets_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    lines = render(submission(tmp_path, Target("slurm", interface="ib0"))).splitlines()
    assert 'interface="ib0"' in lines
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        assert f"export {name}=ib0" in lines
    plain = render(submission(tmp_path, Target("slurm")))
    assert 'interface=""' in plain.splitlines()
    assert "SOCKET_IFNAME" not in plain


def test_an_interface_has_an_address_or_the_error_lists_the_others() -> None:
    assert address_of("lo") == "127.0.0.1"
    with mistake("target", "'ib7'", "lo"):
        address_of("ib7")
