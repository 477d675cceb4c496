"""What people and scripts type wrong: one sentence with its code, never a traceback, and nothing dropped unsaid."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.commands.client import AdminClient
from daemon.commands.durations import seconds_of
from daemon.commands.schedule_live import until
from engine.errors import InvalidParameter

Bayard = Callable[..., tuple[int, str, str]]
LONG = "x" * 10_000
RULE = ("schedule", "add", "a", "--plan", "x", "--for", "1h", "--cron")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("plan", LONG), "model_not_found"),
        (("plan", ""), "invalid_parameter"),
        (("plan", "~nobody-of-this-name/x.gguf"), "model_not_found"),
        (("plan", "show", LONG), "not_found"),
        (("models", "import", LONG), "not_found"),
        (("models", "show", LONG), "model_not_found"),
        (("quality", LONG, "stored", "int8"), "model_not_found"),
        (("quality", "", "stored", "int8"), "invalid_parameter"),
        (("schedule", "show", "--date", "9999-12-31"), "invalid_parameter"),
        (("schedule", "show", "--date", "0001-01-01"), "invalid_parameter"),
        ((*RULE, "1," * 5000 + "1 * * * *"), "invalid_parameter"),
        ((*RULE, "\u0665 * * * *"), "invalid_parameter"),
    ],
)
def test_input_beyond_all_bounds_is_one_short_line(bayard: Bayard, argv: tuple[str, ...], code: str) -> None:
    status, _, err = bayard(*argv)
    assert status == 1
    assert f"bayard: {code}: " in err.splitlines()[-1]
    assert len(err) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "1", "\x00", '{"schema": 1, "cpu": ' + "[" * 100_000])
def test_machine_description_that_is_none_is_refused(bayard: Bayard, tmp_path: Path, text: str) -> None:
    machine = tmp_path / "hw.json"
    machine.write_text(text)
    status, _, err = bayard("plan", "model", "--machine", str(machine))
    assert status == 1
    assert "is no machine description" in err


def test_recorded_machine_under_a_name_that_no_folder_has_is_refused(bayard: Bayard) -> None:
    status, _, err = bayard("hw", "--root", LONG)
    assert (status, "is not a folder" in err, len(err) < 1000) == (78, True, True)


def test_machine_description_without_an_end_is_refused(bayard: Bayard) -> None:
    status, _, err = bayard("plan", "model", "--machine", "/dev/zero")
    assert (status, "it has more than" in err) == (1, True)


def test_bundle_and_back_up_that_are_pipes_are_refused(
    bayard: Bayard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened = Path.open

    def not_the_pipe(path: Path, *how: Any, **more: Any) -> Any:
        assert path != pipe, "opening it waits for a writer for good"
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", not_the_pipe)
    monkeypatch.setattr("tarfile.open", not_the_pipe)
    for argv in (("bundle", "import", str(pipe)), ("backup", "--check", str(pipe)), ("models", "import", str(pipe))):
        status, _, err = bayard(*argv)
        assert (status, "neither a file nor a folder" in err) == (1, True), argv


@pytest.mark.parametrize(
    "argv",
    [
        ("schedule", "change", "r", "--except", "2026-12-25", "--no-exceptions"),
        ("schedule", "change", "r", "--off", "--on"),
        ("schedule", "override", "--clear", "--for", "5m"),
        ("schedule", "override", "--clear", "--reason", "why"),
        ("plan", "adapt", "p", "--off", "--least", "2"),
        ("plan", "on-demand", "p", "m", "--off", "--pin"),
        ("plan", "on-demand", "p", "m", "--off", "--keep-alive", "5m"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(bayard: Bayard, argv: tuple[str, ...]) -> None:
    assert bayard(*argv)[0] == 2


@pytest.mark.parametrize("text", ["\u0665m", "9" * 400 + "d"])
def test_duration_of_foreign_digits_or_without_end_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        seconds_of(text)


def test_name_that_is_empty_or_beyond_any_address_is_not_sent(short_dir: Path) -> None:
    with AdminClient(short_dir / "none.sock") as client:
        for path in ("plans/", "models//verify", "schedule/rules/", f"plans/{'x' * 70_000}"):
            with pytest.raises(InvalidParameter):
                client.get(path)


def test_end_of_what_is_in_force_is_said_where_it_is_known() -> None:
    ends = datetime(2026, 6, 1, 14, 5, tzinfo=UTC)
    assert until({"until_at": ends.isoformat()}) == f" until {ends.astimezone():%Y-%m-%d %H:%M %Z}"
    assert until({"until_at": None}) == ""
