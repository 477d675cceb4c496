"""How many ended requests were not settled when the daemon died: two numbers in a file that outlives the process."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import structlog

_NUMBERS = struct.Struct("<QQ")  # requests added, requests settled
log = structlog.get_logger(__name__)


class LossCount:
    """Written at every request without a system call: the page is the kernel's, and stays when a process is killed.

    Owner: UsageLedger. A disk that cannot hold it is told once; then nothing is counted, and nothing else suffers.
    """

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        self.lost = 0  # of the process before
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(fd).st_size != _NUMBERS.size:
                    os.ftruncate(fd, 0)
                    os.posix_fallocate(fd, 0, _NUMBERS.size)  # a full disk shows here, not as a signal later
                self._map = mmap.mmap(fd, _NUMBERS.size)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            log.warning("loss_not_counted", path=str(path), error=str(error))
            return
        added, settled = _NUMBERS.unpack(self._map)
        self.lost = max(0, added - settled)
        self._added = self._settled = 0
        self._write()

    def add(self) -> None:
        """One more request has ended."""
        if self._map is not None:
            self._added += 1
            self._write()

    def settle(self, requests: int) -> None:
        """So many are in the store, or were counted as lost."""
        if self._map is not None:
            self._settled += requests
            self._write()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def _write(self) -> None:
        assert self._map is not None
        _NUMBERS.pack_into(self._map, 0, self._added, self._settled)
