"""Has the cluster room for the training processes, and has it still?"""

import logging
import time

from elmwright.jobs.cluster import machines, room_for
from elmwright.jobs.config import RunConfig
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import exists

log = logging.getLogger("elmwright")

LOOK_SECONDS = 2.0
"""Seconds between looks at whether processes that have not begun still find room."""
LOST_SECONDS = 10.0
"""Seconds for which there may be too little room, where nothing else (cluster.wait_minutes) is
allowed: a machine may be counted twice or not at all while it is being replaced."""


class NoRoom(UserError):  # noqa: N818 - a state of the cluster
    """The cluster is too small: a mistake at the beginning, a misfortune later."""


class RoomLost(NoRoom):
    """There was room when training was started, and then there was not."""


def check_room(config: RunConfig, have: list[dict[str, float]], use_gpu: bool) -> None:
    """Ray would wait for ever for what the cluster does not have."""
    train = config.train
    cpus, gpus = (sum(one.get(name, 0) for one in have) for name in ("CPU", "GPU"))
    if cpus < train.processes * train.threads:
        raise NoRoom(
            f"train.processes × train.threads needs {train.processes * train.threads} CPUs, the "
            f"cluster has {cpus:.0f}; lower them or raise cluster.cpus"
        )
    if use_gpu and gpus < train.processes:
        raise NoRoom(
            f'train.device = "cuda" needs {train.processes} GPUs, the cluster has {gpus:.0f}'
        )
    room = room_for(have, train.threads, gpu=use_gpu)
    if room < train.processes:
        raise NoRoom(
            f"{train.processes} processes with {train.threads} CPUs{' and a GPU' * use_gpu} each "
            f"do not fit: a process needs them on one machine, and the {len(have)} machines have "
            f"room for {room}; lower train.threads or train.processes"
        )


class Room:
    """Whether the processes of an attempt can still be placed.

    A machine that has just died counts for as long as Ray has not noticed, so an attempt may begin
    that can never get all of its processes; Ray Train waits for room without a limit.
    """

    def __init__(self, config: RunConfig, sign: str, *, on_gpus: bool) -> None:
        """`sign` is the file that the first process leaves when it has begun."""
        self._config, self._sign = config, sign
        self._gpu = config.train.device == "cuda" or on_gpus
        self._patience = 60.0 * config.cluster.wait_minutes or LOST_SECONDS
        self._begun = False
        self._next = time.monotonic() + LOOK_SECONDS
        self._since = 0.0

    def lost(self) -> RoomLost | None:
        """What is missing, once it has been for too long and nobody has begun."""
        now = time.monotonic()
        if self._begun or now < self._next:
            return None
        self._next = now + LOOK_SECONDS
        self._begun = exists(self._sign)
        lacking = None if self._begun else self._lacking()
        self._since = (self._since or now) if lacking else 0.0
        return lacking if lacking and now - self._since > self._patience else None

    def _lacking(self) -> RoomLost | None:
        from ray.exceptions import RayError

        try:
            check_room(self._config, machines(), self._gpu)
        except NoRoom as lacking:
            return RoomLost(str(lacking))
        except RayError as error:  # the processes' own end tells what is wrong
            log.warning("cannot ask Ray for its machines: %s", error)
        return None
