"""What a failed step means: too little memory, which a smaller step may do without, or a device that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.errors import DeviceLost
from engine.scheduler.chunk import ScheduledChunk

MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "memoryallocation")
# A context of the device API that has seen one of these never works again.
LOST_SIGNS = (
    "CUDA error",
    "HIP error",
    "MUSA error",
    "cudaError",
    "device-side assert",
    "unspecified launch failure",
    "an illegal memory access",
    "GPU is lost",
    "NPU function error",
    "XPU error",
)
STEPS_UNTIL_LARGER = 64  # after memory was short


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in MEMORY_SIGNS)


def lost_device(error: BaseException, device: str) -> DeviceLost | None:
    """The error to end the worker with, if this one says that its device will do nothing more."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return None
    kinds = (getattr(torch, "AcceleratorError", ()),)
    if not isinstance(error, kinds) and not any(sign in str(error) for sign in LOST_SIGNS):
        return None
    first_line = str(error).partition("\n")[0]
    return DeviceLost(
        f"{device} failed and does nothing more: {first_line}",
        "The worker ends and is started again; if that fails too, see `bayard hw` and the kernel's log (dmesg).",
    )


def smaller(chunks: Sequence[ScheduledChunk], least: int) -> list[ScheduledChunk] | None:
    """The same step with half the prompt tokens and no guesses, else with half of its requests; None if it has one.

    Those left out have their turn in a later step: prompts before streams that run, then by age.
    least: no slice of a prompt becomes shorter
    """
    halved = [_half(chunk, least) for chunk in chunks]
    if halved != list(chunks):
        return halved
    if len(chunks) < 2:
        return None
    order = sorted(chunks, key=lambda chunk: (not chunk.is_decode, chunk.request.standing, chunk.request.turn))
    return order[: len(order) // 2]


def _half(chunk: ScheduledChunk, least: int) -> ScheduledChunk:
    if chunk.draft:
        return replace(chunk, num_tokens=chunk.num_tokens - len(chunk.draft), draft=())
    if chunk.is_decode or chunk.num_tokens <= least:
        return chunk
    return replace(chunk, num_tokens=max(least, chunk.num_tokens // 2), samples=False)


class MemoryCaution:
    """After memory was short, slices of prompts stay small for a while and then grow again. Owner: the engine."""

    def __init__(self) -> None:
        self.chunk_tokens: int | None = None  # None: no limit
        self._calm_steps = 0

    def short(self, chunks: Sequence[ScheduledChunk], least: int) -> None:
        """A step with these chunks had not memory enough."""
        largest = max((chunk.num_tokens for chunk in chunks if not chunk.is_decode), default=least)
        self.chunk_tokens = max(least, largest // 2)
        self._calm_steps = 0

    def went_well(self, full_tokens: int) -> None:
        """A step ran; full_tokens is the slice wanted."""
        if self.chunk_tokens is None:
            return
        self._calm_steps += 1
        if self._calm_steps >= STEPS_UNTIL_LARGER:
            self._calm_steps = 0
            self.chunk_tokens *= 2
            if self.chunk_tokens >= full_tokens:
                self.chunk_tokens = None
