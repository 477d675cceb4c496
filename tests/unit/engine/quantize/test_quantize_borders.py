"""What quantising and measuring refuse, keep and leave behind, where people, disks and models are unlike the usual."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
import transformers

from engine.errors import Conflict, InvalidParameter, StoreError, UnsupportedFormat
from engine.models import load_model
from engine.quantize import job as job_module
from engine.quantize.__main__ import main as quantize_main
from engine.quantize.job import QuantizeJob, group_for, learning_tokens, quantize
from engine.quantize.partial_folder import PARTIAL, STATE_FILE
from engine.quantize.stored_form import FORMATS
from engine.quantize.text_file import CHARACTERS_A_TOKEN, first_tokens, read_text
from engine.quantize.text_pass import batch_of, windows_of
from engine.spec import read_spec
from engine.spec.precision import WeightPrecision, WrittenPrecision
from tests.fakes.known_tokens import TOKENS, KnownTokens
from tests.fakes.quantised_checkpoints import llama


@pytest.fixture(autouse=True)
def tokens_without_a_tokenizer(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(job_module, "load_text", lambda spec: KnownTokens(TOKENS))


def odd_llama(folder: Path, width: int, inner: int) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=width // 5,
        max_position_embeddings=512,
    )
    torch.manual_seed(3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def quietly(stage: str, done: int, total: int) -> None:
    return None


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    found: dict[str, str] = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    return found


def cut_run(plain: Path, out: Path) -> Path:
    """The folder that an interrupted run has left."""

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "quantising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(QuantizeJob(plain, WeightPrecision.INT8, out, ""), stop)
    return out.with_name(out.name + PARTIAL)


@pytest.mark.parametrize("restart", [False, True])
def test_folder_that_no_run_has_left_is_never_emptied(restart: bool, plain: Path, tmp_path: Path) -> None:
    partial = tmp_path / f"out{PARTIAL}"
    partial.mkdir()
    (partial / "thesis.txt").write_text("precious")
    with pytest.raises(Conflict, match="is not of a quantisation"):
        quantize(QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", "", restart=restart), quietly)
    assert (partial / "thesis.txt").read_text() == "precious"


def test_restart_keeps_all_where_a_file_is_not_the_runs_own(plain: Path, tmp_path: Path) -> None:
    partial = cut_run(plain, tmp_path / "out")
    (partial / "notes.txt").write_text("mine")
    there = sorted(partial.iterdir())
    job = QuantizeJob(plain, WeightPrecision.FP8, tmp_path / "out", "", restart=True)
    with pytest.raises(Conflict, match=r"holds 'notes\.txt'"):
        quantize(job, quietly)
    assert sorted(partial.iterdir()) == there
    (partial / "notes.txt").unlink()
    assert quantize(job, quietly).source_dtype.startswith("compressed-tensors fp8")
    assert not partial.exists()


def test_half_written_state_asks_for_restart_and_restart_helps(plain: Path, tmp_path: Path) -> None:
    partial = cut_run(plain, tmp_path / "out")
    (partial / STATE_FILE).write_text('{"files": [')
    job = QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", "")
    with pytest.raises(Conflict, match="what cannot be told") as refused:
        quantize(job, quietly)
    assert "--restart" in str(refused.value.hint)
    quantize(QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", "", restart=True), quietly)


def test_run_that_is_stopped_at_its_very_end_leaves_a_whole_folder_or_one_to_go_on_with(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", "")

    def stop(self: Path, *words: object) -> Path:
        if self.name.endswith(PARTIAL):
            raise KeyboardInterrupt
        return whole(self, *words)  # type: ignore[arg-type]

    whole = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            quantize(job, quietly)
    assert quantize(job, quietly).quantisation is not None
    assert not (tmp_path / "out" / STATE_FILE).exists()


def test_two_runs_do_not_write_one_folder(plain: Path, tmp_path: Path) -> None:
    job = QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", "", restart=True)
    refused: list[str] = []

    def another(stage: str, done: int, total: int) -> None:
        if not refused:
            with pytest.raises(Conflict, match="by another process") as found:
                quantize(job, quietly)
            refused.append(found.value.message)

    quantize(job, another)
    assert refused


def test_full_disk_is_told_and_the_same_command_goes_on(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(plain), "--to", "int8", "--calibrate", "none", "--out", str(tmp_path / "out")]

    def full(tensors: object, path: Path, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(job_module, "save_file", full)
        assert quantize_main(words) == 1
    found = said(capsys)
    assert found["code"] == StoreError.code
    assert "No space left" in found["message"]
    assert quantize_main(words) == 0


def test_place_under_a_file_is_told(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = [str(plain), "--to", "int8", "--calibrate", "none", "--out", str(tmp_path / "file" / "out")]
    assert quantize_main(words) == 1
    assert said(capsys)["code"] == StoreError.code


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_shards_are_for_whom_the_other_files_are(umask: int, plain: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        quantize(QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", ""), quietly)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


@pytest.mark.parametrize("tied", [False, True])
def test_progress_of_reading_ends_at_all_of_it(tied: bool, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def report(stage: str, done: int, total: int) -> None:
        if stage == "reading":
            told.append((done, total))

    source = llama(tmp_path / "plain", tie_word_embeddings=tied)
    quantize(QuantizeJob(source, WeightPrecision.INT8, tmp_path / "out", ""), report)
    assert max(done for done, _ in told) == told[-1][1] == told[-1][0]


@pytest.mark.parametrize("width", [50, 100])
def test_fp8_of_odd_widths_has_a_multiplier_a_row(width: int, tmp_path: Path) -> None:
    source = odd_llama(tmp_path / "odd", width, 99)
    written = quantize(QuantizeJob(source, WeightPrecision.FP8, tmp_path / "out", "text"), quietly)
    assert written.source_dtype == "compressed-tensors fp8"
    batch = batch_of(written, windows_of(TOKENS, 512), torch.device("cpu"), torch.float32)
    load_model(written, "cpu", torch.float32, quietly_reading).forward(batch)


def quietly_reading(done: int, total: int) -> None:
    return None


@pytest.mark.parametrize(
    ("width", "inner", "error", "message"),
    [(100, 200, UnsupportedFormat, "width 100"), (40, 136, InvalidParameter, "widths: 40, 136")],
)
def test_int4_of_odd_widths_is_refused_naming_them(
    width: int, inner: int, error: type[Exception], message: str, tmp_path: Path
) -> None:
    source = odd_llama(tmp_path / "odd", width, inner)
    with pytest.raises(error, match=message):
        quantize(QuantizeJob(source, WeightPrecision.INT4, tmp_path / "out", ""), quietly)
    assert not (tmp_path / f"out{PARTIAL}").exists()
    if error is InvalidParameter:
        quantize(QuantizeJob(source, WeightPrecision.INT4, tmp_path / "out", "", group=0), quietly)


def test_group_for_divides_all_widths_or_is_none() -> None:
    assert [group_for(widths, 128) for widths in ({256, 384}, {256, 96}, {48, 256}, {72}, {50, 99})] == [
        128, 32, 16, 0, 0
    ]  # fmt: skip


@pytest.mark.parametrize(("group", "message"), [(-16, "--group is -16"), (8, "--group is 8"), (48, "width of 128")])
def test_groups_are_refused_for_what_is_wrong_with_them(group: int, message: str, plain: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=message):
        quantize(QuantizeJob(plain, WeightPrecision.INT4, tmp_path / "out", "", group=group), quietly)


@pytest.mark.parametrize("option", [["--to", "int4"], ["--kv", "int8"]])
@pytest.mark.parametrize(("content", "message"), [("", "is empty"), ("a", "1 tokens long")])
def test_texts_that_teach_nothing_are_refused(
    content: str,
    message: str,
    option: list[str],
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_module, "load_text", lambda spec: KnownTokens([5]))
    text = tmp_path / "text"
    text.write_text(content)
    words = [str(plain), *option, "--calibrate", str(text), "--out", str(tmp_path / "out")]
    assert quantize_main(words) == 1
    assert message in said(capsys)["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_no_more_of_a_text_is_read_and_cut_than_is_used(tmp_path: Path) -> None:
    cut: list[int] = []

    def encode(text: str) -> list[int]:
        cut.append(len(text))
        return [len(word) for word in text.split(" ")]

    text = "some words of text " * 100_000
    assert first_tokens(encode, text, 1000) == encode(text)[:1000]
    assert sum(cut[:-1]) < 0.02 * len(text)
    spaced = (" " * 40 + "word") * 200
    assert first_tokens(lambda part: [len(word) for word in part.split()], spaced, 150) == [4] * 150
    file = tmp_path / "text"
    file.write_text(text)
    assert read_text(file, 100, "text") == text[: 100 * CHARACTERS_A_TOKEN]


def test_offered_precisions_are_those_that_can_be_written() -> None:
    assert set(WrittenPrecision) == {str(found) for found in FORMATS} | {str(WeightPrecision.STORED)}


def test_learning_needs_some_tokens(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "load_text", lambda spec: KnownTokens([5] * 31))
    with pytest.raises(InvalidParameter, match="31 tokens long"):
        learning_tokens(read_spec(plain), "text")


def test_model_that_is_refused_leaves_nothing_and_is_refused_before_its_layers(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []

    def refuse(spec: object, folder: Path, quantisation: object) -> None:
        (folder / "config.json").write_text("{}")
        raise UnsupportedFormat("no tokenizer of that kind")

    monkeypatch.setattr(job_module, "write_beside", refuse)
    with pytest.raises(UnsupportedFormat):
        quantize(QuantizeJob(plain, WeightPrecision.INT8, tmp_path / "out", ""), lambda stage, *_: stages.append(stage))
    assert not stages
    assert not list(tmp_path.iterdir())
