"""What a kernel may use on a device beyond plain Triton, asked by what the device can do, not by its name."""

from __future__ import annotations

import torch


def speaks_ptx(device: torch.device) -> bool:
    """Whether inline PTX may stand in a kernel."""
    return device.type == "cuda" and torch.version.cuda is not None


def converts_fp8(device: torch.device) -> bool:
    """Whether the device converts to and from E4M3 itself; bit tricks serve the others."""
    return speaks_ptx(device) and torch.cuda.get_device_capability(device) >= (8, 9)
