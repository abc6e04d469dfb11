"""From a checkpoint to a bundle that has been read back and compared.

The weights are the checkpoint's own bytes, or those of its average where that is its model
(`model/average.py`). Before the bundle gets its name it is compared with the trained model in two
ways. An independent reader (`model.reference`: numpy, no torch, its own parsing of weights.hdf5)
must compute the same representations of real held-out sentences. And the bundle's files must give
the trainer's score of the probe (evaluate.py), the first 2,000 sentences of each held-out set. The
perplexity on the card is the trainer's. Where the trainer did not measure the checkpoint in this
way, the held-out sets themselves are scored here, up to `eval.final_tokens`. The same checkpoint
gives the same bytes: only provenance.json has the time.

An export that is killed at any moment does not hinder the next one.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from elmwright.jobs.bundles.base_model import recorded_base
from elmwright.jobs.bundles.bundle import (
    FILES,
    OPTIONAL,
    SUMS,
    read_sums,
    verify_bundle,
    write_sums,
)
from elmwright.jobs.bundles.bundle_json import BundleConfig, Vocabulary
from elmwright.jobs.bundles.model_folder import local_folder
from elmwright.jobs.bundles.signing import check_signing_key, sign
from elmwright.jobs.checkpoints.checkpoint import (
    CheckpointInfo,
    file_sha256,
    folder_name,
    list_checkpoints,
    read_state,
    verify_checkpoint,
)
from elmwright.jobs.checkpoints.contents import CheckpointState, Scores, read_result
from elmwright.jobs.config.resume_settings import as_meant
from elmwright.jobs.config.sections import TRAINING_SECTIONS, RunConfig
from elmwright.jobs.config.toml_file import config_from, load_config, to_dict
from elmwright.jobs.publishing.choose_checkpoint import choose, list_scored, recorded
from elmwright.jobs.publishing.compare_bundle import NEAR, SAME, compare_vectors, measure
from elmwright.jobs.publishing.examples import PLAIN, Example, example_sentence
from elmwright.jobs.publishing.model_card import model_card
from elmwright.jobs.publishing.provenance import provenance
from elmwright.jobs.publishing.training_facts import training_facts, training_svg
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.jobs.secrets.hiding import store_all
from elmwright.jobs.tracking.tracker import read_run_id, tracking_uri
from elmwright.jobs.training.loop.evaluate import final_limit
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import (
    AVERAGE,
    MODEL,
    SOFTMAX,
    VOCAB,
    LoadedModel,
    load_folder,
    model_tensors,
    write_config,
)
from elmwright.model.inference.elmo import Elmo
from elmwright.model.kernels.native import kernel_name
from elmwright.model.text.text_input import INPUT, PIECES, TextInput
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.format.manifest import Manifest, canonical
from elmwright.pipeline.progress import Progress, counting_bytes, plural, silent
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import explain, sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_object


def export(config: RunConfig, folder: RunFolder, progress: Progress = silent) -> str:
    """Write `bundle/` from the result of training; a sentence about what was checked."""
    result = read_result(folder.result)
    if result is None:
        raise UserError("file-damaged", f"{folder.result} is missing or damaged; train first")
    infos = {info.sha256: info for info in list_checkpoints(folder.checkpoints)}
    info = infos[result.checkpoint_sha256]
    return export_checkpoint(config, folder, info, folder.bundle, progress=progress)


def export_run(
    run: str,
    step: str,
    output: str,
    *,
    overrides: list[str],
    without_softmax: bool = False,
    force: bool = False,
    key: str = "",
    progress: Progress = silent,
) -> tuple[Path, str]:
    """`elmwright export RUN --step …`: the bundle's folder, and a sentence about the checks."""
    config = _run_config(run, overrides)
    folder = RunFolder.of(config)
    infos = list_scored(folder)
    info = choose(infos, step, folder, _limit(config, folder) if infos else None, progress)
    verify_checkpoint(info.path)
    target = folder.bundle
    if output:
        target = Path(output)
    elif step not in ("result", "latest"):
        target = folder.bundle.with_name(f"bundle-{folder_name(info.step)}")
    if target.exists():
        if not force:
            raise UserError(
                "output", f"{target} exists already; choose another with -o, or add --force"
            )
        _check_replaceable(target)
    if key:
        check_signing_key(Path(key))  # now, not after an hour of checks
    checked = export_checkpoint(
        config, folder, info, target, without_softmax=without_softmax, key=key, progress=progress
    )
    return target, checked


def _limit(config: RunConfig, folder: RunFolder) -> int | None:
    """How many tokens of a held-out set a final evaluation scores; None means all."""
    return final_limit(config.eval.final_tokens, Manifest.load(folder.corpus).vocab.size)


def _check_replaceable(target: Path) -> None:
    """Refuse to replace a folder that is not a bundle, or has other files in it."""
    try:
        read_sums(target)
    except UserError as error:
        raise UserError(
            "output", f"{target} is not a bundle, so --force does not replace it"
        ) from error
    _check_nothing_else(target)


def _check_nothing_else(target: Path) -> None:
    """Refuse to replace a folder with files that do not belong to a bundle: they would be lost."""
    for path in sorted(target.iterdir()):
        if path.name not in (*FILES, *OPTIONAL, SUMS) or path.is_dir():
            raise UserError(
                "output",
                f"{path} does not belong to a bundle, so {target} is not replaced; move it away",
            )


def _run_config(run: str, overrides: list[str]) -> RunConfig:
    """The config of a run, given by its folder or its config file; run.dir is that folder."""
    saved = join(run, "config.json")
    if not at(saved).exists():
        if Path(run).is_dir():
            raise UserError("run-missing", f"{run} is not a run's folder (it has no config.json)")
        return load_config(run, overrides)
    if overrides:
        raise UserError(
            "argument", "--set goes with a config file; a run's folder has its settings"
        )
    data = read_object(saved)
    if not isinstance(data.get("run"), dict):
        raise UserError(
            "run-missing", f"{run} is not a run's folder; give the folder that holds train/"
        )
    data["run"]["dir"] = run
    return config_from(data, saved, saved=True)


def export_checkpoint(
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    target: Path,
    *,
    without_softmax: bool = False,
    key: str = "",
    progress: Progress = silent,
) -> str:
    """Write the bundle of a checkpoint, whole or not at all; a sentence about what was checked."""
    target = target.resolve()
    work = target.with_name(f".writing-{target.name}")
    new, old = work / "new", work / "old"
    with alone_in(work, target):
        try:
            _put_back(old, target)  # an export was killed between the two renames
            for leftover in (new, old):
                shutil.rmtree(leftover, ignore_errors=True)
            new.mkdir()
            checked = _write(new, config, folder, info, without_softmax, key, progress)
            if target.exists():
                _check_nothing_else(target)
                target.rename(old)
            new.rename(target)
        except OSError as error:
            mistake = explain(error, Path(error.filename or target))
            if mistake is None:
                raise
            raise mistake.saying(f"the bundle could not be written: {mistake}") from error
        finally:
            _put_back(old, target)
            shutil.rmtree(work, ignore_errors=True)
    return checked


def _put_back(old: Path, target: Path) -> None:
    if old.exists() and not target.exists():
        old.rename(target)


def _write(
    target: Path,
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    without_softmax: bool,
    key: str,
    progress: Progress,
) -> str:
    manifest = Manifest.load(folder.corpus)
    checkpoint = local_folder(info.path)
    loaded = load_folder(checkpoint)
    # With train.init_from it may have the base's shape, which the config need not say.
    if loaded.config != config.model and not config.train.init_from:
        raise UserError(
            "model-invalid", f"[model] of the config is not what {info.path} was trained with"
        )
    limit = _limit(config, folder)
    config, state = _as_trained(config, checkpoint)
    if state.corpus_fingerprint not in ("", manifest.fingerprint):
        raise UserError(
            "run-changed",
            f"the corpus in {folder.corpus} was built again after {info.path} was trained on "
            "another one, so it cannot say how the model reads text; bring that corpus back",
        )
    _write_weights(target, config, loaded, manifest, progress)
    if PIECES in manifest.extra_files:
        (target / PIECES).write_bytes(at(join(folder.corpus, PIECES)).read_bytes())
    trainers = recorded(info, folder, manifest)
    # The carried perplexity depends a little on the lanes, which may have been changed since.
    lanes = config.eval.lanes
    if trainers:
        lanes = next(iter(trainers.evaluation.values())).lanes
    about = BundleConfig(
        step=info.step,
        vocab=Vocabulary(manifest.vocab.size, manifest.vocab.sha256),
        heldout_sha256={},
        eval_lanes=lanes,
        tokenizer=config.corpus.tokenizer,
        sentences=config.corpus.sentences,
        language=config.corpus.language,
        input=INPUT,
        tokenisation=Tokenisation.of_corpus(config.corpus, manifest.rules),
        example=example_sentence(folder.corpus, manifest) if config.export.example else PLAIN.text,
    )
    # Without scores first: the bundle's own files are loaded to measure them.
    write_config(target / "config.json", config.model, to_data(about))
    is_alike = state.device == "cpu" and state.kernels in ("", kernel_name())
    allowed = SAME if is_alike else NEAR
    evaluation, measured = measure(target, folder, manifest, trainers, allowed, limit, progress)
    scored = _scored_digests(manifest, evaluation)
    about = replace(about, evaluation=evaluation, heldout_sha256=scored)
    write_config(target / "config.json", config.model, to_data(about))
    if without_softmax:
        (target / "softmax.safetensors").unlink()
    weights = "last"
    if loaded.is_average:
        weights = f"average over the last {plural(config.train.average_steps, 'step')}"
    _describe(target, config, folder, info, manifest, evaluation, state, weights, about.example)
    origin = provenance(
        config,
        manifest,
        run=folder.root,
        step=info.step,
        sha256=info.sha256,
        weights=weights,
        base=recorded_base(folder.train),
        run_id=read_run_id(folder),
        tracking_uri=tracking_uri(config, folder),
    )
    (target / "provenance.json").write_text(json.dumps(to_data(origin), indent=1))
    if key:
        sign(target, Path(key))
    total = 2 * sum(path.stat().st_size for path in target.iterdir())
    with progress("checking bundle", total, "bytes") as advance, counting_bytes(advance):
        write_sums(target)
        verify_bundle(target)
    if read_sums(target)[MODEL] != file_sha256(info.path, _source(loaded)):
        raise Failed(f"the weights of {info.path} were not copied exactly; export again")
    return compare_vectors(target, Elmo(loaded.bilm), folder.corpus, manifest) + measured


def _write_weights(
    target: Path, config: RunConfig, loaded: LoadedModel, manifest: Manifest, progress: Progress
) -> None:
    """Copy the checkpoint's files, and write the biLM again in bilm format."""
    checkpoint = loaded.folder
    sources = {MODEL: _source(loaded), SOFTMAX: SOFTMAX, VOCAB: VOCAB}
    sizes = {name: (checkpoint / source).stat().st_size for name, source in sources.items()}
    again = sizes[MODEL]
    with progress("writing bundle", sum(sizes.values()) + again, "bytes") as advance:
        for name, source in sources.items():
            if name == SOFTMAX and loaded.is_average:
                _write_averaged_softmax(checkpoint, target / name)
            else:
                shutil.copyfile(checkpoint / source, target / name)
            advance(sizes[name])
        settings = {"dropout": config.train.dropout, "n_tokens_vocab": manifest.vocab.size}
        write_options(target / "options.json", config.model, settings)
        write_weights(target / "weights.hdf5", config.model, model_tensors(loaded.bilm))
        advance(again)


def _source(loaded: LoadedModel) -> str:
    """The file of the checkpoint that becomes model.safetensors."""
    return AVERAGE if loaded.is_average else MODEL


def _write_averaged_softmax(checkpoint: Path, target: Path) -> None:
    """A checkpoint has the averages of the rows as of their last updates, not as of its step."""
    softmax = load_folder(checkpoint, with_softmax=True).softmax
    assert softmax is not None  # noqa: S101 - the file is there
    save_file(softmax.state(), target)


def _as_trained(config: RunConfig, checkpoint: Path) -> tuple[RunConfig, CheckpointState]:
    """The config with the settings that the checkpoint was trained with, and its state.

    Some settings may change between attempts, and the run's config has the newest ones.
    """
    where = checkpoint / "config.json"
    saved = as_meant((at(where).read_json() or {})["run_config"])
    now = to_dict(config)
    then = {section: saved[section] for section in TRAINING_SECTIONS}
    now["run"]["seed"] = saved["run"]["seed"]
    trained = config_from(store_all(now | then), str(where))
    return trained, read_state(checkpoint)


def _scored_digests(manifest: Manifest, evaluation: Scores) -> dict[str, str]:
    """Held-out set → digest of the part that was scored. Scores of equal parts can be compared."""
    digests = {}
    for name, split in manifest.splits.items():
        if name == "train":
            continue
        content: list[str | int] = [shard.sha256 for shard in split.shards]
        tokens = evaluation[name].tokens if name in evaluation else split.steps
        if tokens != split.steps:
            content.append(tokens)
        digests[name] = sha256_bytes(canonical(content))
    return digests


def _describe(
    target: Path,
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    manifest: Manifest,
    evaluation: Scores,
    state: CheckpointState,
    weights: str,
    example: str,
) -> None:
    """Write the training curve and the model card."""
    first = next(iter(evaluation), "heldout")
    tokens = config.train.tokens
    records = [record for record, _ in read_journal(folder.journal, 0)]
    facts = training_facts(records, info.step, tokens, first)
    picture = training_svg(
        facts,
        first,
        manifest.unigram_perplexity.get(first),
        total=manifest.splits[first].steps if first in manifest.splits else 0,
        full=config.train.negatives >= manifest.vocab.size,
    )
    if picture:
        (target / "training.svg").write_text(picture, encoding="utf-8")
    card = model_card(
        config,
        manifest,
        info.step,
        evaluation,
        facts,
        state=state,
        weights=weights,
        base=recorded_base(folder.train),
        example=Example(example, tuple(TextInput.of_folder(target).words(example))),
        has_softmax=(target / "softmax.safetensors").exists(),
        has_curve=picture is not None,
    )
    (target / "README.md").write_text(card, encoding="utf-8")
