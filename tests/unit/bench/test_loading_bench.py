"""The loading benchmark writes a real checkpoint and reads it with the ordinary loader."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file

from bench import loading
from bench.report import page
from bench.shapes import SHAPES, scaled, tensors_of


def test_written_model_has_all_its_bytes_and_finite_numbers(tmp_path):
    size = loading.write_model(tmp_path, "llama-8b", "tiny", 0)
    found = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == dict(
        tensors_of(scaled(SHAPES["llama-8b"], "tiny"))
    )
    assert sum(tensor.nbytes for tensor in found.values()) == size
    for tensor in found.values():
        assert torch.isfinite(tensor).all()
        assert float(tensor.float().std()) > 0.015


def test_figures_become_a_table(capsys, tmp_path):
    asked = ["--model", "llama-8b", "--scale", "tiny", "--times", "2", "--no-first-token", "--folder", str(tmp_path)]
    assert loading.main(asked) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["turn"] for line in lines[1:]] == [0, 1]
    assert all(line["s"] > 0 and line["share"] is None for line in lines[1:])
    assert not list(tmp_path.iterdir()), "what was written is removed"
    there = {**lines[1], "gb_s": 40.1, "link_gb_s": 55.0, "share": 0.729}
    first = {"fig": "first token", "bytes": 16e9, "wrote_s": 9.0, "imported_s": 4.0, "read_s": 0.4, "ready_s": 5.0}
    text = page([[lines[0], there, {**first, "first_token_s": 5.72, "read_share": 0.729}]])
    assert "40.1 GB/s | 73% of the link's 55 GB/s |" in text
    assert "| start to first token | 16.0 GB | 5.7 s | imports 4.0 s, weights 0.40 s, 73% of the link's rate |" in text
