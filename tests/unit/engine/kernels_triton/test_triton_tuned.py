"""The table of measured tiles: each entry is one that its kernel takes, and writing keeps what was there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")

from engine.kernels.triton import tuned
from engine.kernels.triton.coded import CODES
from engine.kernels.triton.few_rows import KERNELS


def test_each_stored_entry_names_a_kernel_a_code_and_the_sizes_it_takes() -> None:
    for table in json.loads(tuned.FILE.read_text(encoding="utf-8")).values():
        for key, (kernel, *sizes) in table.items():
            part, code, *numbers = key.split()
            assert part == "few"
            assert code in (*CODES, "fp4_mx")
            assert len([int(number) for number in numbers]) == 3
            assert KERNELS[kernel](*sizes)


def test_measured_tiles_are_added_beside_those_of_other_devices(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tuned, "FILE", tmp_path / "tiles.json")
    tuned.FILE.write_text('{"sm_80": {"few fp8 1 8 8": ["columns", 4, 128, 2]}}')
    key = tuned.few_key("int4", 2, 64, 32)
    tuned.add(torch.device("cpu"), {key: ("dots", (4, 64, 1))})
    read = json.loads(tuned.FILE.read_text(encoding="utf-8"))
    assert read == {"cpu": {key: ["dots", 4, 64, 1]}, "sm_80": {"few fp8 1 8 8": ["columns", 4, 128, 2]}}
