"""Rounding: what a checkpoint's matrices are made into on their way to the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.kernels.cpu import library as cpu_library
from engine.layers.weight import Weight, device_of, stack_rows
from engine.quant.coded_tensor import OUTLIER_SIZE, CodedTensor
from engine.quant.encode import encode, encode_mixed
from engine.quant.gguf_encode import q4_1, q8_0
from engine.spec.precision import HEADS, WeightPrecision, is_rounded

TILE_ELEMENTS = 1 << 26  # rounded at once on an accelerator: 256 MiB of float32
HOST_TILE_ELEMENTS = 1 << 20  # ... and where memory for copies is a worker's peak: 4 MiB, near the caches
GROUPS = (128, 64, 32, 16)
GGUF_BLOCK = 32
NOWHERE = torch.empty(0, dtype=torch.int64)

# Projections of one input -> what their input is called. Only these may have outliers: a set belongs to an input.
INPUT_OF = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_q_a", "attn_kv_a"), "attn_in"),
    "attn_q_b": "attn_q_latent",
    "attn_o": "attn_out",
    **dict.fromkeys(("mlp_gate", "mlp_up", "mlp_gate_up", "shared_gate", "shared_up"), "mlp_in"),
    **dict.fromkeys(("experts_gate", "experts_up", "experts_gate_up"), "mlp_in"),
    "mlp_down": "mlp_inner",
    "shared_down": "shared_inner",
    "experts_down": "experts_inner",
}


@dataclass(frozen=True, slots=True, eq=False)
class OutlierSet:
    """What is known of one input. Shapes: columns [k] int64, ascending"""

    columns: Tensor
    threshold: float = OUTLIER_SIZE  # from where a number of this input is an outlier


NO_OUTLIERS = OutlierSet(NOWHERE)
InputOutliers = Mapping[tuple[int, str], OutlierSet]  # by layer and input


def input_of(role: str) -> str:
    return INPUT_OF[role.partition(".")[0]]


@dataclass(frozen=True, slots=True)
class Rounding:
    """Two loads with the same one give the same bytes. Rows are rounded by themselves, so ranks agree too."""

    precision: WeightPrecision
    outliers: InputOutliers = field(default_factory=dict)  # of INT8_MIXED; an input that is not there has none
    group: int = 0  # of FP8: neighbours with one multiplier; 0: a row

    def takes(self, role: str, layer: int | None) -> bool:
        return self.precision is not WeightPrecision.STORED and layer is not None and is_rounded(role)

    def made(self, weight: Weight, role: str, layer: int) -> Weight:
        """The same matrix in this precision, on its device."""
        rows, columns = weight.shape
        on_cpu = device_of(weight).type == "cpu"
        step = max(1, (HOST_TILE_ELEMENTS if on_cpu else TILE_ELEMENTS) // columns)
        parts = []
        for start in range(0, rows, step):
            tile = slice(start, start + step)
            wide = weight[tile].to(torch.float32) if isinstance(weight, Tensor) else weight.dequantize(tile)
            parts.append(self._tile(wide, role, layer, on_cpu))
        return stack_rows(parts)

    def head(self, weight: Weight) -> Weight:
        """The head, which is no embedding table, for exact activations on an accelerator."""
        wanted = HEADS.get(self.precision)
        return weight if wanted is None else replace(self, precision=wanted).made(weight, "lm_head", 0)

    def _tile(self, wide: Tensor, role: str, layer: int, on_cpu: bool) -> Weight:
        columns = wide.shape[1]
        if on_cpu and cpu_library.absent_reason() is None and columns % GGUF_BLOCK == 0:
            # The kinds that the CPU's own kernels read, which are as many bits and finer groups.
            if self.precision is WeightPrecision.INT8:
                return q8_0(wide)
            if self.precision is WeightPrecision.INT4:
                return q4_1(wide)
        return self.coded(wide, role, layer)

    def coded(self, wide: Tensor, role: str, layer: int) -> CodedTensor:
        """Codes beside scales, wherever they are. Shapes: wide [N, K], of any float type"""
        columns = wide.shape[1]
        match self.precision:
            case WeightPrecision.INT8_MIXED:
                known = self.outliers.get((layer, input_of(role)), NO_OUTLIERS)
                return encode_mixed(wide, known.columns.to(wide.device), threshold=known.threshold)
            case WeightPrecision.INT4:
                group = next((size for size in GROUPS if columns % size == 0), columns)
                return encode(wide, "int4", group, asymmetric=True)
            case WeightPrecision.FP8 if self.group and columns % self.group == 0:
                return encode(wide, "fp8", self.group)
            case WeightPrecision.FP4:
                return encode(wide, "fp4_nv")
        return encode(wide, str(self.precision))
