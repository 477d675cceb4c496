"""Checkpoints in tar archives: unpacked without trusting a name or size in them, resumed after an interruption."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from daemon.models.checkpoint_files import is_pickle, is_wanted, pickle_refusal
from daemon.models.copying import Cancelled, Report
from daemon.models.record import ImportProgress
from engine.errors import Conflict, StoreError, UnsupportedFormat
from engine.spec.place import mode_at

_CHUNK_BYTES = 4 << 20
_SPARE_BYTES = 256 << 20
_MAX_MEMBERS = 20_000
_MAX_TEXT_BYTES = 256 << 20  # of one member that holds no weights
_MARK = ".archive.json"


def is_tar(path: Path) -> bool:
    """Whether the file is a tar archive that Python's library reads. Blocks: for its head."""
    return (
        stat.S_ISREG(mode_at(path) or 0) and path.suffix not in (".gguf", ".safetensors") and tarfile.is_tarfile(path)
    )


def unpack(path: Path, folder: Path, report: Report, cancelled: Cancelled) -> Path:
    """Take the files of a checkpoint out of an archive; what an interrupted attempt took out whole is kept.

    Returns the .gguf file, or the folder that holds the checkpoint.
    Raises: UnsupportedFormat for links, devices, names that lead outside, several checkpoints, or only pickles;
    StoreError for a damaged archive or a full disk; Conflict when cancelled.
    """
    _start(path, folder)
    total_bytes = path.stat().st_size
    pickles: list[str] = []
    places: set[Path] = set()
    with _reading(path) as (archive, raw):
        for number, member in enumerate(archive):
            if number >= _MAX_MEMBERS:
                raise UnsupportedFormat(f"{path.name} has more than {_MAX_MEMBERS:,} members.", "Is it a checkpoint?")
            name = checked_name(member)
            if not member.isreg():
                continue
            if is_pickle(name.name):
                pickles.append(name.name)
                continue
            if not is_wanted(name.name):
                continue
            if not name.name.endswith((".safetensors", ".gguf")) and member.size > _MAX_TEXT_BYTES:
                raise UnsupportedFormat(f"{name} in {path.name} has {member.size:,} bytes.", "That is no text.")
            target = folder / name
            places.add(target.parent)
            if not (target.is_file() and target.stat().st_size == member.size):
                source = archive.extractfile(member)
                assert source is not None
                tell = partial(_tell, report, name.name, raw, total_bytes)
                _write(source, target, member.size, cancelled, tell)
    return _checkpoint(path, folder, places, pickles)


def checked_name(member: tarfile.TarInfo) -> PurePosixPath:
    """The member's place below the folder. Raises: UnsupportedFormat"""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not member.name.isprintable() or "\\" in member.name:
        raise UnsupportedFormat(
            f"the archive holds the name {member.name[:200]!a}, which leads outside or cannot be printed.",
            "It is damaged or hostile; do not unpack it.",
        )
    if not (member.isreg() or member.isdir()):
        raise UnsupportedFormat(
            f"{member.name[:200]!a} in the archive is a link or a device.", "Pack plain files: tar --dereference."
        )
    return name


def _start(path: Path, folder: Path) -> None:
    """What lies there is kept only if it came from this archive as it is now."""
    found = path.stat()
    mark = json.dumps([str(path), found.st_size, found.st_mtime_ns])
    try:
        same = (folder / _MARK).read_text() == mark
    except OSError:
        same = False
    try:
        if not same:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / _MARK).write_text(mark)
    except OSError as error:
        raise _no_room(folder, error) from error


@contextmanager
def _reading(path: Path) -> Iterator[tuple[tarfile.TarFile, IO[bytes]]]:
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
            yield archive, raw
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise StoreError(f"{path.name} is damaged: {error}.", "Copy it again; what was unpacked is kept.") from error


def _write(source: IO[bytes], target: Path, size: int, cancelled: Cancelled, tell: Callable[[], None]) -> None:
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if size + _SPARE_BYTES > shutil.disk_usage(target.parent).free:
            raise StoreError(
                f"{target.name} needs {size / 2**30:,.1f} GiB; the disk of {target.parent} has too little room.",
                "Free some room and import again; what was unpacked is kept.",
            )
        with part.open("wb") as copy:
            while chunk := source.read(_CHUNK_BYTES):
                if cancelled():
                    raise Conflict(f"cancelled while unpacking {target.name}.", "What was unpacked is kept.")
                copy.write(chunk)
                tell()
            copy.flush()
            os.fsync(copy.fileno())
            written = copy.tell()
        if written != size:
            raise StoreError(f"{target.name} ends after {written:,} of {size:,} bytes.", "The archive is damaged.")
        part.rename(target)
    except OSError as error:
        raise _no_room(target.parent, error) from error


def _tell(report: Report, name: str, raw: IO[bytes], total_bytes: int) -> None:
    report(ImportProgress("unpacking", name, min(raw.tell(), total_bytes), total_bytes))


def _checkpoint(path: Path, folder: Path, places: set[Path], pickles: list[str]) -> Path:
    found = [
        place for place in sorted(places) if any(entry.suffix in (".safetensors", ".gguf") for entry in place.iterdir())
    ]
    if not found:
        if pickles:
            raise pickle_refusal(pickles[0])
        raise UnsupportedFormat(
            f"{path.name} holds no .safetensors and no .gguf file.", "Pack a checkpoint's folder, or a .gguf file."
        )
    if len(found) > 1:
        shown = ", ".join(str(place.relative_to(folder)) for place in found[:3])
        raise UnsupportedFormat(
            f"{path.name} holds checkpoints in {len(found)} folders: {shown}.", "Pack one, or make a bundle."
        )
    (place,) = found
    ggufs = sorted(entry for entry in place.iterdir() if entry.suffix == ".gguf")
    return ggufs[0] if len(ggufs) == 1 and not (place / "config.json").exists() else place


def _no_room(place: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the archive could not be unpacked into {place}: {error.strerror or error}.",
        "Check the folder's owner and the disk; what was unpacked is kept.",
    )
