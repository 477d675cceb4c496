"""Products: what inputs have in common, summed over all rows that were seen."""

from __future__ import annotations

import torch
from torch import Tensor

STRIP = 512


class Products:
    """Sums of the products of each pair of some inputs. They are symmetric: little more than half are there.

    Owner: who is shown the rows
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        # Of some inputs with themselves and all behind them.
        self._strips = [
            torch.zeros(min(STRIP, width - first), width - first, device=device) for first in range(0, width, STRIP)
        ]

    def add(self, x: Tensor) -> None:
        """Shapes: x [m, width] float32"""
        for index, strip in enumerate(self._strips):
            behind = x[:, index * STRIP :]
            strip.addmm_(behind[:, : len(strip)].T, behind)

    def divide(self, by: float | Tensor) -> None:
        """As if the inputs' products had been so much smaller; a Tensor: as if each input had. Shapes: by [width]"""
        for index, strip in enumerate(self._strips):
            if isinstance(by, Tensor):
                behind = by[index * STRIP :]
                strip.div_(behind).div_(behind[: len(strip)].unsqueeze(1))
            else:
                strip.div_(by)

    def squares(self) -> Tensor:
        """Of each input with itself -> [width]"""
        return torch.cat([strip.diagonal() for strip in self._strips])

    def whole(self) -> Tensor:
        """-> [width, width]"""
        out = torch.empty(self.width, self.width, device=self._strips[0].device)
        for index, strip in enumerate(self._strips):
            first, end = index * STRIP, index * STRIP + len(strip)
            out[first:end, first:] = strip
            out[end:, first:end] = strip[:, len(strip) :].T
        return out
