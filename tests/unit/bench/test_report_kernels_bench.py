"""The kernels' section: a table a part, ratios worked out, figures of no table refused."""

from __future__ import annotations

import pytest

from bench.report import kernels_section
from engine.errors import ConfigError

ORIGIN = {"bench": "kernels", "machine": "M", "commit": "abc1234", "measured_at": "2026-01-02"}
STEP = {"fig": "step", "kind": "int4", "rows": 1, "matrices_ms": 1.234, "over_bf16": 2.95}
LARGE = {"fig": "large", "kind": "fp8", "matrix": "down", "rows": 4096, "us": 102.0, "whole_us": 100.0, "of_bf16": 1.25}
MIXED = {
    "fig": "mixed",
    "rows": 512,
    "depth": 4096,
    "columns": 12288,
    "outliers": 64,
    "us": 50.0,
    "over_bf16": 1.4,
    "of_int8": 0.93,
    "over_naive": 4.88,
    "over_awq": None,
    "error": 0.01,
    "int8_error": 0.12,
}


def test_each_part_gets_a_table_with_its_ratios() -> None:
    refused = {"fig": "refused", "tiles": [], "why": "too large"}
    sampling = {"fig": "sampling", "what": "top_p 0.9", "rows": 256, "vocab": 128256, "us": 210.4, "bytes_us": 31.3}
    experts = {"fig": "experts", "tokens": 2048, "chosen": 128, "us": 500.0, "bound_us": 300.0, "error": 0.003}
    text = kernels_section([ORIGIN, STEP, LARGE, MIXED, experts, sampling, refused])
    assert "| 2,048 | 128 | 500 µs | 300 µs | 60% | 0.0030 |" in text
    assert "| int4 | 1 | 1.23 ms | 2.95× |" in text
    assert "| fp8 | down | 4,096 | 102.0 µs | 0.80× | 1.02 |" in text
    assert "| 512 × 4,096 × 12,288 | 64 | 50.0 µs | 1.40× | 93% | 4.88× |  | 0.0100 (12.0× less than int8) |" in text
    assert "| top_p 0.9 | 256 | 210 µs | 31 µs |" in text
    assert "T/s" not in text, "no table without figures"


def test_a_figure_of_no_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown figure 'surprise'"):
        kernels_section([ORIGIN, {"fig": "surprise"}])
