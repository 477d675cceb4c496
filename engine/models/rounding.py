"""Rounding: what a checkpoint's matrices are made into on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.kernels.cpu import library as cpu_library
from engine.layers.weight import Weight, device_of, stack_rows
from engine.quant.coded_tensor import OUTLIER_SIZE, CodedTensor
from engine.quant.encode import encode, encode_mixed
from engine.quant.gguf_encode import is_near, q4_1, q8_0
from engine.spec.precision import HEADS, WeightPrecision, held_precision, is_rounded

TILE_ELEMENTS = 1 << 26  # rounded at once on an accelerator: 256 MiB of float32
HOST_TILE_ELEMENTS = 1 << 20  # ... and where memory for copies is a worker's peak: 4 MiB, near the caches
GROUPS = (128, 64, 32, 16)
GGUF_BLOCK = 32
BLOCKS = {WeightPrecision.INT8: q8_0, WeightPrecision.INT4: q4_1}
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
        columns = weight.shape[1]
        on_cpu = device_of(weight).type == "cpu"
        if on_cpu and cpu_library.absent_reason() is None and columns % GGUF_BLOCK == 0:
            found = self._blocks(weight)
            if found is not None:
                return found
        # On a CPU int4 comes here with what float16 cannot multiply; accelerators' kernels read 16 bits faster.
        scales = torch.float32 if on_cpu else torch.float16
        return stack_rows([self.coded(wide, role, layer, scales) for wide in _tiles(weight, on_cpu)])

    def _blocks(self, weight: Weight) -> Weight | None:
        """The kinds that the CPU's own kernels read, which are as many bits and finer groups.

        None: there is none of this precision, or it would lose what is small in the matrix
        """
        encoder = BLOCKS.get(self.precision)
        if encoder is None:
            return None
        parts: list[Weight] = []
        for wide in _tiles(weight, on_cpu=True):
            held = encoder(wide)
            if not is_near(held, wide):
                return None
            parts.append(held)
        return stack_rows(parts)

    def head(self, weight: Weight) -> Weight:
        """The head, which is no embedding table, for exact activations on an accelerator."""
        wanted = HEADS.get(self.precision)
        return weight if wanted is None else replace(self, precision=wanted).made(weight, "lm_head", 0)

    def coded(self, wide: Tensor, role: str, layer: int, scales: torch.dtype = torch.float16) -> CodedTensor:
        """Codes beside scales, wherever they are.

        scales: the type of INT4's multipliers
        Shapes: wide [N, K], of any float type
        """
        columns = wide.shape[1]
        precision = held_precision(self.precision, columns)
        match precision:
            case WeightPrecision.INT8_MIXED:
                known = self.outliers.get((layer, input_of(role)), NO_OUTLIERS)
                return encode_mixed(wide, known.columns.to(wide.device), threshold=known.threshold)
            case WeightPrecision.INT4:
                group = next(size for size in GROUPS if columns % size == 0)
                return encode(wide, "int4", group, asymmetric=True, scales=scales)
            case WeightPrecision.FP8 if self.group and columns % self.group == 0:
                return encode(wide, "fp8", self.group)
            case WeightPrecision.FP4:
                return encode(wide, "fp4_nv")
        return encode(wide, str(precision))


def _tiles(weight: Weight, on_cpu: bool) -> Iterator[Tensor]:
    """Rows decoded, some at a time."""
    rows, columns = weight.shape
    step = max(1, (HOST_TILE_ELEMENTS if on_cpu else TILE_ELEMENTS) // columns)
    for start in range(0, rows, step):
        tile = slice(start, start + step)
        yield weight[tile].to(torch.float32) if isinstance(weight, Tensor) else weight.dequantize(tile)
