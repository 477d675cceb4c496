"""Packed weights kept between starts: mapped the next time, made anew when of no use, gone with their model."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.kernels.cpu import library, packed_file, weights
from engine.kernels.cpu.packed_file import PackedFile, PackedFileWriter
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.models import packed_store
from engine.models.packed_store import PackedStore
from engine.spec.packed_names import packed_files_of
from tests.fakes.family_models import saved_model

pytestmark = pytest.mark.skipif(library.absent_reason() is not None, reason="needs the CPU library")


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    saved_model("llama-head-dim", folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[PackedStore]:
    """The stores that builds made, so that a test can wait for their files."""
    made: list[PackedStore] = []
    finish = PackedStore.finish

    def noted(self: PackedStore, held: dict[str, str]) -> None:
        finish(self, held)
        made.append(self)

    monkeypatch.setattr(PackedStore, "finish", noted)
    return made


@pytest.fixture
def start(tmp_path: Path, stores: list[PackedStore]) -> Callable[..., BuiltEngine]:
    def run(model: Path, limit_bytes: int = 1 << 30) -> BuiltEngine:
        knobs = Knobs(max_running=2, token_budget=32, prefill_chunk=16)
        config = WorkerConfig(
            "w", "tiny", str(model), "", kv_tokens=256, max_context_tokens=64, threads=1, knobs=knobs,
            packed_dir=str(tmp_path / "packed"), packed_bytes=limit_bytes,
        )  # fmt: skip
        built = build_engine(config, lambda stage, done, total: None)
        for store in stores:
            store.wait()
        return built

    return run


Start = Callable[..., BuiltEngine]


def text(built: BuiltEngine) -> list[int]:
    core, out = built.core, []
    assert isinstance(core, EngineCore)
    core.add(Submit("one", [3, 5, 7, 9], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)))
    while core.has_work():
        out += [token for delta in core.step().deltas for token in delta.token_ids]
    return out


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "packed").iterdir())


def no_packing(*_: object) -> None:
    raise AssertionError("a matrix was packed")


@pytest.mark.parametrize("case", ["llama-head-dim", "llama-tied", "qwen2", "mixtral", "qwen3_moe", "gpt_oss"])
def test_second_start_maps_what_the_first_packed(
    case: str, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_model(case, tmp_path / "model")
    first = start(tmp_path / "model")
    assert first.kernels["packed weights"].startswith("packed, ")
    real = library.load().bayard_pack
    monkeypatch.setattr(library.load(), "bayard_pack", no_packing)
    second = start(tmp_path / "model")
    monkeypatch.setattr(library.load(), "bayard_pack", real)
    assert "an earlier start kept" in second.kernels["packed weights"]
    assert text(second) == text(first)
    assert second.notes == first.notes
    ours, theirs = dict(first.kernels), dict(second.kernels)
    assert ours.pop("packed weights") != theirs.pop("packed weights")
    assert ours == theirs
    assert len(kept(tmp_path)) == 1


def test_progress_of_a_mapped_start_ends_at_all_of_the_weights(model: Path, tmp_path: Path, start: Start) -> None:
    start(model)
    seen: list[tuple[int, int]] = []
    config = WorkerConfig(
        "w", "tiny", str(model), "", kv_tokens=256, max_context_tokens=64, threads=1,
        packed_dir=str(tmp_path / "packed"), packed_bytes=1 << 30,
    )  # fmt: skip
    build_engine(config, lambda stage, done, total: seen.append((done, total)) if stage == "reading" else None)
    assert seen[-1][0] == seen[-1][1]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(at: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 4
        path.write_bytes(raw)

    return flip


def foreign(path: Path) -> None:
    path.write_bytes(b"something else entirely " * 4096)


def of_another_model(path: Path) -> None:
    writer = PackedFileWriter(path, {"files": [], "dtype": "float32"})
    writer.finish({})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "cut short"),
        (cut_in_the_middle, "cut short"),
        (emptied, "cannot be read"),
        (flipped(0), "does not begin"),
        (flipped(8192), "not what was written"),
        (flipped(-200), "contents are not what was written"),
        (foreign, "does not begin"),
        (of_another_model, "another model file"),
    ],
)
def test_file_of_no_use_is_made_anew_and_says_why(
    damage: Callable[[Path], None], why: str, model: Path, tmp_path: Path, start: Start
) -> None:
    wanted = text(start(model))
    (path,) = kept(tmp_path)
    damage(path)
    again = start(model)
    assert why in again.kernels["packed weights"]
    assert text(again) == wanted
    assert "an earlier start kept" in start(model).kernels["packed weights"]
    assert kept(tmp_path) == [path]


def test_changed_model_is_packed_again_and_its_old_file_goes(model: Path, tmp_path: Path, start: Start) -> None:
    start(model)
    (old,) = kept(tmp_path)
    weights_file = next(model.glob("*.safetensors"))
    os.utime(weights_file, (1, 1))
    assert start(model).kernels["packed weights"].startswith("packed, ")
    (fresh,) = kept(tmp_path)
    assert fresh != old
    assert packed_files_of(str(model), tmp_path / "packed") == [fresh]


def test_limit_keeps_the_file_used_last(saved: Path, tmp_path: Path, start: Start) -> None:
    models = [Path(shutil.copytree(saved, tmp_path / name)) for name in ("a", "b", "c")]
    start(models[0])
    size = kept(tmp_path)[0].stat().st_size
    start(models[1])
    old = {
        path: number for number, model in enumerate(models) for path in packed_files_of(str(model), tmp_path / "packed")
    }
    for path, number in old.items():
        os.utime(path, (1000 + number, 1000 + number))
    start(models[0])  # used again, now
    start(models[2], limit_bytes=2 * size + 1000)
    left = [bool(packed_files_of(str(model), tmp_path / "packed")) for model in models]
    assert left == [True, False, True]


def test_limit_below_one_model_keeps_nothing_and_says_so(model: Path, tmp_path: Path, start: Start) -> None:
    built = start(model, limit_bytes=20_000)
    assert "more than the 20,000 bytes" in built.kernels["packed weights"]
    assert kept(tmp_path) == []


def test_disk_that_fails_costs_the_file_alone(
    model: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: PackedFileWriter, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackedFileWriter, "put", full)
    built = start(model)
    assert "No space left" in built.kernels["packed weights"]
    assert len(text(built)) == 12
    assert kept(tmp_path) == []


def test_nearly_full_disk_is_left_alone(
    model: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(packed_store.shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 25))
    assert "nearly full" in start(model).kernels["packed weights"]
    assert kept(tmp_path) == []


def test_halves_that_a_crash_left_are_swept(model: Path, tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    old, young = folder / f"x.packed.1.0{packed_file.PARTIAL}", folder / f"x.packed.2.0{packed_file.PARTIAL}"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    start(model)
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("huge", [False, True])
def test_file_is_copied_where_only_memory_has_huge_pages(
    huge: bool, model: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = text(start(model))
    monkeypatch.setattr(packed_file, "in_huge_pages", lambda address: False)
    monkeypatch.setattr(packed_file, "huge_pages_are_to_be_had", lambda: huge)
    again = start(model)
    assert again.kernels["packed weights"].startswith("read" if huge else "mapped")
    assert text(again) == wanted


def test_bytes_of_another_size_are_no_matrix() -> None:
    with pytest.raises(Exception, match="no packed Q8_0 matrix"):
        weights.PackedWeight.over("Q8_0", (16, 32), torch.zeros(100, dtype=torch.uint8))


def test_matrices_lie_in_the_file_as_they_were(tmp_path: Path) -> None:
    parts = [weights.pack(torch.randn(20, 48)), weights.pack(torch.randn(5, 32).to(torch.bfloat16))]
    writer = PackedFileWriter(tmp_path / "a.packed", {"of": "test"})
    writer.put("both", [(packed_store._entry(part), part.data) for part in parts], [20, 5])
    writer.finish({"int4": "Q4_0"})
    found = PackedFile(tmp_path / "a.packed", {"of": "test"})
    assert found.notes == {"int4": "Q4_0"}
    assert found.groups["both"].widths == (20, 5)
    for part, entry in zip(parts, found.groups["both"].entries, strict=True):
        again = packed_store._packed(entry, found)
        assert (again.kind, again.shape) == (part.kind, part.shape)
        assert again.data.equal(part.data)
        assert again.data.data_ptr() % 64 == 0
