"""`elmwright fill-cache`: a table of token-layer vectors, for many short jobs with one model.

The token layer (character CNN, highway, projection) sees a word without its context, so its output
can be kept. `Elmo.embed` does that by itself within a process; a table spares each new process the
first time, too. By `tests/bench/bench_fill_cache.py`, a process that embeds 50 to 400 sentences
with the small model takes 1.1 to 1.3 times the CPU time without a table, if every word is in it;
for longer texts it is less, and nothing for a process that lives on.

The table is a safetensors file that carries the digests of its encoder and of its content: another
model refuses it, and a changed one is no table. It is kept small: adding a word that it lacks
copies it.
"""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.argument_checks import check_output
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE
from elmwright.model.formats.folder import VOCAB, read_vocab
from elmwright.model.inference.elmo import Elmo, TypeCache
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at

FORMAT = "2"
TABLE_BYTES = 32 << 20
"""The largest table: 65,536 words of the small model, 16,384 of the original."""


def write_table(
    model: str, output: Path, words_file: str | None = None, *, force: bool = False
) -> str:
    """Encode a vocabulary (the model's own, or one word a line) as far as it fits, from its top;
    a sentence about what was written."""
    check_output(output, force)

    folder = resolve(model)
    path = Path(words_file) if words_file else folder / VOCAB
    if not path.is_file():
        raise UserError("file-missing", f"there is no word list {path}; give one with --words")
    elmo = Elmo.from_pretrained(folder)
    elmo.eval()
    try:
        # Of Windows, perhaps: no word has white space or a byte order mark at its ends.
        given = [word for line in read_vocab(path) if (word := line.strip().strip("\ufeff"))]
    except UnicodeDecodeError as error:
        raise UserError(
            "file-unreadable", f"{path} is not UTF-8 ({error.reason}); convert it first"
        ) from error
    words = list(dict.fromkeys([BEGIN_SENTENCE, END_SENTENCE, *given]))
    words = words[: TABLE_BYTES // (4 * elmo.bilm.config.projection_dim)]
    with torch.no_grad():
        vectors, _ = TypeCache().encode(elmo.bilm, words, torch.device("cpu"))
    spelled = torch.frombuffer(bytearray("\n".join(words).encode("utf-8")), dtype=torch.uint8)
    tensors = {"vectors": vectors, "words": spelled}
    about = {"format": FORMAT, "encoder": encoder_digest(elmo), "content": _content(tensors)}
    at(output).write_bytes(save(tensors, about))
    return f"wrote {output}: {plural(len(words), 'word')}, <S> and </S> among them"


def use_table(elmo: Elmo, path: Path) -> None:
    """Begin with the vectors of a table, if it is of this encoder."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or "encoder" not in metadata:
                raise UserError(
                    "format", f"{path} is not a table of this version's elmwright fill-cache"
                )
            if metadata["encoder"] != encoder_digest(elmo):
                raise UserError(
                    "argument",
                    f"{path} was made for another model; make one with elmwright fill-cache",
                )
            tensors = {name: file.get_tensor(name) for name in ("vectors", "words")}
            if metadata.get("content") != _content(tensors):
                raise UserError(
                    "file-damaged", f"{path} is damaged; make it again with elmwright fill-cache"
                )
            if not tensors["vectors"].isfinite().all():
                raise UserError(
                    "file-damaged", f"{path} holds numbers that are not finite; make it again"
                )
            words = bytes(tensors["words"].numpy()).decode("utf-8").split("\n")
            elmo.fill_cache(words, tensors["vectors"])
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise UserError("file-unreadable", f"{path} cannot be read as a table ({error})") from error


def _content(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def encoder_digest(elmo: Elmo) -> str:
    """The sha256 of all that the token layer depends on."""
    digest = hashlib.sha256(repr(elmo.bilm.config).encode())
    for name, tensor in sorted(elmo.bilm.encoder.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()
