"""Which files of a checkpoint belong to it, and what is refused before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.spec.place import require_plain

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".th", ".joblib"})
_ARCHIVE_SUFFIXES = frozenset({".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".7z", ".rar"})
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "README.md",
)
_STEP_FOLDER = re.compile(r"[0-9]_[A-Za-z]+")  # of sentence-transformers: 1_Pooling and the like
_LICENCE_PREFIXES = ("license", "licence", "notice", "copying")
_LICENCE_MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path
    relative: str
    size_bytes: int


def refuse_foreign(path: Path) -> None:
    """Turn away what can never be imported, with the way to something that can.

    Raises: NotFound; UnsupportedFormat for pickles, whose loading would run code, for archives, and for names that
    cannot be printed; ConfigError for what may not be read.
    """
    _require_printable(path)
    require_plain(path)
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4)
        if path.suffix in _PICKLE_SUFFIXES or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"):
            raise pickle_refusal(path.name)
        if path.suffix in _ARCHIVE_SUFFIXES or head == b"PK\x03\x04":
            raise UnsupportedFormat(
                f"{path.name} is an archive.",
                "Unpack it and import the folder or the .gguf file; only tar, tar.gz, tar.xz and tar.bz2 are read.",
            )
        return
    for entry in path.iterdir():
        _require_printable(entry)
    names = [entry.name for entry in path.iterdir() if entry.is_file()]
    pickles = sorted(filter(is_pickle, names))
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise pickle_refusal(pickles[0])
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs and "config.json" not in names:
        raise UnsupportedFormat(
            f"{path.name} is a folder of {len(ggufs)} GGUF file{'s' if len(ggufs) > 1 else ''}.",
            f"Import one of them: {path / ggufs[0]}",
        )
    if not {"config.json", "adapter_config.json"} & set(names):
        raise UnsupportedFormat(
            f"{path.name} is no checkpoint: it has no config.json.", "Import the folder that holds it, or a .gguf file."
        )


def is_pickle(name: str) -> bool:
    """By its suffix."""
    return Path(name).suffix in _PICKLE_SUFFIXES and name != "training_args.bin"


def is_wanted(name: str) -> bool:
    """Whether a file of this name can belong to a checkpoint that is kept."""
    lowered = name.lower()
    return name in _TEXT_FILES or lowered.startswith(_LICENCE_PREFIXES) or name.endswith((".safetensors", ".gguf"))


def _require_printable(path: Path) -> None:
    """Raises: UnsupportedFormat for a name that no table, log or database shows as it is."""
    if not str(path).isprintable():
        raise UnsupportedFormat(
            f"the path {str(path)!a} has characters that cannot be printed, or bytes that are no UTF-8.",
            "Rename it.",
        )


def _require_inside(entry: Path) -> None:
    """Texts are shown and passed on: a link on a stranger's disk is not to fetch this machine's own files.

    Raises: UnsupportedFormat for a link out of the folder, or out of the `blobs` that a Hugging Face cache has.
    """
    folder, real = entry.parent.resolve(), entry.resolve()
    blobs = folder.parent.parent / "blobs"
    if not (real.is_relative_to(folder) or real.is_relative_to(blobs)):
        raise UnsupportedFormat(
            f"{entry} is a link that leads outside, to {real}.", "Put the file itself there: cp --dereference."
        )


def files_of(spec: ModelSpec, path: Path) -> tuple[SourceFile, ...]:
    """Every file to hash and copy: the weights that the description names, and the known small files beside them."""
    if spec.format is CheckpointFormat.GGUF:
        parts = sorted({Path(name) if Path(name).is_absolute() else path.parent / name for name in spec.files})
        return tuple(_source(part, part.name) for part in parts or [path])
    names = {Path(name).name for name in spec.files} | small_files(path)
    return tuple(_source(path / name, name) for name in sorted(names))


def small_files(folder: Path) -> set[str]:
    """Names of the known small files of a folder, those of sentence-transformers' steps included."""
    names = set()
    for entry in folder.iterdir():
        if entry.is_file() and (entry.name in _TEXT_FILES or entry.name.lower().startswith(_LICENCE_PREFIXES)):
            _require_inside(entry)
            names.add(entry.name)
        elif entry.is_dir() and _STEP_FOLDER.fullmatch(entry.name) and (entry / "config.json").is_file():
            names.add(f"{entry.name}/config.json")
    return names


def licence_text(path: Path) -> str | None:
    """The text of a licence file in a checkpoint's folder, or beside a .gguf file that shares its folder with nothing
    else; None where there is none."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and not all(entry.suffix == ".gguf" or is_wanted(entry.name) for entry in folder.iterdir()):
        return None  # files beside a lone GGUF need not be about it
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.name.lower().startswith(_LICENCE_PREFIXES):
            _require_inside(entry)
            with entry.open("rb") as file:
                return file.read(_LICENCE_MAX_BYTES).decode("utf-8", errors="replace")
    return None


def _source(path: Path, relative: str) -> SourceFile:
    return SourceFile(path, relative, path.stat().st_size)


def pickle_refusal(name: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{name} is a pickle checkpoint: loading one runs whatever code it holds.",
        "Convert it to safetensors or GGUF where it came from, and import that.",
    )
