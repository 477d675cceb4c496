"""Names that no file can have, and things that are no files: told without waiting for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import BayardError, NotFound, UnsupportedFormat
from engine.spec import read_spec
from engine.spec.place import is_there, place_of


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Reading a pipe that nobody writes never ends."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["x" * 10_000, "/" + "x/" * 5000, "a\0b", "\ud800", "~nobody-of-this-name/x"])
def test_name_that_no_file_can_have_is_not_found(name: str) -> None:
    assert not is_there(place_of(name))
    with pytest.raises(NotFound) as caught:
        read_spec(place_of(name))
    assert len(caught.value.message) < 400


def test_pipe_and_device_are_no_checkpoints(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe.gguf", tmp_path / "zero.gguf"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path in (pipe, link, Path("/dev/zero")):
        with pytest.raises(UnsupportedFormat, match="neither a file nor a folder"):
            read_spec(path)


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "model.safetensors.index.json"])
def test_folder_whose_files_are_pipes_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}') if name.startswith("model") else None
    os.mkfifo(tmp_path / name)
    with pytest.raises(BayardError):
        read_spec(tmp_path)
