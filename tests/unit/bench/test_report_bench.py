"""Results become the performance page, which is never edited by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import main, page, read_result
from engine.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
ORIGIN = {"machine": "M", "commit": "abc1234", "measured_at": "2026-01-02", "software": {"torch": "2", "triton": None}}


def written(folder, *lines) -> Path:
    path = folder / "result.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_performance_page_is_current():
    results = sorted((ROOT / "bench" / "results").glob("*.jsonl"))
    assert results, "there are no results to show"
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert text == page(read_result(path) for path in results), "run `python -m bench.report bench/results/*.jsonl`"


def test_planner_section_sets_prediction_beside_measurement(tmp_path):
    step = {"predicted_step_ms": 4.0, "step_ms": 4.4, "predicted_over_measured_speed": 1.1}
    run = {"model": "tiny", "weights": "int8", "memory": {"predicted_over_measured": 1.02}}
    run |= {"alone": {"streams": 1, **step}, "together": {"streams": 8, **step}}
    text = page([read_result(written(tmp_path, {**ORIGIN, "bench": "planner"}, run))])
    assert "| int8 | 1 | 4.00 ms | 4.40 ms | 1.10 | 1.020 |" in text
    assert "| int8 | 8 | 4.00 ms | 4.40 ms | 1.10 |  |" in text


def test_caches_section_has_the_price_of_each_kind_of_multipliers(tmp_path):
    line = {"cache": "fp8", "scales": "calibrated", "token_bytes": 12240, "tokens": 2044, "first_perplexity": 20.0}
    line |= {"second_perplexity": 20.1, "perplexity_change": 0.005, "agreement": 0.95, "mean_kl": 0.0071}
    text = page([read_result(written(tmp_path, {**ORIGIN, "bench": "caches", "model": "m.gguf"}, line))])
    assert "## m.gguf, KV caches of bytes" in text
    assert "| fp8, calibrated | 12,240 | 20.100 (+0.50%) | 95.0% | 0.0071 |" in text


def test_peers_section_has_ratios_origin_and_skipped(tmp_path):
    origin = {**ORIGIN, "bench": "peers", "model": "m.gguf", "activation": "int8"}
    ours = {"peer": "ours", "threads": 2, "prefill_tok_s": 50, "decode_tok_s": 30, "streams8_decode_tok_s": 80}
    lines = [
        {**ours, "rss_beyond_file_bytes": 250e6},
        {"peer": "llama.cpp 1", "threads": 2, "prefill_tok_s": 20, "decode_tok_s": 10},
    ]
    lines.append({"peer": "transformers", "threads": 2, "skipped": "no | module"})
    text = page([read_result(written(tmp_path, *({**line, "origin": origin} for line in lines)))])
    assert "| ours | 50.0 (2.50×) | 30.0 (3.00×) | 80.0 (8.00×) | 250 MB |" in text
    assert "M; torch 2; commit abc1234; 2026-01-02; activation int8." in text
    assert "not measured: no \\| module" in text


def test_offline_section_shows_every_figure(tmp_path):
    lines = [
        {**ORIGIN, "bench": "offline", "model": "llama-8b", "opts": {"scale": "tiny", "dtype": "auto"}},
        {"fig": "decode", "batch": 8, "ms_per_step": 4.891, "tok_s": 1635.7},
        {"fig": "prefill", "tokens": 8000, "ms": 211.04, "tok_s": 37907},
        {"fig": "throughput", "nreq": 256, "inputs": 1000, "outputs": 2000, "s": 14.81, "out_tok_s": 9579.2},
    ]
    gap = {"fig": "gap", "batch": 32, "entering": 8000, "usual_ms": 6.1, "first_token_ms": 301.2, "steps": 9}
    counts = {"segments": 0, "tensors": 100, "retries": 0, "reserved_bytes": 0, "held_bytes": 0}
    lines += [
        {**gap, "max_step_ms": 40, "longest_ms": 38.25},
        {**gap, "max_step_ms": 0, "longest_ms": 216.0},
        {"fig": "steady", "batch": 32, "steps": 50, "allocated": counts},
        {"fig": "steady", "batch": 1, "steps": 50, "allocated": None},
    ]
    text = page([read_result(written(tmp_path, *lines))])
    assert "| longest gap | 8,000 tokens beside 32 streams, steps within 40 ms | 38.2 ms (usual 6.1) |" in text
    assert "steps without a limit | 216.0 ms (usual 6.1) | first token after 301 ms |" in text
    assert "| allocated | 50 decode steps of 32 streams | 0 pieces of device memory |" in text
    assert "not counted here" in text
    assert "## llama-8b (tiny sister), Bayard, offline" in text
    lines[0] = {**lines[0], "opts": {"weights": "fp8", "activation": "fp8"}}
    assert "## llama-8b in fp8, fp8 activations, Bayard, offline" in page([read_result(written(tmp_path, *lines))])
    assert "| decode | batch 8 | 4.89 ms a step | 1,636 |" in text
    assert "| prefill | 8,000 tokens | 211.0 ms | 37,907 |" in text
    assert "| throughput | 256 requests, 1,000 tokens in, 2,000 out | 14.81 s | 9,579 out |" in text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "line 1 is no JSON"),
        (["[]"], "no JSON object"),
        ([], "which benchmark"),
        ([{"fig": "decode"}], "which benchmark"),
    ],
)
def test_damaged_result_is_refused(tmp_path, lines, words, capsys):
    path = written(tmp_path, *lines)
    with pytest.raises(ConfigError, match=words):
        read_result(path)
    assert main([str(path)]) == 78
    assert words in capsys.readouterr().err


def test_unknown_figure_is_refused(tmp_path):
    result = read_result(written(tmp_path, {**ORIGIN, "bench": "offline", "model": "m"}, {"fig": "mystery"}))
    with pytest.raises(ConfigError, match="mystery"):
        page([result])


def test_host_section_shows_rates_and_their_shares(tmp_path):
    lines = [
        {**ORIGIN, "bench": "host", "opts": {"threads": 16, "isa": "amx"}},
        {"fig": "read", "gb_s": 78.0},
        {"fig": "product", "dtype": "bfloat16", "tflops": 2.4},
        {"fig": "prefill", "kind": "Q8_0", "activation": "int8", "tflops": 3.61, "share": 1.504},
        {"fig": "decode", "kind": "Q4_0", "activation": "exact", "gb_s": 61.2, "share": 0.785},
        {"fig": "attention", "context": 4096, "kv": "float16", "gb_s": 70.0, "share": 0.897},
    ]
    text = page([read_result(written(tmp_path, *lines))])
    assert "| prompt of 512 | Q8_0, int8 activations | 3.61 TFLOP/s | 150% |" in text
    assert "| one token | Q4_0, exact activations | 61.2 GB/s | 78% |" in text
    assert "| attention of a decode | 4,096 tokens of float16 | 70.0 GB/s | 90% |" in text
    assert "threads 16; isa amx." in text


def test_control_plane_sections_tell_what_was_seen(tmp_path):
    serve = {
        "start_s": 1.5, "idle_rss_mb": 160, "loaded_rss_mb": 170, "clients": 256, "tokens_per_s": 38577,
        "requests_per_s": 301.4, "incomplete": 0, "rate_per_s": 50.0, "ttft_p50_ms": 1.76, "ttft_p99_ms": 2.89,
        "paced_requests": 500, "paced_without_token": 1,
    }  # fmt: skip
    text = page([read_result(written(tmp_path, {**ORIGIN, "bench": "serve"}, serve))])
    assert "| streamed by 256 clients | 38,577 tokens/s, 301 requests/s |" in text
    assert "| streams that did not end whole | 1 |" in text
    verdict = {
        "minutes": 60.0, "counts": {"stream 200": 9, "worker_kills": 2}, "rss_first_mb": 166.0, "rss_last_mb": 170.0,
        "rss_growth_mb_per_hour": 3.9, "fds_min_max_end": [38, 50, 41], "threads_min_max_end": [16, 17, 17],
        "exit_status": 0,
    }  # fmt: skip
    samples = [{"workers_rss_bytes": 36e6}, {"workers_rss_bytes": 37e6}]
    text = page([read_result(written(tmp_path, {**ORIGIN, "bench": "soak"}, *samples, verdict))])
    assert "166 / 170 MB (+3.9 MB/h)" in text
    assert "| workers' memory, least / most | 36 / 37 MB |" in text
    run = {"run": "beside", "idle": 9000, "ttft_p50_ms": 2.0, "ttft_p99_ms": 5.0, "requests": 10, "without_token": 0}
    idle = run | {"rss_bytes": 2e8, "evicted": 1234}
    text = page([read_result(written(tmp_path, {**ORIGIN, "bench": "idle"}, idle))])
    assert "| beside | 9,000 | 2.0 / 5.0 ms | 0 of 10 | 200 MB | 1,234 made room |" in text
