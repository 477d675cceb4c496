"""Codes beside scales as the tensors and the configuration of a compressed-tensors checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.spec.precision import WeightPrecision

GROUPED = (WeightPrecision.FP8, WeightPrecision.INT4)  # the others have a multiplier a row
PER_WORD = 8  # four-bit codes in a word
FORMATS = {
    WeightPrecision.FP8: "float-quantized",
    WeightPrecision.INT8: "int-quantized",
    WeightPrecision.INT8_MIXED: "int-quantized",
    WeightPrecision.INT4: "pack-quantized",
}


def stored_parts(weight: CodedTensor, outlying: Tensor) -> dict[str, Tensor]:
    """Tensors by suffix. outlying: columns before rounding, of those that are kept in 16 bits beside

    Shapes: outlying [N, k]
    """
    if weight.kind == "fp8":
        return {"weight": weight.codes.view(torch.float8_e4m3fn), "weight_scale": weight.scales}
    if weight.kind == "int8":
        found = {"weight": weight.codes, "weight_scale": weight.scales}
        if weight.outliers is not None and len(weight.outliers.columns):
            # Readers that know no outlier columns find those columns rounded like all others.
            at = weight.outliers.columns.to(torch.int64)
            rounded = (outlying / weight.scales).round().clamp(-127, 127).to(torch.int8)
            found["weight"] = weight.codes.index_copy(1, at, rounded)
            found["outlier_columns"] = weight.outliers.columns.to(torch.int32)
            found["outlier_weight"] = weight.outliers.weights
            found["outlier_threshold"] = torch.tensor([weight.outliers.threshold], dtype=torch.float32)
        return found
    assert weight.kind == "int4", weight.kind
    zeros = torch.full(weight.scales.shape, 8, dtype=torch.uint8) if weight.zeros is None else weight.zeros
    return {
        "weight_packed": weight.codes.contiguous().view(torch.int32),
        "weight_scale": weight.scales,
        "weight_zero_point": _words_along_rows(zeros),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }


def _words_along_rows(codes: Tensor) -> Tensor:
    """Shapes: [N, G] uint8 below 16 -> [N / 8, G] int32, rounded up"""
    rows, groups = codes.shape
    padded = torch.zeros(-(-rows // PER_WORD) * PER_WORD, groups, dtype=torch.uint8)
    padded[:rows] = codes
    pairs = padded.view(-1, PER_WORD // 2, 2, groups)
    held = pairs[:, :, 0] | (pairs[:, :, 1] << 4)  # [words, 4 bytes, G]
    return held.permute(0, 2, 1).reshape(-1).contiguous().view(torch.int32).view(-1, groups)


def quantisation_config(
    precision: WeightPrecision, group: int, ignored: list[str], cache: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What config.json says of such a checkpoint.

    group: neighbours with one multiplier; 0: a row. cache: what it says of the multipliers of a KV cache
    """
    if precision is WeightPrecision.STORED:
        return {
            "quant_method": "compressed-tensors",
            "format": "dense",
            "quantization_status": "frozen",
            "global_compression_ratio": None,
            "kv_cache_scheme": cache,
            "config_groups": {},
            "ignore": [],
        }
    of_int4 = precision is WeightPrecision.INT4
    grouped = group > 0 and precision in GROUPED
    is_float = precision is WeightPrecision.FP8
    weights: dict[str, Any] = {
        "num_bits": 4 if of_int4 else 8,
        "type": "float" if is_float else "int",
        "symmetric": not of_int4,
        "strategy": "group" if grouped else "channel",
        "group_size": group if grouped else None,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    activations: dict[str, Any] | None = None
    if not of_int4:
        activations = {
            "num_bits": 8,
            "type": "float" if is_float else "int",
            "symmetric": True,
            "strategy": "token",
            "group_size": None,
            "dynamic": True,
            "actorder": None,
            "block_structure": None,
            "observer": None,
            "observer_kwargs": {},
        }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMATS[precision],
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": cache,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
                "output_activations": None,
            }
        },
        "ignore": ignored,
    }
