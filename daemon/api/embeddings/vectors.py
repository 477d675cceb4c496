"""Vectors on the wire: little-endian float32 as base64 or as numbers, and how near two of them are."""

from __future__ import annotations

import base64
import sys
from array import array


def as_floats(vector: bytes) -> list[float]:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def as_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors of length one, within rounding."""
    return max(-1.0, min(1.0, sum(a * b for a, b in zip(one, other, strict=True))))
