"""A worker as a row: the same on every screen that lists workers."""

from __future__ import annotations

from admin_tui.answers import Worker
from admin_tui.clock import Clock
from admin_tui.figures import UNKNOWN, count, millis, percent, size_pair
from admin_tui.grid import Row
from admin_tui.look import Cell, Tone

TONES = {
    "ready": Tone.GOOD,
    "stopped": Tone.DIM,
    "latched": Tone.BAD,
    "lost": Tone.BAD,
    "backoff": Tone.WARN,
    "starting": Tone.WARN,
    "warming": Tone.WARN,
    "draining": Tone.WARN,
    "stopping": Tone.WARN,
}


def worker_row(worker: Worker, clock: Clock) -> Row:
    restarts = worker.restarts_24h
    return Row(
        worker.id,
        {
            "id": Cell(worker.id),
            "model": Cell(worker.model),
            "wanted": Cell("running" if worker.wanted else "stopped"),
            "state": Cell(worker.state.upper(), TONES.get(worker.state, Tone.PLAIN)),
            "progress": Cell(progress(worker)),
            "since": Cell(f"{clock.local(worker.since):%H:%M:%S}"),
            "pid": Cell(UNKNOWN if worker.pid is None else str(worker.pid)),
            "device": Cell(worker.device or UNKNOWN),
            "running": Cell(count(worker.requests_running)),
            "step_age": Cell(millis(worker.step_age_s)),
            "restarts": Cell(f"{count(restarts)}{' !' if restarts else ''}", Tone.WARN if restarts else Tone.PLAIN),
            "memory": Cell(size_pair(worker.memory_bytes, worker.memory_planned_bytes)),
        },
    )


def progress(worker: Worker) -> str:
    """How far its start is, as a share of the bytes to read."""
    if not worker.load_total_bytes or worker.load_done_bytes is None or worker.state == "ready":
        return ""
    return percent(worker.load_done_bytes / worker.load_total_bytes)
