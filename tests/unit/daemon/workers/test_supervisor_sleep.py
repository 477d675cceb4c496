"""Workers put to sleep, woken and killed on an operator's word."""

from __future__ import annotations

import asyncio

import msgspec
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


async def test_draining_to_sleeping_when_its_process_is_kept(bench: Bench) -> None:
    await bench.ready()
    pid, stream = bench.pid(), bench.stream("a", max_tokens=5)
    await bench.supervisor.sleep("w", reason="another plan is in force", keep=True)
    await bench.until_state(S.SLEEPING)
    assert bench.moves()[-2:] == [(S.READY, S.DRAINING), (S.DRAINING, S.SLEEPING)]
    assert len((await stream)[-1].token_ids) > 0, "what ran was finished first"
    assert psutil.pid_exists(pid)
    assert bench.pid() == pid
    with pytest.raises(NotReady, match="makes room for another"):
        bench.router.replica_for("m")


async def test_sleeping_to_warming_when_its_process_is_woken(bench: Bench) -> None:
    await bench.ready()
    pid = bench.pid()
    for _ in range(2):
        await bench.supervisor.sleep("w", keep=True)
        await bench.until_state(S.SLEEPING)
        await bench.supervisor.wake("w", prove=True)
        await bench.until_state(S.READY)
    assert bench.moves()[-3:] == [(S.DRAINING, S.SLEEPING), (S.SLEEPING, S.WARMING), (S.WARMING, S.READY)]
    assert bench.pid() == pid
    assert (await bench.stream("a", max_tokens=3))[-1].finish == "length"
    assert bench.view().restarts == 0


@pytest.mark.parametrize("way", ["unwanted", "stopped", "killed", "other shape"])
async def test_sleeping_to_stopping_when_its_process_is_to_end(bench: Bench, way: str) -> None:
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.sleep("w", keep=True)
    await bench.until_state(S.SLEEPING)
    match way:
        case "unwanted":
            await asyncio.wait_for(bench.supervisor.unwant("w"), 3)
            assert bench.moves()[-2:] == [(S.SLEEPING, S.STOPPING), (S.STOPPING, S.STOPPED)]
        case "stopped":
            await bench.supervisor.sleep("w", reason="the operator wants the memory")
            await bench.until(lambda: bench.view().pid is None and bench.view().state is S.SLEEPING)
        case "killed":
            await bench.supervisor.kill("w")
            await bench.until(lambda: bench.view().pid is None and bench.view().state is S.SLEEPING)
            assert "killed by signal 9" in bench.view().reason
            await bench.supervisor.wake("w")
            await bench.until_state(S.READY)
        case "other shape":
            await bench.supervisor.want("w", msgspec.structs.replace(SPEC, max_context_tokens=512))
            await bench.supervisor.wake("w")
            await bench.until(lambda: bench.view().state is S.READY and bench.view().pid != pid)
    assert (S.SLEEPING, S.STOPPING) in bench.moves()
    assert not psutil.pid_exists(pid)


async def test_draining_to_stopping_when_there_is_no_room_to_sleep(bench: Bench) -> None:
    bench.script(sleep_error="no host memory")
    await bench.ready()
    await bench.supervisor.sleep("w", reason="another plan", keep=True)
    await bench.until_state(S.SLEEPING)
    assert bench.view().pid is None
    assert "no host memory" in bench.view().reason
    await bench.supervisor.wake("w")
    await bench.until_state(S.READY)


async def test_one_that_cannot_wake_is_started_anew(bench: Bench) -> None:
    bench.script(wake_error="the device is full")
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.sleep("w", keep=True)
    await bench.until_state(S.SLEEPING)
    await bench.supervisor.wake("w")
    await bench.until(lambda: bench.view().state is S.READY and bench.view().pid != pid)
    assert any("the device is full" in event.reason for event in bench.events.recent())


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


async def test_drained_device_keeps_its_workers_asleep_until_it_is_undrained(bench: Bench) -> None:
    await bench.ready("a")
    await bench.ready("b")
    await bench.supervisor.sleep("b", reason="an operator's own word")
    await bench.until_state(S.SLEEPING, name="b")
    assert await bench.supervisor.drain_device("cpu", "cpu is drained by ops") == ["a", "b"]
    await bench.until_state(S.SLEEPING, name="a")
    await bench.supervisor.want("c", SPEC)  # a plan wants another there
    await bench.until_state(S.SLEEPING, name="c")
    assert bench.view("c").pid is None
    for call in (bench.supervisor.wake("a"), bench.supervisor.restart("a")):
        with pytest.raises(Conflict, match="the device cpu is drained: cpu is drained by ops"):
            await call
    assert sorted(await bench.supervisor.undrain_device("cpu")) == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        await bench.until_state(S.READY, name=name)
    assert await bench.supervisor.undrain_device("cpu") == []
