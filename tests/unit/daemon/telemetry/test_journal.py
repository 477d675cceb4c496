"""The journal gets every value as a field of its own, whatever is in it, and holds nobody up."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from daemon.settings import LogSettings
from daemon.telemetry import journal
from daemon.telemetry.journal import JournalStream
from daemon.telemetry.logs import set_up_logging


@pytest.fixture
def listener(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(short_dir / "journal"))
        made.settimeout(5)
        monkeypatch.setattr(JournalStream.__init__, "__defaults__", (short_dir / "journal",))
        yield made
        set_up_logging(LogSettings())  # closes the journal's


def received(listener: socket.socket) -> dict[str, str]:
    """Parsed as the journal does."""
    data, fields = listener.recv(1 << 20), {}
    while data:
        line, _, data = data.partition(b"\n")
        if b"=" in line:
            name, _, value = line.partition(b"=")
        else:
            (size,) = struct.unpack("<Q", data[:8])
            name, value, data = line, data[8 : 8 + size], data[8 + size + 1 :]
        fields[name.decode()] = value.decode()
    return fields


def test_values_are_fields_and_the_message_reads(listener: socket.socket) -> None:
    set_up_logging(LogSettings(format="journal"))
    structlog.get_logger("x").warning("worker_lost", worker="w1", odd="two\nlines", count=3, nothing=None)
    fields = received(listener)
    assert fields["MESSAGE"].startswith("worker_lost worker=w1")
    assert (fields["PRIORITY"], fields["SYSLOG_IDENTIFIER"]) == ("4", "bayard")
    assert (fields["BAYARD_EVENT"], fields["BAYARD_WORKER"]) == ("worker_lost", "w1")
    assert (fields["BAYARD_ODD"], fields["BAYARD_COUNT"]) == ("two\nlines", "3")
    assert "BAYARD_NOTHING" not in fields
    logging.getLogger("library").error("it broke")
    assert received(listener)["BAYARD_LOGGER"] == "library"


def test_value_cannot_forge_a_field(listener: socket.socket) -> None:
    stream = JournalStream(Path(listener.getsockname()))
    stream.write('{"event": "x\\nPRIORITY=0", "level": "info", "a=b\\nPRIORITY": "0"}\n')
    fields = received(listener)
    assert fields["PRIORITY"] == "6"
    assert fields["BAYARD_EVENT"] == "x\nPRIORITY=0"
    assert fields["BAYARD_A_B_PRIORITY"] == "0"
    stream.close()


def test_journal_that_takes_nothing_stops_nothing(listener: socket.socket) -> None:
    set_up_logging(LogSettings(format="journal"))
    log = structlog.get_logger("x")
    for _ in range(5_000):  # its buffer is full long before
        log.info("line", text="x" * 100)
    listener.close()
    log.info("line")


def test_without_a_journal_lines_go_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalStream.__init__, "__defaults__", (tmp_path / "none",))
    assert journal.SOCKET.name == "socket"
    set_up_logging(LogSettings(format="journal"))
    structlog.get_logger("x").info("worker_ready")
    told = capsys.readouterr().err
    assert "no_journal" in told
    assert "worker_ready" in told
