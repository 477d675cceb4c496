"""Workers put to sleep, woken and killed on an operator's word."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from daemon.workers.states import WorkerState as S
from engine.errors import Conflict, NotReady
from tests.unit.daemon.workers.conftest import SPEC, Bench


async def test_stopped_to_sleeping_when_put_to_sleep(bench: Bench) -> None:
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.sleep("w", reason="the operator wants the memory")
    await bench.until_state(S.SLEEPING)
    assert bench.moves()[-2:] == [(S.STOPPING, S.STOPPED), (S.STOPPED, S.SLEEPING)]
    assert bench.view().reason == "the operator wants the memory"
    assert not psutil.pid_exists(pid)
    with pytest.raises(NotReady, match="put to sleep"):
        bench.router.replica_for("m")
    await bench.supervisor.want("w", SPEC)  # the plan goes on wanting it
    await asyncio.sleep(0.1)
    assert bench.view().state is S.SLEEPING


async def test_sleeping_to_starting_when_woken(bench: Bench) -> None:
    await bench.ready()
    with pytest.raises(Conflict, match="is ready, not sleeping"):
        await bench.supervisor.wake("w")
    await bench.supervisor.sleep("w")
    await bench.until_state(S.SLEEPING)
    await bench.supervisor.wake("w")
    await bench.until_state(S.READY)
    assert (S.SLEEPING, S.STARTING) in bench.moves()
    assert bench.view().restarts == 0


async def test_sleeping_to_stopped_when_unwanted(bench: Bench) -> None:
    await bench.ready()
    await bench.supervisor.sleep("w")
    await bench.until_state(S.SLEEPING)
    await asyncio.wait_for(bench.supervisor.unwant("w"), 2)
    assert bench.moves()[-1] == (S.SLEEPING, S.STOPPED)


async def test_latched_to_stopped_when_put_to_sleep(bench: Bench) -> None:
    bench.script(exit_at_start=3)
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    await bench.supervisor.sleep("w")
    await bench.until_state(S.SLEEPING)
    assert bench.moves()[-2:] == [(S.LATCHED, S.STOPPED), (S.STOPPED, S.SLEEPING)]


async def test_killed_worker_starts_again_as_after_a_crash(bench: Bench) -> None:
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.kill("w")
    await bench.until(lambda: bench.view().state is S.READY and bench.view().pid != pid)
    assert (S.READY, S.LOST) in bench.moves()
    assert bench.view().restarts == 1
