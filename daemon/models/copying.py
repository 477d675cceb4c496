"""Hashing and copying checkpoint files: bounded memory, resumable, cancellable, durable before it counts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from daemon.models.checkpoint_files import SourceFile
from daemon.models.record import FileRecord, ImportProgress
from engine.errors import Conflict, StoreError

_CHUNK_BYTES = 4 << 20
_SPARE_BYTES = 256 << 20  # left on the disk for the database and logs
_MANIFEST = ".source.json"

Report = Callable[[ImportProgress], None]
Cancelled = Callable[[], bool]


class Transfer:
    """One pass over a checkpoint's files. Owner: one import or verification; used by one thread."""

    def __init__(self, stage: str, total_bytes: int, report: Report, cancelled: Cancelled) -> None:
        self._stage = stage
        self._total_bytes = total_bytes
        self._report = report
        self._cancelled = cancelled
        self._done_bytes = 0

    def hash_files(self, files: Sequence[SourceFile]) -> list[FileRecord]:
        """Digests of files where they lie.

        Raises: StoreError for a file that cannot be read or changes meanwhile; Conflict when cancelled.
        """
        return [self._pass(file, None) for file in files]

    def copy_files(self, files: Sequence[SourceFile], folder: Path) -> list[FileRecord]:
        """Copy into a folder, continuing what an interrupted copy of the same files left there.

        Raises: as hash_files, and StoreError when the disk is full.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_same_source(folder, files):
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            _write_manifest(folder, files)
        left = sum(file.size_bytes - _kept_bytes(folder, file) for file in files)
        free = shutil.disk_usage(folder).free
        if left + _SPARE_BYTES > free:
            raise StoreError(
                f"the copy needs {left / 2**30:,.1f} GiB; {folder.parent} has {free / 2**30:,.1f} GiB free.",
                "Free some room, or use the files where they lie with --link.",
            )
        records = [self._pass(file, folder / file.relative) for file in files]
        (folder / _MANIFEST).unlink()
        for place in {folder, *((folder / file.relative).parent for file in files)}:
            fsync_folder(place)
        return records

    def _pass(self, file: SourceFile, target: Path | None) -> FileRecord:
        try:
            with file.path.open("rb") as source:
                before = os.fstat(source.fileno())
                if target is None:
                    digest = self._digest(source, None, file.relative)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("r+b" if target.exists() else "w+b") as copy:
                        digest = self._digest(source, copy, file.relative)
                        copy.truncate(file.size_bytes)
                        copy.flush()
                        os.fsync(copy.fileno())
                after = os.fstat(source.fileno())
        except OSError as error:
            raise StoreError(
                f"{file.path} could not be {'read' if target is None else 'copied'}: {error.strerror or error}.",
                "Check the file and the disk, then import again; what was copied is kept.",
            ) from error
        if (before.st_size, before.st_mtime_ns) != (
            after.st_size,
            after.st_mtime_ns,
        ) or after.st_size != file.size_bytes:
            raise StoreError(
                f"{file.path} changed while it was read: {file.size_bytes:,} bytes before, {after.st_size:,} after.",
                "Wait until nothing writes to it, then import again.",
            )
        return FileRecord(file.relative, file.size_bytes, digest)

    def _digest(self, source: BinaryIO, copy: BinaryIO | None, name: str) -> str:
        """The digest of the source; what the copy holds already is compared, and rewritten from where it differs."""
        digest = hashlib.sha256()
        comparing = copy is not None
        while chunk := source.read(_CHUNK_BYTES):
            if self._cancelled():
                raise Conflict(f"cancelled while {self._stage} {name}.", "What was copied is kept for another try.")
            digest.update(chunk)
            if copy is not None:
                if comparing:
                    at = copy.tell()
                    comparing = copy.read(len(chunk)) == chunk
                    if not comparing:
                        copy.seek(at)
                if not comparing:
                    copy.write(chunk)
            self._done_bytes += len(chunk)
            self._report(ImportProgress(self._stage, name, self._done_bytes, self._total_bytes))
        return digest.hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _facts(files: Sequence[SourceFile]) -> list[list[object]]:
    return [[str(file.path), file.relative, file.size_bytes, file.path.stat().st_mtime_ns] for file in files]


def _is_same_source(folder: Path, files: Sequence[SourceFile]) -> bool:
    try:
        kept = json.loads((folder / _MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return bool(kept == _facts(files))


def _write_manifest(folder: Path, files: Sequence[SourceFile]) -> None:
    with (folder / _MANIFEST).open("w") as manifest:
        json.dump(_facts(files), manifest)
        manifest.flush()
        os.fsync(manifest.fileno())


def _kept_bytes(folder: Path, file: SourceFile) -> int:
    try:
        return min(file.size_bytes, (folder / file.relative).stat().st_size)
    except OSError:
        return 0
