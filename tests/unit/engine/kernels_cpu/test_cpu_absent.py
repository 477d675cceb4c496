"""A machine that could not build the library: models run on torch's own ops, and it is said what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.kernels import registry
from engine.kernels.cpu import library
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.family_models import saved_model


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    caches = (library.load, library.absent_reason, registry._loaded)
    threads = torch.get_num_threads()
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libbayard_cpu.so")
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()
    torch.set_num_threads(threads)


def start(model: Path, packed: Path) -> BuiltEngine:
    config = WorkerConfig(
        "w", "tiny", str(model), "", kv_dtype="float32", kv_tokens=256, max_context_tokens=64, threads=1,
        knobs=Knobs(max_running=2, token_budget=32, prefill_chunk=16), packed_dir=str(packed), packed_bytes=1 << 30,
    )  # fmt: skip
    return build_engine(config, lambda stage, done, total: None)


def text(built: BuiltEngine) -> list[int]:
    core, out = built.core, []
    assert isinstance(core, EngineCore)
    core.add(Submit("one", [3, 5, 7, 9], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)))
    while core.has_work():
        out += [token for delta in core.step().deltas for token in delta.token_ids]
    return out


@pytest.fixture
def with_library(tmp_path: Path, cpu_library: None) -> list[int]:
    saved_model("llama-head-dim", tmp_path / "model")
    return text(start(tmp_path / "model", tmp_path / "unused"))


def test_model_runs_without_the_library_and_says_what_it_lost(
    with_library: list[int], absent: None, tmp_path: Path
) -> None:
    built = start(tmp_path / "model", tmp_path / "packed")
    assert text(built) == with_library
    (lost,) = [note for note in built.notes if note.startswith("Plain torch, which is slow")]
    assert "linear F32" in lost
    assert "libbayard_cpu was not built: installing found no C++ compiler or CMake" in lost
    assert built.kernels["linear F32"].startswith("reference")
    assert not (tmp_path / "packed").exists()


def test_library_that_cannot_be_loaded_says_why(absent: None) -> None:
    library.LIBRARY.write_bytes(b"no library at all")
    assert "libbayard_cpu cannot be loaded" in str(library.absent_reason())
