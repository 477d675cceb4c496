"""Chained launches: a kernel's programs may start while the one before is still at work, and wait where they need it.

What does not depend on a step, the weights above all, is asked for before the wait: the memory is busy all the time. So
may be what a batch says of itself (positions, pages, lengths, where queries begin): launches that are not chained write
it, and the embedding's, which is not either, comes after them. A kernel launched so waits before it touches anything
else, in every program; by then all kernels before have ended.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from engine.kernels.triton.device import speaks_ptx

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    _KNOWN = True
except ImportError:  # a Triton without them: `chains` says no, and the kernels never come to these names
    gdc_launch_dependents = gdc_wait = None
    _KNOWN = False


@triton.jit
def let_next_start():
    """The next kernel's programs may take what room there is on the device."""
    gdc_launch_dependents()


@triton.jit
def wait_for_last():
    """Until all kernels before have ended, and what they wrote can be read."""
    gdc_wait()


@triton.jit
def ask_for(addresses):
    """The lines of 128 bytes at these addresses come to the cache that all programs share."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l", [addresses.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@functools.cache
def chains(device: torch.device) -> bool:
    """Whether kernels on this device may be launched so."""
    return _KNOWN and speaks_ptx(device) and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(device: torch.device) -> dict[str, bool]:
    """The launch option of a kernel whose CHAINED is chains(device)."""
    return {"launch_pdl": True} if chains(device) else {}
