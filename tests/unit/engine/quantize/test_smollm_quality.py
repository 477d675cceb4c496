"""What rounding costs the small real model: a part of the built-in text; bench.quality has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.quantize.quality import compare
from engine.quantize.texts import evaluation_text

TOKENS = 256
# Form at load -> the most that perplexity may rise, and divergence be. Four bits: the file's own are Q4_1 already.
BOUNDS = {"int8": (0.005, 0.002), "int8-mixed": (0.005, 0.002), "fp8": (0.005, 0.015), "int4": (0.005, 0.002)}


@pytest.mark.parametrize("form", BOUNDS)
def test_rounding_costs_no_more_than_its_bound(form: str, smollm_path: Path) -> None:
    found = compare(smollm_path, ("stored", form), evaluation_text(), "built in", tokens=TOKENS)
    perplexity, divergence = BOUNDS[form]
    assert 2 < found.first_perplexity < 100
    assert found.perplexity_change < perplexity, found
    assert found.mean_kl < divergence, found


# What a cache of bytes with multipliers of its own costs; calibrated ones are in bench.quality.
CACHES = {"stored+kv-int8": (0.005, 0.002), "stored+kv-fp8": (0.01, 0.012)}


@pytest.mark.parametrize("form", CACHES)
def test_a_cache_of_bytes_costs_no_more_than_its_bound(form: str, smollm_path: Path) -> None:
    found = compare(smollm_path, ("stored", form), evaluation_text(), "built in", tokens=TOKENS)
    perplexity, divergence = CACHES[form]
    assert found.second == form
    assert abs(found.perplexity_change) < perplexity, found
    assert 1e-5 < found.mean_kl < divergence, found
