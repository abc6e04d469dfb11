"""Every metric of a run: its key in the journal, its unit, and its title.

The loop writes these keys, and MLflow, the terminal and the model card read them. Keys are part of
the journal's format and never change. For a score of a held-out set, the set's name comes before
the key: `heldout/fresh_perplexity`.
"""

from dataclasses import dataclass
from typing import Literal

Regime = Literal["fresh", "carried"]
"""How held-out text was read: with fresh (zero) states for every sentence, as embedding and scoring
do, or with states carried over from sentence to sentence, as the only one in earlier versions."""
FINAL = "final/"
"""Prefix of the keys of the last evaluation."""


@dataclass(frozen=True)
class Metric:
    """A number that a run reports."""

    key: str
    """Its name in the journal."""
    unit: str
    """Empty for a number without a unit."""
    title: str
    """Its name for people."""

    def of(self, split: str) -> str:
        """The key of this score for one held-out set."""
        return f"{split}/{self.key}"


LOSS = Metric("train/loss", "nats per token", "loss")
GRADIENT_NORM = Metric("train/gradient_norm", "", "gradient norm")
LEARNING_RATE = Metric("train/lr", "", "learning rate")
SOFTMAX_EXCHANGED = Metric("train/softmax_mb_exchanged", "MB per step", "softmax exchange")
DENSE_EXCHANGED = Metric("train/dense_mb_exchanged", "MB per step", "gradient exchange")
SKIPPED_UPDATES = Metric("train/skipped_updates", "steps", "skipped updates")
TOKENS_PER_S = Metric("train/tokens_per_s", "tokens/s", "speed")
FLOPS_PER_S = Metric("train/flops_per_s", "FLOP/s", "useful arithmetic")
FLOP_UTILISATION = Metric("train/flop_utilisation", "share of the peak", "utilisation")

PROCESS_CPUS = Metric("system/process_cpus", "CPUs", "CPUs of the process")
PROCESS_MEMORY = Metric("system/process_memory_mb", "MB", "memory of the process")
MACHINE_LOAD = Metric("system/machine_load", "processes", "load of the machine")
MACHINE_MEMORY = Metric("system/machine_memory_used_share", "share", "memory of the machine")
GPU_MEMORY = Metric("system/gpu_memory_used_share", "share", "memory of the GPU")
GPU_MEMORY_PEAK = Metric("system/gpu_memory_peak_mb", "MB", "peak memory of the GPU")

PERPLEXITY = Metric("fresh_perplexity", "", "held-out perplexity")
BITS_PER_CHARACTER = Metric("fresh_bits_per_character", "bits", "bits per character")
FORWARD_PERPLEXITY = Metric("fresh_forward_perplexity", "", "forward perplexity")
BACKWARD_PERPLEXITY = Metric("fresh_backward_perplexity", "", "backward perplexity")
CARRIED_PERPLEXITY = Metric("perplexity", "", "held-out perplexity, states carried over")
"""The only perplexity in journals of earlier versions."""
SCORED_TOKENS = Metric("tokens", "tokens", "tokens scored")
UNKNOWN_SHARE = Metric("unk_share", "share", "unknown words")


def time_share(activity: str) -> str:
    """The key of the share of time that an activity of the loop took."""
    return f"time/{activity}_share"


def split_key(key: str) -> tuple[str, str]:
    """The held-out set and the score that an evaluation's key (without `FINAL`) names."""
    split, _, score = key.rpartition("/")
    return split, score


def perplexity_metric(states: Regime) -> Metric:
    """The metric of a perplexity, by how the held-out text was read."""
    return PERPLEXITY if states == "fresh" else CARRIED_PERPLEXITY


def perplexities(values: dict[str, float]) -> tuple[dict[str, float], Regime]:
    """The perplexity on each held-out set, by name, from the values of an evaluation, and how the
    sets were read: fresh, except in journals of earlier versions."""
    fresh = _by_set(values, PERPLEXITY)
    return (fresh, "fresh") if fresh else (_by_set(values, CARRIED_PERPLEXITY), "carried")


def _by_set(values: dict[str, float], metric: Metric) -> dict[str, float]:
    pairs = ((split_key(key), value) for key, value in values.items())
    return {split: value for (split, score), value in pairs if score == metric.key}
