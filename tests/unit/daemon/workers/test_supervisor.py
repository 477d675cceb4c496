"""The supervisor with real processes of a fake worker: a test for each edge, named after it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from daemon.workers.states import WorkerState as S
from engine.errors import ConfigError, NotFound, NotReady
from engine.messages import FinishReason, Knobs, WorkerConfig
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


async def test_slow_loading_that_makes_progress_is_waited_for(bench: Bench) -> None:
    bench.script(load_s=3.0)  # twice the limit without progress
    await bench.ready()
    assert bench.view().restarts == 0


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


async def test_restart_of_a_ready_worker_keeps_its_streams(bench: Bench) -> None:
    bench.script(token_s=0.02)
    await bench.ready()
    pid = bench.pid()
    stream = bench.stream("r", 20)
    await asyncio.sleep(0.1)
    await bench.supervisor.restart("w")
    assert (await stream)[-1].finish is FinishReason.LENGTH
    await bench.until(lambda: bench.view().state is S.READY and bench.pid() != pid)
    assert bench.view().restarts == 0, "a restart that was asked for is no failure"


async def test_knobs_change_inside_the_running_worker(bench: Bench) -> None:
    bench.script(token_s=0.02)
    await bench.ready()
    pid = bench.pid()
    stream = bench.stream("r", 60)
    knobs = Knobs(max_running=3, token_budget=64, prefill_chunk=32, prefix_cache=False)
    await bench.supervisor.set_knobs("w", knobs)
    await bench.until(lambda: (stats := bench.view().stats) is not None and stats.knobs == knobs)
    assert (await stream)[-1].finish is FinishReason.LENGTH
    assert bench.pid() == pid
    os.kill(pid, signal.SIGKILL)  # the next process starts with them too
    await bench.until(lambda: bench.view().state is S.READY and bench.pid() != pid)
    await bench.until(lambda: (stats := bench.view().stats) is not None and stats.knobs == knobs)


async def test_knobs_changed_while_loading_arrive(bench: Bench) -> None:
    bench.script(load_s=0.6)
    await bench.supervisor.want("w", SPEC)
    await bench.until(lambda: bench.view().progress is not None)
    await bench.supervisor.set_knobs("w", Knobs(max_running=5))
    await bench.until_state(S.READY)
    await bench.until(lambda: (stats := bench.view().stats) is not None and stats.knobs.max_running == 5)


async def test_want_of_another_shape_starts_anew(bench: Bench) -> None:
    await bench.ready()
    pid = bench.pid()
    await bench.supervisor.want("w", msgspec.structs.replace(SPEC, max_context_tokens=512))
    await bench.until(lambda: bench.view().state is S.READY and bench.pid() != pid)
    ready = bench.view().ready
    assert ready is not None
    assert ready.max_context_tokens == 512


async def test_want_of_the_same_changes_nothing(bench: Bench) -> None:
    await bench.ready()
    before = bench.moves()
    await bench.supervisor.want("w", SPEC)
    await asyncio.sleep(0.1)
    assert bench.moves() == before


async def test_wanted_again_after_its_end_starts_again(bench: Bench) -> None:
    await bench.ready()
    await bench.supervisor.unwant("w")
    await bench.ready()
    assert bench.router.models() == ["m"]


async def test_two_workers_of_one_model_share_its_requests(bench: Bench) -> None:
    bench.script(token_s=0.02)
    await bench.ready("a")
    await bench.ready("b")
    streams = [bench.stream(f"r{n}", 20) for n in range(2)]
    await asyncio.sleep(0.1)
    streams += [bench.stream(f"s{n}", 20) for n in range(2)]
    await asyncio.sleep(0.1)
    assert [view.inflight for view in bench.supervisor.views()] in ([2, 2], [1, 3], [3, 1])
    await asyncio.gather(*streams)


async def test_history_keeps_each_start_and_its_end(bench: Bench) -> None:
    await bench.ready()
    first = bench.pid()
    os.kill(first, signal.SIGKILL)
    await bench.until(lambda: bench.view().state is S.READY and bench.pid() != first)
    await bench.supervisor.unwant("w")
    await bench.store.write(lambda session: None)  # what was written before is there after it
    newest, before = await bench.supervisor.history.of("w")
    assert (before.pid, before.exit_signal, before.reason) == (
        first,
        9,
        "ended while serving, killed by signal 9 (SIGKILL)",
    )
    assert before.peak_rss_bytes is not None
    assert before.peak_rss_bytes > 1 << 20
    assert (newest.exit_status, newest.reason) == (0, "no longer wanted")
    assert newest.ready_at is not None


async def test_start_up_files_are_gone_after_the_end(bench: Bench) -> None:
    await bench.ready()
    assert len(list(bench.settings.run_dir.iterdir())) == 2
    await bench.supervisor.unwant("w")
    assert list(bench.settings.run_dir.iterdir()) == []


async def test_command_that_is_not_there_latches_with_the_reason(bench: Bench) -> None:
    launch = bench.supervisor._launch
    object.__setattr__(launch, "command", ("/no/such/program",))
    await bench.supervisor.want("w", SPEC)
    await bench.until_state(S.LATCHED)
    assert "/no/such/program" in bench.view().reason


async def test_unknown_worker_is_named(bench: Bench) -> None:
    await bench.ready()
    for call in (bench.supervisor.restart("x"), bench.supervisor.unwant("x"), bench.supervisor.set_knobs("x", Knobs())):
        with pytest.raises(NotFound, match="no worker 'x'") as caught:
            await call
        assert caught.value.hint == "Workers: w."


async def test_nothing_grows_over_many_restarts(bench: Bench) -> None:
    await bench.ready()
    process = psutil.Process()
    counts = []
    for _ in range(12):
        pid = bench.pid()
        await bench.supervisor.restart("w", drain_s=0.0)
        await bench.until(lambda pid=pid: bench.view().state is S.READY and bench.pid() != pid)
        counts.append((process.num_fds(), process.num_threads(), len(asyncio.all_tasks())))
    assert max(counts[6:]) <= max(counts[:6])


def test_run_folder_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    from daemon.workers.supervisor import _require_short

    with pytest.raises(ConfigError, match="a unix socket allows 107"):
        _require_short(Path("/" + "x" * 100))
    _require_short(Path("/" + "x" * 90))


def test_config_template_is_not_touched() -> None:
    assert WorkerConfig("", "m", "/models/m", "") == SPEC
