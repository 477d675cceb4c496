"""A supervisor and a planning desk for tests of the strategy, around a real store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

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

    async def want(self, name: str, config: WorkerConfig) -> None:
        self.calls.append(("want", name))
        if self.fail_with is not None:
            raise self.fail_with
        if name in self.broken:
            raise Conflict(f"{name} cannot be started.", "")
        self.configs[name] = msgspec.structs.replace(config, worker_id=name)

    async def unwant(self, name: str, drain_s: float | None, reason: str) -> None:
        self.calls.append(("unwant", name))
        if name not in self.configs:
            raise NotFound(f"there is no worker {name}", "")
        if self.fail_with is not None:
            raise self.fail_with
        del self.configs[name]

    async def set_knobs(self, name: str, knobs: Knobs) -> None:
        self.calls.append(("knobs", name))
        if name not in self.configs:
            raise Conflict("gone", "")
        self.configs[name] = msgspec.structs.replace(self.configs[name], knobs=knobs)

    def views(self) -> list[WorkerView]:
        return [
            WorkerView(
                name=name,
                model=config.model_name,
                state=self.states.get(name, WorkerState.READY),
                since_at=utc_now(),
                reason="",
                config=config,
                pid=None,
                ready=None,
                progress=None,
                stats=WorkerStats(rss_bytes=self.rss_bytes),
                step_age_s=0.0,
                inflight=0,
                restarts=0,
                restarts_24h=0,
                last_exit=None,
                last_log_lines=(),
                retry_in_s=None,
                log_path=Path("/nowhere/log"),
            )
            for name, config in self.configs.items()
        ]
