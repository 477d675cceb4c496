"""The one flat buffer behind all pages."""

from __future__ import annotations

import ctypes
import functools
import mmap

import numpy as np
import torch


def allocate_buffer(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, so that a masked place never holds NaN. On a CPU memory is taken when a page is first written."""
    if device.type != "cpu":
        return torch.zeros(num_elements, dtype=dtype, device=device)
    storage = np.zeros(num_elements * dtype.itemsize, dtype=np.uint8)  # calloc: no page is touched
    return torch.from_numpy(storage).view(dtype)


def empty_buffer(buffer: torch.Tensor) -> None:
    """Give its memory back; nobody may read a page until it is filled again.

    On a CPU its address stays. Mutates: buffer
    """
    if buffer.device.type != "cpu":
        buffer.untyped_storage().resize_(0)
        return
    start = -(-buffer.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (buffer.data_ptr() + buffer.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start and _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise of the KV pages failed")


def refill_buffer(buffer: torch.Tensor, num_bytes: int) -> None:
    """Memory behind it again, of zeros as far as pages were given back. Mutates: buffer"""
    if buffer.device.type != "cpu":
        buffer.untyped_storage().resize_(num_bytes)
        buffer.zero_()


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
