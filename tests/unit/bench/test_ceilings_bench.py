"""What figures could be at best, counted by hand for models whose sizes are known, and parts of a profile told."""

from __future__ import annotations

import pytest

from bench.ceilings import RATES, Model, Rates, Work, rates_of, shape_spec
from bench.report_offline import figure_rows, part_rows
from bench.step_parts import attributed, kind_of

RATE = Rates(4e12, 800e12)
LLAMA_LAYER = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
LLAMA_HEAD = 128256 * 4096
H200 = {"machine": "NVIDIA H200; some host", "model": "llama-8b", "opts": {"scale": "full", "weights": "stored"}}


def model(name: str, weights: str = "stored") -> Model:
    spec = shape_spec(name)
    assert spec is not None
    return Model(spec, weights)


def test_decode_reads_all_weights_once_and_every_cached_token() -> None:
    work = model("llama-8b").decode(4, 100)
    weights, token = 2 * (32 * LLAMA_LAYER + LLAMA_HEAD), 2 * 32 * 2 * 8 * 128
    assert work.num_bytes == pytest.approx(weights + 4 * 100 * token, rel=1e-6)
    attended = 32 * 4 * 32 * 128 * 100
    assert work.operations == pytest.approx(4 * (2 * (32 * LLAMA_LAYER + LLAMA_HEAD) + attended), rel=1e-6)
    assert model("llama-8b", "fp8").decode(1, 0).num_bytes == pytest.approx(weights / 2, rel=1e-6)


def test_prefill_multiplies_and_attends_to_what_is_before() -> None:
    work = model("llama-8b").prefill(1000)
    attended = 32 * 4 * 32 * 128 * 1000 * 1000 / 2
    assert work.operations == pytest.approx(2 * 1000 * 32 * LLAMA_LAYER + 2 * LLAMA_HEAD + attended, rel=1e-6)


def test_a_token_of_a_mixture_reads_its_experts_and_many_read_all() -> None:
    one, many = model("qwen3-30b-a3b").decode(1, 0), model("qwen3-30b-a3b").decode(4096, 0)
    assert one.num_bytes / 2e9 == pytest.approx(3.03, abs=0.05)  # of its name: 3 billion active
    assert many.num_bytes / 2e9 == pytest.approx(30.2, abs=0.05)
    assert many.operations == pytest.approx(4096 * one.operations, rel=1e-6)


def test_a_window_bounds_what_a_decode_reads() -> None:
    gemma = model("gemma3-12b")
    short, long = (gemma.decode(1, context).num_bytes for context in (1024, 12000))
    full = sum(layer.attention.window_tokens is None for layer in gemma.spec.layers)
    assert 0 < full < len(gemma.spec.layers)
    assert long - short == pytest.approx(full * (12000 - 1024) * 2 * gemma.spec.layers[0].attention.num_kv_heads * 512)


def test_the_slower_of_both_is_the_ceiling() -> None:
    assert Work(4e12, 0).seconds(RATE) == 1.0
    assert Work(4e12, 1600e12).seconds(RATE) == 2.0
    assert Work(4e12, 1600e12).seconds(RATE, gain=2.0) == 1.0
    assert rates_of("NVIDIA H200; a host") is RATES["NVIDIA H200"]
    assert rates_of("AMD EPYC") is None
    assert shape_spec("no such model") is None


def test_run_takes_no_less_than_its_parts() -> None:
    llama = model("llama-8b")
    whole = llama.run_seconds(256, 256 * 500, 256 * 500, 1000, RATE)
    prompts = 256 * llama.prefill(500).operations / RATE.products_s
    assert whole > prompts + 1000 * llama.decode(1, 0).num_bytes / RATE.copy_bytes_s


def test_figures_of_a_known_shape_and_device_stand_beside_their_ceiling() -> None:
    line = {"fig": "decode", "batch": 1, "ms_per_step": 4.0, "tok_s": 250.0}
    heads, rows, note = figure_rows(H200, [line])
    assert heads[-2:] == ["ceiling", "reached"]
    assert rows[0][-2:] == ["3.58 ms", "90%"]
    assert "4.2 TB/s" in note
    assert figure_rows({**H200, "machine": "AMD"}, [line])[0] == ["figure", "work", "time", "tokens/s"]


def test_parts_of_a_step_are_shares_of_its_time() -> None:
    parts = {"products": 3.0, "attention": 0.5}
    line = {"fig": "profile", "of": "decode", "batch": 8, "ms": 4.0, "parts": parts, "busy_ms": 3.6}
    heads, rows, note = part_rows([line, {**line, "of": "prefill", "tokens": 2048, "parts": {"experts": 1.0}}])
    assert "counts from the end of that one" in note
    assert "counts in full" in part_rows([{**line, "parts": {"products": 4.5}}])[2]
    assert heads == ["step", "time", "products", "attention", "experts", "between kernels"]
    assert rows[0] == ["decode, batch 8", "4.00 ms", "75%", "12%", "0%", "10%"]
    assert rows[1][0] == "prefill, 2,048 tokens"
    assert part_rows([{"fig": "profile", "of": "decode", "parts": None}])[1] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_gemv_kernel", "products"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "products"),
        ("_decode_kernel", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("_pair_gate_up_kernel", "experts"),
        ("_sum_kernel", "experts"),
        ("_gate_kernel", "norms and gates"),
        ("_rope_kv_write_kernel", "rotation and cache"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4>", "other"),
    ],
)
def test_kernels_are_told_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_time_that_kernels_cover_counts_once_for_the_earliest() -> None:
    assert attributed([]) == ({}, 0.0)
    spans = [(5.0, 8.0, "a"), (0.0, 2.0, "a"), (1.0, 3.0, "b"), (6.0, 7.0, "c")]
    assert attributed(spans) == ({"a": 5.0, "b": 1.0, "c": 0.0}, 8.0)
