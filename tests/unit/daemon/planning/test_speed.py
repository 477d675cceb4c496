"""Speed by roofline and by measured points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.planning.rates import DeviceRates, KindRate
from daemon.planning.speed import SpeedModel
from daemon.planning.traffic import traffic_of
from engine.messages import Knobs
from tests.fakes.planned_models import made_spec

LLAMA_8B = made_spec("llama-8b", hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14_336)
QWEN_30B = made_spec(
    "moe-30b", hidden=2048, layers=48, heads=32, kv_heads=4, head_dim=128, mlp=768, vocab=151_936, experts=128, active=8
)
H200 = DeviceRates("cuda:0", "H200", 4.2e12 * 0.9, 650e12, 300e12, 3e-4, 8e-6)


def model(spec: object = LLAMA_8B, rates: DeviceRates = H200, kv_bytes: int = 2) -> SpeedModel:
    return SpeedModel(spec, traffic_of(spec), rates, kv_bytes)  # type: ignore[arg-type]


def test_decode_of_8b_on_an_h200_is_near_what_servers_measure_there() -> None:
    """Measured by others on that device: 4.9 ms a step alone, 6.7 ms with 64 streams of about 300 tokens."""
    assert 3.9 < model().step(1, 0, 300).total_s * 1e3 < 5.5
    assert 4.2 < model().step(64, 0, 300).total_s * 1e3 < 7.5


def test_prefill_of_8b_on_an_h200_is_near_what_servers_measure_there() -> None:
    assert 0.15 < model().prefill_s(8000, 8192) < 0.30  # measured by others: 0.211 s


def test_experts_are_read_as_far_as_the_router_asks() -> None:
    traffic = traffic_of(QWEN_30B)
    assert traffic.expert_fraction(1) == pytest.approx(8 / 128)
    assert traffic.expert_fraction(0) == 0
    assert 0.98 < traffic.expert_fraction(64) < 1
    alone = model(QWEN_30B).step(1, 0, 300).weights_s
    all_bytes = sum(share.size_bytes for share in traffic.experts) / H200.read_bytes_per_s
    assert alone < all_bytes / 4
    assert model(QWEN_30B).step(256, 0, 300).weights_s > all_bytes


def test_window_bounds_what_attention_reads() -> None:
    full, sliding = made_spec("f"), made_spec("s", window=1024)
    assert model(full).step(1, 0, 64_000).attention_s > 10 * model(sliding).step(1, 0, 64_000).attention_s
    assert model(full).step(1, 0, 512).attention_s == model(sliding).step(1, 0, 512).attention_s


@settings(deadline=None)
@given(
    bandwidth=st.floats(1e9, 8e12),
    faster=st.floats(1, 10),
    users=st.integers(1, 256),
    context=st.integers(1, 100_000),
)
def test_speed_is_monotone_in_bandwidth_and_context(bandwidth: float, faster: float, users: int, context: int) -> None:
    slow = model(rates=replace(H200, read_bytes_per_s=bandwidth))
    fast = model(rates=replace(H200, read_bytes_per_s=bandwidth * faster))
    assert fast.step(users, 0, context).total_s <= slow.step(users, 0, context).total_s
    assert slow.step(users, 0, context + 1000).total_s >= slow.step(users, 0, context).total_s
    assert slow.step(users + 1, 0, context).total_s >= slow.step(users, 0, context).total_s


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 2000))
def test_prefill_of_more_tokens_takes_longer_whatever_the_chunk(tokens: int, chunk: int) -> None:
    assert model().prefill_s(tokens + 1, chunk) > model().prefill_s(tokens, chunk)


def test_measured_points_are_met_and_joined_by_lines() -> None:
    rate = KindRate(1e9, 1e12, points=((1, 1e-9), (4, 1e-9), (16, 3e-9)))
    assert rate.seconds(0, 1000, 1) == pytest.approx(1e-6)
    assert rate.seconds(0, 1000, 10) == pytest.approx(2e-6)
    assert rate.seconds(0, 1000, 32) == pytest.approx(6e-6)
    assert KindRate(1e9, 1e12, points=((1, 1e-9),)).seconds(0, 1000, 8) == pytest.approx(8e-6)


def test_estimate_names_what_a_step_waits_for() -> None:
    knobs = Knobs(max_running=8, token_budget=520, prefill_chunk=512)
    assert model().estimate(knobs, 8192).limited_by == "reading weights"
    slow_maths = replace(H200, flops=1e12)
    assert model(rates=slow_maths).estimate(knobs, 8192).limited_by == "arithmetic"
    slow_steps = replace(H200, step_overhead_s=1.0)
    assert model(rates=slow_steps).estimate(knobs, 8192).limited_by == "fixed overhead of a step"


@settings(deadline=None)
@given(st.floats(1e-3, 10.0), st.floats(1.0, 20.0))
def test_chunk_grows_with_the_pause_that_is_allowed(target_s: float, factor: float) -> None:
    cpu = DeviceRates("cpu", "cpu", 2e10, 1e11, 1e10, 1e-3, 1e-4)
    one = model(rates=cpu).chunk_for(target_s, 4, 32, 8192)
    other = model(rates=cpu).chunk_for(target_s * factor, 4, 32, 8192)
    assert 32 <= one <= other <= 8192
    if one > 32:
        assert model(rates=cpu).step(4, one, 1024.0).total_s <= target_s
