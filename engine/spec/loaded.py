"""loaded_spec: a checkpoint's tensors as a worker holds them, for predictions. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from engine.spec.model_spec import ModelSpec, TensorInfo
from engine.spec.precision import HEADS, WeightPrecision, bits_of, held_precision, is_rounded
from engine.spec.quantisation import QuantScheme, Storage
from engine.spec.quantised_tensors import PART
from engine.spec.tensor_table import expected_tensors, tensor_table

PLAIN_ON_CPU = 2  # bytes of a number whose codes no CPU kernel reads: it is held as float16
CPU_KINDS = {WeightPrecision.INT8: ("Q8_0", 34 / 32), WeightPrecision.INT4: ("Q4_1", 20 / 32)}
# Bits a number of GGUF blocks that an accelerator's kernels read put together: codes of four or eight bits, multipliers
# and zero points of float32 where 16 bits would round them. See engine.kernels.triton.gguf_codes
DEVICE_BITS = {
    "Q4_1": 4 + 48 / 32,
    "Q5_0": 8 + 16 / 32,
    "Q5_1": 8 + 48 / 32,
    "Q2_K": 4 + 64 / 16,
    "Q3_K": 4 + 32 / 16,
    "Q4_K": 4 + 64 / 32,
    "Q5_K": 8 + 64 / 32,
    "Q6_K": 8 + 32 / 16,
    "IQ4_NL": 8 + 16 / 32,
    "IQ4_XS": 8 + 32 / 32,
}
KINDS = {
    WeightPrecision.FP8: "fp8",
    WeightPrecision.INT8: "int8",
    WeightPrecision.INT8_MIXED: "int8_mixed",
    WeightPrecision.INT4: "int4",
    WeightPrecision.FP4: "fp4_nv",
}


def loaded_spec(
    spec: ModelSpec, weights: str = WeightPrecision.STORED, *, on_cpu: bool = False, activation: str = "exact"
) -> ModelSpec:
    """The same model with one tensor a matrix, of the kind and the bytes that loading makes of it.

    weights, activation: as in WorkerConfig
    Raises: ValueError for a precision that is none
    """
    precision = WeightPrecision(weights)
    grows = not on_cpu and any(info.dtype in DEVICE_BITS for info in spec.tensors)
    if spec.is_encoder or (precision is WeightPrecision.STORED and spec.quantisation is None and not grows):
        return spec
    label = spec.source_dtype if precision is WeightPrecision.STORED else KINDS[precision]
    rounds_head = precision in HEADS and activation == "exact" and not (on_cpu or spec.tie_embeddings)
    return replace(
        spec, tensors=tuple(_tensors(spec, precision, on_cpu, rounds_head)), source_dtype=label, quantisation=None
    )


def _tensors(spec: ModelSpec, precision: WeightPrecision, on_cpu: bool, rounds_head: bool) -> Iterator[TensorInfo]:
    table = tensor_table(spec)
    shapes = {expected.role: expected.shape for expected in expected_tensors(spec)}
    parts_of: dict[tuple[str, int | None], list[int]] = {}
    for (role, layer), info in table.items():
        whole, found, _ = role.partition(PART)
        if found:
            parts_of.setdefault((whole, layer), []).append(info.size_bytes)
    for (role, layer), info in table.items():
        if PART in role:
            continue
        shape = shapes.get((role, layer), info.shape)
        parts = parts_of.get((role, layer), [])
        if precision is not WeightPrecision.STORED and layer is not None and is_rounded(role) and len(shape) > 1:
            yield _rounded(info, shape, precision, spec.hidden_size, on_cpu)
        elif role == "lm_head" and rounds_head:
            yield _rounded(info, shape, HEADS[precision], spec.hidden_size, on_cpu)
        elif parts and spec.quantisation is not None:
            scheme = spec.quantisation.scheme_of(info.name.rpartition(".")[0])
            kind, cpu_kind = _kinds(scheme)
            held = prod(shape) * PLAIN_ON_CPU if on_cpu and cpu_kind == "F16" else sum(parts)
            yield replace(info, dtype=cpu_kind if on_cpu else kind, shape=shape, size_bytes=held)
        elif on_cpu or info.dtype not in DEVICE_BITS:
            yield info
        else:
            yield _put_together(info, role, spec.tie_embeddings)


def _put_together(info: TensorInfo, role: str, tied: bool) -> TensorInfo:
    """A GGUF matrix on an accelerator. An embedding table is read as it is stored, beside the head it may be too."""
    held = int(info.num_elements * DEVICE_BITS[info.dtype] / 8)
    if role == "embed":
        held = info.size_bytes + (held if tied else 0)
    return replace(info, size_bytes=held)


def _rounded(
    info: TensorInfo, shape: tuple[int, ...], precision: WeightPrecision, hidden_size: int, on_cpu: bool
) -> TensorInfo:
    elements = prod(shape)
    precision = held_precision(precision, shape[-1])
    kind, bytes_each = KINDS[precision], bits_of(precision, hidden_size) / 8
    if on_cpu:
        kind, bytes_each = CPU_KINDS.get(precision, ("F16", float(PLAIN_ON_CPU)))
    return replace(info, dtype=kind, shape=shape, size_bytes=int(elements * bytes_each))


def _kinds(scheme: QuantScheme | None) -> tuple[str, str]:
    """What codes are called on an accelerator, and what a CPU holds them as."""
    if scheme is None or scheme.storage is Storage.FLOAT8:
        return "fp8", "F16"
    if scheme.storage is Storage.NVFP4:
        return "fp4_nv", "F16"
    if scheme.storage is Storage.MXFP4:
        return "fp4_mx", "MXFP4"
    return ("int8", "Q8_0") if scheme.bits == 8 else ("int4", "Q4_1" if scheme.zeros else "Q4_0")
