"""Switches between plans of different shapes in a running daemon: beside, drained first, and killed in the middle."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.daemon.conftest import FAKE, MODEL, Daemon

LONG = 8192


def asked(url: str, key: str, tokens: int = 40) -> httpx.Response:
    body = {
        "model": MODEL,
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)


def workers(daemon: Daemon) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = daemon.admin("workers")["items"]
    return items


def context_of(daemon: Daemon) -> list[int]:
    return [item["max_context_tokens"] for item in workers(daemon) if item["state"] == "ready"]


def switches(daemon: Daemon) -> list[dict[str, Any]]:
    return [event for event in daemon.admin("events?limit=200")["items"] if event["kind"] == "switch"]


@pytest.fixture(scope="module")
def planned(prepared: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """With two plans of different shape, the short one in force."""
    made = Daemon(tmp_path_factory.mktemp("planned"))
    shutil.copytree(prepared[0], made.state_dir, dirs_exist_ok=True)
    for name, context in (("short", 2048), ("long", LONG)):
        made.command("plan", "save", name, MODEL, "--context", str(context), "--users", "2")
    made.command("plan", "activate", "short")
    return made.state_dir, prepared[1]


@pytest.fixture
def key(planned: tuple[Path, str]) -> str:
    return planned[1]


@pytest.fixture
def boxed(daemon: Daemon, planned: tuple[Path, str]) -> Daemon:
    shutil.copytree(planned[0], daemon.state_dir, dirs_exist_ok=True)
    daemon.env["BAYARD_WORKERS_COMMAND"] = FAKE
    daemon.script(token_s=0.05)
    return daemon


def test_no_request_is_lost_while_a_proven_worker_takes_the_others_place(boxed: Daemon, key: str) -> None:
    boxed.start()
    boxed.until_serving()
    url, statuses, stop = boxed.url, [], threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            statuses.append(asked(url, key, 10).status_code)

    askers = [threading.Thread(target=keep_asking) for _ in range(3)]
    for asker in askers:
        asker.start()
    boxed.command("plan", "activate", "long")
    boxed.until(lambda: len(workers(boxed)) == 1 and workers(boxed)[0]["id"] == f"{MODEL}@2", 40)
    time.sleep(0.3)
    stop.set()
    for asker in askers:
        asker.join()
    assert set(statuses) == {200}
    assert [event["to_state"] for event in switches(boxed)] == ["beside", "switched"]
    assert switches(boxed)[-1]["fields"]["gap_s"] == 0.0
    told = json.loads(boxed.command("plan", "rollback", "--json").stdout)
    assert told["plan"] == "short"


def test_worker_that_fails_its_proof_never_gets_traffic(boxed: Daemon, key: str) -> None:
    boxed.env["BAYARD_WORKERS_BACKOFF_BASE_S"] = "0.2"
    boxed.start()
    boxed.until_serving()
    boxed.script(error="worker_error")
    boxed.command("plan", "activate", "long")
    boxed.until(lambda: any(event["to_state"] == "rolled-back" for event in switches(boxed)), 40)
    boxed.script(token_s=0.001, error="")
    boxed.until(lambda: len(workers(boxed)) == 1)
    assert workers(boxed)[0]["id"] == MODEL
    assert "test generation" in switches(boxed)[-1]["reason"]
    url = boxed.url
    boxed.until(lambda: asked(url, key, 4).status_code == 200)  # once the old one has read that it works again


STEPS: dict[str, Callable[[Daemon], bool]] = {
    "asked for": lambda daemon: True,
    "new one loads": lambda daemon: len(workers(daemon)) == 2,
    "old one drains": lambda daemon: any(item["state"] == "draining" for item in workers(daemon)),
    "done": lambda daemon: [item["id"] for item in workers(daemon)] == [f"{MODEL}@2"],
}


@pytest.mark.parametrize("step", STEPS)
def test_daemon_killed_at_a_step_of_a_switch_converges_at_the_next_start(boxed: Daemon, key: str, step: str) -> None:
    boxed.env["BAYARD_WORKERS_STOP_GRACE_S"] = "3"
    boxed.script(token_s=0.1, load_s=0.4)
    boxed.start()
    boxed.until_serving()
    running = threading.Thread(target=_until_cut, args=(boxed.url, key))
    running.start()  # holds the old one in its drain
    boxed.until(lambda: workers(boxed)[0]["requests_running"] == 1)
    boxed.command("plan", "activate", "long")
    boxed.until(lambda: STEPS[step](boxed), 40)
    pids = [item["pid"] for item in workers(boxed) if item["pid"]]
    boxed.stop()  # SIGKILL
    running.join()
    (boxed.state_dir / "serve.log").unlink()
    boxed.script(token_s=0.001)
    boxed.start()
    boxed.until(lambda: context_of(boxed) == [LONG], 30)
    assert len(workers(boxed)) == 1
    assert boxed.admin("schedule")["plan"] == "long"
    answer = asked(boxed.url, key)
    assert answer.status_code == 200, answer.text + boxed.log
    boxed.until(lambda: not any(psutil.pid_exists(pid) for pid in pids))  # the dead daemon's workers went with it
    with sqlite3.connect(boxed.state_dir / "bayard.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def _until_cut(url: str, key: str) -> None:
    try:
        asked(url, key, 600)
    except httpx.HTTPError:
        return
