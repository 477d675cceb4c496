"""Random weights in place of a checkpoint's bytes: made on the device, or written once for a host that maps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from bench.shapes import Config, tensors_of
from engine.devices.uploader import Stored
from engine.models import loading, rounding
from engine.models.checkpoint import MappedCheckpoint, Progress
from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import encode
from engine.spec.model_spec import ModelSpec
from engine.spec.tensor_table import Role, tensor_table

DRAWN = 1 << 24  # numbers; more are the same ones from elsewhere on
STANDARD_DEVIATION = 0.02  # keeps activations in range through any number of normalised layers


class RandomCheckpoint(MappedCheckpoint):
    """Looks like a mapped checkpoint of plain bf16 tensors to the loader."""

    def __init__(self, spec: ModelSpec, progress: Progress, device: torch.device) -> None:
        self.table = tensor_table(spec)
        self.total_bytes = sum(info.size_bytes for info in self.table.values())
        self.done_bytes = 0
        self._progress = progress
        self._pending_bytes = 0
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def matrix(self, name: str, layer: int | None = None) -> Tensor:
        info = self.table[name, layer]
        self._pending_bytes += info.size_bytes
        if len(info.shape) == 1:
            return torch.ones(info.shape, dtype=torch.bfloat16, device=self._device)
        values = torch.empty(info.shape, dtype=torch.bfloat16, device=self._device)
        return values.normal_(0.0, STANDARD_DEVIATION, generator=self._generator)

    def coming(self) -> Iterator[list[Stored]]:
        return iter(())  # they are made where they are wanted

    def together(self, roles: Sequence[str], layer: int) -> None:
        return None

    def release(self) -> None:
        self.done_bytes += self._pending_bytes
        self._pending_bytes = 0
        self._progress(self.done_bytes, self.total_bytes)

    def __contains__(self, role: Role) -> bool:
        return role in self.table


def fill_shape(folder: Path, config: Config) -> None:
    """Put numbers behind the header that bench.shapes.write_shape wrote. Blocks: while gigabytes are written.

    A load from there has a checkpoint's memory: pages of a file, which go again, not numbers made in its own.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(DRAWN, dtype=torch.bfloat16).normal_(0.0, STANDARD_DEVIATION, generator=generator)
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        for _, shape in tensors_of(config):
            left = prod(shape)
            numbers = torch.ones(left, dtype=torch.bfloat16) if len(shape) == 1 else drawn
            while left > 0:
                start = int(torch.randint(DRAWN // 2, (1,), generator=generator)) if len(shape) > 1 else 0
                part = numbers[start : start + left]
                file.write(part.view(torch.uint8).numpy().tobytes())
                left -= len(part)


@contextmanager
def random_weights(device: torch.device) -> Iterator[None]:
    """Within it, whatever load_model loads has random weights."""

    def make(spec: ModelSpec, progress: Progress) -> RandomCheckpoint:
        return RandomCheckpoint(spec, progress, device)

    with patch.object(loading, "MappedCheckpoint", make):
        yield


@contextmanager
def mxfp4() -> Iterator[None]:
    """Within it, what is rounded to FP4 has powers of two as multipliers of 32 numbers, as MXFP4 checkpoints have."""

    def made(wide: Tensor, kind: str, group: int | None = None, *, asymmetric: bool = False) -> CodedTensor:
        return encode(wide, "fp4_mx" if kind == "fp4_nv" else kind, group, asymmetric=asymmetric)

    with patch.object(rounding, "encode", made):
        yield
