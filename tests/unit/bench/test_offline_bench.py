"""The offline benchmark runs the real engine and prints the figures it promises."""

from __future__ import annotations

import json
from math import prod

import pytest
import torch

from bench import offline
from bench.random_weights import mxfp4
from bench.shapes import SCALES, SHAPES, scaled, tensors_of, write_shape
from engine.models.rounding import Rounding
from engine.spec import read_spec
from engine.spec.precision import WeightPrecision

QUICK = [
    *("--scale", "tiny", "--batches", "1,2", "--prompt", "8", "--outputs", "2,4", "--prefills", "16", "--nreq", "3"),
    *("--longin", "8", "--longout", "3", "--kv-tokens", "2048", "--context", "512", "--max-running", "4"),
    *("--budget", "64", "--threads", "1"),
]


@pytest.mark.parametrize(
    ("model", "billions"), [("llama-8b", 8.030), ("qwen3-30b-a3b", 30.532), ("gemma3-12b", 11.766)]
)
def test_shape_has_the_parameters_of_the_model(model, billions):
    total = sum(prod(shape) for _, shape in tensors_of(SHAPES[model]))
    assert total / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize("scale", SCALES)
def test_shape_on_disk_is_a_checkpoint_without_bytes(tmp_path, scale):
    write_shape(tmp_path, scaled(SHAPES["llama-8b"], scale))
    spec = read_spec(tmp_path)
    assert len(spec.layers) == max(2, 32 // SCALES[scale])
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 2**20


def test_offline_prints_origin_and_every_figure(capsys):
    assert offline.main(["--model", "llama-8b", *QUICK]) == 0
    origin, *figures = map(json.loads, capsys.readouterr().out.splitlines())
    assert origin["bench"] == "offline"
    assert {"machine", "commit", "measured_at", "start_s", "kernels"} <= set(origin)
    assert [(line["fig"], line.get("batch"), line.get("tokens")) for line in figures] == [
        ("decode", 1, None),
        ("decode", 2, None),
        ("prefill", None, 16),
        ("throughput", None, None),
    ]
    throughput = figures[-1]
    assert (throughput["inputs"], throughput["outputs"]) == (24, 9)
    assert throughput["total_tok_s"] > throughput["out_tok_s"] > 0


def test_offline_shows_gaps_and_what_the_allocator_was_asked(capsys):
    asked = ["--do", "gap,steady", "--entering", "60", "--gap-batches", "1,2", "--max-step-ms", "0,50"]
    assert offline.main(["--model", "llama-8b", *QUICK, *asked]) == 0
    _, *figures = map(json.loads, capsys.readouterr().out.splitlines())
    gaps = [line for line in figures if line["fig"] == "gap"]
    assert [(line["batch"], line["max_step_ms"]) for line in gaps] == [(1, 0), (1, 50), (2, 0), (2, 50)]
    assert all(line["longest_ms"] > 0 and line["first_token_ms"] > 0 and line["steps"] >= 1 for line in gaps)
    assert [line["allocated"] for line in figures if line["fig"] == "steady"] == [None, None]


def test_offline_runs_a_file(smollm_path, capsys):
    assert offline.main(["--model", str(smollm_path), *QUICK, "--do", "throughput"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"] == 9


def test_offline_unknown_model_is_refused(capsys):
    assert offline.main(["--model", "nothing-7b"]) == 1
    assert "llama-8b" in json.loads(capsys.readouterr().out)["refused"]


def test_offline_request_that_cannot_run_is_no_figure(capsys):
    quick = [word if word != "16" else "600" for word in QUICK]
    assert offline.main(["--model", "llama-8b", *quick]) == 1
    assert "refused" in capsys.readouterr().out


def test_fp4_is_made_mxfp4_within_its_context_alone() -> None:
    rounding = Rounding(WeightPrecision.FP4)
    weight = torch.randn(4, 64)
    with mxfp4():
        within = rounding.coded(weight, "down", 0)
    assert (within.kind, rounding.coded(weight, "down", 0).kind) == ("fp4_mx", "fp4_nv")


def test_the_run_has_the_lengths_of_the_peers():
    inputs, outputs = offline.run_lengths(256)
    assert len(inputs) == len(outputs) == 256
    # Theirs: 14.81 s at 9,579 output tokens a second (Llama), 25.30 s at 5,605 (Qwen3).
    assert sum(outputs) == pytest.approx(14.81 * 9579, rel=1e-3) == pytest.approx(25.30 * 5605, rel=1e-3)
    assert min(inputs + outputs) >= 100
    assert max(inputs + outputs) <= 1024
