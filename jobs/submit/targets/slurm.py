"""The target `slurm`: a batch job that brings its own Ray to the machines it is given.

The script is `templates/elmwright.sbatch`, filled in and laid beside the code in the attempt's own
folder, which every machine must see (below `run.dir`, else in the user's home). sbatch is told to
leave the submitter's environment at home, because Slurm keeps what it is given in its state files;
secrets come from the login environment on the cluster or from `env_file`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from math import ceil
from pathlib import Path

from elmwright.jobs.cluster.capacity import capacity_for
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.runbook.runbook import handle_of, outcome_of, work_folder
from elmwright.jobs.runbook.submission import (
    GRACE_SECONDS,
    Job,
    SlurmHandle,
    State,
    Submission,
    state_of_exit,
)
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.background import read_from, unpack
from elmwright.jobs.submit.targets.place import Place
from elmwright.jobs.submit.targets.ray_jobs import Unreachable
from elmwright.pipeline.errors import Failed, UserError

TEMPLATE = Path(__file__).parent / "templates" / "elmwright.sbatch"
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")
SILENT = "unable to contact|timed out|connection refused|configuration source"
"""What Slurm's commands say when there is nobody to ask; the last where they do not know whom."""
GPU_CPUS = 4
"""CPUs of a machine with GPUs, at least."""
GOING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")


class Slurm(Place):
    """Jobs of the Slurm cluster that this machine can submit to."""

    starts_ray = True
    repeats_attempts = True

    def __init__(self, target: Target) -> None:
        self.target = target

    @staticmethod
    def own_handle() -> SlurmHandle:
        return SlurmHandle(os.environ["SLURM_JOB_ID"])

    def check(self, submission: Submission) -> None:
        """Refuse a job that asks for too little, or for more than the machines have.

        sbatch itself accepts a job that no machine can ever run, and lets it wait.
        """
        train = config_from(submission.config, "the config").train
        nodes, cpus = job_size(submission)
        if nodes * cpus < train.processes * train.threads:
            raise UserError(
                "capacity",
                f"train.processes × train.threads needs {train.processes * train.threads} CPUs, "
                f"but the target asks Slurm for {nodes} machines with {cpus} each; raise nodes or "
                "cpus of the target",
            )
        gpus = self.target.gpus
        if train.device == "cuda" and nodes * gpus < train.processes:
            raise UserError(
                "capacity",
                f'train.device = "cuda" needs {train.processes} GPUs, but the target asks Slurm '
                f"for {nodes} machines with {gpus} each; raise nodes or gpus of the target",
            )
        one = {"CPU": float(cpus), "GPU": float(gpus)}
        room = nodes * capacity_for([one], train.threads, gpu=train.device == "cuda")
        if room < train.processes:
            raise UserError(
                "capacity",
                f"{train.processes} processes with {train.threads} CPUs each do not fit: the "
                f"target asks Slurm for {nodes} machines with {cpus} CPUs and {gpus} GPUs each, "
                f"which have room for {room}; raise cpus or nodes of the target",
            )
        found = machines_of(self.target)
        if sum(c >= cpus and g >= gpus for c, g in found) < nodes:
            sizes = ", ".join(
                f"{n} with {c}" + (f" and {g} GPUs" if gpus else "")
                for (c, g), n in sorted(Counter(found).items())
            )
            where = f"partition {self.target.partition}" if self.target.partition else "the cluster"
            need = f"{cpus} CPUs" + (f" and {gpus} GPUs" if gpus else "")
            raise UserError(
                "capacity",
                f"the run needs {nodes} machines with {need} each, but {where} has "
                f"{sizes or 'none'}{'' if self.target.partition else ' in its default partition'}; "
                "lower train.processes or train.threads, or change nodes, cpus, gpus or partition "
                "of the target",
            )

    def running(self, run: str) -> str:
        found = run_slurm("squeue", "--noheader", "--me", "--name", job_name(run), "--format=%i")
        return found.split()[0] if found.split() else ""

    def describe(self, submission: Submission) -> str:
        return render(submission)

    def submit(self, submission: Submission) -> SlurmHandle:
        folder = unpack(submission)
        script = folder / "job.sbatch"
        script.write_text(render(submission), encoding="utf-8")
        # On the command line, where no SBATCH_EXPORT of the user's overrides it.
        answer = run_slurm("sbatch", "--parsable", "--export=NONE", str(script))
        return SlurmHandle(answer.strip().partition(";")[0])

    def state(self, job: Job) -> State:
        number = self._number(job)
        if not number:
            return self._gone(job)
        try:
            shown = run_slurm("scontrol", "--oneliner", "show", "job", number)
        except Failed as error:
            if "Invalid job id" not in str(error):
                raise
            return self._gone(job)
        return state_of_slurm(dict(re.findall(r"(\w+)=(\S*)", shown)))

    def _number(self, job: Job) -> str:
        """Slurm's number; where its answer was lost, the queue's number of a job of this run."""
        handle = handle_of(job, SlurmHandle)
        return handle.job if handle else self.running(job.submission.run)

    def _gone(self, job: Job) -> State:
        """The state of a job that Slurm has forgotten, minutes after its end."""
        code = outcome_of(job.submission)
        if code is not None:
            return state_of_exit(code)
        return State("interrupted", "Slurm does not know it any more")

    def log(self, job: Job, start: int) -> tuple[str, int]:
        return read_from(work_folder(job.submission) / "output.log", start)

    def stop(self, job: Job) -> None:
        number = self._number(job)
        if self.state(job).word == "pending":
            run_slurm("scancel", number)
        else:
            # To the batch shell, which passes it on and waits; a plain scancel would leave the
            # driver Slurm's KillWait, 30 s by default.
            run_slurm("scancel", "--batch", "--signal=TERM", number)

    def kill(self, job: Job) -> None:
        run_slurm("scancel", self._number(job))

    @property
    def grace(self) -> float:
        return GRACE_SECONDS + 60


def machines_of(target: Target) -> list[tuple[int, int]]:
    """CPUs and GPUs of each machine of a target's partition, without one of the default one."""
    partition = ["--partition", target.partition] if target.partition else []
    rows = run_slurm("sinfo", "--noheader", "--Node", "--format=%N|%c|%G|%P", *partition)
    found = [line.strip().split("|") for line in rows.splitlines() if line.strip()]
    if not target.partition and any(row[3].endswith("*") for row in found):
        found = [row for row in found if row[3].endswith("*")]
    return list({row[0]: (int(row[1]), gpus_in(row[2])) for row in found}.values())


def gpus_in(resources: str) -> int:
    """The GPUs in what sinfo calls generic resources: `gpu:a100:4(S:0-1),shard:8`, `(null)`."""
    bare = re.sub(r"\([^)]*\)", "", resources)
    counts = re.findall(r"(?:^|,)gpu(?::[^:,]+)??(?::(\d+))?(?=,|$)", bare)
    return sum(int(count or 1) for count in counts)


def job_name(run: str) -> str:
    return f"elmwright-{run}"


def job_size(submission: Submission) -> tuple[int, int]:
    """How many machines, and how many CPUs of each: as the target says, else as few as will do.

    A process on a GPU has its data loaded beside it, and the machine has an agent of Ray's: with
    the CPUs of train.threads alone the GPU would wait for them.
    """
    target = submission.target
    train = config_from(submission.config, "the config").train
    nodes = target.nodes or (ceil(train.processes / target.gpus) if target.gpus else 1)
    processes = ceil(train.processes / nodes)
    cpus = processes * train.threads
    if target.gpus:
        cpus = max(GPU_CPUS, cpus + processes)
    return nodes, target.cpus or cpus


def render(submission: Submission) -> str:
    """The batch script of a submission."""
    target, folder = submission.target, work_folder(submission)
    nodes, cpus = job_size(submission)
    directives = [
        f"#SBATCH --{name}={value}"
        for name, value in (
            ("partition", target.partition),
            ("account", target.account),
            ("gpus-per-node", target.gpus or ""),
        )
        if value
    ]
    # sbatch reads its options only above the first command.
    directives += [line for line in target.lines if line.startswith("#SBATCH")]
    settings = submission.settings
    if target.interface:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        settings = {**settings, **dict.fromkeys(names, target.interface)}
    lines = [f"export {name}={shlex.quote(text)}" for name, text in settings.items()]
    if target.env_file:
        lines += [
            "set -a",
            "# shellcheck source=/dev/null",
            f". {_path(target.env_file)}",
            "set +a",
        ]
    values = {
        "JOB_NAME": job_name(submission.run),
        "NODES": nodes,
        "CPUS": cpus,
        "GPUS": target.gpus,
        "TIME": target.time,
        "WARNING": target.warning,
        "INTERFACE": target.interface,
        # Slurm replaces what begins with a percent sign.
        "OUTPUT": _one_word(str(folder / "output.log").replace("%", "%%")),
        "DIRECTIVES": "\n".join(directives) or "# (no further options)",
        "LINES": "\n".join(
            [*lines, *(line for line in target.lines if not line.startswith("#SBATCH"))]
        ),
        "PYTHON": _path(target.python or sys.executable),
        "CODE": shlex.quote(str(folder / "code")),
        "RAY_LOG": shlex.quote(str(folder / "ray.log")),
        "SUBMISSION": shlex.quote(str(folder / "submission.json")),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda m: str(values.get(m[1], m[0])), text)


def _path(text: str) -> str:
    """A path of the cluster's, for a shell; ~ is the home there."""
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") else shlex.quote(text)


def _one_word(text: str) -> str:
    if re.search(r"\s|['\"]", text):
        raise UserError(
            "target", f"{text}: Slurm cannot write to a path with spaces or quotes in it"
        )
    return text


def state_of_slurm(shown: dict[str, str]) -> State:
    """What `scontrol show job` says, in our words."""
    word = shown["JobState"]
    if word in WAITING:
        return State("pending", f"in Slurm's queue ({shown.get('Reason', '')})")
    if word in GOING:
        return State("running", f"on {shown.get('NodeList', '')}, since {shown.get('StartTime')}")
    if word == "COMPLETED":
        return State("finished", exit_code=0)
    code, _, number = shown.get("ExitCode", "0:0").partition(":")
    if word == "FAILED" and int(code):
        return state_of_exit(int(code))
    if word == "FAILED" and int(number or 0):
        return state_of_exit(-int(number))
    return State("interrupted", f"Slurm says {word.lower()}", 75)


def run_slurm(*command: str) -> str:
    """Run a Slurm command; what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise Unreachable(
            "cluster-unreachable",
            f"{command[0]} is not on this machine's PATH; submit from a machine of the Slurm "
            "cluster, such as its login node",
        ) from None
    except subprocess.TimeoutExpired:
        raise _silent(command[0], "it took more than 60 s") from None
    if done.returncode == 0:
        return done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    reason = re.sub(r"^\w+: (error: )?", "", lines[-1])
    if re.search(SILENT, reason, re.IGNORECASE):
        raise _silent(command[0], reason)
    if command[0] == "sbatch":
        raise UserError(
            "capacity",
            f"Slurm does not take the job ({reason}); change partition, nodes, cpus, gpus or time "
            "of the target, or what the run needs",
        )
    raise Failed(f"{command[0]} failed ({reason})")


def _silent(command: str, why: str) -> Exception:
    """Slurm's controller does not answer; a job that was just being sent may have arrived."""
    if command == "sbatch" and "unable to contact" not in why.lower():
        return Failed(
            f"Slurm did not answer while the job was being sent ({why}); 'elmwright jobs' tells "
            "whether it arrived, once Slurm answers again"
        )
    return Unreachable(
        "cluster-unreachable", f"Slurm does not answer ({command}: {why}); try again when it does"
    )
