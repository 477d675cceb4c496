"""How files of a model's packed weights are called: by the model's path first, so that they can go with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

SUFFIX = ".packed"


def packed_name(model_path: str, identity: Mapping[str, object]) -> str:
    """identity: all that decides what is in the file."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{_start(model_path)}-{digest[:24]}{SUFFIX}"


def packed_files_of(model_path: str, folder: Path) -> list[Path]:
    """Those of a model, whatever it was when they were made."""
    return sorted(folder.glob(f"{_start(model_path)}-*{SUFFIX}"))


def _start(model_path: str) -> str:
    return hashlib.sha256(str(Path(model_path).resolve()).encode()).hexdigest()[:24]
