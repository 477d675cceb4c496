"""The supervisor with real processes of a fake worker: what it promises beside the edges."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from daemon.workers.states import WorkerState as S
from engine.errors import ConfigError, NotFound
from engine.messages import FinishReason, Knobs, WorkerConfig
from tests.unit.daemon.workers.conftest import SPEC, Bench


async def test_slow_loading_that_makes_progress_is_waited_for(bench: Bench) -> None:
    bench.script(load_s=3.0)  # twice the limit without progress
    await bench.ready()
    assert bench.view().restarts == 0


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
