"""How sizes and counts are written for people."""

from __future__ import annotations

_STEPS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def human_bytes(size: float) -> str:
    for unit, scale in _STEPS:
        if abs(size) >= scale:
            value = size / scale
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:,.1f} {unit}"
    return f"{size:,.0f} B"


def human_tokens(tokens: int) -> str:
    if tokens >= 8192 and tokens % 1024 == 0:
        return f"{tokens // 1024:,}k"
    return f"{tokens:,}"


def human_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def human_seconds(seconds: float) -> str:
    if seconds < 1.0:
        return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s"
