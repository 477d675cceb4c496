"""Names of models: what a client writes as `model`, and the folder that holds a copy."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import quote

from engine.errors import InvalidParameter

_MAX = 128
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._:-]|/(?=[a-z0-9]))*")
_FOREIGN = re.compile(r"[^a-z0-9._:-]+")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def check_model_name(name: str) -> str:
    """The name itself. Raises: InvalidParameter."""
    if len(name) > _MAX or not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"{name[:_MAX]!r} is no name for a model.",
            f"Use up to {_MAX} of a-z, 0-9, '.', '_', ':', '-' and '/', beginning with a letter or digit.",
            param="name",
        )
    return name


def name_from_path(path: Path) -> str:
    """A name for a checkpoint that was given none: its file or folder name in small letters.

    Raises: InvalidParameter when nothing usable is left, so that the operator chooses one.
    """
    stem = path.name.removesuffix(".gguf") if path.suffix == ".gguf" else path.name
    cleaned = _FOREIGN.sub("-", _SHARD.sub("", stem).lower()).strip("-._:")[:_MAX]
    if not cleaned:
        raise InvalidParameter(
            f"no name can be made from {path.name!r}.",
            "Give one with --name, for example --name my-model.",
            param="name",
        )
    return check_model_name(cleaned)


def folder_of(name: str) -> str:
    """One folder name for a model name; different names never share one."""
    return quote(name, safe="")


def place_for(source: bytes) -> str:
    """A folder name for what is unpacked from a source; no name that a stranger chose is in it, however long or odd."""
    return hashlib.sha256(source).hexdigest()[:32]
