"""Memory that the host's allocator keeps for later goes back to the system."""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD = -3  # of mallopt, from glibc's malloc.h


def trim_heap() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)


def keep_nothing_large() -> None:
    """From now on the heap gives blocks of a MiB and more back as they are let go of, where the C library can.

    By itself it keeps those below 32 MiB once some have come and gone: as much again as is in use.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(MMAP_THRESHOLD, 1 << 20)
