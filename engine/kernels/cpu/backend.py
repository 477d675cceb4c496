"""Registers the library's ops: CPU tensors, float32 activations, the weight kinds it packs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.kernels.cpu import abi, ops
from engine.kernels.cpu.experts import GATES, experts_exact, experts_int8, pack_experts
from engine.kernels.cpu.library import absent_reason, has_bf16, isa
from engine.kernels.cpu.weights import keep_rows, pack
from engine.kernels.registry import Implementation, OpQuery

PRIORITY = 100
_KV_DTYPES = ("float32", "float16", "bfloat16", "int8")


def _common(query: OpQuery) -> str | None:
    if query.device != "cpu":
        return f"computes on the CPU; the device is {query.device}"
    if query.dtype != "float32":
        return f"computes in float32; activations are {query.dtype}"
    return absent_reason()


def _weighted(query: OpQuery) -> str | None:
    if query.weight_kind not in abi.KINDS:
        return f"reads {', '.join(abi.KINDS)}; the weight is {query.weight_kind or 'of no named kind'}"
    return _common(query)


def _integer(query: OpQuery) -> str | None:
    if query.activation != "int8":
        return "rounds activations to 8 bits; the profile asks for exact ones"
    if query.weight_kind not in abi.INTEGER_KINDS:
        return f"multiplies whole numbers; {query.weight_kind} weights have none"
    return _weighted(query)


def _rounded(query: OpQuery) -> str | None:
    if query.weight_kind != "BF16":
        return f"multiplies bf16 by bf16; the weight is {query.weight_kind or 'of no named kind'}"
    if query.activation != "int8":
        return "rounds activations to bf16; the profile asks for exact ones"
    reason = _weighted(query)
    if reason is None and not has_bf16():
        return f"needs AMX or AVX512_BF16; this CPU's kernels are {isa()} without"
    return reason


def _experts(query: OpQuery) -> str | None:
    if query.gate not in GATES:
        return f"knows the gates {', '.join(GATES)}; these experts have {query.gate or 'no named one'}"
    if query.down_kind not in abi.KINDS:
        return f"reads {', '.join(abi.KINDS)}; the experts' second matrix is {query.down_kind or 'of no named kind'}"
    return _weighted(query)


def _integer_experts(query: OpQuery) -> str | None:
    if query.activation == "int8" and query.down_kind not in abi.INTEGER_KINDS:
        return f"multiplies whole numbers; {query.down_kind or 'unnamed'} weights have none"
    return _integer(query) or _experts(query)


def _attention(query: OpQuery) -> str | None:
    if query.kv_dtype not in _KV_DTYPES:
        return f"reads a cache of {', '.join(_KV_DTYPES)}; this one is {query.kv_dtype or 'of no named type'}"
    if query.head_dim < 16 or query.head_dim % 16:
        return f"needs head sizes that are multiples of 16; this one is {query.head_dim}"
    return _common(query)


def _cache(query: OpQuery) -> str | None:
    if query.kv_dtype not in _KV_DTYPES:
        return f"writes a cache of {', '.join(_KV_DTYPES)}; this one is {query.kv_dtype or 'of no named type'}"
    return _common(query)


def implementations() -> Iterable[Implementation]:
    """Every op the library has. Raises: ConfigError if BAYARD_CPU_ISA names what cannot run here."""
    detail = isa() if absent_reason() is None else ""

    def plain(op: str, requires: Callable[[OpQuery], str | None], run: Callable[..., Any]) -> Implementation:
        return Implementation(op, "cpu", PRIORITY, requires, run, None, detail)

    yield Implementation("linear", "cpu", PRIORITY, _weighted, ops.linear_exact, pack, detail)
    yield Implementation("linear", "cpu-int8", PRIORITY + 1, _integer, ops.linear_int8, pack, f"{detail}, int8")
    yield Implementation("linear", "cpu-bf16", PRIORITY + 1, _rounded, ops.linear_bf16, pack, f"{detail}, bf16")
    yield Implementation("embedding", "cpu", PRIORITY, _weighted, ops.embedding, keep_rows, detail)
    yield plain("rms_norm", _common, ops.rms_norm)
    yield plain("add_rms_norm", _common, ops.add_rms_norm)
    yield plain("rope", _common, ops.rope)
    yield plain("silu_mul", _common, ops.silu_mul)
    yield plain("gelu_mul", _common, ops.gelu_mul)
    yield plain("pick_greedy", _common, ops.pick_greedy)
    yield plain("choose_tokens", _common, ops.choose_tokens)
    yield Implementation("experts", "cpu", PRIORITY, _experts, experts_exact, pack_experts, detail)
    int8 = f"{detail}, int8"
    yield Implementation("experts", "cpu-int8", PRIORITY + 1, _integer_experts, experts_int8, pack_experts, int8)
    yield plain("kv_write", _cache, ops.kv_write)
    yield plain("paged_attention", _attention, ops.paged_attention)
