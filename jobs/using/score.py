"""`elmwright score`: how probable a model finds each sentence, and each word in it.

For a sentence w1 … wn, natural logarithms, full softmax, states fresh for every sentence:

    forward    Σ log P(w_t | <S> w1 … w_t-1) + log P(</S> | <S> w1 … wn)
    backward   Σ log P(w_t | </S> wn … w_t+1) + log P(<S> | </S> wn … w1)
    mean       of the two

These are n + 1 predictions in each direction. The end mark is one of them, because otherwise a
sentence could stop anywhere at no cost. A word outside the vocabulary is scored as `<UNK>`, which
is easy to predict where such words are common. The column `unknown` counts them, and only
sentences with equal counts should be compared. Sums favour short sentences: divide by `words` + 1
to filter by quality.

The perplexity of `elmwright eval`, and of the model card, is that of the same predictions: exp of
minus their mean. It also reports one with states carried over from sentence to sentence, as in
training, which differs.
"""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import numpy as np
import numpy.typing as npt
import torch

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.argument_checks import check_score_output
from elmwright.jobs.using.pretrained import choose_device, load_language_model
from elmwright.jobs.using.sentences import batches, pieces, read_sentences, text_file
from elmwright.jobs.using.text_lines import Reading, line_reader, split_file, warn_of_text
from elmwright.model.bilm import States
from elmwright.model.inference.reading import WINDOW
from elmwright.model.inference.word_types import TypeCache
from elmwright.model.softmax import nll
from elmwright.model.text.text_input import TextInput
from elmwright.pipeline.format.block import BOS, BOS_ID, EOS, EOS_ID, UNK_ID
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at

Logs = npt.NDArray[np.float64]
STEPS_AT_ONCE = 2048
"""Positions per batch, padding included."""


@dataclass(frozen=True)
class SentenceScore:
    """The log-probabilities of a sentence."""

    words: list[str]
    unknown: list[bool]
    """Which of them are outside the vocabulary."""
    forward: Logs
    """Log-probability of each word given those before it, then that of `</S>` after them all."""
    backward: Logs
    """Log-probability of each word given those after it, then that of `<S>` before them all."""

    @property
    def mean(self) -> Logs:
        return (self.forward + self.backward) / 2


class Scorer:
    """A model with its softmax. Memory use does not grow with the length of sentences."""

    def __init__(self, folder: Path, device: str = "cpu", name: str = "") -> None:
        """Load a verified folder; `name` is the user's name for it in errors."""
        self.device = device
        model = load_language_model(folder, device, name)
        self.bilm = model.bilm
        self.softmax = model.softmax
        self.ids = model.word_ids
        self._cache = TypeCache()

    def score(self, sentences: Sequence[Sequence[str]]) -> list[SentenceScore]:
        """The scores of sentences, in the order of the sentences."""
        scores: dict[int, SentenceScore] = {}
        group: list[int] = []
        for i in sorted(range(len(sentences)), key=lambda i: len(sentences[i])):
            if group and (len(group) + 1) * (len(sentences[i]) + 1) > STEPS_AT_ONCE:
                scores |= zip(group, self._run([sentences[n] for n in group]), strict=True)
                group = []
            group.append(i)
        if group:
            scores |= zip(group, self._run([sentences[n] for n in group]), strict=True)
        return [scores[i] for i in range(len(sentences))]

    @torch.no_grad()
    def _run(self, sentences: list[Sequence[str]]) -> list[SentenceScore]:
        """Both directions over sentences of similar length, window after window."""
        words = list(dict.fromkeys([BOS, EOS, *chain.from_iterable(sentences)]))
        types, places = self._cache.encode(self.bilm, words, torch.device(self.device))
        place = dict(zip(words, places.tolist(), strict=True))
        longest = max(map(len, sentences)) + 1
        index = np.zeros((2, len(sentences), longest), np.int64)
        targets = np.zeros((2, len(sentences), longest), np.int64)
        for n, sentence in enumerate(sentences):
            read = [place[word] for word in sentence]
            ids = [self.ids.get(word, UNK_ID) for word in sentence]
            index[0, n, : len(read) + 1] = [place[BOS], *read]
            index[1, n, : len(read) + 1] = [place[EOS], *read[::-1]]
            targets[0, n, : len(read) + 1] = [*ids, EOS_ID]
            targets[1, n, : len(read) + 1] = [*ids[::-1], BOS_ID]
        logs = self._log_probabilities(types, index, targets, np.array([*map(len, sentences)]) + 1)
        scores = []
        for n, sentence in enumerate(sentences):
            count = len(sentence)
            forward, backward = logs[0, n, : count + 1], logs[1, n, : count + 1]
            in_order = np.append(backward[:count][::-1], backward[count])
            unknown = [self.ids.get(word, UNK_ID) == UNK_ID for word in sentence]
            scores.append(SentenceScore(list(sentence), unknown, forward, in_order))
        return scores

    def _log_probabilities(
        self,
        types: torch.Tensor,
        index: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> Logs:
        """[2, N, T] log-probabilities of the targets; meaningless past the end of a sentence."""
        all_inputs = torch.from_numpy(index).to(self.device)
        all_targets = torch.from_numpy(targets).to(self.device)
        all_lengths = torch.from_numpy(lengths).to(self.device)
        states = States.zeros(self.bilm.config, len(lengths), self.device)
        logs = np.zeros(index.shape)
        for start in range(0, index.shape[2], WINDOW):
            window = slice(start, start + WINDOW)
            forward, backward = all_inputs[:, :, window]
            steps = (all_lengths - start).clamp(0, forward.size(1))
            output = self.bilm.run(types, forward, backward, states, lengths=steps)
            states = output.states
            for direction, top in enumerate((output.top_forward, output.top_backward)):
                loss = nll(
                    top.reshape(-1, top.size(-1)),
                    all_targets[direction, :, window].reshape(-1),
                    self.softmax.weight,
                    self.softmax.bias,
                )
                logs[direction, :, window] = -loss.view(top.shape[:2]).double().cpu().numpy()
        return logs


def score_file(
    model: str,
    source: str,
    output: Path | None = None,
    *,
    words: bool = False,
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
    device: str = "cpu",
    force: bool = False,
) -> str:
    """Score every sentence of `source` to a file or standard output, and return a sentence about
    the result."""
    if output is not None:
        check_score_output(output, force)
    as_json = output is not None and output.suffix == ".jsonl"
    reading.check()
    device = choose_device(device)
    model_folder = resolve(model)
    scorer = Scorer(model_folder, device, model)
    given = TextInput.of_folder(model_folder)
    lines = predictions = 0
    total = np.zeros(2)
    with TemporaryDirectory() as folder, text_file(source, Path(folder)) as file:
        sentences = Path(folder, "sentences.txt")
        text = split_file(given, file, sentences) if reading.split else file
        (whole,) = pieces(text, None)
        warn_of_text(model_folder, given, text, reading)
        with _open_output(output) as out:
            if not as_json:
                print(*(WORD_COLUMNS if words else COLUMNS), sep="\t", file=out)
            read = read_sentences(text, whole, line_reader(given, reading))
            for batch, _ in batches(read):
                for score in scorer.score(batch):
                    _write(out, lines, score, words, as_json)
                    lines += 1
                    predictions += len(score.forward)
                    total += score.forward.sum(), score.backward.sum()
    perplexity = np.exp(-total.mean() / predictions)
    return (
        f"{plural(lines, 'sentence')}, {plural(predictions, 'prediction')} in each direction, "
        f"perplexity {perplexity:.2f} with fresh states for every sentence"
    )


COLUMNS = ("line", "words", "unknown", "forward", "backward", "mean", "text")
WORD_COLUMNS = ("line", "position", "word", "unknown", "forward", "backward", "mean")


def _write(out: TextIO, line: int, score: SentenceScore, words: bool, as_json: bool) -> None:
    """Write a JSON object, a row, or a row per word and one for the end mark."""
    sums = [float(logs.sum()) for logs in (score.forward, score.backward, score.mean)]
    count, unknown = len(score.words), sum(score.unknown)
    if as_json:
        row = dict(
            zip(COLUMNS[:-1], (line, count, unknown, *sums), strict=True), tokens=score.words
        )
        if words:
            row["word_forward"] = score.forward.tolist()
            row["word_backward"] = score.backward.tolist()
        print(json.dumps(row, ensure_ascii=False), file=out)
    elif words:
        rows = zip(
            [*score.words, EOS],
            [*score.unknown, False],
            score.forward,
            score.backward,
            score.mean,
            strict=True,
        )
        for position, (word, is_unknown, *logs) in enumerate(rows):
            print(
                line,
                position,
                word,
                int(is_unknown),
                *(f"{x:.6f}" for x in logs),
                sep="\t",
                file=out,
            )
    else:
        numbers = (f"{x:.6f}" for x in sums)
        print(line, count, unknown, *numbers, " ".join(score.words), sep="\t", file=out)


@contextmanager
def _open_output(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    with at(output).writing() as file:
        text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
        yield text
        text.detach()
