"""Logs: one form for our lines and for libraries', JSON or for people."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from daemon.settings import LogSettings
from daemon.telemetry.logs import set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_lines_hold_event_level_time_and_fields() -> None:
    out = io.StringIO()
    set_up_logging(LogSettings(format="json"), out)
    structlog.get_logger("x").info("worker_ready", worker="w", pid=3)
    logging.getLogger("library").warning("odd %s", "thing")
    ours, theirs = map(json.loads, out.getvalue().splitlines())
    assert (ours["event"], ours["level"], ours["worker"], ours["pid"]) == ("worker_ready", "info", "w", 3)
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("odd thing", "warning", "library")


def test_level_holds_for_both() -> None:
    out = io.StringIO()
    set_up_logging(LogSettings(level="error"), out)
    structlog.get_logger("x").warning("quiet")
    logging.getLogger("library").warning("quiet")
    assert out.getvalue() == ""


def test_log_without_a_reader_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as out:
        set_up_logging(LogSettings(), out)
        structlog.get_logger("x").info("into the void")
        logging.getLogger("library").warning("so is this")
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writing)  # so that closing finds somewhere to write


def test_exception_is_one_json_line() -> None:
    out = io.StringIO()
    set_up_logging(LogSettings(format="json"), out)
    try:
        raise LookupError("gone")
    except LookupError:
        structlog.get_logger("x").exception("failed")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "LookupError"


@pytest.mark.parametrize("form", ["json", "console"])
def test_exception_tells_no_local_variable(form: str) -> None:
    out = io.StringIO()
    set_up_logging(LogSettings(format=form), out)  # type: ignore[arg-type]

    def fail(prompt: str) -> None:
        raise LookupError("gone")

    try:
        fail("confidential " * 2)
    except LookupError:
        structlog.get_logger("x").exception("failed")
        logging.getLogger("library").exception("failed")
    assert out.getvalue().count("LookupError") >= 2
    assert "confidential confidential" not in out.getvalue()
