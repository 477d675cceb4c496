"""What measuring a precision refuses, where texts, forms, disks and models are unlike the usual."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from daemon.planning.quality import quality_line
from engine.errors import InvalidParameter, StoreError
from engine.quantize import quality as quality_module
from engine.quantize.__main__ import main as quantize_main
from engine.quantize.quality import compare, form_of
from engine.quantize.quality import main as quality_main
from engine.quantize.text_pass import window_tokens
from engine.spec import read_spec
from tests.fakes.known_tokens import TOKENS, KnownTokens
from tests.fakes.quantised_checkpoints import llama


@pytest.fixture(autouse=True)
def tokens_without_a_tokenizer(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(quality_module, "load_text", lambda spec: KnownTokens(TOKENS))


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    found: dict[str, str] = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    return found


def test_windows_are_no_longer_than_the_model_reads(plain: Path) -> None:
    assert window_tokens(read_spec(plain)) == 128
    found = compare(plain, ("stored", "int8"), "text", "mine")
    assert found.tokens == len(TOKENS) - 2


@pytest.mark.parametrize("name", ["", "+kv-fp8", "stored+kv-", "stored+kv--dynamic"])
def test_forms_with_nothing_in_them_are_refused(name: str, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plain)
    with pytest.raises(InvalidParameter):
        form_of(name, plain)


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\xd0\x00")


@pytest.mark.parametrize("make", [Path.mkdir, _binary, Path.touch, lambda path: None])
def test_texts_to_measure_on_that_are_none_are_told(
    make: Callable[[Path], None], plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "text")
    assert quality_main([str(plain), "--first", "stored", "--second", "int8", "--text", str(tmp_path / "text")]) == 1
    assert said(capsys)["code"] == InvalidParameter.code


def test_words_that_are_not_understood_are_told_as_errors(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quality_main([str(plain), "--first", "stored", "--second", "int8", "--activation", "banana"]) == 1
    assert "banana" in said(capsys)["message"]
    assert quantize_main([str(plain), "--to", "fp4", "--out", "x"]) == 1
    assert "int8-mixed" in said(capsys)["message"]


def test_no_room_for_logits_is_told(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="no room for"):
        compare(plain, ("stored", "stored"), "text", "mine")


def test_form_that_is_not_all_of_its_precision_says_so(plain: Path, tmp_path: Path) -> None:
    assert compare(plain, ("stored", "int4"), "text", "mine").notes == []
    odd = compare(llama(tmp_path / "odd", intermediate_size=99), ("stored", "int4"), "text", "mine")
    assert odd.notes == ["Matrices of the widths 99 are rounded to int8: int4 has no groups for them."]
    assert quality_line(asdict(odd)).endswith(odd.notes[0])
