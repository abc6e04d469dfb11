"""A manifest is read back as it was written, and a later change is noticed."""

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.format.manifest import FunnelStep, Input, Manifest, Shard, Split, Vocab
from tests.support.mistakes import mistake

counts = st.integers(0, 10**12)
digests = st.text(string.hexdigits.lower(), min_size=64, max_size=64)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    splits = {}
    for name in ["train", *sorted(draw(st.sets(names, max_size=3)) - {"train"})]:
        shards = [
            Shard(
                f"{name}-{number:05d}",
                draw(digests),
                draw(counts),
                draw(digests),
                *(draw(counts) for _ in range(8)),
            )
            for number in range(draw(st.integers(1, 3)))
        ]
        splits[name] = Split(name, tuple(shards))
    return Manifest(
        created_by=draw(texts),
        key=draw(digests),
        block_steps=draw(st.integers(2, 10**5)),
        splits=splits,
        vocab=Vocab("vocab.txt", draw(digests), draw(counts), "counts.npy", draw(digests)),
        funnel=tuple(
            FunnelStep(draw(texts), draw(counts), draw(counts), draw(counts)) for _ in range(3)
        ),
        inputs=tuple(
            Input(draw(texts), draw(counts), draw(counts), draw(digests)) for _ in range(2)
        ),
        long_words=draw(st.floats(0, 1)),
        unigram_perplexity={"heldout": draw(st.floats(1, 1e6))},
        config={"corpus": {"sources": [draw(texts)]}},
    )


@given(manifests())
def test_a_manifest_is_read_back_as_written(tmp_path_factory, manifest):
    folder = tmp_path_factory.mktemp("manifest")
    manifest.save(folder)
    loaded = Manifest.load(folder)
    assert loaded == manifest
    assert loaded.to_json() == manifest.to_json()
    assert loaded.fingerprint == manifest.fingerprint
    assert list(loaded.splits) == list(manifest.splits)


@given(manifests(), st.data())
def test_a_changed_shard_or_vocabulary_changes_the_fingerprint(tmp_path_factory, manifest, data):
    folder = tmp_path_factory.mktemp("manifest")
    content = json.loads(manifest.to_json())
    split = data.draw(st.sampled_from(sorted(content["splits"])))
    shard = data.draw(st.sampled_from(content["splits"][split]["shards"]))
    entry = data.draw(st.sampled_from([shard, content["vocab"]]))
    old = entry["sha256"]
    entry["sha256"] = ("1" if old[0] != "1" else "2") + old[1:]
    (folder / "MANIFEST.json").write_text(json.dumps(content))
    with mistake("file-damaged", "MANIFEST.json", "changed"):
        Manifest.load(folder)
