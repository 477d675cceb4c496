"""What the rest of the daemon sees of a worker: a frozen picture of one moment."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from daemon.workers.states import WorkerState
from engine.messages import LoadProgress, WorkerConfig, WorkerReady, WorkerStats


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a worker process ended. Both None: nobody saw it."""

    status: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by signal {self.signal} ({_signal_name(self.signal)})"
        return f"exit status {self.status}" if self.status is not None else "an unseen exit"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "unnamed"


@dataclass(frozen=True, slots=True)
class WorkerView:
    name: str
    model: str
    state: WorkerState
    since_at: datetime
    reason: str  # why it is in this state
    config: WorkerConfig
    pid: int | None
    ready: WorkerReady | None  # what the present process said when it was loaded
    progress: LoadProgress | None  # of the present start
    stats: WorkerStats | None  # newest of the present process
    step_age_s: float | None  # since the counters last moved; None without a process
    inflight: int
    restarts: int  # by itself, since the daemon started
    restarts_24h: int
    last_exit: ExitInfo | None
    last_log_lines: tuple[str, ...]  # of the last start that failed
    retry_in_s: float | None  # BACKOFF only
    log_path: Path
    submitted_total: int = 0  # requests given to the present process
