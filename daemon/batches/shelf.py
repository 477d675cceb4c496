"""Shelf: the contents of uploaded and written files, below the state folder, readable by the daemon's user alone."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

_ID = re.compile(r"file-[0-9a-f]{24}")


class Shelf:
    """Owner: the BatchDesk. Every method blocks for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_id(self) -> str:
        return "file-" + secrets.token_hex(12)

    def path(self, file_id: str) -> Path:
        """Never outside the folder: an id is one that new_id made."""
        assert _ID.fullmatch(file_id), file_id
        return self._folder / f"{file_id}.jsonl"

    def append(self, file_id: str, data: bytes) -> None:
        """All of data or nothing, where the disk refuses; what a crash cuts off is seen by its missing end.

        Raises: OSError
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        number = os.open(self.path(file_id), flags, 0o600)
        try:
            before = os.fstat(number).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(number, view) :]
            except OSError:
                os.ftruncate(number, before)
                raise
        finally:
            os.close(number)

    def sync(self, file_id: str) -> None:
        """Have it on the disk."""
        number = os.open(self.path(file_id), os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def size_bytes(self, file_id: str) -> int:
        """0 where it is not there."""
        try:
            return self.path(file_id).stat().st_size
        except FileNotFoundError:
            return 0

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def untouched(self, for_s: float) -> list[str]:
        """Files that nobody has written to for so long."""
        if not self._folder.is_dir():
            return []
        before = time.time() - for_s
        found = [path for path in self._folder.iterdir() if _ID.fullmatch(path.stem)]
        return [path.stem for path in found if path.stat().st_mtime <= before]
