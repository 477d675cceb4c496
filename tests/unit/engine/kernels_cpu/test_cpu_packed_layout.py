"""What packed matrices look like: files of them outlive the code that wrote them."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from engine.ggml_types import TYPE_BY_NAME
from engine.kernels.cpu import abi, weights
from engine.kernels.cpu.packed_file import LAYOUT_VERSION
from engine.quant.quant_tensor import QuantTensor

ROWS, COLUMNS = 21, 512
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KNOWN = (1, "f284f9b9504fb1c481c47ef7f7298933")  # the version, and the digest of each kind's packed form


def pattern(kind: str) -> QuantTensor | Tensor:
    """The same bytes on every machine."""
    width = TYPE_BY_NAME[kind].row_bytes(COLUMNS)
    numbers = np.arange(ROWS * width, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(13)
    data = torch.from_numpy((numbers & np.uint64(255)).astype(np.uint8)).view(ROWS, width)
    return data.view(DTYPES[kind]) if kind in DTYPES else QuantTensor(kind, data, (ROWS, COLUMNS))


def test_packed_form_is_that_of_its_version() -> None:
    digest = hashlib.sha256()
    for kind in abi.KINDS:
        digest.update(weights.pack(pattern(kind)).data.numpy().tobytes())
    found = (LAYOUT_VERSION, digest.hexdigest()[:32])
    assert found == KNOWN, "raise LAYOUT_VERSION unless a kind was added; then put the new digest here"
