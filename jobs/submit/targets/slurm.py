"""The target `slurm`: a batch job that starts its own Ray cluster on its machines.

The script is `templates/elmwright.sbatch`, filled in and written beside the code into the attempt's
own folder, which all machines must share (below `run.dir`, else in the user's home). sbatch does
not pass on the submitter's environment, because Slurm would store it in its state files. Secrets
come from the login environment on the cluster or from `env_file`.
"""

import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.runbook.deployment import STOP_SECONDS
from elmwright.jobs.runbook.runbook import handle_of, work_folder
from elmwright.jobs.runbook.submission import Job, SlurmHandle, State, Submission, state_of_exit
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.place import (
    Place,
    ProgramFailed,
    Unreachable,
    job_size,
    run_program,
    unpack,
)
from elmwright.pipeline.errors import Failed, UserError

TEMPLATE = Path(__file__).parent / "templates" / "elmwright.sbatch"
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")
RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
NO_ANSWER = "unable to contact|timed out|connection refused|configuration source"
"""What Slurm's commands print if the controller does not answer, or none is configured."""


class Slurm(Place):
    """Jobs of the Slurm cluster that this machine can submit to."""

    starts_ray = True
    repeats_attempts = True
    grace_seconds = STOP_SECONDS + 60

    @staticmethod
    def own_handle() -> SlurmHandle:
        return SlurmHandle(os.environ["SLURM_JOB_ID"])

    def check(self, submission: Submission) -> None:
        """Refuse a job that is too small for the run, or larger than the machines.

        sbatch itself accepts a job that no machine can ever run, and lets it wait.
        """
        train = submission.read_config().train
        nodes, cpus = job_size(submission)
        gpus, partition = self.target.gpus, self.target.partition
        check_capacity(
            train,
            [{"CPU": float(cpus), "GPU": float(gpus)}] * nodes,
            gpu=train.device == "cuda",
            where="a job of the target",
            advice="raise nodes, cpus or gpus of the target",
        )
        machines = machines_of(self.target)
        if sum(c >= cpus and g >= gpus for c, g in machines) < nodes:
            sizes = ", ".join(
                f"{n} with {c}" + (f" and {g} GPUs" if gpus else "")
                for (c, g), n in sorted(Counter(machines).items())
            )
            where = f"partition {partition}" if partition else "the cluster"
            need = f"{cpus} CPUs" + (f" and {gpus} GPUs" if gpus else "")
            raise UserError(
                "capacity",
                f"the run needs {nodes} machines with {need} each, but {where} has "
                f"{sizes or 'none'}{'' if partition else ' in its default partition'}; lower "
                "train.processes or train.threads, or change nodes, cpus, gpus or partition of the "
                "target",
            )

    def running(self, run: str) -> str:
        numbers = run_slurm("squeue", "--noheader", "--me", "--name", job_name(run), "--format=%i")
        return (numbers.split() or [""])[0]

    def describe(self, submission: Submission) -> str:
        return render(submission)

    def submit(self, submission: Submission) -> SlurmHandle:
        folder = work_folder(submission)
        unpack(submission, folder)
        script = folder / "job.sbatch"
        script.write_text(render(submission), encoding="utf-8")
        # On the command line, where the user's SBATCH_EXPORT does not override it.
        answer = run_slurm("sbatch", "--parsable", "--export=NONE", str(script))
        return SlurmHandle(answer.strip().partition(";")[0])

    def state(self, job: Job) -> State:
        forgotten = State("interrupted", "Slurm no longer knows it")
        number = self._number(job)
        if not number:
            return forgotten
        try:
            answer = run_slurm("scontrol", "--oneliner", "show", "job", number)
        except Failed as error:
            if "Invalid job id" not in str(error):
                raise
            return forgotten  # Slurm forgets a job minutes after its end
        return state_of_slurm(dict(re.findall(r"(\w+)=(\S*)", answer)))

    def _number(self, job: Job) -> str:
        """Slurm's id of a job; if its answer was lost, that of the run's job in the queue."""
        handle = handle_of(job, SlurmHandle)
        return handle.job if handle else self.running(job.submission.run)

    def stop(self, job: Job) -> None:
        number = self._number(job)
        if self.state(job).word == "pending":
            run_slurm("scancel", number)
        else:
            # The batch shell passes the signal on and waits. A plain scancel would give the
            # driver only Slurm's KillWait, 30 s by default.
            run_slurm("scancel", "--batch", "--signal=TERM", number)

    def kill(self, job: Job) -> None:
        run_slurm("scancel", self._number(job))


def machines_of(target: Target) -> list[tuple[int, int]]:
    """CPUs and GPUs of each machine of the target's partition, or of the default partition."""
    partition = ["--partition", target.partition] if target.partition else []
    table = run_slurm("sinfo", "--noheader", "--Node", "--format=%N|%c|%G|%P", *partition)
    rows = [line.strip().split("|") for line in table.splitlines() if line.strip()]
    if not target.partition and any(row[3].endswith("*") for row in rows):
        rows = [row for row in rows if row[3].endswith("*")]
    return list({row[0]: (int(row[1]), gpus_in(row[2])) for row in rows}.values())


def gpus_in(resources: str) -> int:
    """The GPUs in sinfo's generic resources: `gpu:a100:4(S:0-1),shard:8`, `(null)`."""
    bare = re.sub(r"\([^)]*\)", "", resources)
    counts = re.findall(r"(?:^|,)gpu(?::[^:,]+)??(?::(\d+))?(?=,|$)", bare)
    return sum(int(count or 1) for count in counts)


def job_name(run: str) -> str:
    return f"elmwright-{run}"


def render(submission: Submission) -> str:
    """The batch script of a submission."""
    target, folder = submission.target, work_folder(submission)
    output = str(folder / "output.log")
    if re.search(r"\s|['\"]", output):
        raise UserError(
            "target", f"{output}: Slurm cannot write to a path with spaces or quotes in it"
        )
    nodes, cpus = job_size(submission)
    options = {
        "partition": target.partition,
        "account": target.account,
        "gpus-per-node": target.gpus,
    }
    # sbatch reads its options only above the first command.
    directives = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    directives += [line for line in target.lines if line.startswith("#SBATCH")]
    settings = submission.settings
    if target.interface:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        settings = {**settings, **dict.fromkeys(names, target.interface)}
    lines = [f"export {name}={shlex.quote(text)}" for name, text in settings.items()]
    if target.env_file:
        source = f". {_path(target.env_file)}"
        lines += ["set -a", "# shellcheck source=/dev/null", source, "set +a"]
    lines += [line for line in target.lines if not line.startswith("#SBATCH")]
    values = {
        "JOB_NAME": job_name(submission.run),
        "NODES": nodes,
        "CPUS": cpus,
        "GPUS": target.gpus,
        "TIME": target.time,
        "WARNING": target.warning,
        "INTERFACE": target.interface,
        "OUTPUT": output.replace("%", "%%"),  # Slurm expands patterns such as %j
        "DIRECTIVES": "\n".join(directives) or "# (no further options)",
        "LINES": "\n".join(lines),
        "PYTHON": _path(target.python or sys.executable),
        "CODE": shlex.quote(str(folder / "code")),
        "RAY_LOG": shlex.quote(str(folder / "ray.log")),
        "SUBMISSION": shlex.quote(str(folder / "submission.json")),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: str(values.get(match[1], match[0])), text)


def _path(text: str) -> str:
    """A path on the cluster, quoted for a shell; ~ is the home folder there."""
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") else shlex.quote(text)


def state_of_slurm(fields: dict[str, str]) -> State:
    """The state of a job from the fields of `scontrol show job`."""
    word = fields["JobState"]
    if word in WAITING:
        return State("pending", f"in Slurm's queue ({fields.get('Reason', '')})")
    if word in RUNNING:
        return State("running", f"on {fields.get('NodeList', '')}, since {fields.get('StartTime')}")
    if word == "COMPLETED":
        return State("finished", exit_code=0)
    code, _, number = fields.get("ExitCode", "0:0").partition(":")
    if word == "FAILED" and int(code):
        return state_of_exit(int(code))
    if word == "FAILED" and int(number or 0):
        return state_of_exit(-int(number))
    return State("interrupted", f"Slurm says {word.lower()}", 75)


def run_slurm(*command: str) -> str:
    """The output of a Slurm command."""
    program = command[0]
    try:
        return run_program(
            list(command),
            if_missing="submit from a machine of the Slurm cluster, such as its login node",
        )
    except ProgramFailed as error:
        reason = re.sub(r"^\w+: (error: )?", "", str(error))
    has_answered = not re.search(NO_ANSWER, reason, re.IGNORECASE)
    if program == "sbatch" and has_answered:
        raise UserError(
            "capacity",
            f"Slurm does not accept the job ({reason}); change partition, nodes, cpus, gpus or "
            "time of the target, or reduce what the run needs",
        )
    if has_answered:
        raise Failed(f"{program} failed ({reason})")
    if program == "sbatch" and "unable to contact" not in reason.lower():
        raise Failed(
            f"Slurm did not answer while the job was being sent ({reason}); 'elmwright jobs' shows "
            "whether it arrived, once Slurm answers again"
        )
    raise Unreachable(
        "cluster-unreachable",
        f"Slurm does not answer ({program}: {reason}); try again when it does",
    )
