"""What a kernel may use on a device beyond plain Triton, asked by what the device can do, not by its name."""

from __future__ import annotations

import functools
import importlib.util

import torch

MAX_LOCKS = 1 << 16


def speaks_ptx(device: torch.device) -> bool:
    """Whether inline PTX may stand in a kernel."""
    return device.type == "cuda" and torch.version.cuda is not None


def converts_fp8(device: torch.device) -> bool:
    """Whether the device converts to and from E4M3 itself; bit tricks serve the others."""
    return speaks_ptx(device) and torch.cuda.get_device_capability(device) >= (8, 9)


def copies_tiles(device: torch.device) -> bool:
    """Whether the device copies tiles by descriptors of them."""
    return speaks_ptx(device) and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def pipelines_int8(device: torch.device) -> bool:
    """Whether kernels with waits of their own (Gluon) run, on the matrix instructions of compute capability 9.0."""
    known = importlib.util.find_spec("triton.experimental") and importlib.util.find_spec("triton.experimental.gluon")
    return bool(known) and speaks_ptx(device) and torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def units_of(device: torch.device) -> int:
    """Units that run programs side by side; of a device that does not say, those of a large GPU."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def locks_of(device: torch.device) -> torch.Tensor:
    """Zeros, which programs that add parts of one product leave as zeros. Owner: the device's one stream of steps."""
    return torch.zeros(MAX_LOCKS, dtype=torch.int32, device=device)
