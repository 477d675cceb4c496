"""What a KV cache of each precision costs."""

from __future__ import annotations

from enum import StrEnum

from daemon.planning.traffic import kv_elements_per_token
from engine.spec.model_spec import ModelSpec


class KvPrecision(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    FP8 = "fp8"


FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BYTE_KINDS = ("int8", "fp8")  # a byte a number, and a multiplier for each head of each token
MULTIPLIER_BYTES = 4


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: str) -> int:
    elements = kv_elements_per_token(spec)
    if kv_dtype not in BYTE_KINDS:
        return elements * FLOAT_BYTES[kv_dtype]
    heads = sum(2 * layer.attention.num_kv_heads for layer in spec.layers)
    return elements + heads * MULTIPLIER_BYTES


def element_bytes(spec: ModelSpec, kv_dtype: str) -> float:
    """Bytes read for a number of the cache."""
    return kv_bytes_per_token(spec, kv_dtype) / max(1, kv_elements_per_token(spec))
