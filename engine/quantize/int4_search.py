"""Four-bit weights that look at activations: inputs scaled before rounding, and ranges cut where that costs least.

Scaling: an input that is large on average gets a larger share of its group's range. The matrix is multiplied by s and
whatever makes the input is divided by it, s being the mean size of the input to a power that is searched.
Cutting: of several ranges for a group the one with the least error is kept, each input's error being weighed by the
mean square of what multiplies it.
Source: AWQ (MLSys'24) for the scaling; the weighing is that of importance matrices
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor, stack_coded
from engine.quantize.products import Products

POWERS = tuple(step / 8 for step in range(9))
CUTS = tuple(1.0 - 0.05 * step for step in range(8))
SMALLEST = 1e-12
SAMPLE_ROWS = 128
DEVICE_TILE_NUMBERS = 1 << 22  # rounded at once
THREAD_TILE_NUMBERS = 1 << 16  # ... on a host by each thread: what is on its way stays in a core's cache
TOGETHER = 2048  # inputs whose products are kept; columns make up for others among so many


@dataclass(slots=True)
class InputSample:
    """What was seen of one input, where it was seen. Shapes: rows [m, K], mean_size [K]; float32"""

    rows: Tensor
    mean_size: Tensor
    moments: list[Products]  # mean products of neighbouring inputs, K in all: of all pairs they would outgrow a layer

    @property
    def mean_square(self) -> Tensor:
        return torch.cat([part.squares() for part in self.moments])

    def divide(self, scale: Tensor) -> None:
        """Make it the sample of the input divided by scale. Shapes: scale [K]. Mutates: itself"""
        scales: Sequence[Tensor] = scale.split_with_sizes([part.width for part in self.moments])
        for part, own in zip(self.moments, scales, strict=True):
            part.divide(own)
        self.rows = self.rows / scale
        self.mean_size = self.mean_size / scale


class RunningSample:
    """Means over all rows of an input that is seen piece after piece, and some rows spread evenly over them.

    Owner: who is shown the pieces
    """

    def __init__(self, total_rows: int, kept_rows: int = SAMPLE_ROWS) -> None:
        self._kept = torch.linspace(0, total_rows - 1, min(kept_rows, total_rows)).round().to(torch.int64)
        self._seen = 0
        self._rows: list[Tensor] = []
        self._sizes: Tensor | None = None
        self._moments: list[Products] = []

    def add(self, x: Tensor) -> None:
        """Shapes: x [m, K]"""
        wide = x.to(torch.float32)
        at = self._kept[(self._kept >= self._seen) & (self._kept < self._seen + len(x))] - self._seen
        self._rows.append(wide[at.to(x.device)])
        self._seen += len(x)
        sizes = wide.abs().sum(dim=0)
        parts: Sequence[Tensor] = wide.split(TOGETHER, dim=1)  # type: ignore[no-untyped-call]
        if self._sizes is None:
            self._moments = [Products(part.shape[1], x.device) for part in parts]
        self._sizes = sizes if self._sizes is None else self._sizes + sizes
        for moments, part in zip(self._moments, parts, strict=True):
            moments.add(part)

    def found(self) -> InputSample:
        """What was seen, which is the caller's then: nothing is seen afterwards."""
        assert self._sizes is not None
        for part in self._moments:
            part.divide(self._seen)
        return InputSample(torch.cat(self._rows), self._sizes / self._seen, self._moments)


def sample_of(x: Tensor, rows: int = SAMPLE_ROWS) -> InputSample:
    """Shapes: x [M, K]"""
    running = RunningSample(len(x), rows)
    running.add(x)
    return running.found()


def best_scale(tiles: Iterable[Tensor], sample: InputSample, group: int) -> Tensor:
    """What to multiply the columns of matrices with one input by, so that their outputs change least.

    tiles: some rows of the matrices after others, each let go of before the next is asked for
    Shapes: tiles [n, K] float32 -> [K] float32; ones where no scaling is better
    """
    size = sample.mean_size.clamp_min(SMALLEST)
    scales = [_balanced(size.pow(power)) for power in POWERS]
    errors = [0.0] * len(scales)
    for tile in tiles:
        for index, scale in enumerate(scales):
            lost = rounded_int4(tile * scale, group).dequantize().div_(scale).sub_(tile)
            errors[index] += float((sample.rows @ lost.T).square_().sum(dtype=torch.float64))
        del tile
    best, least = torch.ones_like(size), float("inf")
    for scale, error in zip(scales, errors, strict=True):
        if error < least:
            best, least = scale, error
    return best


def _balanced(scale: Tensor) -> Tensor:
    return (scale / (scale.amax() * scale.amin()).sqrt()).clamp(1e-4, 1e4)


def rounded_int4(matrix: Tensor, group: int, weights: Tensor | None = None) -> CodedTensor:
    """Four bits between the least and the largest of each group; with weights, between what costs least.

    Shapes: matrix [N, K] float32; weights [K], of squared errors of each column -> (N, K)
    """
    tiles = matrix.split(tile_rows(matrix.shape[1], matrix.device))  # type: ignore[no-untyped-call]
    return stack_coded([_rounded_rows(tile, group, weights) for tile in tiles])


def tile_rows(columns: int, device: torch.device) -> int:
    """How many rows of a matrix are rounded at once."""
    on_host = min(THREAD_TILE_NUMBERS * torch.get_num_threads(), DEVICE_TILE_NUMBERS)
    return max(1, (on_host if device.type == "cpu" else DEVICE_TILE_NUMBERS) // columns)


def _rounded_rows(matrix: Tensor, group: int, weights: Tensor | None) -> CodedTensor:
    rows, columns = matrix.shape
    blocks = matrix.view(rows, -1, group)
    importance = None if weights is None else weights.view(1, -1, group)
    least, most = blocks.amin(dim=-1).clamp_max(0.0), blocks.amax(dim=-1).clamp_min(0.0)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    best_error: Tensor | None = None
    for cut in CUTS if importance is not None else (1.0,):
        codes, scales, zeros = _codes(blocks, least * cut, most * cut)
        if importance is None:
            best = (codes, scales, zeros)
            break
        wide = (codes - zeros.unsqueeze(-1)) * scales.to(torch.float32).unsqueeze(-1)
        error = ((blocks - wide).square() * importance).sum(dim=-1)
        if best is None or best_error is None:
            best, best_error = (codes, scales, zeros), error
            continue
        better = error < best_error
        best = (
            torch.where(better.unsqueeze(-1), codes, best[0]),
            torch.where(better, scales, best[1]),
            torch.where(better, zeros, best[2]),
        )
        best_error = torch.minimum(error, best_error)
    assert best is not None
    flat = best[0].to(torch.uint8).view(rows, columns)
    packed = flat[:, 0::2] | (flat[:, 1::2] << 4)
    return CodedTensor("int4", (rows, columns), packed, best[1], zeros=best[2].to(torch.uint8))


def _codes(blocks: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shapes: blocks [N, G, g]; least, most [N, G] -> codes [N, G, g] float32, scales [N, G] float16, zeros [N, G]"""
    scales = ((most - least).clamp_min(SMALLEST) / 15.0).to(torch.float16).clamp_min(2.0**-24)
    steps = scales.to(torch.float32)
    zeros = (-least / steps).round().clamp(0, 15)
    codes = ((blocks / steps.unsqueeze(-1)).round() + zeros.unsqueeze(-1)).clamp(0, 15)
    return codes, scales, zeros
