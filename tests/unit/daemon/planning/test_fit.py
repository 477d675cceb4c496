"""Memory from the tensor table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.planning.fit import ACTIVATIONS, KV_PAGES, RUNTIME, WEIGHTS, FitModel
from daemon.planning.traffic import traffic_of
from engine.messages import Knobs
from engine.spec import read_spec
from tests.fakes.planned_models import GIB, made_spec

KNOBS = Knobs(max_running=8, token_budget=264, prefill_chunk=256)


def fit_of(kv_dtype: str = "float32", on_cpu: bool = True, **shape: object) -> FitModel:
    spec = made_spec(**shape)  # type: ignore[arg-type]
    return FitModel(spec, traffic_of(spec), on_cpu, "float32" if on_cpu else "bfloat16", kv_dtype, 16)


def test_weights_are_the_stored_bytes_of_the_real_file(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    fit = FitModel(spec, traffic_of(spec), True, "float32", "float32", 16)
    assert fit.weights().size_bytes == spec.weight_bytes
    assert 0 < smollm_path.stat().st_size - fit.weights().size_bytes < 4 << 20  # the rest is header and tokenizer


def test_traffic_accounts_for_every_stored_byte(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    traffic = traffic_of(spec)
    assert traffic.weight_bytes == spec.weight_bytes
    assert traffic.head is traffic.embedding  # tied
    assert {share.kind for share in traffic.dense} == {"Q4_1"}


def test_kv_bytes_a_token_are_heads_times_dims_times_layers(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    fit = FitModel(spec, traffic_of(spec), True, "float32", "float32", 16)
    assert fit.kv_bytes_per_token == 2 * 3 * 64 * 30 * 4
    assert replace(fit, kv_dtype="float16").kv_bytes_per_token == 2 * 3 * 64 * 30 * 2


def test_plain_weights_are_at_most_as_wide_as_activations() -> None:
    halves = fit_of(kind="BF16")
    assert halves.weights().size_bytes == halves.spec.weight_bytes
    wide = fit_of(kind="F32", on_cpu=False, kv_dtype="bfloat16")
    vectors = sum(t.size_bytes for t in wide.spec.tensors if len(t.shape) == 1)
    assert wide.weights().size_bytes == (wide.spec.weight_bytes - vectors) // 2 + vectors


def test_packed_size_is_what_the_cpu_library_packs() -> None:
    from engine.kernels.cpu import abi, library

    if library.absent_reason() is not None:
        pytest.skip("the CPU kernel library is not built")
    for kind, shape in (("Q4_K", (4096, 4096)), ("Q4_1", (576, 1536)), ("BF16", (576, 1536))):
        spec = made_spec(kind=kind, tied=True, layers=1, hidden=shape[1], vocab=512)
        held = FitModel(spec, traffic_of(spec), True, "float32", "float32", 16).weights().size_bytes
        number = abi.KINDS.index(kind)
        packed = 0
        for tensor in spec.tensors:
            if len(tensor.shape) == 1:
                packed += tensor.size_bytes
            else:
                packed += library.load().bayard_packed_bytes(number, *tensor.shape)
        assert held == pytest.approx(packed, rel=1e-3)


def test_items_add_up_and_are_named() -> None:
    estimate = fit_of().estimate(KNOBS, 4096)
    assert [item.name for item in estimate.items] == [WEIGHTS, KV_PAGES, ACTIVATIONS, RUNTIME]
    assert estimate.total_bytes == sum(estimate.of(name) for name in (WEIGHTS, KV_PAGES, ACTIVATIONS, RUNTIME))


def test_kv_takes_whole_pages() -> None:
    fit = fit_of()
    assert fit.kv(1).size_bytes == fit.page_bytes == fit.kv(16).size_bytes
    assert fit.kv(17).size_bytes == 2 * fit.page_bytes


def test_measured_correction_moves_the_total_by_itself() -> None:
    fit = fit_of()
    plain = fit.estimate(KNOBS, 4096).total_bytes
    assert replace(fit, correction_bytes=1 << 20).estimate(KNOBS, 4096).total_bytes == plain + (1 << 20)


@settings(deadline=None)
@given(budget_gib=st.floats(0.1, 64), more_gib=st.floats(0, 8))
def test_tokens_that_fit_are_monotone_and_do_fit(budget_gib: float, more_gib: float) -> None:
    fit = fit_of(hidden=512, layers=4, heads=8, kv_heads=2, mlp=1024, vocab=4096, kind="Q4_K")
    budget, wider = int(budget_gib * GIB), int((budget_gib + more_gib) * GIB)
    tokens = fit.kv_tokens_within(budget, KNOBS)
    assert tokens <= fit.kv_tokens_within(wider, KNOBS)
    assert tokens % 16 == 0
    if tokens:
        assert fit.estimate(KNOBS, tokens).total_bytes <= budget
        assert fit.estimate(KNOBS, tokens + 16).total_bytes > budget


@settings(deadline=None)
@given(layers=st.integers(1, 40), context=st.integers(16, 65_536), users=st.integers(1, 64), extra=st.integers(0, 4096))
def test_memory_is_monotone_in_everything_asked_for(layers: int, context: int, users: int, extra: int) -> None:
    fit = fit_of(hidden=512, layers=layers, heads=8, kv_heads=2, mlp=1024, vocab=4096)
    knobs = Knobs(max_running=users, token_budget=users + 256, prefill_chunk=256)
    wider = Knobs(max_running=users + 1, token_budget=users + 257 + extra, prefill_chunk=256 + extra)
    base = fit.estimate(knobs, context).total_bytes
    assert fit.estimate(knobs, context + extra).total_bytes >= base
    assert fit.estimate(wider, context).total_bytes >= base
