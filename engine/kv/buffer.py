"""The one flat buffer behind all pages."""

from __future__ import annotations

import numpy as np
import torch


def allocate_buffer(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, so that a masked place never holds NaN. On a CPU memory is taken when a page is first written."""
    if device.type != "cpu":
        return torch.zeros(num_elements, dtype=dtype, device=device)
    storage = np.zeros(num_elements * dtype.itemsize, dtype=np.uint8)  # calloc: no page is touched
    return torch.from_numpy(storage).view(dtype)
