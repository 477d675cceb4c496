"""The supervisor with real processes of a fake worker: a test for each edge, named after it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest

from daemon.workers.states import WorkerState as S
from engine.errors import NotReady
from engine.messages import FinishReason
from tests.unit.daemon.workers.conftest import SPEC, Bench


async def test_stopped_to_starting_when_wanted(bench: Bench) -> None:
    await bench.ready()
    assert bench.moves()[0] == (S.STOPPED, S.STARTING)
    assert bench.view().reason.startswith("loaded in")


async def test_starting_to_warming_when_loaded(bench: Bench) -> None:
    await bench.ready()
    assert bench.moves()[1] == (S.STARTING, S.WARMING)


async def test_warming_to_ready_when_text_is_there(bench: Bench) -> None:
    await bench.ready()
    assert bench.moves()[2] == (S.WARMING, S.READY)
    assert bench.router.models() == ["m"]


async def test_starting_to_stopping_when_unwanted(bench: Bench) -> None:
    bench.script(load_s=30)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: bench.view().progress is not None)
    begun = time.monotonic()
    await bench.supervisor.unwant("w")
    assert time.monotonic() - begun < 2
    assert bench.moves()[-2:] == [(S.STARTING, S.STOPPING), (S.STOPPING, S.STOPPED)]


async def test_starting_to_backoff_when_process_exits(bench: Bench) -> None:
    bench.script(exit_at_start=3)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: (S.STARTING, S.BACKOFF) in bench.moves())
    reasons = [event.reason for event in bench.events.recent() if event.to_state == S.BACKOFF]
    assert reasons[0] == "ended while loading, exit status 3"


async def test_starting_to_backoff_when_worker_says_why(bench: Bench) -> None:
    bench.script(fail_at_start="needs 70 GiB, has 8 GiB")
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: (S.STARTING, S.BACKOFF) in bench.moves())
    reasons = [event.reason for event in bench.events.recent() if event.to_state == S.BACKOFF]
    assert reasons[0] == "ended while loading, exit status 3: needs 70 GiB, has 8 GiB"


async def test_starting_to_backoff_when_loading_makes_no_progress(bench: Bench) -> None:
    bench.script(load_stuck=True)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: bench.view().pid is not None)
    pid = bench.pid()
    await bench.until(lambda: (S.STARTING, S.BACKOFF) in bench.moves())
    assert "made no progress in loading for 1." in bench.view().reason
    assert not psutil.pid_exists(pid)


async def test_warming_to_backoff_when_worker_is_of_another_version(bench: Bench) -> None:
    bench.script(protocol=999)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: (S.WARMING, S.BACKOFF) in bench.moves())
    assert "speaks protocol 999; this daemon speaks" in bench.view().reason
    assert bench.router.models() == []


async def test_warming_to_backoff_when_text_cannot_be_loaded(bench: Bench) -> None:
    calls = []

    def load(path: str) -> object:
        calls.append(path)
        if len(calls) == 1:
            raise OSError("no tokenizer here")
        return object()

    bench.router._load_text = load  # type: ignore[assignment]
    await bench.ready()
    assert (S.WARMING, S.BACKOFF) in bench.moves()
    reasons = [event.reason for event in bench.events.recent() if event.to_state == S.BACKOFF]
    assert "OSError: no tokenizer here" in reasons[0]
    assert calls == ["/models/m", "/models/m"]


async def test_warming_to_stopping_when_unwanted(bench: Bench) -> None:
    bench.router._load_text = lambda path: time.sleep(1.0)  # type: ignore[assignment,return-value]
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.WARMING)
    await bench.until(lambda: bench.view().ready is not None)
    await bench.supervisor.unwant("w")
    assert (S.WARMING, S.STOPPING) in bench.moves()


async def test_ready_to_draining_when_unwanted(bench: Bench) -> None:
    bench.script(token_s=0.02)
    await bench.ready()
    stream = bench.stream("r", 30)
    await asyncio.sleep(0.1)
    leaving = asyncio.create_task(bench.supervisor.unwant("w"))
    await bench.until_state(S.DRAINING)
    with pytest.raises(NotReady):
        bench.router.replica_for("m")
    await leaving
    deltas = await stream
    assert deltas[-1].finish is FinishReason.LENGTH
    assert sum(len(delta.token_ids) for delta in deltas) == 30


async def test_draining_to_stopping_when_idle(bench: Bench) -> None:
    await bench.ready()
    await bench.supervisor.unwant("w")
    assert bench.moves()[-2:] == [(S.DRAINING, S.STOPPING), (S.STOPPING, S.STOPPED)]


async def test_draining_to_stopping_when_time_is_over(bench: Bench) -> None:
    bench.script(token_s=0.05)
    await bench.ready()
    stream = bench.stream("r")
    await asyncio.sleep(0.1)
    await bench.supervisor.unwant("w", drain_s=0.2)
    last = (await stream)[-1]
    assert last.finish is FinishReason.ERROR
    assert last.error is not None
    assert last.error.code == "draining"


async def test_stopping_to_stopped_when_process_ignores_us(bench: Bench) -> None:
    bench.script(ignore_stop=True)
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.unwant("w", drain_s=0.0)
    assert not psutil.pid_exists(pid)
    assert bench.moves()[-1] == (S.STOPPING, S.STOPPED)


async def test_draining_to_lost_when_killed(bench: Bench) -> None:
    bench.script(token_s=0.05)
    await bench.ready()
    stream = bench.stream("r")
    leaving = asyncio.create_task(bench.supervisor.unwant("w"))
    await bench.until_state(S.DRAINING)
    os.kill(bench.pid(), signal.SIGKILL)
    await leaving
    assert (await stream)[-1].finish is FinishReason.ERROR
    assert bench.moves()[-2:] == [(S.DRAINING, S.LOST), (S.LOST, S.STOPPED)]


async def test_lost_to_stopped_when_unwanted(bench: Bench) -> None:
    bench.script(token_s=0.05)
    await bench.ready()
    bench.stream("r")
    leaving = asyncio.create_task(bench.supervisor.unwant("w"))
    await bench.until_state(S.DRAINING)
    os.kill(bench.pid(), signal.SIGKILL)
    await leaving
    assert bench.moves()[-1] == (S.LOST, S.STOPPED)
    assert bench.supervisor.views() == []


async def test_ready_to_lost_when_killed(bench: Bench) -> None:
    """Every open stream ends with one error within 2 s, and the worker answers again by itself."""
    bench.script(token_s=0.05)
    await bench.ready()
    streams = [bench.stream(f"r{n}") for n in range(20)]
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    os.kill(bench.pid(), signal.SIGKILL)
    ended = await asyncio.wait_for(asyncio.gather(*streams), 2.0)
    assert time.monotonic() - begun < 2.0
    for deltas in ended:
        assert [delta.finish for delta in deltas if delta.finish] == [FinishReason.ERROR]
        assert deltas[-1].error is not None
        assert deltas[-1].error.code == "worker_lost"
        assert "killed by signal 9 (SIGKILL)" in deltas[-1].error.message
    assert (S.READY, S.LOST) in bench.moves()
    await bench.until_state(S.READY)
    assert (await bench.stream("again", 5))[-1].finish is FinishReason.LENGTH
    assert bench.view().restarts == 1


async def test_ready_to_lost_when_stopped_by_a_signal(bench: Bench) -> None:
    """A process that exists and stands still is no healthy worker."""
    bench.script(token_s=0.05)
    await bench.ready()
    stream = bench.stream("r")
    await asyncio.sleep(0.2)
    pid = bench.pid()
    os.kill(pid, signal.SIGSTOP)
    deltas = await asyncio.wait_for(stream, 4.0)
    assert deltas[-1].error is not None
    assert deltas[-1].error.code == "worker_stalled"
    await bench.until_state(S.READY)
    assert bench.pid() != pid
    assert not psutil.pid_exists(pid)


async def test_ready_to_lost_when_step_loop_hangs(bench: Bench) -> None:
    await bench.ready()
    pid = bench.pid()
    bench.script(hang=True)
    await bench.until(lambda: (S.READY, S.LOST) in bench.moves(), 5.0)
    bench.script(hang=False)
    await bench.until(lambda: bench.view().state is S.READY and bench.pid() != pid)


async def test_lost_to_backoff_when_wanted(bench: Bench) -> None:
    await bench.ready()
    os.kill(bench.pid(), signal.SIGKILL)
    await bench.until(lambda: (S.LOST, S.BACKOFF) in bench.moves())


async def test_backoff_to_starting_when_time_is_over(bench: Bench) -> None:
    await bench.ready()
    os.kill(bench.pid(), signal.SIGKILL)
    await bench.until(lambda: (S.BACKOFF, S.STARTING) in bench.moves())


async def test_backoff_to_latched_when_three_fast_exits(bench: Bench) -> None:
    bench.script(exit_at_start=7, say="cannot open the device")
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    view = bench.view()
    assert view.reason == "3 fast exits in a row, the last: ended while loading, exit status 7"
    assert view.last_log_lines == ("cannot open the device",)
    assert view.last_exit is not None
    assert view.last_exit.status == 7
    assert view.restarts == 2
    with pytest.raises(NotReady, match="is down") as caught:
        bench.router.replica_for("m")
    assert "bayard status" in caught.value.hint
    assert bench.supervisor.sickly() == [f"worker w is latched: {view.reason}"]


async def test_latched_to_starting_when_restart_is_asked(bench: Bench) -> None:
    bench.script(exit_at_start=7)
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    bench.script()
    bench.script_file.unlink()
    await bench.supervisor.restart("w", reason="an operator asked")
    await bench.until_state(S.READY)
    assert (S.LATCHED, S.STARTING) in bench.moves()


async def test_latched_to_starting_when_restart_is_asked_after_a_fault_of_the_daemon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, so that once is no luck: the fault strikes before the process is ended, in a state with no such edge."""
    remove = bench.router.remove
    faults: list[RuntimeError] = []

    def fails(worker: str) -> None:
        if faults:
            raise faults.pop()
        remove(worker)

    await bench.ready()
    for told in ("once", "twice"):
        pid = bench.pid()
        faults.append(RuntimeError(told))
        monkeypatch.setattr(bench.router, "remove", fails)
        bench.script(hang=True)
        await bench.until_state(S.LATCHED)
        assert bench.view().reason == f"internal fault: RuntimeError: {told}"
        await bench.until(lambda: bench.view().pid is None)
        assert not psutil.pid_exists(pid)
        assert bench.router.models() == []
        monkeypatch.undo()
        bench.script(hang=False)
        await bench.supervisor.restart("w", reason="an operator asked")
        await bench.until_state(S.READY)
        assert bench.moves()[-3] == (S.LATCHED, S.STARTING)
    assert (await bench.stream("r", 5))[-1].finish is FinishReason.LENGTH


async def test_latched_to_stopped_when_unwanted_after_a_fault_of_the_daemon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: object) -> int | None:
        raise RuntimeError("no history today")

    monkeypatch.setattr(bench.supervisor.history, "began", fails)
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    await bench.supervisor.unwant("w")
    assert bench.moves()[-1] == (S.LATCHED, S.STOPPED)
    assert bench.supervisor.views() == []


async def test_latched_to_stopped_when_unwanted(bench: Bench) -> None:
    bench.script(exit_at_start=7)
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    await bench.supervisor.unwant("w")
    assert bench.moves()[-1] == (S.LATCHED, S.STOPPED)


async def test_backoff_to_stopped_when_unwanted(bench: Bench) -> None:
    bench.settings.workers.__dict__["backoff_base_s"] = 20.0  # frozen for everybody else
    bench.settings.workers.__dict__["backoff_max_s"] = 20.0
    bench.script(exit_at_start=7)
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.BACKOFF)
    await bench.supervisor.unwant("w")
    assert bench.moves()[-1] == (S.BACKOFF, S.STOPPED)
