"""The end from every state, by the supervisor's stop and by the end of the event loop: no process and no task stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from daemon.workers import managed
from daemon.workers.device_memory import DeviceMemory
from daemon.workers.incarnation import Incarnation
from daemon.workers.states import EDGES
from daemon.workers.states import WorkerState as S
from tests.unit.daemon.workers.conftest import SPEC, Bench

Reach = Callable[[Bench, pytest.MonkeyPatch], Coroutine[Any, Any, None]]


async def stopped(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    await bench.supervisor.want("w", SPEC)  # its task has not had its first turn
    assert bench.view().state is S.STOPPED


async def starting(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.script(load_s=60)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: bench.view().progress is not None)


async def warming(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def text_that_never_comes(*_: object) -> None:
        await never.wait()

    patch.setattr(bench.router, "add", text_that_never_comes)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: bench.view().state is S.WARMING and bench.view().ready is not None)


async def ready(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.script(token_s=0.05)
    await bench.ready()
    bench.stream("r")
    await bench.until(lambda: bench.view().inflight == 1)


async def draining(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    await ready(bench, patch)
    await bench.supervisor.restart("w", drain_s=60)


async def stopping(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    slow_end(patch)
    await bench.ready()
    await bench.supervisor.restart("w", drain_s=0)


async def backoff(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    for name in ("backoff_base_s", "backoff_max_s"):
        bench.settings.workers.__dict__[name] = 1e6  # frozen for everybody else
    bench.script(exit_at_start=7)
    await bench.supervisor.want("w", SPEC)


async def latched(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.settings.workers.__dict__["latch_after"] = 1
    bench.script(exit_at_start=7)
    await bench.supervisor.want("w", SPEC)


async def sleeping(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    await bench.ready()
    await bench.supervisor.sleep("w", drain_s=0)


async def lost(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    slow_end(patch)
    await ready(bench, patch)
    await bench.supervisor.kill("w")


async def dozing(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    await bench.ready()
    await bench.supervisor.sleep("w", drain_s=0, keep=True)


REACH: dict[S, Reach] = {
    S.STOPPED: stopped, S.STARTING: starting, S.WARMING: warming, S.READY: ready, S.DRAINING: draining,
    S.STOPPING: stopping, S.BACKOFF: backoff, S.LATCHED: latched, S.SLEEPING: sleeping, S.LOST: lost,
}  # fmt: skip


def slow_end(patch: pytest.MonkeyPatch) -> None:
    """Time to be seen in a state that lasts a moment."""
    end = Incarnation.end

    async def slowly(self: Incarnation, *, gently: bool) -> Any:
        await asyncio.sleep(0.3)
        return await end(self, gently=gently)

    patch.setattr(Incarnation, "end", slowly)


def test_every_state_is_walked() -> None:
    assert set(REACH) == set(EDGES)


@pytest.mark.parametrize("how", ["stop", "end of the loop"])
@pytest.mark.parametrize(
    ("state", "reach"), [*REACH.items(), (S.SLEEPING, dozing)], ids=[*REACH, "sleeping with its process"]
)
async def test_end_from_every_state_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, state: S, reach: Reach, how: str
) -> None:
    await reach(bench, monkeypatch)
    await bench.until_state(state)
    worker = bench.supervisor._workers["w"]
    children = psutil.Process(bench.spawner.helper_pid).children(recursive=True)
    if how == "stop":
        await asyncio.wait_for(bench.supervisor.stop(0.0), 8)
        assert worker._task.exception() is None
    else:
        worker._task.cancel()  # as a loop does with every task that is left when it ends
        done, _ = await asyncio.wait({worker._task}, timeout=8)
        assert done
        assert worker._task.cancelled()
    if state is not S.STOPPED:
        assert worker.state is S.STOPPED, worker.view().reason
    await bench.until(lambda: not any(child.is_running() for child in children))


async def test_stop_while_device_memory_is_waited_for_starts_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iter((1 << 30, *[60 << 30] * 10_000))

    def look() -> Any:
        return SimpleNamespace(accelerators=[SimpleNamespace(index=0, memory_used_bytes=next(used))])

    memory = DeviceMemory(look, give_up_s=600)
    await memory.confirm_free("cuda:0")
    monkeypatch.setattr(managed, "DeviceMemory", lambda: memory)
    await bench.supervisor.want("w", msgspec.structs.replace(SPEC, device="cuda:0"))
    await bench.until_state(S.STARTING)
    await asyncio.sleep(0.1)
    await asyncio.wait_for(bench.supervisor.unwant("w"), 3)
    assert bench.moves()[-2:] == [(S.STARTING, S.STOPPING), (S.STOPPING, S.STOPPED)]
    assert psutil.Process(bench.spawner.helper_pid).children() == []


async def test_worker_whose_end_fails_keeps_no_other_running(bench: Bench) -> None:
    await bench.ready("a")
    await bench.ready("b")
    bench.supervisor._workers["a"]._task.cancel()
    pid = bench.pid("b")
    await asyncio.wait_for(bench.supervisor.stop(0.0), 8)
    assert not psutil.pid_exists(pid)
