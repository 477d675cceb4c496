"""Low-rank additions to projections, several adapters at once: each row of a batch gets its own adapter's, or none.

The A matrices of all adapters stand under one another, so that two products serve any mixture of rows. What a row gets
from another's adapter is exactly zero, so its result depends on no neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.linear import CodedRows, Linear, LinearPart


@dataclass(slots=True)
class AdapterRows:
    """Which adapter each row of the step that runs has. Owner: the model, which sets it before its layers run."""

    rows: Tensor | None = None  # [T], -1 for a row without; None: no row has one


@dataclass(frozen=True, slots=True)
class LowRank:
    """Shapes: a [R, K], b [N, R] with the scales in it, owners [R]: whose each of the R dimensions is"""

    a: Tensor
    b: Tensor
    owners: Tensor

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        """Shapes: x [T, K], rows [T] -> [T, N]"""
        inner = x.to(self.a.dtype) @ self.a.T
        inner = torch.where(rows[:, None] == self.owners, inner, torch.zeros((), dtype=inner.dtype, device=x.device))
        return inner @ self.b.T


class AdaptedLinear(Linear):
    """A Linear that adds to each row what the row's adapter says. Its parts are the base's alone."""

    __slots__ = ("_low_rank", "_rows")

    def __init__(self, linear: Linear, low_rank: LowRank, rows: AdapterRows) -> None:
        super().__init__(list(linear.parts), linear.out_features)
        self._low_rank, self._rows = low_rank, rows

    def __call__(self, x: Tensor | CodedRows) -> Tensor:
        assert isinstance(x, Tensor)
        out = super().__call__(x)
        rows = self._rows.rows
        return out if rows is None else out + self._low_rank(x, rows).to(out.dtype)

    def coding_part(self, rows: int) -> LinearPart | None:
        """None: adapters multiply numbers."""
        return None
