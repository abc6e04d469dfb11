"""`elmwright.shards`: every sentence once per epoch, whoever shares, and errors in one sentence."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path

import pytest
import webdataset
from torch.utils.data import DataLoader

import elmwright
from elmwright.pipeline.format.block import Block
from elmwright.pipeline.format.manifest import Manifest, Shard, Split, Vocab
from elmwright.pipeline.format.shards import write_shard
from elmwright.pipeline.storage.files import join
from tests.support.corpus.plain_packing import pack
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(10)

STEPS = 24
DOCUMENTS = 120
"""Of train, in three shards."""


def text(document: int) -> list[list[str]]:
    """Sentences that are found nowhere else."""
    return [
        [f"d{document}s{number}", *("w" * (n % 5 + 1) for n in range(document % 7))]
        for number in range(document % 4 + 1)
    ]


def blocks(documents: Iterable[int], first: int) -> Iterator[Block]:
    return pack(((n - first, words) for n in documents for words in text(n)), {}, STEPS)


def write_corpus(folder: str | Path) -> Manifest:
    """Three shards of train and one block of held-out text."""
    shards: list[Shard] = []
    for number, begin in enumerate((0, 50, 70)):
        end = (50, 70, DOCUMENTS)[number]
        shard = write_shard(
            join(folder, "shards"), "train", number, blocks(range(begin, end), begin)
        )
        shards.append(replace(shard, first_document=begin))
    valid = write_shard(join(folder, "shards"), "valid", 0, blocks([1000], 1000))
    manifest = Manifest(
        created_by="test",
        key="k",
        block_steps=STEPS,
        splits={"train": Split("train", tuple(shards)), "valid": Split("valid", (valid,))},
        vocab=Vocab("vocab.txt", "0" * 64, 3, "counts.npy", "0" * 64),
        funnel=(),
        inputs=(),
        long_words=0.0,
        unigram_perplexity={},
        config={},
    )
    manifest.save(folder)
    return manifest


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    manifest = write_corpus(folder)
    assert manifest.splits["train"].padding > 0
    assert manifest.splits["train"].blocks > 20
    return folder


ALL = [words for document in range(DOCUMENTS) for words in text(document)]


def times(sentences: Iterable[list[str]]) -> Counter[tuple[str, ...]]:
    return Counter(map(tuple, sentences))


def test_without_shuffling_it_is_the_text_in_the_order_of_the_corpus(corpus: Path) -> None:
    assert list(elmwright.shards(corpus, shuffle=False)) == ALL
    assert list(elmwright.shards(str(corpus), "valid", shuffle=0)) == text(1000)


def test_shuffled_sentences_are_the_same_and_in_another_order_each_epoch(corpus: Path) -> None:
    pipeline = elmwright.shards(corpus, seed=3)
    first, second = list(pipeline), list(pipeline)
    assert times(first) == times(second) == times(ALL)
    assert first != second
    assert first != ALL
    assert list(elmwright.shards(corpus, seed=3)) == first
    assert list(elmwright.shards(corpus, seed=3, epoch=1)) == second
    assert list(elmwright.shards(corpus, seed=4)) != first


def test_a_small_buffer_still_shuffles_shards_and_blocks(corpus: Path) -> None:
    first = list(elmwright.shards(corpus, shuffle=1))
    assert times(first) == times(ALL)
    documents = [int(words[0].partition("s")[0][1:]) for words in first]
    shards = [(number >= 50) + (number >= 70) for number in documents]
    assert len([1 for a, b in pairwise(shards) if a != b]) == 2
    assert documents != sorted(documents)
    orders = {next(iter(elmwright.shards(corpus, shuffle=1, seed=n)))[0] for n in range(8)}
    assert len(orders) > 4


def test_documents_have_numbers_that_are_unique_in_the_split(corpus: Path) -> None:
    found: dict[int, list[list[str]]] = {}
    for item in elmwright.shards(corpus, documents=True, shuffle=0):
        found.setdefault(item["document"], []).append(item["words"])
    assert found == {number: text(number) for number in range(DOCUMENTS)}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_of_a_loader_share_the_sentences(corpus: Path, workers: int) -> None:
    loader = DataLoader(
        elmwright.shards(corpus), batch_size=7, num_workers=workers, collate_fn=list
    )
    batches = list(loader)
    assert len([batch for batch in batches if len(batch) != 7]) <= workers
    assert times(chain.from_iterable(batches)) == times(ALL)


def test_persistent_workers_take_the_next_epoch(corpus: Path) -> None:
    loader = DataLoader(
        elmwright.shards(corpus), batch_size=None, num_workers=2, persistent_workers=True
    )
    first, second = list(loader), list(loader)
    assert times(first) == times(second) == times(ALL)
    assert first != second


@pytest.mark.parametrize(("nodes", "workers"), [(2, 1), (3, 2), (4, 9)])
def test_nodes_and_workers_together_see_every_sentence_once(
    corpus: Path, nodes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine workers on each of four nodes are more than there are shards, and than half the blocks.

    Nodes need not agree on seed and epoch.
    """
    total: Counter[tuple[str, ...]] = Counter()
    monkeypatch.setenv("WORLD_SIZE", str(nodes))
    monkeypatch.setenv("NUM_WORKERS", str(workers))
    for node in range(nodes):
        monkeypatch.setenv("RANK", str(node))
        for worker in range(workers):
            monkeypatch.setenv("WORKER", str(worker))
            total += times(elmwright.shards(corpus, seed=node, epoch=node))
    assert total == times(ALL)


def test_the_shares_of_nodes_differ_by_at_most_one_block(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    shares = []
    for node in range(4):
        monkeypatch.setenv("RANK", str(node))
        stages = elmwright.shards(corpus).pipeline
        before_reading = stages[: stages.index(webdataset.split_by_worker) + 1]
        shares.append(len(list(webdataset.DataPipeline(*before_reading))))
    assert sum(shares) == Manifest.load(corpus).splits["train"].blocks
    assert max(shares) - min(shares) <= 1


def test_nodes_through_a_loader_with_workers(corpus: Path) -> None:
    """Each node is a process with `RANK` and `WORLD_SIZE`, as torchrun starts them."""
    script = (
        "import sys, json, elmwright; from torch.utils.data import DataLoader;"
        "d = DataLoader(elmwright.shards(sys.argv[1]), batch_size=None, num_workers=2);"
        "print(json.dumps(list(d)))"
    )
    found: list[list[str]] = []
    for rank in "01":
        done = subprocess.run(
            [sys.executable, "-c", script, str(corpus)],
            check=True,
            capture_output=True,
            text=True,
            env={"RANK": rank, "WORLD_SIZE": "2", "PATH": ""},
        )
        found += json.loads(done.stdout)
    assert times(found) == times(ALL)


def test_more_nodes_than_blocks_are_refused_on_every_node(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with mistake("setting", "valid", "1 block ", "2 nodes", "shards.block_steps"):
            list(elmwright.shards(corpus, "valid"))


def test_more_workers_than_blocks_end_with_every_sentence_once(corpus: Path) -> None:
    loader = DataLoader(elmwright.shards(corpus, "valid"), batch_size=None, num_workers=3)
    assert times(loader) == times(text(1000))


def test_pipeline_is_composed_with_webdataset_stages(corpus: Path) -> None:
    pipeline = elmwright.shards(corpus, shuffle=0)
    assert isinstance(pipeline, webdataset.DataPipeline)
    assert webdataset.split_by_node in pipeline.pipeline
    assert webdataset.split_by_worker in pipeline.pipeline
    upper = pipeline.map(" ".join).select(lambda line: "s0" in line).batched(4, collation_fn=list)
    assert next(iter(upper)) == [" ".join(text(n)[0]) for n in range(4)]
    assert len(list(elmwright.shards(corpus).with_epoch(5))) == 5
    assert len(list(elmwright.shards(corpus).with_epoch(len(ALL) + 5))) == len(ALL) + 5
    assert len(list(islice(pipeline.repeat(2), 2 * len(ALL) + 1))) == 2 * len(ALL)


def test_pipeline_can_be_pickled(corpus: Path) -> None:
    again = pickle.loads(pickle.dumps(elmwright.shards(corpus)))  # noqa: S301 - our own
    assert list(again) == list(elmwright.shards(corpus))


def test_damaged_block_is_refused(corpus: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    tar = tmp_path / "shards" / "train-00001.tar"
    data = bytearray(tar.read_bytes())
    data[600] ^= 1
    tar.write_bytes(data)
    with mistake("file-damaged", "train-00001.tar, block 0,"):
        list(elmwright.shards(tmp_path))


def test_missing_corpus_split_or_text_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with mistake("corpus-missing", str(tmp_path)):
        elmwright.shards(tmp_path)
    with mistake("run-missing", "'nothing'"):
        elmwright.shards("nothing")
    with mistake("split-missing", "'test'", "train, valid"):
        elmwright.shards(corpus, "test")
    with mistake("input", "shuffle", "epoch"):
        elmwright.shards(corpus, shuffle=-1)
    empty = Manifest.load(corpus)
    splits = {**empty.splits, "none": Split("none", ())}
    replace(empty, splits=splits).save(tmp_path / "empty")
    with mistake("split-missing", "none", str(tmp_path)):
        elmwright.shards(tmp_path / "empty", "none")


def test_a_run_means_its_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, elsewhere = tmp_path / "runs" / "mine", tmp_path / "elsewhere"
    write_corpus(elsewhere)
    run.mkdir(parents=True)
    settings = {"run": {"dir": str(run)}, "corpus": {"dir": str(elsewhere)}}
    (run / "config.json").write_text(json.dumps(settings))
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "runs/mine", run):
        assert list(elmwright.shards(name, shuffle=0)) == ALL


def test_a_corpus_in_a_store_is_read_by_workers_too(s3: Path) -> None:
    url = "s3://bucket/shards-of-sentences"
    write_corpus(url)
    assert list(elmwright.shards(url, shuffle=0)) == ALL
    # Workers that use the parent's connections wait for a minute.
    loader = DataLoader(elmwright.shards(url), batch_size=None, num_workers=2, timeout=45)
    assert times(loader) == times(ALL)


def test_nobody_pays_for_webdataset_before_it_is_used() -> None:
    code = (
        "import sys, elmwright, elmwright.jobs.cli.program\n"
        "from elmwright.jobs.cli.command import main\n"
        "main(['config'])\n"
        "assert not {'webdataset', 'torch'} & set(sys.modules)\n"
        "from elmwright import shards\n"
        "assert not {'webdataset', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
