"""What the tests of the CPU library share: its instruction sets, and weights of any kind with their true numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from engine.ggml_types import TYPE_BY_NAME
from engine.kernels.cpu import library
from engine.quant.quant_tensor import QuantTensor

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SCALES_AT = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2)}


@pytest.fixture(autouse=True)
def cpu_library() -> Iterator[None]:
    """Skips, with the reason, where there is no library; puts threads and instruction set back afterwards."""
    reason = library.absent_reason()
    if reason is not None:
        pytest.skip(reason)
    before = library.isa()
    yield
    library.set_isa(before)


@dataclass(frozen=True)
class RandomWeight:
    stored: QuantTensor | torch.Tensor
    numbers: torch.Tensor  # [N, K] float64


def make_random_weight(kind: str, rows: int, columns: int, seed: int = 0) -> RandomWeight:
    """Any bytes are a weight: only the scales are kept to sizes that occur."""
    g = torch.Generator().manual_seed(seed)
    if kind in FLOATS:
        plain = (torch.randn(rows, columns, generator=g) * 0.1).to(FLOATS[kind])
        return RandomWeight(plain, plain.to(torch.float64))
    stored = TYPE_BY_NAME[kind]
    data = torch.randint(0, 256, (rows, stored.row_bytes(columns)), dtype=torch.uint8, generator=g)
    if kind == "I8_ROW":
        scales = torch.randn(rows, 1, generator=g) * 0.01
        data[:, :4] = scales.view(torch.uint8)
        numbers = scales * data[:, 4:].view(torch.int8)
        return RandomWeight(QuantTensor(kind, data, (rows, columns)), numbers.double())
    blocks = data.view(rows, -1, stored.block_bytes)
    count = blocks.shape[1]
    if stored.block_elements == 128:
        head = stored.block_bytes - 64
        heads = torch.randn(rows, count, head // 4, generator=g) * 0.02
        blocks[:, :, :head] = heads.view(torch.uint8)
        pairs = blocks[:, :, head:].reshape(rows, count, 4, 16)
        codes = torch.cat((pairs & 15, pairs >> 4), dim=-1).reshape(rows, count, 128).double()
        scale, offset = heads[..., :1].double(), heads[..., 1:].double()
        numbers = codes * scale + offset if head == 8 else (codes - 8) * scale
        return RandomWeight(QuantTensor(kind, data, (rows, columns)), numbers.reshape(rows, columns).float().double())
    if kind == "MXFP4":
        blocks[:, :, 0] = torch.randint(118, 132, (rows, count), dtype=torch.uint8, generator=g)
    for at in (208,) if kind == "Q6_K" else SCALES_AT.get(kind, ()):
        scales = (torch.randn(rows, count, 1, generator=g) * 0.02).to(torch.float16)
        blocks[:, :, at : at + 2] = scales.view(torch.uint8)
    numbers = dequantize(data.numpy(), GGMLQuantizationType[kind]).astype(np.float64)
    return RandomWeight(QuantTensor(kind, data, (rows, columns)), torch.from_numpy(numbers))


@pytest.fixture
def each_isa() -> Callable[[], Iterator[str]]:
    """Call to go through the instruction sets of this machine, each in force while it is the current one."""

    def go() -> Iterator[str]:
        for name in library.available_isas():
            library.set_isa(name)
            yield name

    return go


@pytest.fixture
def random_weight() -> Callable[..., RandomWeight]:
    """Call with kind, rows, columns."""
    return make_random_weight
