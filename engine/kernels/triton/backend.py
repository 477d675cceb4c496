"""The Triton kernels as implementations of the registry's ops. Imports anywhere; what is missing is a reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable

from engine.kernels.registry import Deferred, Implementation, OpQuery

PRIORITY = 50
PLAIN_KINDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# Kinds of weights that coded.py splits: of CodedTensor (lower case) and of QuantTensor.
CODED_KINDS = (
    "fp8",
    "int8",
    "int8_mixed",
    "int4",
    "fp4_nv",
    "fp4_mx",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "MXFP4",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q5_0",
    "Q5_1",
    "IQ4_NL",
    "IQ4_XS",
)
GPU_DEVICES = ("cuda", "xpu", "npu", "musa", "mlu", "gcu")


def implementations() -> Iterable[Implementation]:
    if importlib.util.find_spec("triton") is None:
        return

    def on_gpu(query: OpQuery) -> str | None:
        if query.device not in GPU_DEVICES:
            return f"triton kernels need an accelerator, not {query.device}"
        if "triton" not in query.capabilities:
            return f"this {query.device} device has no triton"
        return None

    def for_pages(query: OpQuery) -> str | None:
        if query.head_dim > 256:
            return f"head_dim is {query.head_dim}; the kernel holds up to 256"
        return on_gpu(query)

    def for_plain_weights(query: OpQuery) -> str | None:
        if query.weight_kind not in PLAIN_KINDS or PLAIN_KINDS[query.weight_kind] != query.dtype:
            return f"{query.weight_kind} weights with {query.dtype} activations"
        return on_gpu(query)

    def for_codes(query: OpQuery) -> str | None:
        if query.weight_kind not in CODED_KINDS:
            return f"{query.weight_kind} weights have no decoder in registers"
        return on_gpu(query)

    def for_coded_experts(query: OpQuery) -> str | None:
        other = next(
            (k for k in (query.weight_kind, query.down_kind) if k not in CODED_KINDS or k == "int8_mixed"), None
        )
        return on_gpu(query) if other is None else f"experts of {other} weights have no decoder in tiles"

    def for_fp8(query: OpQuery) -> str | None:
        if query.weight_kind != "fp8" or query.activation != "fp8" or query.dtype == "float32":
            return f"{query.weight_kind} weights with {query.activation} activations in {query.dtype}"
        return on_gpu(query) or (None if "fp8" in query.capabilities else "this device multiplies no fp8")

    def for_fp4(query: OpQuery) -> str | None:
        if query.weight_kind not in ("fp4_mx", "MXFP4") or query.activation != "fp8":
            return f"{query.weight_kind} weights with {query.activation} activations"
        if query.dtype == "float32":
            return "float32 activations are not rounded"
        return on_gpu(query) or (None if "fp8" in query.capabilities else "this device multiplies no fp8")

    def for_int8(query: OpQuery) -> str | None:
        if query.weight_kind not in ("int8", "int8_mixed") or query.activation != "int8":
            return f"{query.weight_kind} weights with {query.activation} activations"
        return on_gpu(query)

    def offer(op: str, requires: Callable[[OpQuery], str | None], module: str) -> Implementation:
        return Implementation(op, "triton", PRIORITY, requires, Deferred(f"engine.kernels.triton.{module}", op))

    yield offer("rms_norm", on_gpu, "norms")
    yield offer("add_rms_norm", on_gpu, "norms")
    yield offer("silu_mul", on_gpu, "norms")
    yield offer("rope", on_gpu, "rope_kv")
    yield offer("kv_write", for_pages, "rope_kv")
    yield offer("rope_kv_write", for_pages, "rope_kv")
    yield offer("pick_greedy", on_gpu, "greedy")
    yield offer("draw_tokens", on_gpu, "choose")
    yield offer("newest_tokens", on_gpu, "tokens")
    yield offer("keep_tokens", on_gpu, "tokens")
    run, pack = (Deferred("engine.kernels.triton.gemv", name) for name in ("linear", "pack"))
    padded = Deferred("engine.kernels.triton.padded_rows", "PADDED")
    detail = "few rows; else the library's"
    yield Implementation("linear", "triton", PRIORITY, for_plain_weights, run, pack, detail, codes=padded)
    quantised = (
        ("triton-codes", PRIORITY, for_codes, "quant_linear", "linear", "decoded in registers", "few_codes.CODES"),
        ("triton-fp8", PRIORITY + 1, for_fp8, "coded_rows", "linear_fp8", "fp8 activations", "coded_rows.FP8"),
        ("triton-int8", PRIORITY + 1, for_int8, "coded_rows", "linear_int8", "int8 activations", "coded_rows.INT8"),
        (
            "triton-fp4", PRIORITY + 1, for_fp4, "coded_rows", "linear_fp4",
            "fp8 activations, made E4M3 in registers for many rows", "coded_rows.FP4",
        ),
    )  # fmt: skip
    pack = Deferred("engine.kernels.triton.quant_linear", "pack")
    for name, priority, requires, module, function, detail, coded in quantised:
        run = Deferred(f"engine.kernels.triton.{module}", function)
        place, input_name = coded.split(".")
        codes = Deferred(f"engine.kernels.triton.{place}", input_name)
        yield Implementation("linear", name, priority, requires, run, pack, detail, codes=codes)
    yield offer("route", on_gpu, "route")
    yield offer("gelu_mul", on_gpu, "norms")
    run, pack = (Deferred("engine.kernels.triton.experts", name) for name in ("experts", "pack"))
    yield Implementation("experts", "triton", PRIORITY, for_plain_weights, run, pack, "grouped")
    run, pack = (Deferred("engine.kernels.triton.quant_experts", name) for name in ("experts", "pack"))
    yield Implementation("experts", "triton-codes", PRIORITY, for_coded_experts, run, pack, "grouped, decoded in tiles")
    yield offer("latent_write", on_gpu, "latent")
    yield offer("paged_latent_attention", on_gpu, "latent")
    yield offer("paged_attention", for_pages, "attention")
