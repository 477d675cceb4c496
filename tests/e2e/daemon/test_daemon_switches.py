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
    boxed.until(lambda: [item["id"] for item in workers(boxed) if item["state"] == "ready"] == [f"{MODEL}@2"], 40)
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


Step = Callable[[Daemon], bool]


def in_state(state: str) -> Step:
    return lambda daemon: any(item["state"] == state for item in workers(daemon))


STEPS: dict[str, dict[str, Step]] = {
    "beside": {
        "new one loads": lambda daemon: len(workers(daemon)) == 2,
        "old one drains": in_state("draining"),
    },
    "sleep-first": {
        "old one drains": in_state("draining"),
        "old one sleeps": in_state("sleeping"),
        "new one loads": lambda daemon: len(workers(daemon)) == 2,
    },
    "drain-first": {
        "old one drains": in_state("draining"),
        "new one loads": in_state("starting"),
        "done": lambda daemon: context_of(daemon) == [LONG],
    },
}


def room_for_one(daemon: Daemon, *, and_a_sleeper: bool) -> None:
    """Host memory for either plan's worker, not for both; beside one that sleeps if asked."""
    plans = {name: json.loads(daemon.command("plan", "show", name, "--json").stdout) for name in ("short", "long")}
    (short,), (long,) = (plans[name]["models"] for name in ("short", "long"))
    larger = max(short["memory_bytes"], long["memory_bytes"])
    daemon.env["BAYARD_WORKERS_HOST_MEMORY_BYTES"] = str(larger + (16 << 20))
    if not and_a_sleeper:  # what it says it holds awake is then too little to be what sleeping would free
        daemon.script(token_s=0.1, load_s=0.4, rss_bytes=64 << 20)


@pytest.mark.parametrize(("how", "step"), [(how, step) for how in STEPS for step in STEPS[how]])
def test_daemon_killed_at_a_step_of_a_switch_converges_at_the_next_start(
    boxed: Daemon, key: str, how: str, step: str
) -> None:
    boxed.env["BAYARD_WORKERS_STOP_GRACE_S"] = "1.5"
    boxed.script(token_s=0.1, load_s=0.4)
    if how != "beside":
        room_for_one(boxed, and_a_sleeper=how == "sleep-first")
    boxed.start()
    boxed.until_serving()
    running = threading.Thread(target=_until_cut, args=(boxed.url, key))
    running.start()  # holds the old one in its drain
    boxed.until(lambda: workers(boxed)[0]["requests_running"] == 1)
    boxed.command("plan", "activate", "long")
    boxed.until(lambda: STEPS[how][step](boxed), 40)
    assert switches(boxed)[0]["to_state"] == how, switches(boxed)
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


def test_switch_back_wakes_the_sleeper_and_loses_nobody(boxed: Daemon, key: str) -> None:
    room_for_one(boxed, and_a_sleeper=True)
    boxed.script(token_s=0.01, load_s=1.0)
    boxed.start()
    boxed.until_serving()
    (pid,) = [item["pid"] for item in workers(boxed)]
    url, statuses, stop = boxed.url, [], threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            statuses.append(asked(url, key, 10).status_code)

    asker = threading.Thread(target=keep_asking)
    asker.start()
    for plan, context in (("long", LONG), ("short", 2048)):
        boxed.command("plan", "activate", plan)
        boxed.until(lambda context=context: context_of(boxed) == [context] and in_state("sleeping")(boxed), 40)  # type: ignore[misc]
    boxed.until(lambda: len(switches(boxed)) == 4)
    stop.set()
    asker.join()
    assert set(statuses) == {200}
    assert [event["to_state"] for event in switches(boxed)] == ["sleep-first", "switched"] * 2
    there, back = [event["fields"]["gap_s"] for event in switches(boxed)[1::2]]
    assert there is not None
    assert back is not None
    assert back < 10
    loads = [event for event in boxed.admin("events?limit=200")["items"] if event["to_state"] == "starting"]
    assert len(loads) == 2, "the way back loads nothing"
    assert [item["pid"] for item in workers(boxed) if item["state"] == "ready"] == [pid]


def _until_cut(url: str, key: str) -> None:
    try:
        asked(url, key, 600)
    except httpx.HTTPError:
        return
