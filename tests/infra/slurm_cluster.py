"""A real Slurm on this machine: munged, slurmctld and some slurmds, on free ports, in a folder.

    with slurm_cluster(tmp_path) as environment:
        subprocess.run(["srun", "-N2", "hostname"], env=environment)

Nodes are called node1, node2, …, each a slurmd of its own, all on this host. Nothing of a Slurm
that may be running here is used or touched: `SLURM_CONF` leads every command to the folder. Only
the processes started here are ended. Needs root, as slurmd does.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo")

CONFIG = """\
ClusterName=elmwright
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs that are not installed; Debian has them in slurm-wlm and munge."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2, cpus: int = 2) -> Iterator[dict[str, str]]:
    """Start it, give the environment in which Slurm's commands find it, and end it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    host = socket.gethostname().split(".")[0]
    controller, *node_ports = _free_ports(nodes + 1)
    lines = "\n".join(
        f"NodeName=node{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
        "State=UNKNOWN"
        for n, port in enumerate(node_ports, 1)
    )
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=host, controller=controller, folder=folder, nodes=lines))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    environment |= {"SLURM_CONF": str(config), "PATH": _path()}
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((folder / f"{name}.out").open("wb"))
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            stack.callback(_end, process)

        start(
            "munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={key}", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
        )  # fmt: skip
        _wait((folder / "munge.socket").exists, "munged", folder)
        start("slurmctld", "slurmctld", "-D", "-f", str(config))
        for number in range(1, nodes + 1):
            start(f"slurmd-node{number}", "slurmd", "-D", "-N", f"node{number}", "-f", str(config))
        _wait(lambda: _idle(environment) == nodes, "slurmctld", folder)
        try:
            yield environment
        finally:
            subprocess.run(["scancel", "--state=PENDING"], env=environment, check=False)
            subprocess.run(["scancel", "--state=RUNNING"], env=environment, check=False)
            _wait(lambda: not _jobs(environment), "slurmctld", folder)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _idle(environment: dict[str, str]) -> int:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%N %t"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return sum(line.endswith(" idle") for line in done.stdout.splitlines())


def _jobs(environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["squeue", "--noheader"], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _wait(ready: Callable[[], bool], name: str, folder: Path, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
                for path in sorted(folder.glob("*.log")) + sorted(folder.glob("*.out"))
            )
            raise TimeoutError(f"{name} is not ready after {seconds:.0f} s\n{logs}")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
