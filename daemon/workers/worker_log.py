"""A worker's log on disk: bounded, with those of some starts before beside it. Imports only the standard library."""

from __future__ import annotations

import os
from pathlib import Path

STARTS_KEPT = 5  # before the present one: enough to see how a worker came to be latched
MARK = b"[bayard: older lines were dropped here; the log is bounded]\n"


class WorkerLog:
    """Written by the spawn helper alone. When it reaches its bound, the newest half stays."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._limit_bytes = max(4096, limit_bytes)
        self._fd: int | None = None
        self.failure: str | None = None
        try:
            for start in range(STARTS_KEPT, 0, -1):
                if os.path.exists(before := earlier(path, start - 1)):
                    os.replace(before, earlier(path, start))
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        except OSError as error:
            self.failure = str(error)
        self._size = 0

    def write(self, data: bytes) -> None:
        """A full disk loses lines, never the worker."""
        if self._fd is None:
            return
        try:
            if self._size + len(data) > self._limit_bytes:
                self._drop_older_half()
            data = data[-self._limit_bytes // 2 :]
            os.pwrite(self._fd, data, self._size)
            self._size += len(data)
        except OSError as error:
            self.failure = str(error)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _drop_older_half(self) -> None:
        assert self._fd is not None
        keep_bytes = self._limit_bytes // 2 - len(MARK)
        kept = os.pread(self._fd, keep_bytes, max(0, self._size - keep_bytes))
        kept = MARK + kept[kept.find(b"\n") + 1 :]
        os.pwrite(self._fd, kept, 0)
        os.ftruncate(self._fd, len(kept))
        self._size = len(kept)


def earlier(path: str, start: int = 1) -> str:
    """Where the log of so many starts before is kept; 0 is the present one's."""
    return f"{path}.{start}" if start else path


def last_lines(path: Path, count: int = 20, *, most_bytes: int = 64 << 10) -> tuple[str, ...]:
    """The newest lines of a log, oldest first; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-count:]


class LogReader:
    """Lines of a log that come after it was made, whether the file grows, is cut, or is replaced by the next start's.

    Owner: one follower. Every call opens the file anew, so that no follower holds an old one open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = self._now()
        self._rest = b""

    def new_lines(self, most_bytes: int = 256 << 10) -> list[str]:
        """Complete lines, oldest first. Blocks: for the disk."""
        inode, size = self._now()
        if inode != self._inode or size < self._offset:
            self._inode, self._offset, self._rest = inode, 0, b""
        if size <= self._offset:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(most_bytes)
        except OSError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > most_bytes:  # a line without an end
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole]

    def _now(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size
