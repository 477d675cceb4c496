"""Models whose weights were read ahead, on a device that is this host: they are what they are without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.devices import upload as upload_module
from engine.devices.uploader import Uploader
from engine.models import Model
from engine.models.encoder import load_encoder
from engine.quant.quant_tensor import stacked
from engine.spec import read_spec
from tests.fakes.encoders import CASES, saved_encoder, texts
from tests.fakes.family_models import saved_model
from tests.fakes.host_streams import HostStreams
from tests.fakes.quantised_checkpoints import write_pair

PROMPTS = [[5, 17, 80, 3, 3, 41, 9], [60, 2, 33]]


@pytest.fixture(scope="module")
def sender() -> Uploader:
    return Uploader(torch.device("cpu"), HostStreams(), threads=2, pinned=False)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, sender: Uploader) -> list[bool]:
    """A True for each tensor that was found on its way, a False for each that was sent for nobody."""
    seen: list[bool] = []
    take, close = upload_module.ReadAhead.take, upload_module.ReadAhead.close
    take_group = upload_module.ReadAhead.take_group

    def counted(self: upload_module.ReadAhead, tensor: torch.Tensor) -> torch.Tensor | None:
        found = take(self, tensor)
        seen.extend([True] * (found is not None))
        return found

    def counted_group(self: upload_module.ReadAhead, keys: list[tuple[int, int]]) -> torch.Tensor | None:
        found = take_group(self, keys)
        seen.extend([True] * len(keys) * (found is not None))
        return found

    def closed(self: upload_module.ReadAhead) -> None:
        seen.extend([False] * len(self._sendings))
        close(self)

    monkeypatch.setattr(upload_module, "STAGED_KINDS", ("cpu",))
    monkeypatch.setattr(upload_module, "_uploader", lambda device: sender)
    monkeypatch.setattr(upload_module.ReadAhead, "take", counted)
    monkeypatch.setattr(upload_module.ReadAhead, "take_group", counted_group)
    monkeypatch.setattr(upload_module.ReadAhead, "close", closed)
    return seen


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "phi3", "gemma3_text", "glm4_moe", "gpt_oss", "deepseek_v3"])
def test_model_of_a_family_is_the_same(
    name: str, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any], taken: list[bool]
) -> None:
    saved_model(name, tmp_path)
    check(tmp_path, load, harness, taken)


@pytest.mark.parametrize("name", ["fp8-block", "gptq-order", "awq", "ct-nvfp4", "ct-w8a8"])
def test_quantised_model_is_the_same(
    name: str, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any], taken: list[bool]
) -> None:
    check(write_pair(tmp_path, name)[0], load, harness, taken)


def check(folder: Path, load: Callable[..., Model], harness: Callable[..., Any], taken: list[bool]) -> None:
    model = load(folder)
    assert not upload_module._AHEAD
    assert gc.isenabled()
    assert all(taken)
    assert len(taken) >= 8
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(upload_module, "STAGED_KINDS", ())
        truth = load(folder)
    for mine, theirs in zip(*(harness(one).run(PROMPTS, 4) for one in (model, truth)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_encoder_is_the_same(name: str, tmp_path: Path, taken: list[bool]) -> None:
    saved_encoder(name, tmp_path)
    spec = read_spec(tmp_path)
    encoder = load_encoder(spec, torch.device("cpu"), torch.float32, lambda done, total: None)
    assert not upload_module._AHEAD
    assert sum(taken) >= 8
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(upload_module, "STAGED_KINDS", ())
        truth = load_encoder(spec, torch.device("cpu"), torch.float32, lambda done, total: None)
    assert torch.equal(encoder.embed(texts()), truth.embed(texts()))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_what_a_model_stacks_lies_there_already(
    name: str,
    tmp_path: Path,
    load: Callable[..., Model],
    harness: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    sender: Uploader,
) -> None:
    saved_model(name, tmp_path)
    truth = load(tmp_path)
    stayed: list[bool] = []

    def as_on_a_device(parts: list[torch.Tensor]) -> torch.Tensor:
        found = stacked(parts)
        stayed.append(found.data_ptr() == parts[0].data_ptr())
        return found

    monkeypatch.setattr(upload_module, "STAGED_KINDS", ("cpu",))
    monkeypatch.setattr(upload_module, "_uploader", lambda device: sender)
    monkeypatch.setattr("engine.layers.weight.stack_bytes", as_on_a_device)
    groups: list[bool] = []
    take_group = upload_module.ReadAhead.take_group

    def seen(self: upload_module.ReadAhead, keys: list[tuple[int, int]]) -> torch.Tensor | None:
        found = take_group(self, keys)
        groups.append(found is not None)
        return found

    monkeypatch.setattr(upload_module.ReadAhead, "take_group", seen)
    model = load(tmp_path)
    assert all(stayed)
    assert all(groups)
    assert bool(groups) == (name == "qwen3_moe"), "experts are asked for by the stack"
    assert len(stayed) >= 2
    for mine, theirs in zip(*(harness(one).run(PROMPTS, 4) for one in (model, truth)), strict=True):
        assert torch.equal(mine, theirs)


def test_a_load_that_fails_leaves_nothing_behind(tmp_path: Path, load: Callable[..., Model], taken: list[bool]) -> None:
    saved_model("llama", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.models.parts.Parts.attention", lambda *_: {}["nothing"])
        with pytest.raises(KeyError):
            load(tmp_path)
    assert not upload_module._AHEAD
    assert gc.isenabled()
    assert False in taken
