"""The class for each kind of target."""

from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.targets.background import Background
from elmwright.jobs.submit.targets.kubernetes import Kubernetes
from elmwright.jobs.submit.targets.place import Place, Unreachable
from elmwright.jobs.submit.targets.ray_jobs import RayCluster
from elmwright.jobs.submit.targets.slurm import Slurm

PLACES: dict[str, type[Place]] = {
    "local": Background,
    "ray": RayCluster,
    "slurm": Slurm,
    "k8s": Kubernetes,
}


def place_class(target: Target) -> type[Place]:
    """The class for the kind of a target; raises Unreachable if this version has none."""
    if target.kind not in PLACES:
        raise Unreachable(
            "target",
            f"target {target}: kind {target.kind!r} is not known to this elmwright, which knows "
            f"{', '.join(PLACES)}; use the version that the run was submitted with",
        )
    return PLACES[target.kind]


def open_place(target: Target) -> Place:
    """The object that sends jobs to a target."""
    return place_class(target)(target)
