"""The router: who answers, and an honest reason where nobody does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from daemon.router import Router
from daemon.store.base import utc_now
from daemon.workers.states import WorkerState as S
from daemon.workers.view import WorkerView
from engine.errors import ModelNotFound, NotReady
from engine.messages import LoadProgress, WorkerConfig, WorkerReady

READY = WorkerReady(1, 1, "m", "cpu", 2048, 10, 16, 0.1)
CONFIG = WorkerConfig("w", "m", "/models/m", "")


@dataclass
class Client:
    inflight: int = 0


def view(state: S, **changes: Any) -> WorkerView:
    values: dict[str, Any] = {
        "name": "w",
        "model": "m",
        "state": state,
        "since_at": utc_now(),
        "reason": "a reason",
        "config": CONFIG,
        "pid": None,
        "ready": None,
        "progress": None,
        "stats": None,
        "step_age_s": None,
        "inflight": 0,
        "restarts": 0,
        "restarts_24h": 0,
        "last_exit": None,
        "last_log_lines": (),
        "retry_in_s": None,
        "log_path": Path("/x"),
    }
    return WorkerView(**values | changes)


async def add(router: Router, worker: str, inflight: int = 0) -> None:
    await router.add(worker, CONFIG, cast(Any, Client(inflight)), READY)


def made() -> Router:
    return Router(lambda path: cast(Any, f"text of {path}"))


async def test_replica_with_fewest_requests_is_chosen() -> None:
    router = made()
    await add(router, "a", 3)
    await add(router, "b", 1)
    replica = router.replica_for("m")
    assert (replica.worker, replica.text, replica.max_context_tokens) == ("b", "text of /models/m", 2048)


async def test_removed_worker_gets_nothing_more() -> None:
    router = made()
    await add(router, "a")
    await add(router, "b")
    router.remove("a")
    assert router.replica_for("m").worker == "b"
    router.remove("b")
    router.remove("b")
    assert router.models() == []


async def test_unknown_model_does_not_name_those_that_are_served() -> None:
    router = made()
    await router.add("a", WorkerConfig("a", "secret", "/models/s", ""), cast(Any, Client()), READY)
    with pytest.raises(ModelNotFound, match="there is no model 'x'") as caught:
        router.replica_for("x")
    assert caught.value.param == "model"
    assert "secret" not in str(caught.value)


def test_imported_model_outside_the_plan_is_told_from_an_unknown_one() -> None:
    router = made()
    router.imported = lambda: ["m"]
    with pytest.raises(ModelNotFound, match="is imported, but the active plan does not load it"):
        router.replica_for("m")


def test_loading_model_tells_how_far() -> None:
    router = made()
    router.views = lambda: [view(S.STARTING, progress=LoadProgress("reading", 25 << 20, 100 << 20))]
    with pytest.raises(NotReady, match=r"is starting \(reading, 25 % of 100 MiB\)") as caught:
        router.replica_for("m")
    assert caught.value.retry_after_s == 2.0


def test_latched_model_says_who_can_help() -> None:
    router = made()
    router.views = lambda: [view(S.LATCHED)]
    with pytest.raises(NotReady, match="is down: a reason") as caught:
        router.replica_for("m")
    assert "restart worker w" in caught.value.hint


def test_model_in_back_off_tells_when_to_come_back() -> None:
    router = made()
    router.views = lambda: [view(S.BACKOFF, retry_in_s=7.5), view(S.LATCHED, name="x")]
    with pytest.raises(NotReady) as caught:
        router.replica_for("m")
    assert caught.value.retry_after_s == 7.5
    assert caught.value.message == "the model 'm' is not ready: its worker was lost and is about to be started again."


async def test_text_is_loaded_once_for_all_replicas_and_again_after_forgetting() -> None:
    calls: list[str] = []

    def load(path: str) -> Any:
        calls.append(path)
        return path

    router = Router(load)
    router.start_text("/models/m")
    await asyncio.gather(add(router, "a"), add(router, "b"))
    assert calls == ["/models/m"]
    router.forget_text("/models/m")
    await add(router, "c")
    assert calls == ["/models/m"] * 2


async def test_text_that_failed_is_tried_again() -> None:
    calls: list[str] = []

    def load(path: str) -> Any:
        calls.append(path)
        if len(calls) == 1:
            raise OSError("broken")
        return path

    router = Router(load)
    with pytest.raises(OSError, match="broken"):
        await add(router, "a")
    assert router.models() == []
    await add(router, "a")
    assert router.models() == ["m"]
