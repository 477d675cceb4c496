"""How fast the disk under a file reads in sequence, past the page cache: what a load is to be compared with."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

SAMPLE_BYTES = 64 << 20
REQUEST_BYTES = 4 << 20
LIMIT_S = 0.3
_ALIGNED = 1 << 12


def sequential_bytes_per_s(files: Iterable[str]) -> float | None:
    """Measured on the middle of the largest file; None where it is too small, or cannot be read past the cache.

    Blocks: for LIMIT_S and one request at most
    """
    path = max(files, key=lambda file: Path(file).stat().st_size, default=None)
    size = 0 if path is None else Path(path).stat().st_size
    if path is None or size < SAMPLE_BYTES or not hasattr(os, "O_DIRECT"):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # tmpfs and some network file systems know no direct reads
        return None
    try:
        return _measured(descriptor, (size - SAMPLE_BYTES) // 2 // _ALIGNED * _ALIGNED)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _measured(descriptor: int, start: int) -> float | None:
    done = 0
    with mmap.mmap(-1, REQUEST_BYTES) as buffer:  # aligned, as direct reads want it
        began = time.perf_counter()
        while done < SAMPLE_BYTES and time.perf_counter() - began < LIMIT_S:
            found = os.preadv(descriptor, [buffer], start + done)
            if found <= 0:
                break
            done += found
        spent_s = time.perf_counter() - began
    return done / spent_s if done else None
