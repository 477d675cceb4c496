"""A supervisor and a planning desk for tests of the strategy, around a real store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from daemon.planning.profile import MemoryEstimate, Profile, SpeedEstimate
from daemon.planning.strategy import Strategy
from daemon.store.base import utc_now
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import Conflict, NotFound
from engine.messages import Knobs, WorkerConfig, WorkerStats


@dataclass
class FakeWorkers:
    """Does at once what the supervisor does in time, and keeps what it was asked."""

    configs: dict[str, WorkerConfig] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    fail_with: Exception | None = None
    states: dict[str, WorkerState] = field(default_factory=dict)
    rss_bytes: int = 0
    broken: set[str] = field(default_factory=set)
    pids: dict[str, int] = field(default_factory=dict)
    stats: dict[str, WorkerStats] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    next_pid: int = 100
    drained: dict[str, str] = field(default_factory=dict)
    inflight: dict[str, int] = field(default_factory=dict)
    sleepless: bool = False  # their processes end instead
    woken_state: WorkerState = WorkerState.READY

    @property
    def awake(self) -> set[str]:
        return {name for name in self.configs if self.states.get(name) is not WorkerState.SLEEPING}

    async def want(self, name: str, config: WorkerConfig, *, prove: bool = False) -> None:
        self.calls.append(("want", name))
        if self.fail_with is not None:
            raise self.fail_with
        if name in self.broken:
            raise Conflict(f"{name} cannot be started.", "")
        self.configs[name] = msgspec.structs.replace(config, worker_id=name)
        self.next_pid += 1
        self.pids[name] = self.next_pid
        if prove:
            self.proven.add(name)

    async def unwant(self, name: str, drain_s: float | None, reason: str) -> None:
        self.calls.append(("unwant", name))
        if name not in self.configs:
            raise NotFound(f"there is no worker {name}", "")
        if self.fail_with is not None:
            raise self.fail_with
        del self.configs[name]
        self.states.pop(name, None)

    async def sleep(self, name: str, drain_s: float | None, reason: str, *, keep: bool = False) -> None:
        self.calls.append(("sleep", name))
        self.states[name] = WorkerState.SLEEPING
        if not keep or self.sleepless:
            self.pids.pop(name, None)

    async def wake(self, name: str, reason: str, *, prove: bool = False) -> None:
        self.calls.append(("wake", name))
        if self.states.get(name) is not WorkerState.SLEEPING:
            raise Conflict(f"{name} does not sleep.", "")
        self.states[name] = self.woken_state
        if prove:
            self.proven.add(name)

    async def set_knobs(self, name: str, knobs: Knobs) -> None:
        self.calls.append(("knobs", name))
        if name not in self.configs:
            raise Conflict("gone", "")
        self.configs[name] = msgspec.structs.replace(self.configs[name], knobs=knobs)

    def views(self) -> list[WorkerView]:
        return [
            replace(
                worker_view(name, self.stats.get(name) or WorkerStats(rss_bytes=self.rss_bytes), config),
                state=self.states.get(name, WorkerState.READY),
                pid=self.pids.get(name),
                restarts=self.restarts.get(name, 0),
                inflight=self.inflight.get(name, 0),
            )
            for name, config in self.configs.items()
        ]


def worker_view(name: str, stats: WorkerStats | None, config: WorkerConfig | None = None) -> WorkerView:
    """A ready worker of a model that has its name."""
    config = config or WorkerConfig(name, name, f"/models/{name}", "")
    return WorkerView(
        name=name,
        model=config.model_name,
        state=WorkerState.READY,
        since_at=utc_now(),
        reason="",
        config=config,
        pid=1,
        ready=None,
        progress=None,
        stats=stats,
        step_age_s=0.0,
        inflight=0,
        restarts=0,
        restarts_24h=0,
        last_exit=None,
        last_log_lines=(),
        retry_in_s=None,
        log_path=Path("/nowhere/log"),
    )


def bare_profile(model: str) -> Profile:
    """Of no machine and no model: for what looks at knobs alone."""
    return Profile(
        model, f"/models/{model}", Strategy.LATENCY, "cpu", "CPU", "F32", "float32", "float32", 4096, 4, 32_768, 16, 2,
        Knobs(), MemoryEstimate((), 0), SpeedEstimate(1.0, 1.0, 1.0, 1.0, 1.0, "", "shipped"),
    )  # fmt: skip
