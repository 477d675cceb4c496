"""Whether the multipliers inside GGUF blocks are numbers: one that is not makes every answer of a model none."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.ggml_types import TYPE_BY_NAME
from engine.quant.coded_tensor import LARGEST_EXPONENT
from engine.quant.quant_tensor import QuantTensor

# Where float16 multipliers lie in a block, in pairs of bytes. Source: the ggml block layouts
HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 1),
    "Q5_0": (0,),
    "Q5_1": (0, 1),
    "Q8_0": (0,),
    "Q2_K": (40, 41),
    "Q3_K": (54,),
    "Q4_K": (0, 1),
    "Q5_K": (0, 1),
    "Q6_K": (104,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
INFINITE = 0x7C00  # of float16, and what is no number has these bits too


def has_bad_multiplier(weight: QuantTensor) -> Tensor:
    """Whether one is no number, on the weight's device: who asks many is not stopped by each. Shapes: [] bool"""
    blocks = weight.data.reshape(-1, TYPE_BY_NAME[weight.kind].block_bytes)
    if weight.kind == "MXFP4":
        return blocks[:, 0].amax() > LARGEST_EXPONENT
    upper = INFINITE >> 8  # the upper byte says it, and stands at any address
    found = torch.zeros((), dtype=torch.bool, device=blocks.device)
    for at in HALVES.get(weight.kind, ()):
        found = found | ((blocks[:, 2 * at + 1] & upper).amax() == upper)
    return found


def refuse_bad_multiplier(name: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{name} holds blocks whose multipliers are not numbers, or beyond those that codes may be multiplied by.",
        "The file is damaged: download it again.",
    )
