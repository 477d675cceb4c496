"""Which inputs grow large: a set of columns for each input of each layer, learnt from one run over a text.

The columns of activations that hold outliers stay the same whatever is said, so a few hundred tokens show them.
Source: the predictor of MixQ (SC'24), whose threshold of 6 is for activations of about unit size; ours is relative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.rounding import OutlierSet

OUTLIER_COLUMNS = 128
THRESHOLD = 6.0  # times the root mean square of an input's numbers


class RunningOutliers:
    """How large an input grows that is seen piece after piece. Owner: who is shown the pieces."""

    def __init__(self) -> None:
        self._seen = 0
        self._largest: Tensor | None = None
        self._mean_square = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Shapes: x [m, K]"""
        wide = x.to(torch.float32)
        largest, mean_square = wide.abs().amax(dim=0), wide.square().mean()
        if self._largest is None:
            self._largest, self._mean_square = largest, mean_square
        else:
            share = len(x) / (self._seen + len(x))
            self._largest = torch.maximum(self._largest, largest)
            self._mean_square = self._mean_square * (1.0 - share) + mean_square * share
        self._seen += len(x)

    def found(self, threshold: float = THRESHOLD, most: int = OUTLIER_COLUMNS) -> OutlierSet:
        """The set on the host. threshold: times the input's usual size"""
        assert self._largest is not None
        limit = threshold * float(self._mean_square.sqrt())
        chosen = torch.argsort(self._largest, descending=True, stable=True)[:most]
        columns = chosen[self._largest[chosen] > limit].sort().values.to(device="cpu", dtype=torch.int64)
        return OutlierSet(columns, limit)


def outlying(x: Tensor, threshold: float = THRESHOLD, most: int = OUTLIER_COLUMNS) -> OutlierSet:
    """Of an input that is there whole. Shapes: x [M, K]"""
    running = RunningOutliers()
    running.add(x)
    return running.found(threshold, most)
