"""From the hidden states of texts to one vector of length one for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from engine.spec.model_spec import PoolingKind


class Pool:
    def __init__(self, kind: PoolingKind) -> None:
        self.kind = kind

    def __call__(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Shapes: states [T, hidden], text after text -> [len(lengths), hidden] float32"""
        ends = list(accumulate(lengths))
        if self.kind is PoolingKind.MEAN:
            owner = torch.repeat_interleave(torch.tensor(lengths)).to(states.device)
            pooled = torch.zeros(len(lengths), states.shape[1], device=states.device)
            pooled.index_add_(0, owner, states.to(torch.float32))
            return unit(pooled)  # a mean and a sum point the same way
        rows = [end - 1 if self.kind is PoolingKind.LAST else end - n for end, n in zip(ends, lengths, strict=True)]
        return unit(states[torch.tensor(rows, device=states.device)])


def unit(vectors: Tensor) -> Tensor:
    """Each row brought to length one, in float32. A row of zeros stays; what is not a number stays so."""
    wide = vectors.to(torch.float32)
    unit_rows: Tensor = wide / wide.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return unit_rows
