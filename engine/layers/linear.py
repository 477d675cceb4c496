"""Linear: projections of one input, each part run by the kernel that packed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.kernels.registry import CodedInput


@dataclass(frozen=True, slots=True)
class CodedRows:
    """An input that the op before wrote as codes, for one Linear alone."""

    codes: Any
    shape: tuple[int, int]  # [M, K], as the numbers would have


@dataclass(frozen=True, slots=True)
class LinearPart:
    run: Callable[[Tensor, Any, Tensor | None], Tensor]
    packed: Any  # what the implementation's pack made of the weight
    bias: Tensor | None
    order: Tensor | None = None  # [K] int64: the inputs in the order that the weight's columns are stored in
    codes: CodedInput | None = None  # how the kernel takes inputs that are codes already

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x if self.order is None else x.index_select(1, self.order), self.packed, self.bias)


class Linear:
    """Call with x [M, K] -> [M, N], N being out_features."""

    __slots__ = ("out_features", "parts")

    def __init__(self, parts: list[LinearPart], out_features: int) -> None:
        self.parts = tuple(parts)
        self.out_features = out_features

    def __call__(self, x: Tensor | CodedRows) -> Tensor:
        if isinstance(x, CodedRows):
            part = self.parts[0]
            assert part.codes is not None
            out: Tensor = part.codes.run(x.codes, part.packed, part.bias)
            return out
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], dim=-1)

    def coding_part(self, rows: int) -> LinearPart | None:
        """The one part, where its kernel would have so many rows as codes from the op before."""
        part = self.parts[0] if len(self.parts) == 1 else None
        if part is None or part.codes is None or part.order is not None:
            return None
        return part if part.codes.wants(rows, part.packed) else None


Observer = Callable[[list[str], int, Tensor], None]  # roles of the matrices, layer, their input [M, K]


class WatchedLinear(Linear):
    """A Linear that shows its input to somebody before it computes."""

    __slots__ = ("_layer", "_observer", "_roles")

    def __init__(self, linear: Linear, observer: Observer, roles: list[str], layer: int) -> None:
        super().__init__(list(linear.parts), linear.out_features)
        self._observer, self._roles, self._layer = observer, roles, layer

    def __call__(self, x: Tensor | CodedRows) -> Tensor:
        assert isinstance(x, Tensor)
        self._observer(self._roles, self._layer, x)
        return super().__call__(x)

    def coding_part(self, rows: int) -> LinearPart | None:
        """None: who watches wants to see numbers."""
        return None
