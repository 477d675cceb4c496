"""The files of a Hugging Face folder: which hold the weights, and its JSON read within bounds."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from engine.errors import ConfigError, UnsupportedFormat
from engine.spec.fields import Fields
from engine.spec.model_spec import TensorInfo

MAX_JSON_BYTES = 1 << 24
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, none of them outside it."""
    index = folder / INDEX_FILE
    if index.is_file():
        weights = Fields(read_json(index), f"{folder.name}/{INDEX_FILE}").section("weight_map")
        names = sorted({str(name) for name in weights.values.values()}) if weights else []
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise UnsupportedFormat(
                    f"{folder.name}/{INDEX_FILE} names {name[:80]!r}, which is not a safetensors file beside it.",
                    "Download the checkpoint again.",
                )
        absent = [name for name in names if not (folder / name).is_file()]
        if absent or not names:
            raise UnsupportedFormat(
                f"{folder.name} lacks {len(absent)} of its {len(names)} weight files, first {absent[:1]}.",
                "The checkpoint is incomplete: copy the missing files into the folder.",
            )
        return [folder / name for name in names]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors"))
    hint = "Import a folder with model.safetensors, or with shards and their index."
    if any(name.endswith((".bin", ".pt", ".pth")) for name in others):
        hint = "Pickle files can run code and are never opened: save the model as safetensors."
    elif any(name.endswith(".gguf") for name in others):
        hint = f"Import the file itself: {folder / others[0]}"
    raise UnsupportedFormat(f"{folder.name} has neither {SINGLE_FILE} nor {INDEX_FILE}; it has {others[:3]}.", hint)


def refuse_repeats(folder: Path, tensors: tuple[TensorInfo, ...]) -> None:
    """Raises: UnsupportedFormat for a tensor that two files hold."""
    seen: dict[str, str] = {}
    for info in tensors:
        if info.name in seen:
            raise UnsupportedFormat(
                f"{folder.name} holds {info.name} twice, in {Path(seen[info.name]).name} and {Path(info.file).name}.",
                "Files of two checkpoints are mixed in one folder: download it again.",
            )
        seen[info.name] = info.file


def read_json(path: Path) -> dict[str, object]:
    """A JSON file's object. Raises: UnsupportedFormat, ConfigError."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):  # reading a pipe or a device need not end
            raise UnsupportedFormat(f"{path} is no file.", "Download the checkpoint again.")
        size = facts.st_size
        if size > MAX_JSON_BYTES:
            raise UnsupportedFormat(f"{path.name} has {size:,} bytes; at most {MAX_JSON_BYTES:,} are accepted.")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its owner."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnsupportedFormat(f"{path.name} is not JSON: {error}.", "Download the checkpoint again.") from error
    if not isinstance(found, dict):
        raise UnsupportedFormat(f"{path.name} is not a JSON object.", "Download the checkpoint again.")
    return found
