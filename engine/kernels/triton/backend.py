"""The Triton kernels as implementations of the registry's ops. Imports anywhere; what is missing is a reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable

from engine.kernels.registry import Deferred, Implementation, OpQuery

PRIORITY = 50
PLAIN_KINDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
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

    def offer(op: str, requires: Callable[[OpQuery], str | None], module: str) -> Implementation:
        return Implementation(op, "triton", PRIORITY, requires, Deferred(f"engine.kernels.triton.{module}", op))

    yield offer("rms_norm", on_gpu, "norms")
    yield offer("add_rms_norm", on_gpu, "norms")
    yield offer("silu_mul", on_gpu, "norms")
    yield offer("rope", on_gpu, "rope_kv")
    yield offer("kv_write", for_pages, "rope_kv")
    yield offer("rope_kv_write", for_pages, "rope_kv")
    yield offer("pick_greedy", on_gpu, "greedy")
    yield offer("choose_tokens", on_gpu, "choose")
    run, pack = (Deferred("engine.kernels.triton.gemv", name) for name in ("linear", "pack"))
    yield Implementation("linear", "triton", PRIORITY, for_plain_weights, run, pack, "few rows; else the library's")
    yield offer("route", on_gpu, "route")
    yield offer("gelu_mul", on_gpu, "norms")
    run, pack = (Deferred("engine.kernels.triton.experts", name) for name in ("experts", "pack"))
    yield Implementation("experts", "triton", PRIORITY, for_plain_weights, run, pack, "grouped")
    yield offer("latent_write", on_gpu, "latent")
    yield offer("paged_latent_attention", on_gpu, "latent")
    yield offer("paged_attention", for_pages, "attention")
