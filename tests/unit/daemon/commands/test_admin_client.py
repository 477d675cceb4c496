"""The commands' way to the daemon: how long they wait, and what they say then."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.commands.client import AdminClient
from engine.errors import BayardError, ConfigError


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


def test_socket_that_is_not_there_says_how_to_name_another(short_dir: Path) -> None:
    with AdminClient(short_dir / "none.sock") as client, pytest.raises(ConfigError) as caught:
        client.get("status")
    assert "--run-dir" in caught.value.hint
