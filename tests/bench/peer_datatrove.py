"""The datatrove side of bench_rules.py, run by the Python that has datatrove.

    python peer_datatrove.py FOLDER (spacy|blingfire)

FOLDER/in/docs.jsonl → Gopher quality → C4 → MinHash in four stages → FOLDER/<words>/out. All steps
are datatrove's own, called one after the other in this process, which saves its executor's work.
The word tokeniser is an argument of its steps. Prints one line of JSON.
"""

import json
import resource
import sys
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import C4QualityFilter, GopherQualityFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer
from loguru import logger


class Blingfire(WordTokenizer):
    """BlingFire in place of spaCy."""

    def word_tokenize(self, text: str) -> list[str]:
        import blingfire

        return blingfire.text_to_words(text).split()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        import blingfire

        return list(blingfire.text_to_sentences_and_offsets(text)[1])

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[a:b] for a, b in self.span_tokenize(text)]


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def noted(step, reasons: dict[str, str]):
    """The same filter, which also notes why it drops."""
    judge = step.filter

    def filter_(document):
        result = judge(document)
        if result is not True:
            reasons[document.id] = result[1]
        return result

    step.filter = filter_
    return step


def drain(documents) -> list[str]:
    return [document.id for document in documents]


def read(folder: Path):
    return JsonlReader(str(folder), doc_progress=False, file_progress=False)(None, 0, 1)


def write(folder: Path, documents) -> list[str]:
    with JsonlWriter(str(folder), compression=None) as writer:
        return drain(writer(documents, 0, 1))


def main() -> None:
    logger.remove()
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    out = folder / kind
    words = Blingfire() if kind == "blingfire" else "eng"
    reasons: dict[str, str] = {}
    gopher = noted(GopherQualityFilter(language=words), reasons)
    c4 = noted(C4QualityFilter(language=words), reasons)
    config = MinhashConfig(5, 14, 8, hash_config=HashConfig(precision=64))
    sign = MinhashDedupSignature(str(out / "signatures"), config, language=words)
    warm = Document(
        "A warm sentence, with the words of it and that which loads the model. " * 9, "0"
    )
    drain(c4(gopher([warm], 0, 1), 0, 1))
    sign.get_shingles(warm.text)
    reasons.clear()

    start = cpu()
    kept = write(out / "rules", c4(gopher(read(folder / "in"), 0, 1), 0, 1))
    rules = cpu() - start
    sign(read(out / "rules"), 0, 1)
    buckets = MinhashDedupBuckets(str(out / "signatures"), str(out / "buckets"), config=config)
    for bucket in range(14):
        buckets(None, bucket, 14)
    MinhashDedupCluster(str(out / "buckets"), str(out / "remove"), config, save_cluster_id=True)(
        None
    )
    filter_ = MinhashDedupFilter(str(out / "remove"))
    final = write(out / "out", filter_(read(out / "rules"), 0, 1))
    total = cpu() - start

    clusters = {}
    path = out / "remove" / "000000.clusters"
    if path.exists():
        import numpy as np

        pairs = np.fromfile(path, "<u4").reshape(-1, 2)
        clusters = {kept[row]: int(cluster) for row, cluster in pairs.tolist()}
    result = {"rules": rules, "total": total, "reasons": reasons, "kept": kept}
    print(json.dumps(result | {"final": final, "clusters": clusters}))


if __name__ == "__main__":
    main()
