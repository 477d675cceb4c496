"""Linear: projections of one input, each part run by the kernel that packed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearPart:
    run: Callable[[Tensor, Any, Tensor | None], Tensor]
    packed: Any  # what the implementation's pack made of the weight
    bias: Tensor | None


class Linear:
    """Call with x [M, K] -> [M, N], N being out_features."""

    __slots__ = ("out_features", "parts")

    def __init__(self, parts: list[LinearPart], out_features: int) -> None:
        self.parts = tuple(parts)
        self.out_features = out_features

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.parts) == 1:
            part = self.parts[0]
            return part.run(x, part.packed, part.bias)
        return torch.cat([part.run(x, part.packed, part.bias) for part in self.parts], dim=-1)
