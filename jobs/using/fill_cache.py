"""`elmwright fill-cache`: writes a table of token-layer vectors, for many short jobs with a model.

The token layer (character CNN, highway, projection) sees a word without its context, so its output
can be stored. `Elmo.embed` caches it within a process. A table saves each new process the first
encoding of a word, too. By `tests/bench/bench_fill_cache.py`, a process that embeds 50 to 400
sentences with the small model takes 1.1 to 1.3 times the CPU time without a table, if every word is
in it. The gain is smaller for longer texts, and nothing for a long-lived process.

The table is a safetensors file with the digests of its encoder and of its content, so a table of
another model or a changed table is refused. Its size is limited, because adding a word that it
lacks copies it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.argument_checks import check_output
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE
from elmwright.model.formats.folder import VOCAB, read_vocab
from elmwright.model.inference.elmo import Elmo
from elmwright.model.inference.word_types import TypeCache
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at

FORMAT = "2"
TABLE_BYTES = 32 << 20
"""The largest table: 65,536 words of the small model, 16,384 of the original."""


def write_table(
    model: str, output: Path, words_file: str | None = None, *, force: bool = False
) -> str:
    """Encode a vocabulary (the model's own, or a file of one word per line) from its top, as far as
    it fits, and return a sentence about the result."""
    check_output(output, force)
    folder = resolve(model)
    path = Path(words_file) if words_file else folder / VOCAB
    if not path.is_file():
        raise UserError("file-missing", f"there is no word list {path}; give one with --words")
    elmo = Elmo.from_pretrained(folder)
    elmo.eval()
    # A file from Windows may have other white space or a byte order mark around a word.
    entries = [line.strip().strip("\ufeff") for line in read_vocab(path)]
    words = list(dict.fromkeys([BEGIN_SENTENCE, END_SENTENCE, *filter(None, entries)]))
    words = words[: TABLE_BYTES // (4 * elmo.bilm.config.projection_dim)]
    with torch.no_grad():
        vectors, _ = TypeCache().encode(elmo.bilm, words, torch.device("cpu"))
    text = torch.frombuffer(bytearray("\n".join(words).encode("utf-8")), dtype=torch.uint8)
    tensors = {"vectors": vectors, "words": text}
    content = tensors_digest(tensors, with_dtypes=True)
    metadata = {"format": FORMAT, "encoder": _encoder_digest(elmo), "content": content}
    at(output).write_bytes(save(tensors, metadata))
    return f"wrote {output}: {plural(len(words), 'word')}, <S> and </S> among them"


def use_table(elmo: Elmo, path: Path) -> None:
    """Fill the model's cache with the vectors of a table, if its encoder made them."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or "encoder" not in metadata:
                raise UserError(
                    "format", f"{path} is not a table of this version's elmwright fill-cache"
                )
            if metadata["encoder"] != _encoder_digest(elmo):
                raise UserError(
                    "argument",
                    f"{path} was made for another model; make one with elmwright fill-cache",
                )
            tensors = {name: file.get_tensor(name) for name in ("vectors", "words")}
            if metadata.get("content") != tensors_digest(tensors, with_dtypes=True):
                raise UserError(
                    "file-damaged", f"{path} is damaged; make it again with elmwright fill-cache"
                )
            if not tensors["vectors"].isfinite().all():
                raise UserError(
                    "file-damaged", f"{path} contains numbers that are not finite; make it again"
                )
            words = bytes(tensors["words"].numpy()).decode("utf-8").split("\n")
            elmo.fill_cache(words, tensors["vectors"])
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise UserError("file-unreadable", f"{path} cannot be read as a table ({error})") from error


def _encoder_digest(elmo: Elmo) -> str:
    return tensors_digest(elmo.bilm.encoder.state_dict(), repr(elmo.bilm.config))


def tensors_digest(
    tensors: Mapping[str, torch.Tensor], prefix: str = "", *, with_dtypes: bool = False
) -> str:
    """The sha256 of a prefix and of the names, shapes and numbers of tensors."""
    digest = hashlib.sha256(prefix.encode())
    for name, tensor in sorted(tensors.items()):
        dtype = tensor.dtype if with_dtypes else ""
        digest.update(f"{name}{tuple(tensor.shape)}{dtype}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()
