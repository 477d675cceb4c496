"""The commands' way to the daemon: how long they wait, and what they say then."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli import run
from daemon.commands.client import AdminClient
from engine.errors import BayardError


@pytest.fixture
def silent(short_dir: Path) -> Iterator[Path]:
    """A socket whose owner takes connections and says nothing."""
    path = short_dir / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


def test_daemon_that_says_nothing_is_given_up_after_the_time_that_was_named(silent: Path) -> None:
    began = time.monotonic()
    with (
        AdminClient(silent) as client,
        pytest.raises(BayardError, match=r"did not answer DELETE models/m within 0.2 s"),
    ):
        client.delete("models/m", within_s=0.2)
    with (
        AdminClient(silent, timeout_s=0.1) as client,
        pytest.raises(BayardError, match=r"did not answer GET status within 0.1 s"),
    ):
        client.get("status")
    assert time.monotonic() - began < 5


def test_socket_that_is_not_there_says_how_to_name_another(short_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--state-dir", str(short_dir), "--run-dir", str(short_dir / "run")]) == 78
    err = capsys.readouterr().err
    assert f"no daemon answers on {short_dir / 'run' / 'admin.sock'}" in err
    assert "--run-dir" in err
