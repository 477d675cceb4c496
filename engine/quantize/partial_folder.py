"""The folder that a quantisation works in until it is whole: whose it is, and what of it may be thrown away."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.errors import Conflict, UnsupportedFormat
from engine.quantize.folder import WRITTEN_NAMES
from engine.spec.hf_folder import INDEX_FILE

STATE_FILE = "quantize.json"
PARTIAL = ".partial"
UNFINISHED = ".unfinished"
_SHARDS = re.compile(rf"model-\d{{5,}}-of-\d{{5,}}(\.safetensors|{re.escape(UNFINISHED)})|\.tmp\w*")
_OWN = frozenset({STATE_FILE, STATE_FILE + UNFINISHED, INDEX_FILE, *WRITTEN_NAMES})


@contextmanager
def partial_folder(out: Path, asked: dict[str, Any], *, restart: bool) -> Iterator[Path]:
    """The folder beside out, new or of the same job, held by this process alone; gone where the model is refused.

    restart: throw away what is there
    Raises: Conflict where out is there, or the folder is not this job's to go on with, or to throw away
    """
    if os.path.lexists(out):
        raise Conflict(f"{out} is there already.", "Give another --out, or remove it.")
    folder = out.with_name(out.name + PARTIAL)
    if os.path.lexists(folder) and not folder.is_dir():
        raise Conflict(f"{folder} is there, and is not of a quantisation.", "Give another --out, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"{folder} is being written by another process.", "Wait for it, or stop it.") from error
        _take(folder, asked, restart)
        try:
            yield folder
        except UnsupportedFormat:
            _remove(folder)
            raise
    finally:
        os.close(descriptor)


def _take(folder: Path, asked: dict[str, Any], restart: bool) -> None:
    there = sorted(path.name for path in folder.iterdir())
    state = folder / STATE_FILE
    if STATE_FILE not in there and set(there) - {STATE_FILE + UNFINISHED}:
        raise Conflict(f"{folder} is there, and is not of a quantisation.", "Give another --out, or remove it.")
    if restart:
        _throw_away(folder, there)
    elif STATE_FILE in there and (begun := _begun(state)) != asked:
        what = "what cannot be told" if begun is None else "what was begun with another model, text or precision"
        raise Conflict(f"{folder} holds {what}.", "Finish that one, or start anew with --restart.")
    if not state.exists():
        unfinished = state.with_name(STATE_FILE + UNFINISHED)
        unfinished.write_text(json.dumps(asked), encoding="utf-8")
        unfinished.rename(state)


def _begun(state: Path) -> object:
    """What was asked for. None: the file does not say."""
    try:
        return json.loads(state.read_text(encoding="utf-8"))
    except ValueError:
        return None


def _remove(folder: Path) -> None:
    """What the same command could not finish either."""
    with suppress(Conflict):
        _throw_away(folder, sorted(path.name for path in folder.iterdir()))
        folder.rmdir()


def _throw_away(folder: Path, there: list[str]) -> None:
    """All of it, or nothing where something is not of a quantisation."""
    foreign = [name for name in there if name not in _OWN and not _SHARDS.fullmatch(name)]
    if foreign:
        raise Conflict(
            f"{folder} holds {foreign[0]!r}, which is not of a quantisation.", "Move it away, or give another --out."
        )
    # The state goes last: without it the rest would be nobody's.
    for name in sorted(there, key=lambda name: name == STATE_FILE):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
