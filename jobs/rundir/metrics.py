"""Every metric of a run: its key in the journal, its unit, and its title.

The loop writes these keys, and MLflow, the terminal and the model card read them. Keys are part of
the journal's format and never change. For a score of a held-out set, the set's name comes before
the key: `heldout/perplexity`.
"""

from dataclasses import dataclass

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

PERPLEXITY = Metric("perplexity", "", "held-out perplexity")
BITS_PER_CHARACTER = Metric("bits_per_character", "bits", "bits per character")
FORWARD_PERPLEXITY = Metric("forward_perplexity", "", "forward perplexity")
BACKWARD_PERPLEXITY = Metric("backward_perplexity", "", "backward perplexity")
SCORED_TOKENS = Metric("tokens", "tokens", "tokens scored")
UNKNOWN_SHARE = Metric("unk_share", "share", "unknown words")


def time_share(activity: str) -> str:
    """The key of the share of time that an activity of the loop took."""
    return f"time/{activity}_share"


def split_key(key: str) -> tuple[str, str]:
    """The held-out set and the score that an evaluation's key (without `FINAL`) names."""
    split, _, score = key.rpartition("/")
    return split, score


def perplexities(values: dict[str, float]) -> dict[str, float]:
    """The perplexity on each held-out set, by name, from the values of an evaluation."""
    pairs = ((split_key(key), value) for key, value in values.items())
    return {split: value for (split, score), value in pairs if score == PERPLEXITY.key}
