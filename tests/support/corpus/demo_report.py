"""Figures of a large corpus, for its report."""

import random
from dataclasses import asdict
from functools import cache

import numpy as np

from elmwright.pipeline.config import CorpusConfig, ShardsConfig, Source, VocabConfig
from elmwright.pipeline.format.manifest import FunnelStep, Input, Manifest, Shard, Split, Vocab
from elmwright.pipeline.report.statistics import (
    Example,
    SourceCount,
    StageTime,
    Statistics,
    coverage_points,
    document_histogram,
    sentence_histogram,
    zipf_points,
)


@cache
def demo_manifest() -> Manifest:
    rules = {
        "broken": (412, 0, 0),
        "decontaminate": (1_204, 38_120, 911_402),
        "language": (401_233, 6_120_334, 121_500_023),
        "empty": (0, 0, 0),
        "gopher-repetition": (188_204, 4_302_110, 96_203_114),
        "gopher-quality.min_words": (702_331, 1_604_220, 21_332_018),
        "gopher-quality.max_word_length": (12_090, 101_332, 4_120_332),
        "gopher-quality.min_stop_words": (42_118, 301_220, 9_003_120),
        "c4.curly_bracket": (61_020, 990_340, 22_100_934),
        "c4.min_line_words": (0, 902_210, 3_412_002),
        "fineweb.max_short_lines": (33_120, 720_331, 12_092_110),
        "min_sentence_words": (0, 12, 24),
        "min_words": (0, 0, 0),
        "max_words": (0, 0, 0),
        "min_letter_share": (0, 0, 0),
        "weight": (210_440, 3_201_110, 70_400_200),
        "dedup_document": (301_220, 5_120_440, 101_203_118),
        "dedup_near": (402_118, 7_330_120, 160_220_914),
        "heldout_overlap": (88, 1_002, 20_114),
    }
    lost = np.array(list(rules.values())).sum(axis=0)
    read = np.array([5_203_112, 78_220_104, 1_284_330_902])
    steps = [("read", read.tolist()), *rules.items(), ("kept", (read - lost).tolist())]
    kept = (read - lost).tolist()

    def split(name: str, share: float, unknown: float) -> Split:
        documents, sentences, words = (int(n * share) for n in kept)
        steps = words + sentences
        return Split(
            name,
            (
                Shard(
                    f"{name}-00000",
                    "a" * 64,
                    1,
                    "b" * 64,
                    steps // 2560,
                    documents,
                    sentences,
                    words,
                    int(words * unknown),
                    steps,
                    77,
                ),
            ),
        )

    corpus = CorpusConfig(
        sources=(Source("news/*.jsonl.gz", "news-crawl"), Source("s3://web/2024/*.warc.gz")),
        heldout={"valid": 0.005, "test": 0.005},
        rules=("gopher-repetition", "gopher-quality", "c4", "fineweb"),
        languages=("en",),
    )
    return Manifest(
        created_by="elmwright 0",
        key="k",
        block_steps=2560,
        splits={
            "train": split("train", 0.99, 0.0061),
            "test": split("test", 0.005, 0.0072),
            "valid": split("valid", 0.005, 0.0071),
        },
        vocab=Vocab("vocab.txt", "c" * 64, 243_118, "counts.npy", "d" * 64),
        funnel=tuple(FunnelStep(rule, *counts) for rule, counts in steps),
        inputs=(Input("news/a.jsonl.gz", 1, 1, "e" * 64),),
        long_words=0.000021,
        unigram_perplexity={"test": 911.3, "valid": 903.8},
        config={
            "seed": 1,
            "corpus": asdict(corpus),
            "vocab": asdict(VocabConfig()),
            "shards": asdict(ShardsConfig()),
        },
    )


@cache
def demo_statistics() -> Statistics:
    rng = np.random.default_rng(7)
    counts = np.maximum(1, 5.1e7 / (np.arange(1, 1_500_001) + 2.7) ** 1.07).astype(np.int64)
    documents = np.maximum(50, np.exp(rng.normal(5.4, 1.1, 200_000))).astype(np.int64)
    sentences = np.maximum(1, rng.gamma(2.6, 8.4, 200_000)).astype(np.int64)
    shop = "Home » Shop » Sale » Boots\nAdd to basket\nAdd to wish list\nShare: f t p\n" * 4
    examples = {
        "language": (
            Example(
                "web/2024/CC-0003.warc.gz",
                90_122_004,
                "Der Wald war still, und niemand ging "
                "den alten Weg hinauf.\nErst am Abend kam Wind auf.",
                "de 0.98",
            ),
            Example(
                "web/2024/CC-0104.warc.gz",
                4_120,
                "مرحبا بكم في موقعنا الجديد، نحن هنا لخدمتكم",
                "ar 0.99",
            ),
        ),
        "gopher-quality.max_word_length": (
            Example(
                "web/2024/CC-0009.warc.gz",
                88,
                "<b>Donaudampfschifffahrtsgesellschaft</b> "
                "SKU-0099312-XXL-BLUE SKU-0099313-XXL-RED",
                "mean word length 11.8",
            ),
        ),
        "gopher-quality.min_words": tuple(
            Example(
                "news/2019-04.jsonl.gz",
                1_000_000 * n,
                "Sign in to read this article.",
                f"{5 + n} words",
            )
            for n in range(4)
        ),
        "gopher-repetition": (
            Example("web/2024/CC-0044.warc.gz", 7_120_331, shop, "duplicate lines 0.75"),
        ),
        "dedup_near": (
            Example(
                "news/2020-01.jsonl.gz",
                120,
                "LONDON (Reuters) - Shares in Europe rose on "
                "Tuesday as investors waited for figures from the central bank. " * 3,
                "copy of news/2020-01.jsonl.gz at 88,120,334",
            ),
        ),
        "c4.curly_bracket": (
            Example("web/2024/CC-0031.warc.gz", 5, "if (ga) {\n\tvar ga = document;\x00\u202e }"),
        ),
    }
    sizes = random.Random(3)
    return Statistics(
        sources=(
            SourceCount(
                "news-crawl",
                "CC BY 4.0",
                1.0,
                120,
                2_402_118_332,
                2_201_332,
                702_331_002,
                1_502_118,
                481_220_334,
                12,
            ),
            SourceCount(
                "s3://web/2024/*.warc.gz",
                "",
                0.5,
                640,
                9_402_118_332,
                2_901_112,
                561_220_900,
                1_203_118,
                170_220_114,
                400,
            ),
            SourceCount(
                "wikipedia-sample",
                "CC BY-SA 4.0",
                2.5,
                1,
                48_118_332,
                100_668,
                20_779_000,
                99_002,
                20_118_332,
                0,
            ),
        ),
        examples=examples,
        quarantine={
            "not JSON": 231,
            "no field 'text'": 112,
            "truncated gzip": 3,
            "document too large": 66,
        },
        languages={
            "en": 4_501_220,
            "de": 201_332,
            "fr": 120_440,
            "es": 98_220,
            "ar": 31_002,
            "zh": 22_118,
            "un": 102_338,
        },
        document_words=document_histogram(documents),
        sentence_words=sentence_histogram(sentences),
        clusters={n: int(90_000 / n**1.9) + sizes.randrange(2) for n in range(2, 900)},
        duplicate_pairs=1_802_334,
        zipf=zipf_points(counts),
        coverage=coverage_points(counts),
        truncated={16: 0.0031, 24: 0.0007, 32: 0.00021, 50: 0.000021, 64: 0.000003},
        repaired={"mojibake": 20_118, "encoding": 3_402, "email": 51_220, "ip": 702, "phone": 0},
        stages=(
            StageTime("digest", 761, 0, 0.0, 0.0, 0.0),
            StageTime("clean", 742, 742, 1_820.4, 57_220.0, 612.0),
            StageTime("minhash", 742, 742, 402.1, 12_402.0, 480.0),
            StageTime("union", 1, 1, 31.2, 30.9, 1_840.0),
            StageTime("count", 742, 742, 96.0, 2_910.3, 702.0),
            StageTime("shards", 130, 130, 210.9, 6_120.0, 540.0),
        ),
    )
