"""Whether an accelerator's memory came back after a worker ended there, before the next one is started on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from hwdetect.detect import detect
from hwdetect.machine import Machine

SLACK_BYTES = 512 << 20  # contexts of others that came meanwhile
LOOK_EVERY_S = 0.5
GIVE_UP_S = 15.0

Look = Callable[[], Machine]


def look_now() -> Machine:
    """Blocks: for the vendors' tools."""
    return detect(Path("/"))


class DeviceMemory:
    """Owner: one ManagedWorker. look: the machine as it is, and may block."""

    def __init__(self, look: Look = look_now, give_up_s: float = GIVE_UP_S) -> None:
        self._look = look
        self._give_up_s = give_up_s
        self._before: dict[int, int] = {}  # used bytes by device before the last start

    async def confirm_free(self, device: str, stop: asyncio.Event | None = None) -> str:
        """Wait until no more is used than before the last start on it; empty, or what is still held when it is not.

        device: as a worker's configuration names it; "cpu" and the like have nothing to wait for.
        stop: ends the wait
        Blocks: for GIVE_UP_S at most
        """
        if not _is_accelerator(device):
            return ""
        deadline = time.monotonic() + self._give_up_s
        while True:
            used = await asyncio.to_thread(self._used, device)
            held = {at: now for at, now in used.items() if now > self._before.get(at, now) + SLACK_BYTES}
            if not held or time.monotonic() >= deadline or (stop is not None and stop.is_set()):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        told = "; ".join(
            f"device {at} holds {now / 2**30:.1f} GiB, {self._before[at] / 2**30:.1f} GiB before the last start"
            for at, now in sorted(held.items())
        )
        for at, now in used.items():
            self._before[at] = min(now, self._before.get(at, now)) if at in held else now
        return told

    def _used(self, device: str) -> dict[int, int]:
        """Used bytes by index; a device that does not say is left out."""
        wanted = _index(device)
        return {
            found.index: found.memory_used_bytes
            for found in self._look().accelerators
            if found.index is not None
            and found.memory_used_bytes is not None
            and (wanted is None or found.index == wanted)
        }


def _is_accelerator(device: str) -> bool:
    return device.partition(":")[0] not in ("", "cpu", "auto", "meta")


def _index(device: str) -> int | None:
    tail = device.partition(":")[2]
    return int(tail) if tail.isdigit() else None
