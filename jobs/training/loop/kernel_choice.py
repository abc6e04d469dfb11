"""All processes of a run compute with the same kernels: those of its checkpoint, if all have them
and it was written on a CPU.

Where one machine has no compiler, all use torch's code. So a run has the same bits on every rank,
and a resumed run has those it began with, or says that it has not.
"""

import logging

import torch

from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.state import Trainer
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import choose_kernels, why_not_native

log = logging.getLogger("elmwright")


def settle_kernels(trainer: Trainer, ranks: Ranks) -> None:
    """Choose the kernels for the steps from here on."""
    if ranks.device.type != "cpu":
        choose_kernels(TORCH)
        return
    reason = why_not_native()
    have = ranks.sum(torch.tensor([0.0 if reason else 1.0]))
    progress = trainer.progress
    wanted = progress.kernels if progress.device == "cpu" and progress.kernels else NATIVE
    chosen = NATIVE if wanted != TORCH and int(have.item()) == ranks.world else TORCH
    choose_kernels(chosen)
    log.info("kernels: %s", chosen)
    why = f" ({reason})" if reason else ""
    if chosen == TORCH != wanted and not trainer.step:
        trainer.warnings.append(f"training is slower without the kernels in C{why}")
    elif trainer.step and wanted != chosen:
        trainer.warnings.append(
            f"the run was computed with the kernels {wanted}, which this version or one of its "
            f"machines does not have{why}: training continues with {chosen}, but not bit for bit"
        )
