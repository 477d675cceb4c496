"""Embedding: a token's row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Embedding:
    """Call with token ids [T] -> [T, K] in dtype."""

    __slots__ = ("packed", "run")

    def __init__(self, run: Callable[[Tensor, Any, torch.dtype], Tensor], packed: Any) -> None:
        self.run = run
        self.packed = packed

    def __call__(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.run(token_ids, self.packed, dtype)
