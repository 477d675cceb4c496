"""Experts over libbayard_cpu: each one's rows together, so that its weights are read once a step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.kernels.cpu import abi
from engine.kernels.cpu.library import check, load
from engine.kernels.cpu.memory import huge_memory
from engine.kernels.cpu.weights import kind_of, packed_bytes, source_rows
from engine.quant.coded_tensor import CodedTensor
from engine.quant.expert_stack import ExpertStack

GATES = {"silu": abi.SILU_MUL, "gelu_tanh": abi.GELU_MUL, "swiglu_clamped": abi.SWIGLU_CLAMPED}


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """Shapes: data [experts * bytes of one] uint8; shape is (N, K) of one expert. Owns its bytes."""

    kind: str
    num_experts: int
    shape: tuple[int, int]
    data: Tensor

    @property
    def num_bytes(self) -> int:
        return self.data.numel()


def pack_experts(stack: ExpertStack) -> PackedExperts:
    """Repack each expert's matrix; the source may be dropped afterwards. Raises: UnsupportedFormat."""
    assert not isinstance(stack.weight, CodedTensor), "codes beside scales are not offered these kernels"
    kind = kind_of(stack.weight)
    number = abi.KINDS.index(kind)
    rows, columns = stack.rows, stack.columns
    each = packed_bytes(kind, rows, columns)
    packed = huge_memory(stack.num_experts * each)
    for expert in range(stack.num_experts):
        matrix = stack.of(expert)
        assert not isinstance(matrix, CodedTensor)
        data, stride_bytes = source_rows(matrix)
        to = packed.data_ptr() + expert * each
        code = load().bayard_pack(number, data.data_ptr(), stride_bytes, rows, columns, to)
        check(code, f"packing expert {expert}, {kind} {rows} x {columns}")
    return PackedExperts(kind, stack.num_experts, (rows, columns), packed)


def experts_exact(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """The weighted sum of each token's experts, in float32 throughout."""
    return _experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias, activation, abi.EXACT)


def experts_int8(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """As experts_exact, with each 32 activations rounded to 8 bits of their largest."""
    return _experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias, activation, abi.INT8)


def _experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
    mode: int,
) -> Tensor:
    if activation not in GATES:
        raise UnsupportedFormat(f"CPU kernels know the gates {', '.join(GATES)}; these experts have {activation}.")
    rows = x.to(torch.float32).contiguous()
    chosen, shares = ids.to(torch.int32).contiguous(), weights.to(torch.float32).contiguous()
    first = None if gate_up_bias is None else gate_up_bias.to(torch.float32).contiguous()
    second = None if down_bias is None else down_bias.to(torch.float32).contiguous()
    assert gate_up.shape == (2 * down.shape[1], down.shape[0]), (gate_up.shape, down.shape)
    op = abi.Experts(
        gate_up=gate_up.data.data_ptr(),
        down=down.data.data_ptr(),
        gate_up_bias=None if first is None else first.data_ptr(),
        down_bias=None if second is None else second.data_ptr(),
        experts=gate_up.num_experts,
        hidden=down.shape[0],
        inner=down.shape[1],
        gate_up_kind=abi.KINDS.index(gate_up.kind),
        down_kind=abi.KINDS.index(down.kind),
        mode=mode,
        gate=GATES[activation],
    )
    out = torch.empty(rows.shape, dtype=torch.float32)
    code = load().bayard_experts(
        ctypes.byref(op),
        rows.data_ptr(),
        rows.stride(0),
        rows.shape[0],
        chosen.data_ptr(),
        shares.data_ptr(),
        chosen.shape[1],
        out.data_ptr(),
        out.stride(0),
    )
    check(code, f"experts {gate_up.kind} {gate_up.shape}")
    return out
