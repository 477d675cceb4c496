"""Links: how fast plain memory gets to an accelerator, back, and to its neighbour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from engine.devices import Device

_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second of one large copy, the host's side pinned. peer: to the next device of its kind; None: alone"""

    to_device: float
    to_host: float
    peer: float | None


def link_rates(device: Device, best_s: Callable[[Callable[[], object]], float]) -> dict[str, float | None] | None:
    """None on a CPU. Blocks: for some tenths of a second."""
    here = device.torch_device
    if here.type == "cpu":
        return None
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_BYTES, dtype=torch.uint8, device=here)
    count = getattr(torch, here.type).device_count()
    peer = None
    if count > 1:
        other = torch.empty(_BYTES, dtype=torch.uint8, device=torch.device(here.type, ((here.index or 0) + 1) % count))
        peer = _BYTES / best_s(lambda: other.copy_(there, non_blocking=True))
    return asdict(
        LinkRates(
            to_device=_BYTES / best_s(lambda: there.copy_(host, non_blocking=True)),
            to_host=_BYTES / best_s(lambda: host.copy_(there, non_blocking=True)),
            peer=peer,
        )
    )
