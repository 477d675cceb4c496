"""bayard workers: what it prints, and what it asks of the daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.cli import run
from daemon.commands import workers

ITEM = {"id": "bge/m3", "state": "latched", "model": "bge-m3", "reason": "5 fast exits", "fix": "read its log"}


class Daemon:
    """Answers as the admin client would; keeps what was asked."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items, self.asked = items, []
        self.box: dict[str, Any] = {"plan": None, "on_demand": []}

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(f"GET {path}")
        return self.box if path == "status" else {"items": self.items}

    def post(self, path: str, **params: Any) -> dict[str, Any]:
        self.asked.append(f"POST {path}")
        return {"item": self.items[0] | {"state": "starting", "reason": "restart asked"}}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Daemon:
    made = Daemon([ITEM])

    @contextmanager
    def admin(_: object) -> Iterator[Daemon]:
        yield made

    monkeypatch.setattr(workers, "admin", admin)
    monkeypatch.setenv("BAYARD_STATE_DIR", str(tmp_path))
    return made


def test_list_shows_reason_and_fix(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=3) == ["bge/m3", "latched", "bge-m3", "5 fast exits"]
    assert second.strip() == "fix: read its log"


def test_list_as_json_is_what_the_daemon_said(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [ITEM]


def test_list_when_there_are_none_says_why(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.items = []
    assert run(["workers", "list"]) == 0
    assert "No worker is wanted" in capsys.readouterr().out
    daemon.box = {"plan": "latency", "on_demand": ["one", "two"]}
    assert run(["workers", "list"]) == 0
    assert "plan latency loads one, two when asked for" in capsys.readouterr().out


def test_restart_posts_the_quoted_name(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "restart", "bge/m3"]) == 0
    assert daemon.asked == ["POST workers/bge%2Fm3/restart"]
    assert "bge/m3 is starting: restart asked" in capsys.readouterr().out
