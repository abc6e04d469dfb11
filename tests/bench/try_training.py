"""Changes to training that were tried once, so that they can be tried again.

    python tests/bench/try_training.py NAME… [--steps 800] [--recipe wikitext2] [--work FOLDER]

Trains the recipe `wikitext2` (or another) for a few hundred steps in one process with one change at
a time, and prints the fresh perplexity on the first 8 blocks of its held-out set. Most changes are
not settings of Elmwright: they are patches of this process, and docs/experiments.md has what came
of them. `--set` gives overrides that all runs have. Without a name, the names are listed.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench_quality import prepare
from torch import Tensor
from training_run import train_run
from verdict import options_parser, print_circumstances, work_folder

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop import training_step
from elmwright.jobs.training.loop.input import step_input
from elmwright.jobs.training.loop.input.step_input import StepInput
from elmwright.jobs.training.loop.input.stream import Batch
from elmwright.jobs.training.loop.training_step import Process, StepResult
from elmwright.model import bilm
from elmwright.model.config import ModelConfig, OptimConfig

STEPS, TOKENS = 800, 76_800
FULL_SHARE = 0.08
"""The last steps that train the full softmax."""
FEW_LANES_SHARE = 1 / 3
"""The share of the tokens that half the lanes read."""
WEIGHT_DROP = 0.2


def full_softmax_at_the_end(config: RunConfig) -> None:
    draw, begin = step_input.draw_negatives, config.train.max_steps * (1 - FULL_SHARE)

    def draw_negatives(seed: int, step: int, n: int, size: int) -> Any:
        return draw(seed, step, n if step < begin else size, size)

    step_input.draw_negatives = draw_negatives


def forget_bias(_config: RunConfig) -> None:
    """+1 in the stored bias, in addition to the one that no file stores."""
    initialize = bilm.LSTMLayer.initialize

    @torch.no_grad()
    def with_bias(layer: bilm.LSTMLayer, generator: torch.Generator) -> None:
        initialize(layer, generator)
        layer.b[:, 2 * layer.config.dim : 3 * layer.config.dim] = 1.0

    bilm.LSTMLayer.initialize = with_bias  # type: ignore[method-assign]


def weight_drop(_config: RunConfig) -> None:
    """Recurrent weights are left out at random, others in every window."""
    run = bilm.projected_lstm

    def projected_lstm(x: Tensor, w: Tensor, *rest: Any) -> Any:
        if torch.is_grad_enabled():
            recurrent = torch.nn.functional.dropout(w[:, x.size(-1) :], WEIGHT_DROP)
            w = torch.cat([w[:, : x.size(-1)], recurrent], dim=1)
        return run(x, w, *rest)

    bilm.projected_lstm = projected_lstm


def variational_dropout(_config: RunConfig) -> None:
    """A lane's mask is the same in all steps of a window."""

    drawn = training_step.dropout_masks

    def dropout_masks(
        config: ModelConfig, p: float, seeds: list[int], window: int, device: Any = "cpu"
    ) -> list[Tensor] | None:
        masks = drawn(config, p, seeds, 1, device)
        return masks and [mask.expand(-1, window, -1, -1) for mask in masks]

    training_step.dropout_masks = dropout_masks


def fewer_lanes_first(config: RunConfig) -> None:
    """Half the lanes (the loss of the others has weight 0) read the first share of the tokens, so
    there are more steps; the schedule follows the tokens."""
    batch_of, rate = step_input.training_batch, training_step.learning_rate
    until = few_lanes_steps(config.train.max_steps)

    def training_batch(blocks: Any, reading: Any, step: int, lanes: range) -> Batch:
        batch = batch_of(blocks, reading, step, lanes)
        if step < until:
            batch.weights[: len(lanes) // 2] *= 2
            batch.weights[len(lanes) // 2 :] = 0
        return batch

    def learning_rate(optim: OptimConfig, step: int, max_steps: int, *rest: int) -> float:
        read = step / 2 if step < until else step - until / 2
        return rate(optim, read, max_steps - until // 2, *rest)  # type: ignore[arg-type]

    step_input.training_batch = training_batch
    training_step.learning_rate = learning_rate  # type: ignore[assignment]


def few_lanes_steps(max_steps: int) -> int:
    """The steps with half the lanes, of so many in all."""
    share = FEW_LANES_SHARE
    return round(max_steps * 2 * share / (1 + share))


def noise_scale(config: RunConfig) -> None:
    """Prints McCandlish's simple noise scale of the dense gradient, in tokens, as training goes on:
    the batch size from which on more tokens per step bring little."""
    make_step, every, parts = loop.make_step, max(1, config.train.max_steps // 16), 4
    small_squares, big_squares = [], []

    def gradient(process: Process, batch: Batch) -> Tensor:
        """The mean gradient of the dense weights over the tokens of a batch that count."""
        trainer, settings = process.trainer, process.config.train
        rows = torch.arange(trainer.softmax.vocab_size)
        negatives = step_input.draw_negatives(
            config.run.seed, trainer.step, settings.negatives, len(rows)
        )
        sample = training_step._Sample(rows, negatives, is_full=False)
        table = trainer.softmax.table(rows)
        loss, _ = training_step._window_loss(
            process, batch, trainer.states, sample, table, trainer.step
        )
        weights = list(trainer.bilm.parameters())
        grads = torch.autograd.grad(loss / (2 * batch.weights.sum()), weights)
        return torch.cat([grad.flatten() for grad in grads])

    def measured_step(process: Process, given: StepInput, wants_stop: bool) -> StepResult:
        step = process.trainer.step
        if step % every == 0 and step:
            (batch,) = given.batches
            lanes = len(batch.weights)
            small = []
            for part in range(parts):
                weights = torch.zeros_like(batch.weights)
                mine = slice(part * lanes // parts, (part + 1) * lanes // parts)
                weights[mine] = batch.weights[mine]
                small.append(gradient(process, replace(batch, weights=weights)))
            small_squares.append(torch.stack([g.square().sum() for g in small]).mean().item())
            big_squares.append(torch.stack(small).mean(0).square().sum().item())
            if len(small_squares) % 4 == 0:
                report_noise(step, lanes * config.train.window, parts)
                small_squares.clear()
                big_squares.clear()
        return make_step(process, given, wants_stop)

    def report_noise(step: int, big: int, parts: int) -> None:
        small = big / parts
        small_square = sum(small_squares) / len(small_squares)
        big_square = sum(big_squares) / len(big_squares)
        signal = (big * big_square - small * small_square) / (big - small)
        noise = (small_square - big_square) / (1 / small - 1 / big)
        scale = noise / signal if signal > 0 else math.inf
        print(f"  up to step {step:,}: noise scale {scale:,.0f} tokens", flush=True)

    loop.make_step = measured_step  # type: ignore[assignment]


@dataclass(frozen=True)
class Try:
    """One change."""

    settings: tuple[str, ...] = ()
    patch: Callable[[RunConfig], None] | None = None


TRIES = {
    "recipe": Try(),
    "average": Try(("train.average_steps=100",)),
    "long-average": Try(("train.average_steps=200",)),
    "full-at-the-end": Try(patch=full_softmax_at_the_end),
    "forget-bias": Try(patch=forget_bias),
    "weight-drop": Try(patch=weight_drop),
    "variational": Try(patch=variational_dropout),
    "no-dropout": Try(("train.dropout=0",)),
    "fewer-lanes-first": Try(patch=fewer_lanes_first),
    "slow-rows": Try(("optim.softmax_lr=1.0",)),
    "fast-rows": Try(("optim.softmax_lr=4.0",)),
    "noise": Try(patch=noise_scale),
}


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if not options.names or set(options.names) - set(TRIES):
        parser.error(f"there are {', '.join(TRIES)}")
    print_circumstances()
    with work_folder(options.work) as work:
        corpus = prepare(work)
        for name in options.names:
            steps = options.steps or STEPS
            if name == "fewer-lanes-first":
                steps = round(steps * (1 + FEW_LANES_SHARE))
            settings = [
                f"corpus.dir={corpus}",
                "eval.every_steps=0",
                f"eval.final_tokens={TOKENS}",
                "train.processes=1",
                f"train.max_steps={steps}",
                *TRIES[name].settings,
                *options.settings,
            ]
            run = train_run("wikitext2", settings, work / name, patch=TRIES[name].patch)
            print(
                f"{name}: {run.steps:,} steps, fresh {run.score.perplexity:.1f}, carried "
                f"{run.score.carried_perplexity:.1f}, {run.cpu:,.0f} CPU s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
